SELECT z."id", z."name", z."amount", hash_record_extended(ROW(z."id", z."name", z."amount"::text COLLATE "C"), 0) AS __hw_hash FROM (
SELECT r1.id AS "id", r2.name AS "name", r1.amount AS "amount" FROM "public"."orders" AS "r1", "public"."customers" AS "r2" WHERE (r1.customer_id = r2.id) AND (r1.amount > 10)
) AS z
