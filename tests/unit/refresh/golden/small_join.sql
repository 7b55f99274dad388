-- phase compute
-- all at once, if few rows changed
WITH __hw_source0 AS MATERIALIZED (
SELECT z."id" AS "id", z."customer_id" AS "customer_id", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT c1 AS "id", c2 AS "customer_id", w AS __hw_w, ctid FROM "headwater_changes"."src_101" WHERE (xid::text::bigint) >= 100 AND xid >= '100'::xid8 AND NOT pg_visible_in_snapshot(xid, '100:120:110'::pg_snapshot) AND xid <> '99'::xid8 LIMIT 3
) AS z GROUP BY z."id", z."customer_id" HAVING sum(z.__hw_w) <> 0
), __hw_source1 AS MATERIALIZED (
SELECT z."id" AS "id", z."name" AS "name", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT c1 AS "id", c2 AS "name", w AS __hw_w, ctid FROM "headwater_changes"."src_102" WHERE (xid::text::bigint) >= 100 AND xid >= '100'::xid8 AND NOT pg_visible_in_snapshot(xid, '100:120:110'::pg_snapshot) AND xid <> '99'::xid8 LIMIT 3
) AS z GROUP BY z."id", z."name" HAVING sum(z.__hw_w) <> 0
), __hw_delta AS MATERIALIZED (
SELECT row_number() OVER () AS __hw_number, z.* FROM (
SELECT z."id", z."name", hash_record_extended(ROW(z."id", z."name"), 0) AS __hw_hash, z.__hw_w FROM (
SELECT z."id" AS "id", z."name" AS "name", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT r1.id AS "id", r2.name AS "name", "r1".__hw_w * "r2".__hw_w AS __hw_w FROM __hw_source0 AS "r1", (SELECT "id", "name", 1::bigint AS __hw_w FROM "public"."customers" UNION ALL SELECT "id", "name", -__hw_w FROM __hw_source1 AS o) AS "r2" WHERE (r2.id = r1.customer_id)
UNION ALL
SELECT r1.id AS "id", r2.name AS "name", "r2".__hw_w AS __hw_w FROM "public"."orders" AS "r1", __hw_source1 AS "r2" WHERE (r2.id = r1.customer_id)
) AS z GROUP BY z."id", z."name" HAVING sum(z.__hw_w) <> 0
) AS z
) AS z
), __hw_gone AS MATERIALIZED (
SELECT c.__hw_row FROM (SELECT s.ctid AS __hw_row, -d.__hw_w AS wanted, row_number() OVER (PARTITION BY d.__hw_number) AS copy FROM __hw_delta AS d JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = d.__hw_hash AND CASE WHEN s."id" IS NOT DISTINCT FROM d."id" AND s."name" IS NOT DISTINCT FROM d."name" THEN true ELSE false END WHERE d.__hw_w < 0) AS c WHERE c.copy <= c.wanted
), __hw_deleted AS (
DELETE FROM "headwater_data"."st_1" AS s USING __hw_gone AS c WHERE s.ctid = c.__hw_row RETURNING 1
), __hw_inserted AS (
INSERT INTO "headwater_data"."st_1" ("id", "name", "__hw_hash") SELECT d."id", d."name", d."__hw_hash" FROM __hw_delta AS d, generate_series(1, d.__hw_w) AS copy WHERE d.__hw_w > 0 AND (SELECT count(*) FROM __hw_deleted) IS NOT NULL
)
SELECT (SELECT count(*) FROM __hw_gone), c.* FROM (
SELECT coalesce(sum(-__hw_w) FILTER (WHERE __hw_w < 0), 0)::bigint, coalesce(sum(__hw_w) FILTER (WHERE __hw_w > 0), 0)::bigint FROM __hw_delta
) AS c;
-- Applied(inserted=1, updated=0, deleted=0)
