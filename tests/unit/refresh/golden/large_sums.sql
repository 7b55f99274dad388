-- phase stage
-- phase compute
-- fill hw1_delta
SELECT d."k1", hash_record_extended(ROW(d."k1"), 0) AS __hw_hash, d."k1" IS NOT DISTINCT FROM NULL AS __hw_null, coalesce(sum(d.__hw_w), 0)::bigint AS "__hw_count", coalesce(sum(d.__hw_w::numeric * d."a2"), 0)::numeric AS "__hw_s1", coalesce(sum(d.__hw_w) FILTER (WHERE d."a2" IS DISTINCT FROM NULL), 0)::bigint AS "__hw_s2" FROM (
SELECT r1.customer_id AS "k1", r1.amount AS "a2", "r1".__hw_w AS __hw_w FROM (SELECT c2 AS "customer_id", c3 AS "amount", w AS __hw_w, ctid FROM "headwater_changes"."src_101" WHERE (xid::text::bigint) >= 100 AND xid >= '100'::xid8 AND NOT pg_visible_in_snapshot(xid, '100:120:110'::pg_snapshot) AND xid <> '99'::xid8) AS "r1"
) AS d GROUP BY d."k1";
-- phase apply
-- shape hw1_result
-- fill hw1_keys
SELECT d."k1", d.__hw_hash, d.__hw_null FROM pg_temp."hw1_delta" AS d LEFT JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = d.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) d."k1" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND d."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE coalesce(s."__hw_s1", 0) + d."__hw_s1" = ANY ('{NaN,Infinity,-Infinity}'::numeric[]);
-- fill hw1_result
SELECT g.k1 AS "customer_id", g.g1 AS "n", g.g2 AS "s", g."__hw_count", g."__hw_s1", g."__hw_s2", hash_record_extended(ROW(g."k1"), 0) AS __hw_hash FROM (
SELECT s.*, s."__hw_count" AS "g1", CASE WHEN s."__hw_s2" > 0 THEN (s."__hw_s1")::numeric END AS "g2" FROM (
SELECT i."k1", count(*) AS "__hw_count", coalesce(sum(i."a2"), 0)::numeric AS "__hw_s1", count(i."a2") AS "__hw_s2" FROM (
SELECT r1.customer_id AS "k1", r1.amount AS "a2" FROM pg_temp."hw1_keys" AS kk, "public"."orders" AS "r1" WHERE (r1.customer_id) OPERATOR(pg_catalog.=) kk."k1"
UNION ALL
SELECT r1.customer_id AS "k1", r1.amount AS "a2" FROM pg_temp."hw1_keys" AS kk, "public"."orders" AS "r1" WHERE ((r1.customer_id) IS NOT DISTINCT FROM NULL) AND hash_record_extended(ROW((r1.customer_id)::integer), 0) = kk.__hw_hash AND CASE WHEN ((r1.customer_id) OPERATOR(pg_catalog.=) kk."k1" OR ((r1.customer_id) IS NOT DISTINCT FROM NULL AND kk."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END AND kk.__hw_null AND (SELECT bool_or(kn.__hw_null) FROM pg_temp."hw1_keys" AS kn)
) AS i GROUP BY i."k1"
) AS s
) AS g;
-- fill hw1_result
SELECT g.k1 AS "customer_id", g.g1 AS "n", g.g2 AS "s", g."__hw_count", g."__hw_s1", g."__hw_s2", hash_record_extended(ROW(g."k1"), 0) AS __hw_hash FROM (
SELECT s.*, s."__hw_count" AS "g1", CASE WHEN s."__hw_s2" > 0 THEN (s."__hw_s1")::numeric END AS "g2" FROM (
SELECT d."k1", coalesce(s."__hw_count", 0) + d."__hw_count" AS "__hw_count", coalesce(s."__hw_s1", 0) + d."__hw_s1" AS "__hw_s1", coalesce(s."__hw_s2", 0) + d."__hw_s2" AS "__hw_s2" FROM pg_temp."hw1_delta" AS d LEFT JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = d.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) d."k1" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND d."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE NOT EXISTS (SELECT FROM pg_temp."hw1_keys" AS k WHERE k.__hw_hash = d.__hw_hash AND CASE WHEN (k."k1" OPERATOR(pg_catalog.=) d."k1" OR (k."k1" IS NOT DISTINCT FROM NULL AND d."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END)
) AS s
) AS g WHERE g.__hw_count <> 0;
-- fill hw1_changed
SELECT s.ctid AS __hw_row, coalesce(s.ctid IS NOT NULL, false) AS __hw_shown, record_image_ne(ROW(s."customer_id", s."n", s."s"), ROW(r."customer_id", r."n", r."s")) AS __hw_differs, r."customer_id", r."n", r."s", r."__hw_count", r."__hw_s1", r."__hw_s2", r."__hw_hash" FROM pg_temp."hw1_result" AS r LEFT JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = r.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) r."customer_id" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND r."customer_id" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE s.ctid IS NULL OR record_image_ne(ROW(s."customer_id", s."n", s."s", s."__hw_count", s."__hw_s1", s."__hw_s2", s."__hw_hash"), ROW(r."customer_id", r."n", r."s", r."__hw_count", r."__hw_s1", r."__hw_s2", r."__hw_hash"));
-- fill hw1_gone
SELECT s.ctid AS __hw_row, s.ctid IS NOT NULL AS __hw_shown FROM pg_temp."hw1_delta" AS a JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = a.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) a."k1" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND a."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE NOT EXISTS (SELECT FROM pg_temp."hw1_result" AS r WHERE r.__hw_hash = s.__hw_hash AND CASE WHEN (r."customer_id" OPERATOR(pg_catalog.=) s."customer_id" OR (r."customer_id" IS NOT DISTINCT FROM NULL AND s."customer_id" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END);
-- count
SELECT count(*) FILTER (WHERE true AND NOT __hw_shown), count(*) FILTER (WHERE true AND __hw_shown AND __hw_differs), count(*) FILTER (WHERE NOT true AND __hw_shown) + (SELECT count(*) FROM pg_temp."hw1_gone" WHERE __hw_shown), count(*) FILTER (WHERE __hw_row IS NULL), count(*) FILTER (WHERE __hw_count < 0) FROM pg_temp."hw1_changed";
-- delete
DELETE FROM "headwater_data"."st_1" AS s USING pg_temp."hw1_gone" AS c WHERE s.ctid = c.__hw_row;
-- update
UPDATE "headwater_data"."st_1" AS s SET "customer_id" = c."customer_id", "n" = c."n", "s" = c."s", "__hw_count" = c."__hw_count", "__hw_s1" = c."__hw_s1", "__hw_s2" = c."__hw_s2", "__hw_hash" = c."__hw_hash" FROM pg_temp."hw1_changed" AS c WHERE s.ctid = c.__hw_row;
-- insert
INSERT INTO "headwater_data"."st_1" ("customer_id", "n", "s", "__hw_count", "__hw_s1", "__hw_s2", "__hw_hash") SELECT "customer_id", "n", "s", "__hw_count", "__hw_s1", "__hw_s2", "__hw_hash" FROM pg_temp."hw1_changed" WHERE __hw_row IS NULL;
-- Applied(inserted=1, updated=2, deleted=3)
