SELECT g.k1 AS "note", g.g1 AS "ids", hash_record_extended(ROW(g."k1"), 0) AS __hw_hash FROM (
SELECT i."k1", array_agg(i.a2 ORDER BY i.a2) AS "g1" FROM (
SELECT r1.note AS "k1", r1.id AS "a2" FROM keys AS kk, "public"."orders" AS "r1" WHERE (r1.note) OPERATOR(pg_catalog.=) kk."k1"
UNION ALL
SELECT r1.note AS "k1", r1.id AS "a2" FROM keys AS kk, "public"."orders" AS "r1" WHERE ((r1.note) IS NOT DISTINCT FROM NULL) AND hash_record_extended(ROW((r1.note)::text), 0) = kk.__hw_hash AND CASE WHEN ((r1.note) OPERATOR(pg_catalog.=) kk."k1" OR ((r1.note) IS NOT DISTINCT FROM NULL AND kk."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END AND kk.__hw_null AND (SELECT bool_or(kn.__hw_null) FROM keys AS kn)
) AS i GROUP BY i."k1"
) AS g
