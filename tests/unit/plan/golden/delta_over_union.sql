SELECT r3.u1 AS "name", r4.id AS "id", "r3".__hw_w * "r4".__hw_w AS __hw_w FROM (SELECT r1.name AS "u1", 1::bigint AS __hw_w FROM "public"."customers" AS "r1" WHERE false
UNION ALL
SELECT r2.note AS "u1", "r2".__hw_w AS __hw_w FROM d_orders AS "r2") AS "r3", (SELECT "id", "price", 1::bigint AS __hw_w FROM "public"."items" UNION ALL SELECT "id", "price", -__hw_w FROM d_items AS o) AS "r4" WHERE (r3.u1 = r4.price::text)
UNION ALL
SELECT r3.u1 AS "name", r4.id AS "id", "r4".__hw_w AS __hw_w FROM (SELECT r1.name AS "u1" FROM "public"."customers" AS "r1"
UNION ALL
SELECT r2.note AS "u1" FROM "public"."orders" AS "r2") AS "r3", d_items AS "r4" WHERE (r3.u1 = r4.price::text)
