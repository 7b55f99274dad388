SELECT g.g1 AS "n", g."__hw_count", 0::bigint AS __hw_hash FROM (
SELECT s.*, s."__hw_count" AS "g1" FROM (
SELECT coalesce(s."__hw_count", 0) + d."__hw_count" AS "__hw_count" FROM d_state AS d LEFT JOIN storage AS s ON s.__hw_hash = d.__hw_hash
) AS s
) AS g
