SELECT d."k1", d."k2", hash_record_extended(ROW(d."k1", d."k2"), 0) AS __hw_hash, d."k2" IS NOT DISTINCT FROM NULL AS __hw_null, coalesce(sum(d.__hw_w), 0)::bigint AS "__hw_count", coalesce(sum(d.__hw_w::numeric * d."a3"), 0)::numeric AS "__hw_s1", coalesce(sum(d.__hw_w) FILTER (WHERE d."a3" IS DISTINCT FROM NULL), 0)::bigint AS "__hw_s2", max(d."a4") FILTER (WHERE d.__hw_w > 0) AS "__hw_s3_in", max(d."a4") FILTER (WHERE d.__hw_w < 0) AS "__hw_s3_out" FROM (
SELECT z."k1" AS "k1", z."k2" AS "k2", z."a3" AS "a3", z."a4" AS "a4", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT r2.region AS "k1", r1.note AS "k2", r1.amount AS "a3", r1.id AS "a4", "r1".__hw_w * "r2".__hw_w AS __hw_w FROM d_orders AS "r1", (SELECT "id", "region", 1::bigint AS __hw_w FROM "public"."customers" UNION ALL SELECT "id", "region", -__hw_w FROM d_customers AS o) AS "r2" WHERE (r1.customer_id = r2.id)
UNION ALL
SELECT r2.region AS "k1", r1.note AS "k2", r1.amount AS "a3", r1.id AS "a4", "r2".__hw_w AS __hw_w FROM "public"."orders" AS "r1", d_customers AS "r2" WHERE (r1.customer_id = r2.id)
) AS z GROUP BY z."k1", z."k2", z."a3", z."a4", scale(z."a3") HAVING sum(z.__hw_w) <> 0
) AS d GROUP BY d."k1", d."k2"
