SELECT y."id" AS "id", y."amount" AS "amount", (y."label")::public.citext AS "label", (y."j")::json AS "j", y.__hw_w FROM (
SELECT z."id" AS "id", z."amount" AS "amount", z."label"::text COLLATE "C" AS "label", z."j"::text COLLATE "C" AS "j", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT …
) AS z GROUP BY z."id", z."amount", z."label"::text COLLATE "C", z."j"::text COLLATE "C", scale(z."amount") HAVING sum(z.__hw_w) <> 0
) AS y
