SELECT g.k1 AS "region", g.k2 AS "note", g.g1 AS "n", g.g2 AS "total", g.g3 AS "latest", g."__hw_count", g."__hw_s1", g."__hw_s2", g."__hw_s3", g.__hw_visible, hash_record_extended(ROW(g."k1", g."k2"), 0) AS __hw_hash FROM (
SELECT g.*, (g.g1 > 1) IS TRUE AS __hw_visible FROM (
SELECT s.*, s."__hw_count" AS "g1", CASE WHEN s."__hw_s2" > 0 THEN (s."__hw_s1")::numeric END AS "g2", s."__hw_s3" AS "g3" FROM (
SELECT i."k1", i."k2", count(*) AS "__hw_count", coalesce(sum(i."a3"), 0)::numeric AS "__hw_s1", count(i."a3") AS "__hw_s2", max(i."a4") AS "__hw_s3" FROM (
SELECT r2.region AS "k1", r1.note AS "k2", r1.amount AS "a3", r1.id AS "a4" FROM "public"."orders" AS "r1", "public"."customers" AS "r2" WHERE (r1.customer_id = r2.id)
) AS i GROUP BY i."k1", i."k2"
) AS s
) AS g
) AS g
