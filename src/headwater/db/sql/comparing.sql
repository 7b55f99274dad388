-- name: function_names
-- The names of PostgreSQL's own functions among these.
SELECT p.oid::bigint, p.proname::text FROM pg_proc p
WHERE p.oid = ANY (%(functions)s::oid[]) AND p.pronamespace = 'pg_catalog'::regnamespace

-- name: distinct_values
-- Of these columns of a table that was analysed, the one with the most values, and their number, or a negative share of the rows.
SELECT s.attname, s.n_distinct
FROM pg_stats s
JOIN pg_namespace n ON n.nspname = s.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.tablename
WHERE c.oid = to_regclass(%(table)s) AND s.attname = ANY (%(columns)s::name[]) AND s.null_frac < 1
ORDER BY s.n_distinct < 0 DESC, abs(s.n_distinct) DESC LIMIT 1
