-- The names by which operators know workers and their jobs.
ALTER TABLE headwater.worker_registry RENAME COLUMN host_name TO hostname;
ALTER TABLE headwater.worker_registry RENAME COLUMN heartbeat_at TO last_heartbeat;
-- From PostgreSQL 18 on these are constraints with names, which are made anew from those of the columns.
ALTER TABLE headwater.worker_registry ALTER COLUMN hostname DROP NOT NULL, ALTER COLUMN last_heartbeat DROP NOT NULL;
ALTER TABLE headwater.worker_registry ALTER COLUMN hostname SET NOT NULL, ALTER COLUMN last_heartbeat SET NOT NULL;
ALTER TABLE headwater.worker_registry DROP CONSTRAINT worker_registry_status_check;
UPDATE headwater.worker_registry SET status = 'active' WHERE status = 'running';
ALTER TABLE headwater.worker_registry ADD CONSTRAINT worker_registry_status_check CHECK (status IN ('active', 'draining'));
ALTER TABLE headwater.worker_jobs RENAME COLUMN started_at TO assigned_at;

CREATE OR REPLACE FUNCTION headwater.worker_pool_status(
    OUT active_workers integer, OUT max_workers integer, OUT per_db_cap integer, OUT parallel_mode text,
    OUT queued_jobs integer, OUT external_workers integer, OUT external_capacity integer,
    OUT scheduler_status text, OUT busy_share double precision, OUT tick_ms double precision, OUT ticked_at timestamptz
) RETURNS record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
SELECT coalesce(s.active_workers, 0), coalesce(s.max_workers, 0), coalesce(s.per_db_cap, 0),
       coalesce(s.parallel_mode, 'off'), coalesce(s.queued_jobs, 0),
       w.workers::integer, w.capacity::integer, headwater.scheduler_status(), s.busy_share, s.tick_ms, s.ticked_at
FROM (SELECT count(*), coalesce(sum(capacity), 0) FROM headwater.worker_registry
      WHERE kind = 'worker' AND last_heartbeat > clock_timestamp() - interval '30 seconds') AS w (workers, capacity)
LEFT JOIN headwater.scheduler s ON true
$$;

CREATE OR REPLACE FUNCTION headwater.parallel_job_status(
    seconds integer DEFAULT 300,
    OUT job_id bigint, OUT stream_table text, OUT status text, OUT engine text, OUT worker_id uuid, OUT worker_pid integer,
    OUT queued_at timestamptz, OUT started_at timestamptz, OUT finished_at timestamptz, OUT wait_ms double precision,
    OUT duration_ms double precision, OUT attempt integer, OUT error text
) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
SELECT j.id, coalesce(st.stream_table, '(dropped)'), j.status, j.engine, j.worker_id, j.worker_pid, j.queued_at, j.assigned_at,
       j.finished_at,
       extract(epoch FROM coalesce(j.assigned_at, j.finished_at, clock_timestamp()) - j.queued_at) * 1000,
       extract(epoch FROM coalesce(j.finished_at, clock_timestamp()) - j.assigned_at) * 1000,
       j.attempt, j.error
FROM headwater.worker_jobs j
LEFT JOIN headwater.stream_table_name st ON st.id = j.stream_table_id
WHERE j.finished_at >= statement_timestamp() - seconds * interval '1 second' OR j.finished_at IS NULL  -- stable, so by index
ORDER BY j.id DESC
$$;

GRANT SELECT ON headwater.worker_registry, headwater.worker_jobs TO pg_monitor;
