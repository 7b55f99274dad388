-- name: stream_tables
-- Every stream table with its latest completed refresh, and the failed ones since then.
SELECT st.id, name.stream_table, h.status, h.reason, h.remedy, st.mode, st.engine, st.schedule, st.time_zone, st.tier,
       st.rebuild_reason, f.snapshot::text, f.applied_by::text, r.action, r.finished_at,
       extract(epoch FROM r.finished_at - r.started_at)::float8 * 1000, coalesce(e.failures, 0), e.error
FROM headwater.stream_table st
JOIN headwater.stream_table_name name ON name.id = st.id
JOIN headwater.health h ON h.stream_table_id = st.id
LEFT JOIN headwater.frontier f ON f.stream_table_id = st.id AND f.node = 0
LEFT JOIN LATERAL (
    SELECT id, started_at, finished_at, action FROM headwater.refresh
    WHERE stream_table_id = st.id AND status = 'completed' ORDER BY id DESC LIMIT 1
) r ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS failures, (array_agg(error ORDER BY id DESC))[1] AS error FROM headwater.refresh
    WHERE stream_table_id = st.id AND id > coalesce(r.id, 0) AND status = 'failed'
) e ON true
ORDER BY st.id

-- name: written
-- Sources whose change tables have rows, by the server's statistics. Those reach the server late, and a crash loses
-- them: then a change table that is not empty counts. No change table is opened for it.
SELECT s.relation::bigint
FROM headwater.source s
JOIN pg_class c ON c.relname = s.change_table AND c.relnamespace = 'headwater_changes'::regnamespace
WHERE pg_stat_get_live_tuples(c.oid) > 0 OR pg_stat_get_tuples_inserted(c.oid) = 0 AND pg_relation_size(c.oid) > 0

-- name: service
-- The state of the scheduler; no row if there is none.
SELECT CASE WHEN ticked_at < clock_timestamp() - %(silent_after)s::interval THEN 'silent'
            WHEN draining THEN 'draining' ELSE 'running' END,
       started_at, ticked_at, ticks, tick_ms, busy_share, stream_tables, changed, queued_jobs, active_workers, max_workers
FROM headwater.scheduler

-- name: workers
-- The external workers, and what each is doing.
SELECT w.worker_id::text, w.hostname, w.pid, w.status, w.capacity,
       (SELECT count(*)::int FROM headwater.worker_jobs j WHERE j.worker_id = w.worker_id AND j.status = 'RUNNING'),
       w.capabilities ->> 'spark_master', w.started_at, w.last_heartbeat
FROM headwater.worker_registry w WHERE w.kind = 'worker' ORDER BY w.started_at
