-- Refreshes that run outside the database: jobs as other processes see them, and what went out and back.

ALTER TABLE headwater.refresh
    ADD COLUMN bytes_in      bigint,
    ADD COLUMN bytes_out     bigint,
    ADD COLUMN engine_reason text NOT NULL DEFAULT '';

CREATE UNLOGGED TABLE headwater.job (
    id                  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream_table_id     bigint NOT NULL REFERENCES headwater.stream_table ON DELETE CASCADE,
    started_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    coordinator         integer NOT NULL,
    client              text NOT NULL,
    engine              text NOT NULL,
    action              text NOT NULL,
    phase               text NOT NULL,
    progress            jsonb NOT NULL DEFAULT '{}',
    application         text,
    ui                  text,
    cancel_requested_at timestamptz
);
CREATE INDEX ON headwater.job (stream_table_id);
ALTER SEQUENCE headwater.job_id_seq SET LOGGED;

CREATE UNLOGGED TABLE headwater.job_part (
    job_id bigint NOT NULL REFERENCES headwater.job ON DELETE CASCADE,
    part   text NOT NULL,
    number integer NOT NULL,
    rows   bigint NOT NULL,
    bytes  bigint NOT NULL DEFAULT 0,
    ms     double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, part, number)
);

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
       r.bytes_out
FROM headwater.refresh r
JOIN headwater.stream_tables st ON st.id = r.stream_table_id;

CREATE VIEW headwater.running_jobs AS
WITH held AS MATERIALIZED (
    SELECT l.objid::bigint AS number
    FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'advisory' AND l.classid = 1214608 AND l.objsubid = 2
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
), job AS (
    SELECT * FROM headwater.job WHERE id & 2147483647 IN (SELECT number FROM held)
)
SELECT j.id,
       st.stream_table,
       j.engine,
       j.action,
       j.phase,
       (j.progress ->> 'tasks')::bigint AS tasks,
       (j.progress ->> 'tasks_done')::bigint AS tasks_done,
       (j.progress ->> 'rows')::bigint AS rows,
       (j.progress ->> 'bytes')::bigint AS bytes,
       j.progress ->> 'stage' AS stage,
       j.started_at,
       extract(epoch FROM clock_timestamp() - j.started_at) * 1000 AS elapsed_ms,
       j.coordinator,
       j.client,
       j.application,
       j.ui,
       j.cancel_requested_at IS NOT NULL AS cancel_requested
FROM job j
JOIN headwater.stream_tables st ON st.id = j.stream_table_id
UNION ALL
SELECT NULL,
       st.stream_table,
       CASE WHEN EXISTS (SELECT FROM job j WHERE j.coordinator = a.pid) THEN 'spark' ELSE 'postgres' END,
       NULL,
       CASE WHEN a.wait_event_type = 'Lock' THEN 'waiting' ELSE 'running' END,
       NULL, NULL, NULL, NULL, NULL,
       a.xact_start,
       extract(epoch FROM clock_timestamp() - a.xact_start) * 1000,
       a.pid,
       coalesce(a.client_hostname, host(a.client_addr)),
       NULL, NULL, false
FROM pg_catalog.pg_stat_activity a
JOIN headwater.stream_tables st
  ON st.id = substring(a.application_name FROM '^headwater refresh (\d{1,18})$')::bigint
WHERE a.datname = current_database() AND a.xact_start IS NOT NULL
  AND NOT EXISTS (SELECT FROM job j WHERE j.coordinator = a.pid AND j.stream_table_id = st.id);
