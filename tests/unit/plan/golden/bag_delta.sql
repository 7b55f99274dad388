SELECT z."id", z."name", z."amount", hash_record_extended(ROW(z."id", z."name", z."amount"::text COLLATE "C"), 0) AS __hw_hash, z.__hw_w FROM (
SELECT z."id" AS "id", z."name" AS "name", z."amount" AS "amount", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT r1.id AS "id", r2.name AS "name", r1.amount AS "amount", "r1".__hw_w AS __hw_w FROM d_orders AS "r1", "public"."customers" AS "r2" WHERE (r1.customer_id = r2.id) AND (r1.amount > 10)
) AS z GROUP BY z."id", z."name", z."amount", scale(z."amount") HAVING sum(z.__hw_w) <> 0
) AS z
