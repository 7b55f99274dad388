-- One notion of health, and indexes for what is asked at each tick.

DROP INDEX headwater.worker_jobs_id_idx;
-- What a worker may claim; what waits inside a scheduler has that scheduler's worker_id.
CREATE INDEX ON headwater.worker_jobs (id) WHERE status IN ('QUEUED', 'RECLAIMED') AND worker_id IS NULL;
CREATE INDEX ON headwater.worker_jobs (worker_id) WHERE status = 'RUNNING';
CREATE INDEX ON headwater.refresh (finished_at);
-- What computing everything took, among many deltas.
CREATE INDEX ON headwater.refresh (stream_table_id, id) WHERE status = 'completed' AND action IN ('load', 'recompute');
CREATE INDEX ON headwater.source (stream_table_id) WHERE stream_table_id IS NOT NULL;

-- The name of each stream table: that of its view, or the one it had, if the view is gone.
CREATE VIEW headwater.stream_table_name AS
SELECT st.id,
       coalesce(n.nspname, st.schema_name) AS schema_name,
       coalesce(c.relname, st.table_name) AS table_name,
       format('%I.%I', coalesce(n.nspname, st.schema_name), coalesce(c.relname, st.table_name)) AS stream_table
FROM headwater.stream_table st
LEFT JOIN pg_catalog.pg_class c ON c.oid = st.relation
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace;

-- Sources whose changes are wanted and do not arrive: the change table is gone, or the four triggers do not all fire. The
-- changes of a stream table are written by its refreshes, without triggers.
CREATE VIEW headwater.uncaptured_source AS
SELECT s.id, s.schema_name, s.table_name, s.stream_table_id
FROM headwater.source s
WHERE s.change_table IS NOT NULL
  AND (NOT EXISTS (SELECT FROM pg_catalog.pg_class x
                   WHERE x.relname = s.change_table AND x.relnamespace = to_regnamespace('headwater_changes'))
       OR s.stream_table_id IS NULL AND 4 > (
           SELECT count(*) FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
           WHERE t.tgrelid = s.relation AND t.tgenabled IN ('O', 'A') AND p.proname = concat('capture_', s.relation)::name
             AND p.pronamespace = to_regnamespace('headwater_changes')));

-- The one place that decides whether a stream table has all its parts. Everything that shows or needs this reads it here.
-- Each row costs a few lookups by index, however many stream tables there are. It calls no function of ours and looks up
-- names in pg_class, so that whoever may read it needs no right on the schemas of storage and changes.
--
-- fault names the first part that is missing:
--   source      relations that it reads are gone, and its definition with them
--   definition  the view that holds its query is gone
--   view        the view that users read is gone
--   storage     the table with its rows is gone
--   replaced    the view that users read does not read that table
--   changes     the table of its changes, or of those of a stream table that it reads, is gone
--   capture     the change table or capture triggers of a table that it reads are gone or disabled: a refresh puts them back
CREATE VIEW headwater.health AS
SELECT st.id AS stream_table_id,
       CASE WHEN f.fault IS NULL THEN st.status ELSE 'broken' END AS status,
       f.fault,
       CASE f.fault
           WHEN 'source' THEN format('%s, which it reads, was dropped', (
               SELECT string_agg(format('%I.%I', s.schema_name, s.table_name), ', ' ORDER BY s.id)
               FROM headwater.dependency d JOIN headwater.source s ON s.id = d.source_id
               WHERE d.stream_table_id = st.id AND NOT EXISTS (SELECT FROM pg_catalog.pg_class x WHERE x.oid = s.relation)))
           WHEN 'definition' THEN 'its definition was dropped, by itself or with something that its query uses'
           WHEN 'view' THEN 'the view that shows it was dropped'
           WHEN 'storage' THEN 'the table that stores its rows was dropped or renamed'
           WHEN 'replaced' THEN 'the view that shows it was replaced and does not read its rows'
           WHEN 'changes' THEN format('the table with the changes of %s was dropped', (
               SELECT string_agg(format('%I.%I', u.schema_name, u.table_name), ', ' ORDER BY u.id)
               FROM headwater.uncaptured_source u
               WHERE u.stream_table_id = st.id OR u.stream_table_id IS NOT NULL AND u.id IN (
                   SELECT d.source_id FROM headwater.dependency d WHERE d.stream_table_id = st.id)))
           WHEN 'capture' THEN format('changes of %s are not captured: triggers or the change table were dropped or disabled', (
               SELECT string_agg(format('%I.%I', u.schema_name, u.table_name), ', ' ORDER BY u.id)
               FROM headwater.dependency d JOIN headwater.uncaptured_source u ON u.id = d.source_id
               WHERE d.stream_table_id = st.id))
           ELSE st.suspended_reason END AS reason,
       CASE WHEN f.fault IS NOT NULL OR st.status = 'suspended' THEN concat_ws(', then ',
           CASE f.fault
               WHEN 'source' THEN (
                   SELECT 'bring back ' || string_agg(format('%I.%I', s.schema_name, s.table_name), ', ' ORDER BY s.id)
                   FROM headwater.dependency d JOIN headwater.source s ON s.id = d.source_id AND s.stream_table_id IS NULL
                   WHERE d.stream_table_id = st.id
                     AND NOT EXISTS (SELECT FROM pg_catalog.pg_class x JOIN pg_catalog.pg_namespace n ON n.oid = x.relnamespace
                                     WHERE x.relname = s.table_name AND n.nspname = s.schema_name))
               WHEN 'view' THEN (
                   SELECT CASE WHEN n.oid IS NULL THEN format('CREATE SCHEMA %I', st.schema_name)
                               WHEN x.oid IS NOT NULL
                               THEN format('rename or drop what is called %I.%I now', st.schema_name, st.table_name) END
                   FROM (SELECT) AS one
                   LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = st.schema_name
                   LEFT JOIN pg_catalog.pg_class x ON x.relname = st.table_name AND x.relnamespace = n.oid)
           END,
           CASE WHEN f.fault = 'definition' THEN 'headwater repair, which names what else is missing'
                WHEN f.fault IS NOT NULL THEN 'headwater repair' END,
           CASE WHEN st.status = 'suspended' THEN 'headwater resume ' || name.stream_table END)
           || CASE WHEN f.fault IN ('source', 'definition', 'view') THEN '; or headwater drop ' || name.stream_table ELSE '' END
       END AS remedy
FROM headwater.stream_table st
JOIN headwater.stream_table_name name ON name.id = st.id
LEFT JOIN LATERAL (
    SELECT CASE
        WHEN st.status = 'initializing' THEN NULL
        WHEN NOT EXISTS (
            SELECT FROM pg_catalog.pg_class x
            WHERE x.relnamespace = to_regnamespace('headwater_defs') AND x.relkind = 'v'
              AND x.relname >= concat('def_', st.id)::name AND x.relname < concat('def_', st.id, '!')::name)
        THEN CASE WHEN EXISTS (
                 SELECT FROM headwater.dependency d JOIN headwater.source s ON s.id = d.source_id
                 WHERE d.stream_table_id = st.id AND NOT EXISTS (SELECT FROM pg_catalog.pg_class x WHERE x.oid = s.relation))
             THEN 'source' ELSE 'definition' END
        WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_class x WHERE x.oid = st.relation) THEN 'view'
        WHEN NOT EXISTS (
            SELECT FROM pg_catalog.pg_class x
            WHERE x.relname = concat('st_', st.id)::name AND x.relnamespace = to_regnamespace('headwater_data')) THEN 'storage'
        WHEN NOT EXISTS (
            SELECT FROM pg_catalog.pg_rewrite r
            JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.objid = r.oid
                                       AND d.refclassid = 'pg_catalog.pg_class'::regclass
            JOIN pg_catalog.pg_class x ON x.oid = d.refobjid
            WHERE r.ev_class = st.relation
              AND x.relname = concat('st_', st.id)::name AND x.relnamespace = to_regnamespace('headwater_data')) THEN 'replaced'
        WHEN EXISTS (SELECT FROM headwater.uncaptured_source u WHERE u.stream_table_id = st.id) THEN 'changes'
        WHEN st.mode = 'differential' THEN (
            SELECT CASE WHEN bool_or(u.stream_table_id IS NOT NULL) THEN 'changes' WHEN count(*) > 0 THEN 'capture' END
            FROM headwater.dependency d JOIN headwater.uncaptured_source u ON u.id = d.source_id
            WHERE d.stream_table_id = st.id)
    END AS fault
    OFFSET 0
) f ON true;

CREATE OR REPLACE VIEW headwater.stream_tables AS
SELECT st.id,
       name.schema_name,
       name.table_name,
       name.stream_table,
       h.status,
       st.mode,
       st.requested_mode,
       st.engine,
       st.schedule,
       nullif(array_to_string(st.mode_reasons, '; '), '') AS reason,
       st.rebuild_reason,
       st.query,
       f.snapshot AS frontier,
       r.finished_at AS last_refresh_at,
       r.action AS last_action,
       extract(epoch FROM r.finished_at - r.started_at) * 1000 AS last_refresh_ms,
       st.created_at,
       st.tier,
       st.suspended_reason,
       h.reason AS status_reason,
       h.remedy
FROM headwater.stream_table st
JOIN headwater.stream_table_name name ON name.id = st.id
JOIN headwater.health h ON h.stream_table_id = st.id
LEFT JOIN headwater.frontier f ON f.stream_table_id = st.id AND f.node = 0
LEFT JOIN LATERAL (
    SELECT started_at, finished_at, action FROM headwater.refresh
    WHERE stream_table_id = st.id AND status = 'completed' ORDER BY id DESC LIMIT 1
) r ON true;

-- These need the name of a stream table, and not how it is.
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
       r.predicted_ms
FROM headwater.refresh r
JOIN headwater.stream_table_name st ON st.id = r.stream_table_id;

CREATE OR REPLACE VIEW headwater.running_jobs AS
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
JOIN headwater.stream_table_name st ON st.id = j.stream_table_id
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
JOIN headwater.stream_table_name st
  ON st.id = substring(a.application_name FROM '^headwater refresh (\d{1,18})$')::bigint
WHERE a.datname = current_database() AND a.xact_start IS NOT NULL
  AND NOT EXISTS (SELECT FROM job j WHERE j.coordinator = a.pid AND j.stream_table_id = st.id);

CREATE OR REPLACE VIEW headwater.consumers AS
SELECT c.name AS consumer,
       st.stream_table,
       CASE WHEN c.given_up IS NOT NULL THEN 'given up' WHEN c.committed THEN 'active' ELSE 'starting' END AS status,
       c.given_up AS reason,
       c.snapshot,
       c.created_at,
       c.last_seen_at
FROM headwater.consumer c
JOIN headwater.source s ON s.id = c.source_id
JOIN headwater.stream_table_name st ON st.id = s.stream_table_id;

CREATE OR REPLACE FUNCTION headwater.change_buffer_sizes(
    OUT source text, OUT row_count bigint, OUT row_count_is_estimate boolean, OUT bytes bigint,
    OUT oldest_change timestamptz, OUT consumers text[]
) RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    captured record;
BEGIN
    FOR captured IN
        WITH since AS (
            SELECT w.source_id,
                   min(greatest(l.refreshed_at, m.at)) AS at
            FROM headwater.waiting_changes() w
            LEFT JOIN LATERAL (SELECT r.started_at AS refreshed_at FROM headwater.refresh r
                               WHERE r.stream_table_id = w.stream_table_id AND r.status = 'completed'
                               ORDER BY r.id DESC LIMIT 1) l ON true
            LEFT JOIN LATERAL (SELECT m.at FROM headwater.moment m WHERE m.xid <= w.xid
                               ORDER BY m.xid DESC LIMIT 1) m ON true
            GROUP BY w.source_id
        )
        SELECT c.oid::regclass AS changes, c.reltuples, c.relpages,
               format('%I.%I', coalesce(n.nspname, s.schema_name), coalesce(t.relname, s.table_name)) AS source,
               pg_table_size(c.oid) AS bytes, pg_relation_size(c.oid) AS main_bytes, since.at,
               array(SELECT st.stream_table
                     FROM headwater.dependency d
                     JOIN headwater.stream_table_name st ON st.id = d.stream_table_id
                     JOIN headwater.stream_table i ON i.id = d.stream_table_id AND i.mode = 'differential'
                     WHERE d.source_id = s.id
                   UNION ALL
                     SELECT o.name FROM headwater.consumer o WHERE o.source_id = s.id
                     ORDER BY 1) AS consumers
        FROM headwater.source s
        JOIN pg_class c ON c.relname = s.change_table AND c.relnamespace = to_regnamespace('headwater_changes')
        LEFT JOIN pg_class t ON t.oid = s.relation
        LEFT JOIN pg_namespace n ON n.oid = t.relnamespace
        LEFT JOIN since ON since.source_id = s.id
        ORDER BY pg_relation_size(c.oid) DESC, s.id
    LOOP
        source := captured.source;
        bytes := captured.bytes;
        oldest_change := captured.at;
        consumers := captured.consumers;
        row_count := 0;
        row_count_is_estimate := false;
        IF captured.main_bytes > 0 THEN
            BEGIN
                EXECUTE format('SELECT count(*) FROM (SELECT FROM %s LIMIT 10001) counted', captured.changes) INTO row_count;
            EXCEPTION WHEN undefined_table THEN
                CONTINUE;
            END;
            IF row_count > 10000 THEN
                row_count_is_estimate := true;
                -- as dense as when it was last analysed, or as rows of the smallest size are
                row_count := greatest(row_count, (captured.main_bytes / 8192.0 * CASE
                    WHEN captured.relpages > 0 AND captured.reltuples > 0 THEN captured.reltuples / captured.relpages
                    ELSE 100 END)::bigint);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION headwater.find_stream_table(name text, path text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[] := parse_ident(name);
    schemas name[];
BEGIN
    PERFORM set_config('search_path', path, true);
    schemas := pg_catalog.current_schemas(false);
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    RETURN (SELECT st.id FROM headwater.stream_table_name st
            WHERE st.table_name = parts[cardinality(parts)] AND cardinality(parts) <= 2
              AND CASE WHEN cardinality(parts) = 2 THEN st.schema_name = parts[1]
                       ELSE st.schema_name = ANY (schemas) END
            ORDER BY array_position(schemas, st.schema_name) LIMIT 1);
END
$$;

CREATE OR REPLACE VIEW headwater.pg_stat_headwater AS
SELECT st.id AS stream_table_id,
       st.schema_name,
       st.table_name,
       coalesce(t.refreshes, 0) AS total_refreshes,
       coalesce(t.full_refreshes, 0) AS total_full_refreshes,
       coalesce(t.delta_refreshes, 0) AS total_diff_refreshes,
       coalesce(t.delta_rows, 0) AS total_delta_rows_processed,
       d.average AS avg_refresh_duration_ms,
       d.percentiles[1] AS p95_refresh_duration_ms,
       d.percentiles[2] AS p99_refresh_duration_ms,
       st.last_refresh_at,
       greatest(0, coalesce(extract(epoch FROM clock_timestamp() - l.behind_since) * 1000, 0))::double precision
           AS current_lag_estimate_ms,
       e.error AS last_error,
       e.finished_at AS last_error_at,
       st.status
FROM headwater.stream_tables st
LEFT JOIN headwater.refresh_total t ON t.stream_table_id = st.id
LEFT JOIN headwater.lags() l ON l.stream_table_id = st.id
LEFT JOIN LATERAL (
    SELECT avg(ms) AS average, percentile_cont(ARRAY[0.95, 0.99]) WITHIN GROUP (ORDER BY ms) AS percentiles
    FROM (SELECT date_part('epoch', finished_at - started_at) * 1000 AS ms
          FROM headwater.refresh
          WHERE stream_table_id = st.id AND status = 'completed' AND action <> 'nothing'
          ORDER BY id DESC LIMIT 100) latest
) d ON true
LEFT JOIN LATERAL (
    SELECT error, finished_at FROM headwater.refresh
    WHERE stream_table_id = st.id AND status = 'failed' ORDER BY id DESC LIMIT 1
) e ON true
WHERE st.status <> 'initializing';

CREATE OR REPLACE FUNCTION headwater.note_moment() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF coalesce((SELECT max(at) FROM headwater.moment) < clock_timestamp() - interval '1 second', true) THEN
        DELETE FROM headwater.moment WHERE at < statement_timestamp() - interval '1 hour';  -- stable, so by index
        INSERT INTO headwater.moment VALUES (clock_timestamp(), pg_snapshot_xmax(pg_current_snapshot()))
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION headwater.parallel_job_status(
    seconds integer DEFAULT 300,
    OUT job_id bigint, OUT stream_table text, OUT status text, OUT engine text, OUT worker_id uuid, OUT worker_pid integer,
    OUT queued_at timestamptz, OUT started_at timestamptz, OUT finished_at timestamptz, OUT wait_ms double precision,
    OUT duration_ms double precision, OUT attempt integer, OUT error text
) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
SELECT j.id, coalesce(st.stream_table, '(dropped)'), j.status, j.engine, j.worker_id, j.worker_pid, j.queued_at, j.started_at,
       j.finished_at,
       extract(epoch FROM coalesce(j.started_at, j.finished_at, clock_timestamp()) - j.queued_at) * 1000,
       extract(epoch FROM coalesce(j.finished_at, clock_timestamp()) - j.started_at) * 1000,
       j.attempt, j.error
FROM headwater.worker_jobs j
LEFT JOIN headwater.stream_table_name st ON st.id = j.stream_table_id
WHERE j.finished_at >= statement_timestamp() - seconds * interval '1 second' OR j.finished_at IS NULL  -- stable, so by index
ORDER BY j.id DESC
$$;

DROP FUNCTION headwater.health_summary();
CREATE FUNCTION headwater.health_summary(
    OUT total_stream_tables bigint, OUT active_count bigint, OUT error_count bigint, OUT suspended_count bigint,
    OUT stale_count bigint, OUT scheduler_status text, OUT plan_cache_hit_rate double precision,
    OUT oldest_unconsumed_change timestamptz, OUT broken_count bigint
) RETURNS record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
SELECT count(*),
       count(*) FILTER (WHERE h.status = 'active'),
       count(*) FILTER (WHERE h.status = 'broken' OR last.status = 'failed'),
       count(*) FILTER (WHERE h.status = 'suspended'),
       -- the moments are a second apart, and the refresh that ends the waiting takes its time
       count(*) FILTER (WHERE clock_timestamp() - l.waiting_since
                              > d.allowed + interval '2 seconds' + coalesce(last.finished_at - last.started_at, '0')),
       headwater.scheduler_status(),
       (SELECT s.plan_cache_hits::double precision / nullif(s.plan_cache_hits + s.plan_cache_misses, 0)
        FROM headwater.scheduler s),
       min(l.waiting_since) FILTER (WHERE st.mode = 'differential'),
       count(*) FILTER (WHERE h.status = 'broken')
FROM headwater.stream_table st
JOIN headwater.health h ON h.stream_table_id = st.id
LEFT JOIN headwater.lags() l ON l.stream_table_id = st.id
LEFT JOIN headwater.deadlines() d ON d.stream_table_id = st.id
LEFT JOIN LATERAL (SELECT r.status, r.started_at, r.finished_at FROM headwater.refresh r
                   WHERE r.stream_table_id = st.id ORDER BY r.id DESC LIMIT 1) last ON true
WHERE st.status <> 'initializing'
$$;

REVOKE EXECUTE ON ROUTINE headwater.health_summary FROM PUBLIC;
GRANT EXECUTE ON ROUTINE headwater.health_summary TO pg_monitor;
GRANT SELECT ON headwater.health TO pg_monitor;
