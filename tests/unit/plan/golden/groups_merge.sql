SELECT g.k1 AS "region", g.k2 AS "note", g.g1 AS "n", g.g2 AS "total", g.g3 AS "latest", g."__hw_count", g."__hw_s1", g."__hw_s2", g."__hw_s3", g.__hw_visible, hash_record_extended(ROW(g."k1", g."k2"), 0) AS __hw_hash FROM (
SELECT g.*, (g.g1 > 1) IS TRUE AS __hw_visible FROM (
SELECT s.*, s."__hw_count" AS "g1", CASE WHEN s."__hw_s2" > 0 THEN (s."__hw_s1")::numeric END AS "g2", s."__hw_s3" AS "g3" FROM (
SELECT d."k1", d."k2", coalesce(s."__hw_count", 0) + d."__hw_count" AS "__hw_count", coalesce(s."__hw_s1", 0) + d."__hw_s1" AS "__hw_s1", coalesce(s."__hw_s2", 0) + d."__hw_s2" AS "__hw_s2", GREATEST(s."__hw_s3", d."__hw_s3_in") AS "__hw_s3" FROM d_state AS d LEFT JOIN storage AS s ON s.__hw_hash = d.__hw_hash AND CASE WHEN (s."region" OPERATOR(pg_catalog.=) d."k1" OR (s."region" IS NOT DISTINCT FROM NULL AND d."k1" IS NOT DISTINCT FROM NULL)) AND (s."note" OPERATOR(pg_catalog.=) d."k2" OR (s."note" IS NOT DISTINCT FROM NULL AND d."k2" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE NOT EXISTS (SELECT FROM rescanned AS k WHERE k.__hw_hash = d.__hw_hash AND CASE WHEN (k."k1" OPERATOR(pg_catalog.=) d."k1" OR (k."k1" IS NOT DISTINCT FROM NULL AND d."k1" IS NOT DISTINCT FROM NULL)) AND (k."k2" OPERATOR(pg_catalog.=) d."k2" OR (k."k2" IS NOT DISTINCT FROM NULL AND d."k2" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END)
) AS s
) AS g
) AS g WHERE g.__hw_count <> 0
