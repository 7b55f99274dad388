-- name: lead
-- Takes the lead until the session ends, if it is free: 0 for the scheduler of a database, 1 for the launcher of a server.
SELECT pg_try_advisory_lock(1214612, %(role)s)

-- name: members
-- Every stream table, with the stream tables and the other relations that it reads.
SELECT st.id,
       format('%%I.%%I', coalesce(n.nspname, st.schema_name), coalesce(c.relname, st.table_name)),
       st.schedule, st.time_zone, st.tier, st.mode, st.status, st.rebuild_reason IS NOT NULL,
       coalesce(r.streams, '{}'), coalesce(r.tables, '{}')
FROM headwater.stream_table st
LEFT JOIN pg_class c ON c.oid = st.relation
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN (
    SELECT d.stream_table_id,
           array_agg(s.stream_table_id) FILTER (WHERE s.stream_table_id IS NOT NULL) AS streams,
           array_agg(s.relation::bigint) FILTER (WHERE s.stream_table_id IS NULL) AS tables
    FROM headwater.dependency d JOIN headwater.source s ON s.id = d.source_id
    GROUP BY d.stream_table_id
) r ON r.stream_table_id = st.id
WHERE st.status <> 'initializing'
ORDER BY st.id

-- name: sources
-- Captured sources: the relation, its change table if it exists, and the stream table if it is one.
SELECT s.relation::bigint, s.change_table, s.stream_table_id
FROM headwater.source s
JOIN pg_class c ON c.relname = s.change_table AND c.relnamespace = 'headwater_changes'::regnamespace

-- name: faults
-- Stream tables that lack a part, or those of the given ones that do: which part, why and the remedy.
SELECT stream_table_id, fault, reason, remedy FROM headwater.health
WHERE fault IS NOT NULL
  AND stream_table_id = ANY (coalesce(%(ids)s::bigint[], array(SELECT id FROM headwater.stream_table)))

-- name: past
-- When each of these was refreshed last, how long that took, and how often it has failed since.
SELECT st.id, r.started_at, r.finished_at - r.started_at,
       (SELECT count(*) FROM headwater.refresh f
        WHERE f.stream_table_id = st.id AND f.status = 'failed' AND f.id > coalesce(r.id, 0))
FROM unnest(%(ids)s::bigint[]) AS st(id)
LEFT JOIN LATERAL (
    SELECT id, started_at, finished_at FROM headwater.refresh
    WHERE stream_table_id = st.id AND status = 'completed' ORDER BY id DESC LIMIT 1
) r ON true

-- name: tick
-- The time, the stored settings, and the sources that were written to since this was asked last.
WITH gone AS (DELETE FROM headwater.changed_source RETURNING relation)
SELECT clock_timestamp(), (SELECT coalesce(jsonb_object_agg(name, value), '{}') FROM headwater.setting),
       (SELECT coalesce(array_agg(DISTINCT relation::bigint), '{}') FROM gone)

-- name: report
-- Stores the state of the scheduler.
INSERT INTO headwater.scheduler
    (worker_id, started_at, ticked_at, ticks, tick_ms, busy_share, stream_tables, changed, queued_jobs,
     active_workers, max_workers, per_db_cap, parallel_mode, plan_cache_hits, plan_cache_misses, draining)
VALUES (%(worker_id)s, %(started_at)s, clock_timestamp(), %(ticks)s, %(tick_ms)s, %(busy_share)s, %(stream_tables)s,
        %(changed)s, %(queued_jobs)s, %(active_workers)s, %(max_workers)s, %(per_db_cap)s, %(parallel_mode)s,
        %(plan_cache_hits)s, %(plan_cache_misses)s, %(draining)s)
ON CONFLICT (singleton) DO UPDATE
SET worker_id = excluded.worker_id, started_at = excluded.started_at, ticked_at = excluded.ticked_at,
    ticks = excluded.ticks, tick_ms = excluded.tick_ms, busy_share = excluded.busy_share,
    stream_tables = excluded.stream_tables, changed = excluded.changed, queued_jobs = excluded.queued_jobs,
    active_workers = excluded.active_workers, max_workers = excluded.max_workers,
    per_db_cap = excluded.per_db_cap, parallel_mode = excluded.parallel_mode,
    plan_cache_hits = excluded.plan_cache_hits, plan_cache_misses = excluded.plan_cache_misses,
    draining = excluded.draining

-- name: forget_scheduler
-- Records that the scheduler has stopped on purpose.
DELETE FROM headwater.scheduler WHERE worker_id = %(worker_id)s

-- name: databases
-- The databases that may have a catalog.
SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate
  AND has_database_privilege(datname, 'CONNECT') ORDER BY datname

-- name: is_installed
-- Whether this database has a catalog.
SELECT to_regclass('headwater.migration') IS NOT NULL

-- name: register
-- Registers a worker.
INSERT INTO headwater.worker_registry (worker_id, kind, hostname, pid, backend_pid, capacity, status, capabilities)
VALUES (%(worker_id)s, %(kind)s, %(hostname)s, %(pid)s, pg_backend_pid(), %(capacity)s, 'active', %(capabilities)s)
ON CONFLICT (worker_id) DO UPDATE
SET backend_pid = excluded.backend_pid, status = excluded.status, last_heartbeat = clock_timestamp()

-- name: deregister
-- Removes a worker.
DELETE FROM headwater.worker_registry WHERE worker_id = %(worker_id)s

-- name: beat
-- Records a heartbeat of a worker and of its jobs.
WITH jobs AS (
    UPDATE headwater.worker_jobs SET heartbeat_at = clock_timestamp()
    WHERE id = ANY (%(jobs)s::bigint[]) AND worker_id = %(worker_id)s AND status = 'RUNNING'
)
UPDATE headwater.worker_registry SET last_heartbeat = clock_timestamp(), status = %(status)s
WHERE worker_id = %(worker_id)s RETURNING worker_id

-- name: bury
-- Removes workers without a recent heartbeat, or whose connection is gone.
DELETE FROM headwater.worker_registry w
WHERE w.last_heartbeat < clock_timestamp() - %(timeout)s::interval
   OR w.kind = 'worker' AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = w.backend_pid)

-- name: capacity
-- How many jobs external workers take at once, and how many they have.
SELECT coalesce(sum(capacity), 0)::int,
       (SELECT count(*)::int FROM headwater.worker_jobs j
        WHERE j.status = 'RUNNING' AND j.worker_id IN (SELECT worker_id FROM headwater.worker_registry
                                                       WHERE kind = 'worker'))
FROM headwater.worker_registry WHERE kind = 'worker' AND status = 'active'

-- name: enqueue
-- Adds a job for any worker to claim.
INSERT INTO headwater.worker_jobs (stream_table_id, members, status) VALUES (%(last)s, %(members)s, 'QUEUED')
RETURNING id

-- name: claim
-- Claims for a worker the oldest job that nobody has.
UPDATE headwater.worker_jobs j
SET status = 'RUNNING', worker_id = %(worker_id)s, worker_pid = %(pid)s, backend_pid = %(backend_pid)s,
    assigned_at = clock_timestamp(), heartbeat_at = clock_timestamp()
WHERE id = (SELECT id FROM headwater.worker_jobs
            WHERE status IN ('QUEUED', 'RECLAIMED') AND worker_id IS NULL AND (%(job)s::bigint IS NULL OR id = %(job)s)
            ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, attempt, members

-- name: finish
-- Records the result of a job, unless it was taken back, and tells the scheduler.
WITH finished AS (
    UPDATE headwater.worker_jobs
    SET status = %(status)s, engine = %(engine)s, finished_at = clock_timestamp(), error = %(error)s,
        failed_member = %(failed_member)s
    WHERE id = %(id)s AND attempt = %(attempt)s AND worker_id = %(worker_id)s AND status = 'RUNNING'
)
SELECT pg_notify(%(channel)s, '')

-- name: finished
-- Those of these jobs that have ended, and how long they took.
SELECT id, error, failed_member, finished_at - assigned_at FROM headwater.worker_jobs
WHERE id = ANY (%(ids)s::bigint[]) AND status IN ('COMPLETED', 'FAILED')

-- name: take_back
-- Takes back jobs of workers that are dead, or without a heartbeat for too long. They cannot commit what they still
-- compute; the backend that computes is ended, because it may hold locks. A worker behind a pooler does not know its number; it is the one that
-- holds the right to refresh. One that commits just now is left alone.
WITH lost AS MATERIALIZED (
    SELECT id, backend_pid, stream_table_id FROM headwater.worker_jobs j
    WHERE status = 'RUNNING' AND id = ANY (%(ids)s::bigint[])
      AND (heartbeat_at < clock_timestamp() - %(timeout)s::interval
           OR NOT EXISTS (SELECT FROM headwater.worker_registry w WHERE w.worker_id = j.worker_id))
    FOR UPDATE SKIP LOCKED
), ended AS (
    SELECT pg_terminate_backend(a.pid) FROM lost JOIN pg_stat_activity a ON a.pid = coalesce(lost.backend_pid, (
        SELECT l.pid FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid = 1214611
          AND l.objid = lost.stream_table_id & 2147483647
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())))
    WHERE a.application_name = 'headwater refresh ' || lost.stream_table_id
)
UPDATE headwater.worker_jobs j
SET status = 'RECLAIMED', attempt = attempt + 1, worker_id = NULL, worker_pid = NULL, backend_pid = NULL
FROM lost LEFT JOIN ended ON true WHERE j.id = lost.id RETURNING j.id

-- name: unqueue
-- Removes jobs that no longer wait inside this scheduler, and were not begun.
DELETE FROM headwater.worker_jobs
WHERE id = ANY (%(ids)s::bigint[]) AND worker_id = %(worker_id)s AND status = 'QUEUED'

-- name: withdraw
-- Withdraws jobs that nobody has claimed yet.
DELETE FROM headwater.worker_jobs WHERE id = ANY (%(ids)s::bigint[]) AND status IN ('QUEUED', 'RECLAIMED') RETURNING id

-- name: abandoned
-- Deletes jobs that an earlier scheduler left behind: unclaimed, or waiting inside it. Those that ended are not examined.
DELETE FROM headwater.worker_jobs WHERE finished_at IS NULL AND status IN ('QUEUED', 'RECLAIMED')

-- name: numbers
-- Numbers for jobs that are recorded later.
SELECT nextval('headwater.worker_jobs_id_seq') FROM generate_series(1, %(count)s)

-- name: journal
-- Stores the state of jobs of this process.
INSERT INTO headwater.worker_jobs
    (id, stream_table_id, members, status, engine, worker_id, worker_pid, queued_at, assigned_at, heartbeat_at, finished_at, error)
OVERRIDING SYSTEM VALUE
SELECT (j ->> 'id')::bigint, (j ->> 'stream_table_id')::bigint,
       array(SELECT jsonb_array_elements_text(j -> 'members')::bigint), j ->> 'status', j ->> 'engine', %(worker_id)s, %(pid)s,
       (j ->> 'queued_at')::timestamptz, (j ->> 'assigned_at')::timestamptz, clock_timestamp(),
       (j ->> 'finished_at')::timestamptz, j ->> 'error'
FROM jsonb_array_elements(%(jobs)s) AS j
ON CONFLICT (id) DO UPDATE
SET status = excluded.status, engine = excluded.engine, assigned_at = excluded.assigned_at, heartbeat_at = excluded.heartbeat_at,
    finished_at = excluded.finished_at, error = excluded.error

-- name: forget_jobs
-- Deletes jobs that ended a while ago, and those that died with an earlier process of this kind.
DELETE FROM headwater.worker_jobs
WHERE finished_at < statement_timestamp() - interval '1 hour'
   OR finished_at IS NULL AND heartbeat_at < statement_timestamp() - interval '1 hour'
