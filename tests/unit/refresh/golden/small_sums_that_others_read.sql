-- phase compute
-- all at once, if few rows changed
WITH __hw_source0 AS MATERIALIZED (
SELECT c2 AS "customer_id", c3 AS "amount", w AS __hw_w, ctid FROM "headwater_changes"."src_101" WHERE (xid::text::bigint) >= 100 AND xid >= '100'::xid8 AND NOT pg_visible_in_snapshot(xid, '100:120:110'::pg_snapshot) AND xid <> '99'::xid8 LIMIT 3
), __hw_delta AS MATERIALIZED (
SELECT d."k1", hash_record_extended(ROW(d."k1"), 0) AS __hw_hash, d."k1" IS NOT DISTINCT FROM NULL AS __hw_null, coalesce(sum(d.__hw_w), 0)::bigint AS "__hw_count", coalesce(sum(d.__hw_w::numeric * d."a2"), 0)::numeric AS "__hw_s1", coalesce(sum(d.__hw_w) FILTER (WHERE d."a2" IS DISTINCT FROM NULL), 0)::bigint AS "__hw_s2" FROM (
SELECT r1.customer_id AS "k1", r1.amount AS "a2", "r1".__hw_w AS __hw_w FROM __hw_source0 AS "r1"
) AS d GROUP BY d."k1"
), __hw_rescanned AS MATERIALIZED (
SELECT d."k1", d.__hw_hash, d.__hw_null FROM __hw_delta AS d LEFT JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = d.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) d."k1" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND d."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE coalesce(s."__hw_s1", 0) + d."__hw_s1" = ANY ('{NaN,Infinity,-Infinity}'::numeric[])
), __hw_affected AS MATERIALIZED (
SELECT * FROM __hw_delta WHERE NOT EXISTS (SELECT FROM __hw_rescanned)
), __hw_result AS MATERIALIZED (
SELECT (z.r).* FROM (SELECT ROW(y.*)::"headwater_data"."st_1" AS r FROM (
SELECT g.k1 AS "customer_id", g.g1 AS "n", g.g2 AS "s", g."__hw_count", g."__hw_s1", g."__hw_s2", hash_record_extended(ROW(g."k1"), 0) AS __hw_hash FROM (
SELECT s.*, s."__hw_count" AS "g1", CASE WHEN s."__hw_s2" > 0 THEN (s."__hw_s1")::numeric END AS "g2" FROM (
SELECT d."k1", coalesce(s."__hw_count", 0) + d."__hw_count" AS "__hw_count", coalesce(s."__hw_s1", 0) + d."__hw_s1" AS "__hw_s1", coalesce(s."__hw_s2", 0) + d."__hw_s2" AS "__hw_s2" FROM __hw_affected AS d LEFT JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = d.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) d."k1" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND d."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END
) AS s
) AS g WHERE g.__hw_count <> 0
) AS y) AS z
), __hw_changed AS MATERIALIZED (
SELECT s.ctid AS __hw_row, coalesce(s.ctid IS NOT NULL, false) AS __hw_shown, record_image_ne(ROW(s."customer_id", s."n", s."s"), ROW(r."customer_id", r."n", r."s")) AS __hw_differs, r."customer_id", r."n", r."s", r."__hw_count", r."__hw_s1", r."__hw_s2", r."__hw_hash" FROM __hw_result AS r LEFT JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = r.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) r."customer_id" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND r."customer_id" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE s.ctid IS NULL OR record_image_ne(ROW(s."customer_id", s."n", s."s", s."__hw_count", s."__hw_s1", s."__hw_s2", s."__hw_hash"), ROW(r."customer_id", r."n", r."s", r."__hw_count", r."__hw_s1", r."__hw_s2", r."__hw_hash"))
), __hw_gone AS MATERIALIZED (
SELECT s.ctid AS __hw_row, s.ctid IS NOT NULL AS __hw_shown FROM __hw_affected AS a JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = a.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) a."k1" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND a."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE NOT EXISTS (SELECT FROM __hw_result AS r WHERE r.__hw_hash = s.__hw_hash AND CASE WHEN (r."customer_id" OPERATOR(pg_catalog.=) s."customer_id" OR (r."customer_id" IS NOT DISTINCT FROM NULL AND s."customer_id" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END)
), __hw_emitted AS (
INSERT INTO "headwater_changes"."src_9" (xid, w, c1) SELECT pg_current_xact_id(), e.__hw_w, e."customer_id" FROM (
SELECT z."customer_id" AS "customer_id", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT s."customer_id", s."n", s."s", -1 AS __hw_w FROM "headwater_data"."st_1" AS s JOIN (SELECT __hw_row, __hw_shown FROM __hw_changed UNION ALL SELECT __hw_row, __hw_shown FROM __hw_gone) AS c ON s.ctid = c.__hw_row AND c.__hw_shown UNION ALL SELECT "customer_id", "n", "s", 1 FROM __hw_changed
) AS z GROUP BY z."customer_id" HAVING sum(z.__hw_w) <> 0
) AS e
), __hw_deleted AS (
DELETE FROM "headwater_data"."st_1" AS s USING __hw_gone AS c WHERE s.ctid = c.__hw_row RETURNING 1
), __hw_updated AS (
UPDATE "headwater_data"."st_1" AS s SET "customer_id" = c."customer_id", "n" = c."n", "s" = c."s", "__hw_count" = c."__hw_count", "__hw_s1" = c."__hw_s1", "__hw_s2" = c."__hw_s2", "__hw_hash" = c."__hw_hash" FROM __hw_changed AS c WHERE s.ctid = c.__hw_row AND (SELECT count(*) FROM __hw_deleted) IS NOT NULL RETURNING 1
), __hw_inserted AS (
INSERT INTO "headwater_data"."st_1" ("customer_id", "n", "s", "__hw_count", "__hw_s1", "__hw_s2", "__hw_hash") SELECT "customer_id", "n", "s", "__hw_count", "__hw_s1", "__hw_s2", "__hw_hash" FROM __hw_changed WHERE __hw_row IS NULL AND (SELECT count(*) FROM __hw_updated) IS NOT NULL
)
SELECT c.*, (SELECT count(*) FROM __hw_rescanned) FROM (
SELECT count(*) FILTER (WHERE true AND NOT __hw_shown), count(*) FILTER (WHERE true AND __hw_shown AND __hw_differs), count(*) FILTER (WHERE NOT true AND __hw_shown) + (SELECT count(*) FROM __hw_gone WHERE __hw_shown), count(*) FILTER (WHERE __hw_row IS NULL), count(*) FILTER (WHERE __hw_count < 0) FROM __hw_changed
) AS c;
-- Applied(inserted=1, updated=1, deleted=0)
