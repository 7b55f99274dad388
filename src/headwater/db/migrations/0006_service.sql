-- The service: which sources changed, the jobs that refresh, the workers that run them, and how the scheduler does.

-- Since no service looked, something wrote to these sources; a row for each statement, for a row that all update would
-- have them wait for each other. Lost with a crash, after which the scheduler looks at everything once.
CREATE UNLOGGED TABLE headwater.changed_source (
    relation oid NOT NULL
);

-- Called by whatever adds rows to a change table. `event_driven_wake` replaces it by one that notifies, too.
CREATE FUNCTION headwater.mark_changed(relation oid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO headwater.changed_source VALUES (relation);
END
$$;

ALTER TABLE headwater.stream_table
    ADD COLUMN tier             text CHECK (tier IN ('hot', 'warm', 'cold', 'frozen')),  -- null: by how often it changes
    ADD COLUMN suspended_reason text;

-- What the cost model expected of a refresh.
ALTER TABLE headwater.refresh ADD COLUMN predicted_ms double precision;
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
JOIN headwater.stream_tables st ON st.id = r.stream_table_id;

-- Who runs jobs: schedulers, which do so inside their own process, and external workers.
CREATE UNLOGGED TABLE headwater.worker_registry (
    worker_id    uuid PRIMARY KEY,
    kind         text NOT NULL CHECK (kind IN ('scheduler', 'worker')),
    host_name    text NOT NULL,
    pid          integer NOT NULL,
    backend_pid  integer NOT NULL,      -- of its connection that does nothing but claim and beat
    capacity     integer NOT NULL,      -- jobs at once
    status       text NOT NULL CHECK (status IN ('running', 'draining')),
    capabilities jsonb NOT NULL DEFAULT '{}',  -- engines, Spark's master, version
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Refreshes that the scheduler asked for. The attempt is part of a key so that a refresh can hold on to it, by
-- FOR KEY SHARE, while heartbeats go on.
CREATE UNLOGGED TABLE headwater.worker_jobs (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream_table_id  bigint NOT NULL,      -- the last of its members
    members          bigint[] NOT NULL,    -- refreshed in one transaction, in this order
    status           text NOT NULL CHECK (status IN ('QUEUED', 'RUNNING', 'COMPLETED', 'FAILED', 'RECLAIMED')),
    attempt          integer NOT NULL DEFAULT 1,
    engine           text,
    worker_id        uuid,
    worker_pid       integer,
    backend_pid      integer,              -- of the refresh's transaction
    queued_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at       timestamptz,
    heartbeat_at     timestamptz,
    finished_at      timestamptz,
    error            text,
    failed_member    bigint,               -- by whose fault, if it counts for suspending it
    UNIQUE (id, attempt)
);
-- Numbers must not come back after a crash: who still works on a job would take another one for it.
ALTER SEQUENCE headwater.worker_jobs_id_seq SET LOGGED;
CREATE INDEX ON headwater.worker_jobs (id) WHERE status IN ('QUEUED', 'RUNNING');
CREATE INDEX ON headwater.worker_jobs (finished_at);

-- How the scheduler of this database does; one row, written once in a tick.
CREATE UNLOGGED TABLE headwater.scheduler (
    singleton         boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    worker_id         uuid NOT NULL,
    started_at        timestamptz NOT NULL,
    ticked_at         timestamptz NOT NULL,
    ticks             bigint NOT NULL,
    tick_ms           double precision NOT NULL,   -- CPU time of the latest tick
    busy_share        double precision NOT NULL,   -- of the time since the tick before, that the loop itself worked
    stream_tables     integer NOT NULL,            -- that have a schedule
    changed           integer NOT NULL,            -- of these, sources changed and they were not refreshed yet
    queued_jobs       integer NOT NULL,            -- that are due and wait for a worker
    active_workers    integer NOT NULL,
    max_workers       integer NOT NULL,
    per_db_cap        integer NOT NULL,
    parallel_mode     text NOT NULL,
    plan_cache_hits   bigint NOT NULL,
    plan_cache_misses bigint NOT NULL,
    draining          boolean NOT NULL
);

-- Tells the scheduler that what it knows of the catalog has changed.
CREATE FUNCTION headwater.notify_catalog() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.pg_notify('headwater_catalog', '');
    RETURN NULL;
END
$$;
CREATE TRIGGER notify AFTER INSERT OR UPDATE OR DELETE ON headwater.stream_table
    FOR EACH STATEMENT EXECUTE FUNCTION headwater.notify_catalog();
CREATE TRIGGER notify AFTER INSERT OR UPDATE OR DELETE ON headwater.dependency
    FOR EACH STATEMENT EXECUTE FUNCTION headwater.notify_catalog();
CREATE TRIGGER notify AFTER INSERT OR UPDATE OR DELETE ON headwater.setting
    FOR EACH STATEMENT EXECUTE FUNCTION headwater.notify_catalog();

-- What is set for this database, by the name that users look for.
CREATE VIEW headwater.settings AS SELECT name, value, changed_at, changed_by FROM headwater.setting;

-- A publication of all tables refuses deletions from a table without a key, unless whole rows stand for it.
ALTER TABLE headwater.lost_change REPLICA IDENTITY FULL;
ALTER TABLE headwater.lineage REPLICA IDENTITY FULL;
