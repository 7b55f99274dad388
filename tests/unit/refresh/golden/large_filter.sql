-- phase stage
-- phase compute
-- fill hw1_delta
SELECT z."id", z."amount", hash_record_extended(ROW(z."id", z."amount"::text COLLATE "C"), 0) AS __hw_hash, z.__hw_w FROM (
SELECT z."id" AS "id", z."amount" AS "amount", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT r1.id AS "id", r1.amount AS "amount", "r1".__hw_w AS __hw_w FROM (SELECT c1 AS "id", c3 AS "amount", w AS __hw_w, ctid FROM "headwater_changes"."src_101" WHERE (xid::text::bigint) >= 100 AND xid >= '100'::xid8 AND NOT pg_visible_in_snapshot(xid, '100:120:110'::pg_snapshot) AND xid <> '99'::xid8) AS "r1" WHERE (r1.amount > 10)
) AS z GROUP BY z."id", z."amount", scale(z."amount") HAVING sum(z.__hw_w) <> 0
) AS z;
-- phase apply
-- fill hw1_gone
SELECT c.__hw_row FROM (SELECT s.ctid AS __hw_row, -d.__hw_w AS wanted, row_number() OVER (PARTITION BY d.ctid) AS copy FROM pg_temp."hw1_delta" AS d JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = d.__hw_hash AND CASE WHEN s."id" IS NOT DISTINCT FROM d."id" AND s."amount"::text COLLATE "C" IS NOT DISTINCT FROM d."amount"::text COLLATE "C" THEN true ELSE false END WHERE d.__hw_w < 0) AS c WHERE c.copy <= c.wanted;
-- check
SELECT coalesce(sum(-__hw_w) FILTER (WHERE __hw_w < 0), 0)::bigint, coalesce(sum(__hw_w) FILTER (WHERE __hw_w > 0), 0)::bigint FROM pg_temp."hw1_delta";
-- delete
DELETE FROM "headwater_data"."st_1" AS s USING pg_temp."hw1_gone" AS c WHERE s.ctid = c.__hw_row;
-- insert
INSERT INTO "headwater_data"."st_1" ("id", "amount", "__hw_hash") SELECT d."id", d."amount", d."__hw_hash" FROM pg_temp."hw1_delta" AS d, generate_series(1, d.__hw_w) AS copy WHERE d.__hw_w > 0;
-- Applied(inserted=10000, updated=0, deleted=5000)
