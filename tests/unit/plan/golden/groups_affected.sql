SELECT DISTINCT d."k1", hash_record_extended(ROW(d."k1"), 0) AS __hw_hash, d."k1" IS NOT DISTINCT FROM NULL AS __hw_null FROM (
SELECT z."k1" AS "k1", z."a2" AS "a2", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT r1.note AS "k1", r1.id AS "a2", "r1".__hw_w AS __hw_w FROM d_orders AS "r1"
) AS z GROUP BY z."k1", z."a2" HAVING sum(z.__hw_w) <> 0
) AS d
