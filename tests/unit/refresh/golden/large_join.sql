-- phase stage
-- fill hw1_source0
SELECT z."id" AS "id", z."customer_id" AS "customer_id", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT c1 AS "id", c2 AS "customer_id", w AS __hw_w, ctid FROM "headwater_changes"."src_101" WHERE (xid::text::bigint) >= 100 AND xid >= '100'::xid8 AND NOT pg_visible_in_snapshot(xid, '100:120:110'::pg_snapshot) AND xid <> '99'::xid8
) AS z GROUP BY z."id", z."customer_id" HAVING sum(z.__hw_w) <> 0;
-- fill hw1_source1
SELECT z."id" AS "id", z."name" AS "name", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT c1 AS "id", c2 AS "name", w AS __hw_w, ctid FROM "headwater_changes"."src_102" WHERE (xid::text::bigint) >= 100 AND xid >= '100'::xid8 AND NOT pg_visible_in_snapshot(xid, '100:120:110'::pg_snapshot) AND xid <> '99'::xid8
) AS z GROUP BY z."id", z."name" HAVING sum(z.__hw_w) <> 0;
-- phase compute
-- fill hw1_w9d72c47a
SELECT r2.id AS "r2.id", r1.customer_id AS "r1.customer_id", r1.id AS "r1.id", r2.name AS "r2.name", "r1".__hw_w AS __hw_w FROM pg_temp."hw1_source0" AS "r1", "public"."customers" AS "r2" WHERE (r2.id = r1.customer_id)
UNION ALL
SELECT m."r2.id", m."r1.customer_id", m."r1.id", m."r2.name", -m.__hw_w FROM (
SELECT r2.id AS "r2.id", r1.customer_id AS "r1.customer_id", r1.id AS "r1.id", r2.name AS "r2.name", "r1".__hw_w * "r2".__hw_w AS __hw_w FROM pg_temp."hw1_source0" AS "r1", pg_temp."hw1_source1" AS "r2" WHERE (r2.id = r1.customer_id)
) AS m;
-- fill hw1_delta
SELECT z."id", z."name", hash_record_extended(ROW(z."id", z."name"), 0) AS __hw_hash, z.__hw_w FROM (
SELECT z."id" AS "id", z."name" AS "name", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT w."r1.id" AS "id", w."r2.name" AS "name", "w".__hw_w AS __hw_w FROM pg_temp."hw1_w9d72c47a" AS "w"
UNION ALL
SELECT r1.id AS "id", r2.name AS "name", "r2".__hw_w AS __hw_w FROM "public"."orders" AS "r1", pg_temp."hw1_source1" AS "r2" WHERE (r2.id = r1.customer_id)
) AS z GROUP BY z."id", z."name" HAVING sum(z.__hw_w) <> 0
) AS z;
-- phase apply
-- fill hw1_gone
SELECT c.__hw_row FROM (SELECT s.ctid AS __hw_row, -d.__hw_w AS wanted, row_number() OVER (PARTITION BY d.ctid) AS copy FROM pg_temp."hw1_delta" AS d JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = d.__hw_hash AND CASE WHEN s."id" IS NOT DISTINCT FROM d."id" AND s."name" IS NOT DISTINCT FROM d."name" THEN true ELSE false END WHERE d.__hw_w < 0) AS c WHERE c.copy <= c.wanted;
-- check
SELECT coalesce(sum(-__hw_w) FILTER (WHERE __hw_w < 0), 0)::bigint, coalesce(sum(__hw_w) FILTER (WHERE __hw_w > 0), 0)::bigint FROM pg_temp."hw1_delta";
-- delete
DELETE FROM "headwater_data"."st_1" AS s USING pg_temp."hw1_gone" AS c WHERE s.ctid = c.__hw_row;
-- Applied(inserted=0, updated=0, deleted=5000)
