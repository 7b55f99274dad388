SELECT r1.id AS "id", r2.note AS "note", "r1".__hw_w * "r2".__hw_w AS __hw_w FROM d_orders AS "r1", (SELECT "customer_id", "note", 1::bigint AS __hw_w FROM "public"."orders" UNION ALL SELECT "customer_id", "note", -__hw_w FROM d_orders AS o) AS "r2" WHERE (r1.id = r2.customer_id)
UNION ALL
SELECT r1.id AS "id", r2.note AS "note", "r2".__hw_w AS __hw_w FROM "public"."orders" AS "r1", d_orders AS "r2" WHERE (r1.id = r2.customer_id)
