-- name: record
-- One refresh, as it ended; if it did something it is counted, too.
WITH recorded AS (
INSERT INTO headwater.refresh
    (stream_table_id, started_at, finished_at, mode, engine, action, status, reason, error, sqlstate, snapshot,
     rows_in, rows_inserted, rows_updated, rows_deleted, phases, engine_reason, bytes_in, bytes_out, predicted_ms,
     fell_back, abandoned_ms)
VALUES
    (%(stream_table_id)s, clock_timestamp() - %(elapsed)s::interval, clock_timestamp(), %(mode)s, %(engine)s, %(action)s, %(status)s,
     %(reason)s, %(error)s, %(sqlstate)s, %(snapshot)s::pg_snapshot,
     %(rows_in)s, %(rows_inserted)s, %(rows_updated)s, %(rows_deleted)s, %(phases)s,
     %(engine_reason)s, %(bytes_in)s, %(bytes_out)s, %(predicted_ms)s, %(fell_back)s, %(abandoned_ms)s)
RETURNING id, stream_table_id, action, status, rows_in
), counted AS (
    INSERT INTO headwater.refresh_total AS t (stream_table_id, refreshes, full_refreshes, delta_refreshes, delta_rows)
    SELECT stream_table_id, 1, (action <> 'delta')::int, (action = 'delta')::int,
           CASE action WHEN 'delta' THEN coalesce(rows_in, 0) ELSE 0 END
    FROM recorded WHERE status = 'completed' AND action <> 'nothing'
    ON CONFLICT (stream_table_id) DO UPDATE
    SET refreshes = t.refreshes + 1, full_refreshes = t.full_refreshes + excluded.full_refreshes,
        delta_refreshes = t.delta_refreshes + excluded.delta_refreshes, delta_rows = t.delta_rows + excluded.delta_rows
)
SELECT id FROM recorded

-- name: recent
-- The latest refreshes, newest first, of one stream table or of all.
SELECT id, stream_table, mode, engine, action, status, reason, started_at, finished_at, duration_ms,
       rows_in, rows_inserted, rows_updated, rows_deleted, error, sqlstate, snapshot::text, phases,
       engine_reason, bytes_in, bytes_out, predicted_ms, fell_back, abandoned_ms
FROM headwater.refresh_history
WHERE %(stream_table_id)s::bigint IS NULL OR id IN (
    SELECT id FROM headwater.refresh WHERE stream_table_id = %(stream_table_id)s)
ORDER BY id DESC LIMIT %(limit)s

-- name: sums
-- The latest sums of refreshes, newest first, of one stream table or of all. At least this many sums are no older than the bound,
-- so the view need not read the others.
SELECT stream_table, bucket_start, action, engine, refreshes, failures, rows_in, rows_inserted, rows_updated, rows_deleted,
       total_ms, avg_ms, min_ms, max_ms, p50_ms, p95_ms, p99_ms
FROM headwater.refresh_stats
WHERE bucket_length = %(length)s::interval
  AND (%(stream_table_id)s::bigint IS NULL OR stream_table_id = %(stream_table_id)s)
  AND bucket_start >= coalesce((
      SELECT min(bucket_start) FROM (
          SELECT bucket_start FROM headwater.refresh_sum
          WHERE bucket_length = %(length)s::interval
            AND (%(stream_table_id)s::bigint IS NULL OR stream_table_id = %(stream_table_id)s)
          ORDER BY bucket_start DESC LIMIT %(limit)s) latest), '-infinity')
ORDER BY bucket_start DESC, stream_table, action, engine LIMIT %(limit)s

-- name: add_to_reason
-- Something that is known of a refresh only afterwards.
UPDATE headwater.refresh SET reason = reason || %(more)s::text WHERE id = %(id)s
