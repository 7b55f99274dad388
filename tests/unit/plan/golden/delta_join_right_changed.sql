SELECT r1.id AS "id", r2.name AS "name", r1.amount AS "amount", "r2".__hw_w AS __hw_w FROM "public"."orders" AS "r1", d_customers AS "r2" WHERE (r1.customer_id = r2.id) AND (r1.amount > 10)
