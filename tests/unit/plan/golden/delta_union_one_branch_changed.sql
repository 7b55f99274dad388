SELECT r1.id AS "id", r1.note AS "note", 1::bigint AS __hw_w FROM "public"."orders" AS "r1" WHERE false
UNION ALL
SELECT r2.id AS "id", r2.name AS "note", "r2".__hw_w AS __hw_w FROM d_customers AS "r2"
