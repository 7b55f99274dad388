-- What was decided is data: no sentence is read again to find out.
ALTER TABLE headwater.refresh ADD COLUMN fell_back boolean NOT NULL DEFAULT false, ADD COLUMN abandoned_ms double precision;
UPDATE headwater.refresh
SET fell_back = engine_reason LIKE 'instead of Spark%',
    abandoned_ms = coalesce((phases->>'given up')::double precision, (phases->>'failed')::double precision),
    phases = phases - 'given up' - 'failed'
WHERE engine_reason LIKE 'instead of Spark%' OR phases ?| ARRAY['given up', 'failed'];

CREATE OR REPLACE VIEW headwater.refresh_history AS
SELECT r.id,
       st.stream_table,
       r.mode,
       r.engine,
       r.action,
       r.status,
       r.reason,
       r.started_at,
       r.finished_at,
       extract(epoch FROM r.finished_at - r.started_at) * 1000 AS duration_ms,
       r.rows_in,
       r.rows_inserted,
       r.rows_updated,
       r.rows_deleted,
       r.error,
       r.sqlstate,
       r.snapshot,
       r.phases,
       r.engine_reason,
       r.bytes_in,
       r.bytes_out,
       r.predicted_ms,
       r.fell_back,
       r.abandoned_ms
FROM headwater.refresh r
JOIN headwater.stream_table_name st ON st.id = r.stream_table_id;
