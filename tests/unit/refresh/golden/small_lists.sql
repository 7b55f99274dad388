-- phase compute
-- all at once, if few rows changed
WITH __hw_source0 AS MATERIALIZED (
SELECT c1 AS "id", c2 AS "customer_id", w AS __hw_w, ctid FROM "headwater_changes"."src_101" WHERE (xid::text::bigint) >= 100 AND xid >= '100'::xid8 AND NOT pg_visible_in_snapshot(xid, '100:120:110'::pg_snapshot) AND xid <> '99'::xid8 LIMIT 3
), __hw_keys AS MATERIALIZED (
SELECT DISTINCT d."k1", hash_record_extended(ROW(d."k1"), 0) AS __hw_hash, d."k1" IS NOT DISTINCT FROM NULL AS __hw_null FROM (
SELECT z."k1" AS "k1", z."a2" AS "a2", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT r1.customer_id AS "k1", r1.id AS "a2", "r1".__hw_w AS __hw_w FROM __hw_source0 AS "r1"
) AS z GROUP BY z."k1", z."a2" HAVING sum(z.__hw_w) <> 0
) AS d
), __hw_result AS MATERIALIZED (
SELECT (z.r).* FROM (SELECT ROW(y.*)::"headwater_data"."st_1" AS r FROM (
SELECT g.k1 AS "customer_id", g.g1 AS "ids", hash_record_extended(ROW(g."k1"), 0) AS __hw_hash FROM (
SELECT i."k1", array_agg(i.a2 ORDER BY i.a2) AS "g1" FROM (
SELECT r1.customer_id AS "k1", r1.id AS "a2" FROM __hw_keys AS kk, "public"."orders" AS "r1" WHERE (r1.customer_id) OPERATOR(pg_catalog.=) kk."k1"
UNION ALL
SELECT r1.customer_id AS "k1", r1.id AS "a2" FROM __hw_keys AS kk, "public"."orders" AS "r1" WHERE ((r1.customer_id) IS NOT DISTINCT FROM NULL) AND hash_record_extended(ROW((r1.customer_id)::integer), 0) = kk.__hw_hash AND CASE WHEN ((r1.customer_id) OPERATOR(pg_catalog.=) kk."k1" OR ((r1.customer_id) IS NOT DISTINCT FROM NULL AND kk."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END AND kk.__hw_null AND (SELECT bool_or(kn.__hw_null) FROM __hw_keys AS kn)
) AS i GROUP BY i."k1"
) AS g
) AS y) AS z
), __hw_changed AS MATERIALIZED (
SELECT s.ctid AS __hw_row, coalesce(s.ctid IS NOT NULL, false) AS __hw_shown, record_image_ne(ROW(s."customer_id", s."ids"), ROW(r."customer_id", r."ids")) AS __hw_differs, r."customer_id", r."ids", r."__hw_hash" FROM __hw_result AS r LEFT JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = r.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) r."customer_id" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND r."customer_id" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE s.ctid IS NULL OR record_image_ne(ROW(s."customer_id", s."ids", s."__hw_hash"), ROW(r."customer_id", r."ids", r."__hw_hash"))
), __hw_gone AS MATERIALIZED (
SELECT s.ctid AS __hw_row, s.ctid IS NOT NULL AS __hw_shown FROM __hw_keys AS a JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = a.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) a."k1" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND a."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE NOT EXISTS (SELECT FROM __hw_result AS r WHERE r.__hw_hash = s.__hw_hash AND CASE WHEN (r."customer_id" OPERATOR(pg_catalog.=) s."customer_id" OR (r."customer_id" IS NOT DISTINCT FROM NULL AND s."customer_id" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END)
), __hw_deleted AS (
DELETE FROM "headwater_data"."st_1" AS s USING __hw_gone AS c WHERE s.ctid = c.__hw_row RETURNING 1
), __hw_updated AS (
UPDATE "headwater_data"."st_1" AS s SET "customer_id" = c."customer_id", "ids" = c."ids", "__hw_hash" = c."__hw_hash" FROM __hw_changed AS c WHERE s.ctid = c.__hw_row AND (SELECT count(*) FROM __hw_deleted) IS NOT NULL RETURNING 1
), __hw_inserted AS (
INSERT INTO "headwater_data"."st_1" ("customer_id", "ids", "__hw_hash") SELECT "customer_id", "ids", "__hw_hash" FROM __hw_changed WHERE __hw_row IS NULL AND (SELECT count(*) FROM __hw_updated) IS NOT NULL
)
SELECT c.*, 0 FROM (
SELECT count(*) FILTER (WHERE true AND NOT __hw_shown), count(*) FILTER (WHERE true AND __hw_shown AND __hw_differs), count(*) FILTER (WHERE NOT true AND __hw_shown) + (SELECT count(*) FROM __hw_gone WHERE __hw_shown), count(*) FILTER (WHERE __hw_row IS NULL), count(*) FILTER (WHERE false) FROM __hw_changed
) AS c;
-- Applied(inserted=0, updated=1, deleted=0)
