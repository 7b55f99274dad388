-- name: open
-- A new job, whose advisory lock is held before anybody else can see the row.
INSERT INTO headwater.job (stream_table_id, coordinator, client, engine, action, phase)
VALUES (%(stream_table_id)s, %(coordinator)s, %(client)s, %(engine)s, %(action)s, %(phase)s)
RETURNING id, pg_advisory_lock(%(lock)s, (id & 2147483647)::int)

-- name: report
-- Reports the progress of a job; returns whether it must end, and whether the backend of its refresh is gone.
UPDATE headwater.job
SET phase = %(phase)s, progress = %(progress)s, application = %(application)s, ui = %(ui)s
WHERE id = %(id)s
RETURNING cancel_requested_at IS NOT NULL,
          NOT EXISTS (SELECT FROM pg_stat_get_activity(coordinator) a WHERE a.pid = coordinator)

-- name: look
-- Whether a job must end, and whether the backend of its refresh is gone; no row if the job is.
SELECT cancel_requested_at IS NOT NULL,
       NOT EXISTS (SELECT FROM pg_stat_get_activity(coordinator) a WHERE a.pid = coordinator)
FROM headwater.job WHERE id = %(id)s

-- name: moved
-- What tasks of a job have moved, by part; how many there were, and the time that the database took.
SELECT part, sum(rows)::bigint, sum(bytes)::bigint, count(*), sum(ms)
FROM headwater.job_part WHERE job_id = %(id)s GROUP BY part

-- name: end_tasks
-- Ends what tasks of a job still do in the database; waits some milliseconds for each to have ended.
SELECT pg_terminate_backend(pid, %(wait)s) FROM pg_stat_activity
WHERE datname = current_database() AND usename = session_user AND application_name = %(name)s

-- name: close
-- Removes a job with its parts, and lets others see that it has ended; returns whether it had to end.
WITH gone AS (DELETE FROM headwater.job WHERE id = %(id)s RETURNING cancel_requested_at)
SELECT pg_advisory_unlock(%(lock)s, (%(id)s::bigint & 2147483647)::int),
       EXISTS (SELECT FROM gone WHERE cancel_requested_at IS NOT NULL)

-- name: dead
-- Jobs whose process is gone, with the tables they left; also those of which only tables are left.
SELECT found.id, array_remove(array_agg(found.table_name), NULL)
FROM (SELECT id, NULL::text AS table_name FROM headwater.job
      UNION ALL
      SELECT substring(relname FROM '^job_(\d{1,18})_')::bigint, relname::text
      FROM pg_class
      WHERE relnamespace = 'headwater_data'::regnamespace AND relkind = 'r' AND relname ~ '^job_\d{1,18}_') found
WHERE NOT EXISTS (
    SELECT FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.classid = %(lock)s AND l.objid = found.id & 2147483647 AND l.objsubid = 2
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
GROUP BY found.id

-- name: claim_dead
-- Claims a dead job for removal until this transaction ends; returns whether it succeeded.
SELECT pg_try_advisory_xact_lock(%(lock)s, (%(id)s::bigint & 2147483647)::int)

-- name: delete_job
DELETE FROM headwater.job WHERE id = %(id)s

-- name: running
-- Every running refresh, the oldest first.
SELECT id, stream_table, engine, action, phase, tasks, tasks_done, rows, bytes, stage, started_at, elapsed_ms,
       coordinator, client, application, ui, cancel_requested
FROM headwater.running_jobs
ORDER BY started_at

-- name: request_cancel
-- Asks jobs to end.
UPDATE headwater.job SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp())
WHERE id = ANY (%(ids)s::bigint[])
RETURNING id

-- name: cancel_statements
-- Cancels the statements of the backends of refreshes, unless they are idle.
WITH busy AS MATERIALIZED (
    SELECT pid FROM pg_stat_activity
    WHERE pid = ANY (%(pids)s::int[]) AND datname = current_database() AND xact_start IS NOT NULL AND state = 'active'
      AND starts_with(application_name, 'headwater'))
SELECT pid, pg_cancel_backend(pid) FROM busy
