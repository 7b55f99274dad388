SELECT g.g1 AS "a", g."__hw_count", g."__hw_s1", g."__hw_s2", g."__hw_s3", 0::bigint AS __hw_hash FROM (
SELECT s.*, CASE WHEN s."__hw_s2" > 0 THEN round(s."__hw_s1", (length(s."__hw_s3"::text) - 1) / 12) / s."__hw_s2"::numeric END AS "g1" FROM (
SELECT count(*) AS "__hw_count", coalesce(sum(i."a1"), 0)::numeric AS "__hw_s1", count(i."a1") AS "__hw_s2", coalesce(sum(CASE scale(i."a1") WHEN 0 THEN 1::numeric WHEN 1 THEN 1000000000000::numeric WHEN 2 THEN 1000000000000000000000000::numeric WHEN 3 THEN 1000000000000000000000000000000000000::numeric WHEN 4 THEN 1000000000000000000000000000000000000000000000000::numeric ELSE ('1e' || 12 * scale(i."a1"))::numeric END), 0) AS "__hw_s3" FROM (
SELECT r1.price AS "a1" FROM "public"."items" AS "r1"
) AS i
) AS s
) AS g
