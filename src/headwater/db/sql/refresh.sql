-- name: own_change_table
-- The change table of a stream table and the numbers of its view's columns in it; no row if nobody reads it.
SELECT s.change_table, array(SELECT attnum::int FROM headwater.source_column c WHERE c.source_id = s.id ORDER BY attnum)
FROM headwater.source s WHERE s.stream_table_id = %(id)s AND s.change_table IS NOT NULL

-- name: set_work_mem
-- Gives the rest of the transaction the work_mem of a refresh, in MB, or the session's own for 0; but only so much that as
-- many hash tables as there are sources stay within a limit, unless that is 0. The server multiplies it by a factor for each of them.
SELECT set_config('work_mem', greatest(64, least(
    CASE WHEN %(megabytes)s::bigint > 0 THEN %(megabytes)s::bigint * 1024
         ELSE pg_size_bytes(current_setting('work_mem')) / 1024 END,
    CASE WHEN %(cap)s::bigint > 0
         THEN %(cap)s::bigint * 1024 / (greatest(1, %(sources)s::int) * current_setting('hash_mem_multiplier')::float8)
         END))::bigint || 'kB', true)

-- name: temporary_tables
-- The temporary tables that refreshes made in this session, and whether they block others: a domain cannot be altered, a
-- table or view not be dropped, while another session has a temporary table with a column of its type; and nothing needs
-- those of a stream table that is gone. Also their age in transactions.
SELECT c.relname,
       EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type e ON e.oid = t.typelem
               WHERE a.attrelid = c.oid AND a.attnum > 0 AND (t.typtype IN ('c', 'd') OR e.typtype IN ('c', 'd')))
       OR NOT EXISTS (SELECT FROM headwater.stream_table st
                      WHERE st.id = substring(c.relname FROM '^hw([0-9]+)_')::bigint),
       age(c.relfrozenxid)
FROM pg_class c
WHERE c.relnamespace = pg_my_temp_schema() AND c.relkind = 'r' AND c.relname ~ '^hw[0-9]+_'

-- name: somebody_waits
-- Whether another session waits for a lock that this one holds.
SELECT EXISTS (SELECT FROM pg_locks w WHERE NOT w.granted AND pg_backend_pid() = ANY (pg_blocking_pids(w.pid)))

-- name: kept_tables
-- The storage of parts of a stream table's query.
SELECT c.relname, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r'
  AND c.relname >= %(prefix)s::name AND c.relname < concat(%(prefix)s::text, '~')::name  -- by an index

-- name: retired_tables
-- Storage of a stream table that older snapshots may still need, with the transaction that replaced it, oldest first.
SELECT c.relname, c.oid, substr(c.relname, length(%(prefix)s) + 1) AS xid
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r'
  AND c.relname >= %(prefix)s::name AND c.relname < concat(%(prefix)s::text, '~')::name  -- by an index
  AND pg_relation_size(c.oid) IS NOT NULL  -- not dropped since this snapshot
ORDER BY length(c.relname), c.relname

-- name: with_retired
-- Those of these stream tables that have such storage.
SELECT st.id FROM unnest(%(ids)s::bigint[]) AS st(id)
WHERE EXISTS (SELECT FROM pg_class c WHERE c.relname >= concat('st_', st.id, %(retired)s::text)::name
                                       AND c.relname < concat('st_', st.id, %(retired)s::text, '~')::name)

-- name: storage_secured
-- Whether row-level security hides rows of a stream table's storage from this role; its name.
SELECT row_security_active(c.oid), format('%%I.%%I', n.nspname, c.relname), current_user
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%(storage)s)
