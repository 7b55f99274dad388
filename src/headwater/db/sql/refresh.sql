-- name: own_change_table
-- The change table of a stream table and the numbers of its view's columns in it; no row if nobody reads it.
SELECT s.change_table, array(SELECT attnum::int FROM headwater.source_column c WHERE c.source_id = s.id ORDER BY attnum)
FROM headwater.source s WHERE s.stream_table_id = %(id)s AND s.change_table IS NOT NULL

-- name: temporary_tables
-- Those that refreshes made in this session, with their age in transactions.
SELECT relname, age(relfrozenxid) FROM pg_class WHERE relnamespace = pg_my_temp_schema() AND relkind = 'r' AND relname ~ '^hw[0-9]+_'

-- name: somebody_waits
-- Whether another session waits for a lock that this one holds.
SELECT EXISTS (SELECT FROM pg_locks w WHERE NOT w.granted AND pg_backend_pid() = ANY (pg_blocking_pids(w.pid)))

-- name: kept_tables
-- The storage of parts of a stream table's query.
SELECT c.relname, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND starts_with(c.relname, %(prefix)s)
