-- Audits: stream tables compared with their queries when they are loaded and from time to time, and what was found.

CREATE TABLE headwater.audit (
    stream_table_id bigint PRIMARY KEY REFERENCES headwater.stream_table ON DELETE CASCADE,
    load_check      text,               -- how its rows were compared with its query when they were last loaded
    started_at      timestamptz,        -- of the audit that is under way
    slice           integer NOT NULL DEFAULT 0,  -- slices of it that were compared
    slice_column    name,               -- by whose values it is sliced
    after           text,               -- the greatest value in these
    audited_at      timestamptz,        -- the end of the last audit
    result          text,               -- what it found
    slices          integer             -- how many it took
);

-- A stream table, or what its plan computes, differed from its query. Until its definition or the version of Headwater is
-- another one, it is recomputed at each refresh.
CREATE TABLE headwater.incident (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream_table_id bigint REFERENCES headwater.stream_table ON DELETE SET NULL,
    stream_table    text NOT NULL,
    found_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    found_by        text NOT NULL CHECK (found_by IN ('load', 'refresh', 'audit')),
    reason          text NOT NULL,
    columns         text[] NOT NULL,
    missing_count   bigint NOT NULL,    -- rows that the query gives and that were not there
    surplus_count   bigint NOT NULL,    -- rows that were there and that the query does not give
    missing         jsonb NOT NULL,     -- some of them
    surplus         jsonb NOT NULL,
    changes         jsonb NOT NULL,     -- by source, some of the change rows that were still there
    query           text NOT NULL,      -- as the server wrote it
    plan            text NOT NULL,      -- the SQL by which the plan computes all rows
    fingerprint     text NOT NULL,      -- of the definition
    version         text NOT NULL,      -- of Headwater
    server_version  text NOT NULL,
    released_at     timestamptz         -- since when it is no longer recomputed for this
);
CREATE INDEX ON headwater.incident (stream_table_id) WHERE released_at IS NULL;

CREATE VIEW headwater.audits AS
SELECT i.id,
       coalesce(st.stream_table, i.stream_table) AS stream_table,
       i.found_at,
       i.found_by,
       i.reason,
       CASE WHEN st.id IS NULL THEN 'dropped' WHEN i.released_at IS NULL THEN 'held' ELSE 'released' END AS status,
       i.missing_count,
       i.surplus_count,
       i.columns,
       i.missing,
       i.surplus,
       i.changes,
       i.query,
       i.plan,
       i.version,
       i.server_version,
       i.released_at
FROM headwater.incident i
LEFT JOIN headwater.stream_tables st ON st.id = i.stream_table_id;

DROP FUNCTION headwater.health_summary();
CREATE FUNCTION headwater.health_summary(
    OUT total_stream_tables bigint, OUT active_count bigint, OUT error_count bigint, OUT suspended_count bigint,
    OUT stale_count bigint, OUT scheduler_status text, OUT plan_cache_hit_rate double precision,
    OUT oldest_unconsumed_change timestamptz, OUT broken_count bigint, OUT incident_count bigint
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
       count(*) FILTER (WHERE h.status = 'broken'),
       (SELECT count(*) FROM headwater.incident i WHERE i.released_at IS NULL AND i.stream_table_id IS NOT NULL)
FROM headwater.stream_table st
JOIN headwater.health h ON h.stream_table_id = st.id
LEFT JOIN headwater.lags() l ON l.stream_table_id = st.id
LEFT JOIN headwater.deadlines() d ON d.stream_table_id = st.id
LEFT JOIN LATERAL (SELECT r.status, r.started_at, r.finished_at FROM headwater.refresh r
                   WHERE r.stream_table_id = st.id ORDER BY r.id DESC LIMIT 1) last ON true
WHERE st.status <> 'initializing'
$$;
REVOKE EXECUTE ON FUNCTION headwater.health_summary FROM PUBLIC;
GRANT EXECUTE ON FUNCTION headwater.health_summary TO pg_monitor;
-- but for the columns with rows of users' tables
GRANT SELECT (id, stream_table, found_at, found_by, reason, status, missing_count, surplus_count, columns, query, plan, version,
              server_version, released_at)
ON headwater.audits TO pg_monitor;
