-- The catalog: stream tables, what they read, how far they are, what happened, settings.

-- A role that owns the schemas but may not create any is enough: IF NOT EXISTS would ask for the right first.
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['headwater', 'headwater_defs', 'headwater_data', 'headwater_changes'] LOOP
        IF to_regnamespace(wanted) IS NULL THEN
            EXECUTE format('CREATE SCHEMA %I', wanted);
        END IF;
    END LOOP;
END
$$;

CREATE TABLE headwater.migration (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_by xid8 NOT NULL DEFAULT pg_current_xact_id()  -- its own transaction, unless it was restored from a dump
);

CREATE TABLE headwater.stream_table (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schema_name    name NOT NULL,
    table_name     name NOT NULL,
    relation       oid UNIQUE,          -- the view that users read; it decides the name once it exists
    query          text NOT NULL,       -- as the user wrote it
    fingerprint    text,                -- of what its storage holds; null when that must be replaced
    signature      text,                -- headwater.signature() when it was last planned
    signature_of   oid[],               -- the relations that went into it
    requested_mode text NOT NULL CHECK (requested_mode IN ('auto', 'differential', 'full')),
    mode           text NOT NULL CHECK (mode IN ('differential', 'full')),
    mode_reasons   text[] NOT NULL DEFAULT '{}',  -- why it is not differential
    engine         text NOT NULL CHECK (engine IN ('auto', 'postgres', 'spark')),
    schedule       text,
    status         text NOT NULL CHECK (status IN ('initializing', 'active', 'suspended')),
    rebuild_reason text,                -- set when the stored rows cannot be brought up to date by a delta
    time_zone      text NOT NULL,       -- of the definer; the query is always evaluated in it
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    definition     text,                -- the query as the server wrote it when it was last planned
    tier             text CHECK (tier IN ('hot', 'warm', 'cold', 'frozen')),  -- null: by how often it changes
    suspended_reason text
);
-- Two creations of one name; once there is a view, the server itself keeps names apart.
CREATE UNIQUE INDEX ON headwater.stream_table (schema_name, table_name) WHERE relation IS NULL;

CREATE TABLE headwater.source (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relation        oid NOT NULL UNIQUE,
    schema_name     name NOT NULL,
    table_name      name NOT NULL,
    stream_table_id bigint REFERENCES headwater.stream_table ON DELETE CASCADE,  -- if the source is one
    change_table    name,               -- in headwater_changes; null while nobody needs its changes
    capture_signature text              -- headwater.capture_signature() when its capture was installed
);

-- The columns that are captured: what the dependencies need, no less and no more.
CREATE TABLE headwater.source_column (
    source_id bigint NOT NULL REFERENCES headwater.source ON DELETE CASCADE,
    attnum    smallint NOT NULL,
    PRIMARY KEY (source_id, attnum)
);

-- Changes that could not be captured in any other way, so that consumers of the source must be rebuilt.
CREATE TABLE headwater.lost_change (
    relation oid NOT NULL,
    reason   text NOT NULL,
    lost_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON headwater.lost_change (relation);

CREATE TABLE headwater.dependency (
    stream_table_id bigint NOT NULL REFERENCES headwater.stream_table ON DELETE CASCADE,
    source_id       bigint NOT NULL REFERENCES headwater.source,
    columns         smallint[] NOT NULL,  -- those whose changes its deltas need
    PRIMARY KEY (stream_table_id, source_id)
);
CREATE INDEX ON headwater.dependency (source_id);

-- Which column of a source an output column is made from; without an output column, a condition or key reads it.
CREATE TABLE headwater.lineage (
    stream_table_id bigint NOT NULL REFERENCES headwater.stream_table ON DELETE CASCADE,
    source_id       bigint NOT NULL REFERENCES headwater.source ON DELETE CASCADE,
    attnum          smallint NOT NULL,
    output_column   name,
    UNIQUE NULLS NOT DISTINCT (stream_table_id, source_id, attnum, output_column)
);

-- The snapshot that a stream table's rows show, for each node that its sources live on (0 is this server).
CREATE TABLE headwater.frontier (
    stream_table_id bigint NOT NULL REFERENCES headwater.stream_table ON DELETE CASCADE,
    node            integer NOT NULL,
    snapshot        pg_snapshot NOT NULL,
    applied_by      xid8 NOT NULL,      -- its own earlier writes were seen too, though no snapshot shows them
    PRIMARY KEY (stream_table_id, node)
);

-- Queries outside the database that follow the changes of a stream table.
CREATE TABLE headwater.consumer (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text NOT NULL UNIQUE,
    source_id    bigint NOT NULL REFERENCES headwater.source ON DELETE CASCADE,  -- the stream table as a source
    columns      smallint[] NOT NULL,   -- those that are captured for it
    epoch        integer NOT NULL DEFAULT 1,  -- counts how often it was started anew; offsets of another are refused
    start        text NOT NULL CHECK (start IN ('now', 'snapshot')),
    initial      pg_snapshot,           -- where it began; null until its changes are captured
    snapshot     pg_snapshot,           -- what it has behind it: change rows not visible in it are kept; null when given up
    committed    boolean NOT NULL DEFAULT false,  -- whether it has moved on from where it began
    given_up     text,                  -- why its change rows are not kept any more
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON headwater.consumer (source_id);

CREATE TABLE headwater.refresh (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream_table_id bigint NOT NULL REFERENCES headwater.stream_table ON DELETE CASCADE,
    started_at      timestamptz NOT NULL,
    finished_at     timestamptz NOT NULL,
    mode            text NOT NULL CHECK (mode IN ('differential', 'full')),
    engine          text NOT NULL,
    action          text NOT NULL CHECK (action IN ('load', 'delta', 'recompute', 'nothing')),
    status          text NOT NULL CHECK (status IN ('completed', 'failed')),
    reason          text NOT NULL,
    error           text,
    sqlstate        text,
    snapshot        pg_snapshot,
    rows_in         bigint,
    rows_inserted   bigint,
    rows_updated    bigint,
    rows_deleted    bigint,
    phases          jsonb NOT NULL DEFAULT '{}',  -- milliseconds by phase
    bytes_in        bigint,             -- read from the database by an engine outside it
    bytes_out       bigint,             -- written back by it
    engine_reason   text NOT NULL DEFAULT '',  -- why this engine
    predicted_ms    double precision     -- what the cost model expected
);
CREATE INDEX ON headwater.refresh (stream_table_id, id);

-- A refresh that runs outside the database, as other processes see it. Its row lives as long as it does: whoever
-- started it holds the advisory lock (1214608, id) all the time, and a row without that lock is a dead job's.
-- Unlogged, for no job survives a crash of the server.
CREATE UNLOGGED TABLE headwater.job (
    id                  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream_table_id     bigint NOT NULL REFERENCES headwater.stream_table ON DELETE CASCADE,
    started_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    coordinator         integer NOT NULL,  -- the backend whose transaction the refresh is
    client              text NOT NULL,     -- host:pid of the process
    engine              text NOT NULL,
    action              text NOT NULL,
    phase               text NOT NULL,
    progress            jsonb NOT NULL DEFAULT '{}',  -- of the phase: tasks, tasks_done, rows, bytes, stage
    application         text,              -- as Spark calls it
    ui                  text,              -- address of Spark's user interface, if it is on
    cancel_requested_at timestamptz
);
CREATE INDEX ON headwater.job (stream_table_id);
-- Numbers are in the names of tables that a crash of the server leaves behind: they must not start over.
ALTER SEQUENCE headwater.job_id_seq SET LOGGED;

-- What tasks have written, each in the transaction that wrote it: one that runs twice finds its part taken.
-- Also what they have read, in all attempts together.
CREATE UNLOGGED TABLE headwater.job_part (
    job_id bigint NOT NULL REFERENCES headwater.job ON DELETE CASCADE,
    part   text NOT NULL,
    number integer NOT NULL,
    rows   bigint NOT NULL,
    bytes  bigint NOT NULL DEFAULT 0,
    ms     double precision NOT NULL DEFAULT 0,  -- how long the database took for them
    PRIMARY KEY (job_id, part, number)
);

CREATE TABLE headwater.setting (
    name       text PRIMARY KEY,
    value      text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by name NOT NULL DEFAULT current_user
);

-- The view that holds a stream table's query: its name starts with the number and goes on with the name of the stream
-- table, for the server names it when it refuses a change to what it reads.
CREATE FUNCTION headwater.definition(stream_table_id bigint) RETURNS oid LANGUAGE sql STABLE SET search_path = '' AS $$
SELECT c.oid
FROM pg_catalog.pg_class c
WHERE c.relnamespace = pg_catalog.to_regnamespace('headwater_defs') AND c.relkind = 'v'
  AND c.relname >= pg_catalog.concat('def_', stream_table_id)::pg_catalog.name
  AND c.relname < pg_catalog.concat('def_', stream_table_id, '!')::pg_catalog.name
$$;

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

-- Everything that a plan is made from: the deparsed queries of a definition view and of the plain views below
-- it, and all relations that they read with their columns. It changes when one of them does.
CREATE FUNCTION headwater.signature(definition oid, relations oid[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = '' SET quote_all_identifiers = off AS $$
BEGIN
RETURN (
SELECT pg_catalog.md5(pg_catalog.concat_ws(
    E'\n', pg_catalog.pg_get_viewdef(definition),
    (SELECT pg_catalog.string_agg(
                pg_catalog.concat_ws(' ', c.oid, n.nspname, c.relname, c.relkind, c.relhassubclass, c.relispartition,
                                     pg_catalog.row_security_active(c.oid),
                                     EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid),
                                     CASE c.relkind WHEN 'v' THEN pg_catalog.pg_get_viewdef(c.oid) END),
                E'\n' ORDER BY c.oid)
     FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = ANY (relations)),
    (SELECT pg_catalog.string_agg(
                pg_catalog.concat_ws(' ', attrelid, attnum, attname, atttypid, atttypmod, attcollation, attnotnull,
                                     attgenerated),
                E'\n' ORDER BY attrelid, attnum)
     FROM pg_catalog.pg_attribute
     WHERE attrelid = ANY (definition || relations) AND attnum > 0 AND NOT attisdropped),
    (SELECT pg_catalog.string_agg(
                pg_catalog.concat_ws(' ', adrelid, adnum, pg_catalog.pg_get_expr(adbin, adrelid)),
                E'\n' ORDER BY adrelid, adnum)
     FROM pg_catalog.pg_attrdef JOIN pg_catalog.pg_attribute a ON a.attrelid = adrelid AND a.attnum = adnum
     WHERE adrelid = ANY (relations) AND a.attgenerated <> ''),
    (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', co.oid, co.collversion), E'\n' ORDER BY co.oid)
     FROM pg_catalog.pg_collation co
     WHERE co.oid IN (SELECT attcollation FROM pg_catalog.pg_attribute WHERE attrelid = ANY (relations))),
    (SELECT d.datcollversion FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()),
    -- functions of users' own (16384 is the first oid that is not PostgreSQL's) that the queries call, and those that
    -- aggregates consist of
    (SELECT pg_catalog.string_agg(
                pg_catalog.concat_ws(' ', p.oid, p.provolatile, p.prosrc, p.probin, p.prosqlbody, a.agginitval, a.aggtranstype,
                    (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', q.oid, q.prosrc, q.probin, q.prosqlbody),
                                                  E'\n' ORDER BY q.oid)
                     FROM pg_catalog.pg_proc q
                     WHERE q.oid IN (a.aggtransfn, a.aggfinalfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn))),
                E'\n' ORDER BY p.oid)
     FROM pg_catalog.pg_proc p LEFT JOIN pg_catalog.pg_aggregate a ON a.aggfnoid = p.oid
     WHERE p.oid >= 16384 AND p.oid IN (
         SELECT m.found[1]::pg_catalog.oid
         FROM pg_catalog.pg_rewrite r,
              pg_catalog.regexp_matches(r.ev_action::pg_catalog.text, ':(?:funcid|aggfnoid|opfuncid) (\d+)', 'g') m(found)
         WHERE r.ev_class = ANY (definition || relations)))))
) || coalesce((
    -- the tables among them whose rows depend on who owns a view that is read
    SELECT pg_catalog.string_agg(' ' || t.oid, '' ORDER BY t.oid) FROM pg_catalog.pg_class t
    WHERE t.oid = ANY (relations) AND t.relrowsecurity AND EXISTS (
        SELECT FROM pg_catalog.pg_class v JOIN pg_catalog.pg_roles o ON o.oid = v.relowner
        WHERE v.oid = ANY (relations) AND v.relkind = 'v' AND o.rolname <> current_user
          AND NOT (o.rolsuper OR o.rolbypassrls))), '');
END
$$;

-- What the capture of a table is made for (its columns, the change table and the view of what is captured), and,
-- after a colon, the function itself. It changes when one of them does.
CREATE FUNCTION headwater.capture_signature(relation oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = '' AS $$
BEGIN
RETURN (
SELECT pg_catalog.md5(pg_catalog.concat_ws(
    E'\n',
    (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', attnum, attname), E'\n' ORDER BY attnum)
     FROM pg_catalog.pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped),
    (SELECT pg_catalog.string_agg(
                pg_catalog.concat_ws(' ', c.oid, c.relowner, a.attnum, a.attname, a.atttypid), E'\n'
                ORDER BY c.oid, a.attnum)
     FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
     WHERE c.oid IN (pg_catalog.to_regclass('headwater_changes.src_' || relation),
                     pg_catalog.to_regclass('headwater_defs.captured_' || relation))
       AND a.attnum > 0 AND NOT a.attisdropped)))
    || ':' || coalesce((SELECT pg_catalog.md5(p.prosrc) FROM pg_catalog.pg_proc p
                        WHERE p.oid = pg_catalog.to_regproc('headwater_changes.capture_' || relation)), '')
);
END
$$;

CREATE FUNCTION headwater.refuse_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'cannot write to stream table "%.%"', TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'object_not_in_prerequisite_state',
              DETAIL = 'Its rows are the result of a query, and Headwater keeps them up to date.',
              HINT = 'Write to the tables that the query reads.';
END
$$;

CREATE VIEW headwater.stream_tables AS
SELECT st.id,
       coalesce(n.nspname, st.schema_name) AS schema_name,
       coalesce(c.relname, st.table_name) AS table_name,
       format('%I.%I', coalesce(n.nspname, st.schema_name), coalesce(c.relname, st.table_name)) AS stream_table,
       st.status,
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
       st.created_at
FROM headwater.stream_table st
LEFT JOIN pg_catalog.pg_class c ON c.oid = st.relation
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN headwater.frontier f ON f.stream_table_id = st.id AND f.node = 0
LEFT JOIN LATERAL (
    SELECT started_at, finished_at, action FROM headwater.refresh
    WHERE stream_table_id = st.id AND status = 'completed' ORDER BY id DESC LIMIT 1
) r ON true;

CREATE VIEW headwater.refresh_history AS
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

-- Jobs whose process lives, and refreshes inside the database, which are told by the name of their transaction.
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

CREATE VIEW headwater.consumers AS
SELECT c.name AS consumer,
       st.stream_table,
       CASE WHEN c.given_up IS NOT NULL THEN 'given up' WHEN c.committed THEN 'active' ELSE 'starting' END AS status,
       c.given_up AS reason,
       c.snapshot,
       c.created_at,
       c.last_seen_at
FROM headwater.consumer c
JOIN headwater.source s ON s.id = c.source_id
JOIN headwater.stream_tables st ON st.id = s.stream_table_id;

-- What is set for this database, by the name that users look for.
CREATE VIEW headwater.settings AS SELECT name, value, changed_at, changed_by FROM headwater.setting;
