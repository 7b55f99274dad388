-- name: due
-- The stream table to audit now, if there is one, and when the next of the others is due. Each has its own time in every
-- interval, by a hash of its number. An audit that was begun is finished first.
WITH moments AS (
    SELECT st.id, a.started_at, coalesce(a.audited_at, st.created_at) AS audited_at,
           to_timestamp((floor(extract(epoch FROM clock_timestamp())::float8 / %(seconds)s - p.phase) + p.phase) * %(seconds)s)
               AS moment
    FROM headwater.stream_table st
    LEFT JOIN headwater.audit a ON a.stream_table_id = st.id
    CROSS JOIN LATERAL (SELECT (hashint8(st.id) & 2147483647) / 2147483648.0::float8) AS p(phase)
    WHERE st.status = 'active' AND st.mode = 'differential' AND st.rebuild_reason IS NULL
)
SELECT (SELECT m.id FROM moments m WHERE m.started_at IS NOT NULL OR m.audited_at < m.moment
        ORDER BY m.started_at, m.audited_at LIMIT 1),
       (SELECT min(m.moment) + %(seconds)s * interval '1 second' FROM moments m)

-- name: begin
-- Returns how far the audit of a stream table has got; begins one if none is under way.
INSERT INTO headwater.audit AS a (stream_table_id, started_at) VALUES (%(id)s, clock_timestamp())
ON CONFLICT (stream_table_id) DO UPDATE SET started_at = coalesce(a.started_at, excluded.started_at)
RETURNING slice, slice_column, after

-- name: advance
-- Records that a slice was compared, and was equal.
UPDATE headwater.audit SET slice = %(slice)s, slice_column = %(column)s, after = %(after)s
WHERE stream_table_id = %(id)s AND started_at IS NOT NULL

-- name: finish
-- Records that an audit has ended.
UPDATE headwater.audit
SET audited_at = clock_timestamp(), result = %(result)s, slices = %(slices)s, started_at = NULL, slice = 0,
    slice_column = NULL, after = NULL
WHERE stream_table_id = %(id)s

-- name: stored_rows
-- About how many rows a table has.
SELECT greatest(0, c.reltuples)::bigint FROM pg_class c WHERE c.oid = to_regclass(%(table)s)

-- name: varied_columns
-- Returns those of these columns of a table that have many values, the most varied first.
SELECT s.attname
FROM pg_stats s
JOIN pg_namespace n ON n.nspname = s.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.tablename
WHERE c.oid = to_regclass(%(table)s) AND s.attname = ANY (%(columns)s::name[])
  AND CASE WHEN s.n_distinct < 0 THEN -s.n_distinct * c.reltuples ELSE s.n_distinct END >= %(least)s
ORDER BY CASE WHEN s.n_distinct < 0 THEN -s.n_distinct * c.reltuples ELSE s.n_distinct END DESC LIMIT 4
