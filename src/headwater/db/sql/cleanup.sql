-- name: state
-- Returns how far the clean-up has got, and locks it; no row while another session does it.
SELECT counted_to, decided_to, drawn_to, drawn_by, swept_to,
       compacted_at IS NULL OR compacted_at < statement_timestamp() - %(between_compactions)s::interval
FROM headwater.history_state FOR UPDATE SKIP LOCKED

-- name: is_due
-- Whether nobody has cleaned up lately.
SELECT coalesce(cleaned_at < statement_timestamp() - %(pause)s::interval, true) FROM headwater.history_state

-- name: drawn
-- The last number of a refresh that was drawn. A transaction that drew it has held its lock on the table since before.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM headwater.refresh_id_seq

-- name: writers
-- The transactions that hold a lock on the history for writing; a prepared transaction has no process.
SELECT virtualtransaction, pid IS NULL FROM pg_locks
WHERE locktype = 'relation' AND relation = 'headwater.refresh'::regclass AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid IS DISTINCT FROM pg_backend_pid()

-- name: set_decided
UPDATE headwater.history_state
SET decided_to = %(decided_to)s, drawn_to = %(drawn_to)s, drawn_by = %(drawn_by)s, cleaned_at = clock_timestamp()

-- name: count
-- Adds the refreshes with these numbers to the sums, but not to sums that are too old to be kept.
WITH summed AS (
    INSERT INTO headwater.refresh_sum AS t
    SELECT * FROM headwater.sum_refreshes(%(above)s, %(up_to)s)
    WHERE bucket_start >= statement_timestamp()
        - CASE WHEN bucket_length < interval '1 hour' THEN %(minute_retention)s::interval ELSE %(hour_retention)s::interval END
    ON CONFLICT (stream_table_id, bucket_length, bucket_start, action, engine) DO UPDATE
    SET refreshes = t.refreshes + excluded.refreshes, failures = t.failures + excluded.failures,
        rows_in = t.rows_in + excluded.rows_in, rows_inserted = t.rows_inserted + excluded.rows_inserted,
        rows_updated = t.rows_updated + excluded.rows_updated, rows_deleted = t.rows_deleted + excluded.rows_deleted,
        total_ms = t.total_ms + excluded.total_ms,
        min_ms = least(t.min_ms, excluded.min_ms), max_ms = greatest(t.max_ms, excluded.max_ms),
        (duration_buckets, duration_counts) = (
            SELECT coalesce(array_agg(m.bucket ORDER BY m.bucket), '{}'), coalesce(array_agg(m.count ORDER BY m.bucket), '{}')
            FROM (SELECT bucket, sum(count)::integer AS count
                  FROM unnest(t.duration_buckets || excluded.duration_buckets,
                              t.duration_counts || excluded.duration_counts) AS either (bucket, count)
                  GROUP BY bucket) m)
)
UPDATE headwater.history_state SET counted_to = %(up_to)s

-- name: aged
-- The last refresh that is older than the retention of single refreshes; their numbers are in the order of time.
SELECT coalesce((SELECT id FROM headwater.refresh WHERE finished_at < statement_timestamp() - %(retention)s::interval
                 ORDER BY finished_at DESC LIMIT 1), 0)

-- name: sweep
-- Deletes deltas that completed, but for the latest ones of each stream table: of those stream tables that have some among these
-- numbers, all that are left behind up to the last number. What it has examined it does not examine again.
WITH passed AS (
    SELECT DISTINCT stream_table_id FROM headwater.refresh
    WHERE id > %(above)s AND id <= %(up_to)s AND status = 'completed' AND action NOT IN ('load', 'recompute')
), span AS MATERIALIZED (
    SELECT p.stream_table_id, coalesce(w.swept_to, 0) AS above,
           least(%(up_to)s::bigint, coalesce((
               SELECT l.id FROM headwater.refresh l
               WHERE l.stream_table_id = p.stream_table_id AND l.status = 'completed' AND l.action NOT IN ('load', 'recompute')
               ORDER BY l.stream_table_id DESC, l.id DESC OFFSET %(latest)s - 1 LIMIT 1) - 1, 0)) AS up_to
    FROM passed p LEFT JOIN headwater.refresh_swept w ON w.stream_table_id = p.stream_table_id
), swept AS (
    INSERT INTO headwater.refresh_swept SELECT stream_table_id, up_to FROM span WHERE up_to > above
    ON CONFLICT (stream_table_id) DO UPDATE SET swept_to = excluded.swept_to
), gone AS (
    DELETE FROM headwater.refresh
    WHERE id = ANY (ARRAY(
        SELECT r.id FROM span s CROSS JOIN LATERAL (
            SELECT id FROM headwater.refresh
            WHERE stream_table_id = s.stream_table_id AND id > s.above AND id <= s.up_to
              AND status = 'completed' AND action NOT IN ('load', 'recompute')
            OFFSET 0) r))
    RETURNING id
), moved AS (
    UPDATE headwater.history_state SET swept_to = %(up_to)s
)
SELECT count(*) FROM gone

-- name: forget_refreshes
-- The oldest refreshes of any kind, after those that were found to stay, but for the latest success of each stream table: how many
-- were looked at and how many are gone. None is deleted that is not counted.
WITH looked_at AS MATERIALIZED (
    SELECT id, stream_table_id FROM headwater.refresh
    WHERE finished_at < statement_timestamp() - %(retention)s::interval AND id <= %(counted_to)s
    ORDER BY finished_at OFFSET %(stay)s LIMIT %(limit)s
), latest AS MATERIALIZED (
    SELECT o.stream_table_id,
           (SELECT l.id FROM headwater.refresh l
            WHERE l.stream_table_id = o.stream_table_id AND l.status = 'completed'
            ORDER BY l.stream_table_id DESC, l.id DESC LIMIT 1) AS id
    FROM (SELECT DISTINCT stream_table_id FROM looked_at) o
), gone AS (
    DELETE FROM headwater.refresh
    WHERE id = ANY (ARRAY(SELECT o.id FROM looked_at o JOIN latest l ON l.stream_table_id = o.stream_table_id WHERE o.id < l.id))
    RETURNING id
)
SELECT (SELECT count(*) FROM looked_at), (SELECT count(*) FROM gone)

-- name: forget_sums
-- Deletes the oldest sums of one length, up to a number.
DELETE FROM headwater.refresh_sum
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM headwater.refresh_sum
    WHERE bucket_length = %(length)s::interval AND bucket_start < statement_timestamp() - %(retention)s::interval
    ORDER BY bucket_start LIMIT %(limit)s))

-- name: forget_requests
-- Deletes requests that were answered before the retention.
DELETE FROM headwater.request WHERE finished_at < statement_timestamp() - %(retention)s::interval

-- name: stream_table_count
-- How many stream tables share the history.
SELECT count(*) FROM headwater.stream_table

-- name: sizes
-- Bytes of single refreshes and of sums, with indexes.
SELECT pg_total_relation_size('headwater.refresh'), pg_total_relation_size('headwater.refresh_sum')

-- name: weigh_refreshes
-- How many rows there are, and bytes of one, by some pages of the table.
SELECT count(*) * 100 / %(percent)s::float8, coalesce(avg(pg_column_size(r)), 0)::float8
FROM headwater.refresh r TABLESAMPLE SYSTEM (%(percent)s::real)

-- name: weigh_sums
-- How many rows there are, and bytes of one, by some pages of the table.
SELECT count(*) * 100 / %(percent)s::float8, coalesce(avg(pg_column_size(s)), 0)::float8
FROM headwater.refresh_sum s TABLESAMPLE SYSTEM (%(percent)s::real)

-- name: set_compacted
UPDATE headwater.history_state SET compacted_at = clock_timestamp()
