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
    suspended_reason text,
    search_path      text NOT NULL      -- of the definer; the query is evaluated under it where that matters
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
CREATE INDEX ON headwater.source (stream_table_id) WHERE stream_table_id IS NOT NULL;

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
ALTER TABLE headwater.lost_change REPLICA IDENTITY FULL;  -- for publications of all tables, which refuse deletions else

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
ALTER TABLE headwater.lineage REPLICA IDENTITY FULL;

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
    predicted_ms    double precision,    -- what the cost model expected
    fell_back       boolean NOT NULL DEFAULT false,  -- PostgreSQL computed what Spark was to compute
    abandoned_ms    double precision     -- the time of a delta that was tried first: given up, or failed with `sqlstate`
-- Rows come at one end and go at the other: their room is to be reused before much more is taken.
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1);
CREATE INDEX ON headwater.refresh (stream_table_id, id);
CREATE INDEX ON headwater.refresh (finished_at);

-- Refreshes that are functions: which stream table has one, and what a program must know to call it.
CREATE TABLE headwater.compiled_refresh (
    stream_table_id bigint PRIMARY KEY REFERENCES headwater.stream_table ON DELETE CASCADE,
    version         text NOT NULL,      -- of the program that compiled it
    signature       text NOT NULL,      -- headwater.signature() of the definition that it was compiled from
    token           text,               -- of the function, which runs for this one only; null if there is none
    tables          text[] NOT NULL DEFAULT '{}',    -- SQL names of the tables that are locked before the snapshot
    reads           bigint[] NOT NULL DEFAULT '{}',  -- the stream tables that it reads itself
    refused         text                -- why there is no function
);

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
    hostname     text NOT NULL,
    pid          integer NOT NULL,
    backend_pid  integer NOT NULL,      -- of its connection that does nothing but claim and beat
    capacity     integer NOT NULL,      -- jobs at once
    status       text NOT NULL CHECK (status IN ('active', 'draining')),
    capabilities jsonb NOT NULL DEFAULT '{}',  -- engines, Spark's master, version
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_heartbeat timestamptz NOT NULL DEFAULT clock_timestamp()
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
    assigned_at      timestamptz,          -- when its worker got it, and began
    heartbeat_at     timestamptz,
    finished_at      timestamptz,
    error            text,
    failed_member    bigint,               -- by whose fault, if it counts for suspending it
    UNIQUE (id, attempt)
);
-- Numbers must not come back after a crash: who still works on a job would take another one for it.
ALTER SEQUENCE headwater.worker_jobs_id_seq SET LOGGED;
-- What a worker may claim; what waits inside a scheduler has that scheduler's worker_id.
CREATE INDEX ON headwater.worker_jobs (id) WHERE status IN ('QUEUED', 'RECLAIMED') AND worker_id IS NULL;
CREATE INDEX ON headwater.worker_jobs (worker_id) WHERE status = 'RUNNING';
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
                pg_catalog.concat_ws(' ', p.oid, p.provolatile, p.proconfig, p.prosrc, p.probin, p.prosqlbody, a.agginitval, a.aggtranstype,
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

CREATE VIEW headwater.stream_tables AS
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
       r.predicted_ms,
       r.fell_back,
       r.abandoned_ms
FROM headwater.refresh r
JOIN headwater.stream_table_name st ON st.id = r.stream_table_id;

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
JOIN headwater.stream_table_name st ON st.id = s.stream_table_id;

-- What is set for this database, by the name that users look for.
CREATE VIEW headwater.settings AS SELECT name, value, changed_at, changed_by FROM headwater.setting;

-- Refreshes that completed, counted since the stream table was created, for the history forgets.
CREATE TABLE headwater.refresh_total (
    stream_table_id bigint PRIMARY KEY REFERENCES headwater.stream_table ON DELETE CASCADE,
    refreshes       bigint NOT NULL,
    full_refreshes  bigint NOT NULL,
    delta_refreshes bigint NOT NULL,
    delta_rows      bigint NOT NULL     -- change rows that deltas took in
) WITH (fillfactor = 50);
CREATE INDEX ON headwater.refresh (stream_table_id, id) WHERE status = 'failed';
-- What computing everything took, among many deltas.
CREATE INDEX ON headwater.refresh (stream_table_id, id) WHERE status = 'completed' AND action IN ('load', 'recompute');

-- Which transactions there were at which time, once in a second while a scheduler ticks and for an hour: change rows
-- name their transaction, not their time.
CREATE UNLOGGED TABLE headwater.moment (
    at  timestamptz PRIMARY KEY,
    xid xid8 NOT NULL                   -- this one and later ones were not committed then
);
CREATE INDEX ON headwater.moment (xid);

CREATE FUNCTION headwater.note_moment() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF coalesce((SELECT max(at) FROM headwater.moment) < clock_timestamp() - interval '1 second', true) THEN
        DELETE FROM headwater.moment WHERE at < statement_timestamp() - interval '1 hour';  -- stable, so by index
        INSERT INTO headwater.moment VALUES (clock_timestamp(), pg_snapshot_xmax(pg_current_snapshot()))
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER note_moment AFTER INSERT OR UPDATE ON headwater.scheduler
FOR EACH STATEMENT EXECUTE FUNCTION headwater.note_moment();

-- Settings by name and what each takes, written by init and migrate from the program's own rules.
CREATE TABLE headwater.known_setting (
    name        text PRIMARY KEY,
    kind        text NOT NULL CHECK (kind IN ('number', 'duration', 'choice', 'switch', 'text')),
    minimum     numeric,
    maximum     numeric,                -- of a duration: milliseconds
    zero_is_off boolean NOT NULL,
    choices     text[] NOT NULL,
    description text NOT NULL
);

-- What users asked the service for in SQL.
CREATE TABLE headwater.request (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    verb         text NOT NULL CHECK (verb IN ('create', 'alter', 'drop', 'refresh', 'suspend', 'resume')),
    arguments    jsonb NOT NULL,
    requested_by name NOT NULL,
    search_path  text NOT NULL,         -- of who asked, for names in the arguments and in a query
    time_zone    text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    status       text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'failed')),
    attempt      integer NOT NULL DEFAULT 0,  -- how often it was taken up; the session that did holds (1214610, id)
    picked_at    timestamptz,
    finished_at  timestamptz,
    result       jsonb,
    error        text,
    detail       text,
    hint         text,
    sqlstate     text
);
CREATE INDEX ON headwater.request (id) WHERE status IN ('pending', 'running');
CREATE INDEX ON headwater.request (finished_at);

-- A duration as users write it; null if it is none, as a cron expression.
CREATE FUNCTION headwater.duration(written text) RETURNS interval
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
SELECT part[1]::float8 * CASE part[2] WHEN 'ms' THEN interval '1 millisecond' WHEN 's' THEN interval '1 second'
                                      WHEN 'h' THEN interval '1 hour' WHEN 'd' THEN interval '24 hours'
                                      ELSE interval '1 minute' END
FROM regexp_match(written, '^\s*(\d{1,12}(?:\.\d+)?)\s*(ms|s|min|m|h|d)\s*$') AS part
$$;

-- Whether a scheduler ticks: running or draining; stopped, if one did within the last hour; else not installed.
CREATE FUNCTION headwater.scheduler_status() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce((
    SELECT CASE WHEN s.ticked_at < clock_timestamp() - greatest(interval '15 seconds', 5 * i.value) THEN 'stopped'
                WHEN s.draining THEN 'draining' ELSE 'running' END
    FROM headwater.scheduler s
    LEFT JOIN (SELECT value::float8 * interval '1 millisecond' AS value FROM headwater.setting
               WHERE name = 'scheduler_interval_ms' AND value ~ '^\d{1,9}$') i ON true),
    CASE WHEN EXISTS (SELECT FROM headwater.moment) THEN 'stopped' ELSE 'not installed' END)
$$;

-- Who has change rows of a source not behind it yet, a stream table or a consumer, and the transaction of the first such row
-- that is found, which is one of the oldest.
CREATE FUNCTION headwater.waiting_changes(
    OUT source_id bigint, OUT stream_table_id bigint, OUT consumer_id bigint, OUT xid xid8
) RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    reader record;
BEGIN
    FOR reader IN
        SELECT s.id, c.oid::regclass AS changes, r.stream_table_id, r.consumer_id, r.snapshot, r.applied_by
        FROM headwater.source s
        JOIN pg_class c ON c.relname = s.change_table AND c.relnamespace = to_regnamespace('headwater_changes')
        JOIN (SELECT d.source_id, f.stream_table_id, NULL::bigint, f.snapshot, f.applied_by
              FROM headwater.dependency d
              JOIN headwater.stream_table st ON st.id = d.stream_table_id AND st.mode = 'differential'
              JOIN headwater.frontier f ON f.stream_table_id = st.id AND f.node = 0
            UNION ALL
              SELECT o.source_id, NULL, o.id, o.snapshot, NULL FROM headwater.consumer o WHERE o.snapshot IS NOT NULL
             ) AS r (source_id, stream_table_id, consumer_id, snapshot, applied_by) ON r.source_id = s.id
        WHERE pg_relation_size(c.oid) > 0
    LOOP
        BEGIN
            -- as little to plan as can be
            EXECUTE format('SELECT xid FROM %s WHERE (xid::text::bigint) >= $1 AND NOT pg_visible_in_snapshot(xid, $2)'
                           ' AND xid IS DISTINCT FROM $3 LIMIT 1', reader.changes)
            INTO xid
            USING pg_snapshot_xmin(reader.snapshot)::text::bigint, reader.snapshot, reader.applied_by;
        EXCEPTION WHEN undefined_table OR undefined_column THEN
            CONTINUE;  -- it went while we looked, or somebody damaged it; a refresh says so
        END;
        IF xid IS NOT NULL THEN
            source_id := reader.id;
            stream_table_id := reader.stream_table_id;
            consumer_id := reader.consumer_id;
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

-- Since when a stream table is behind: because change rows wait for it, directly or for what it reads, or because no change rows
-- tell. No row if nothing waits.
CREATE FUNCTION headwater.lags(
    OUT stream_table_id bigint, OUT waiting_since timestamptz, OUT behind_since timestamptz
) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
WITH RECURSIVE last AS MATERIALIZED (
    SELECT st.id, st.mode, st.rebuild_reason, coalesce(r.started_at, st.created_at) AS refreshed_at
    FROM headwater.stream_table st
    LEFT JOIN LATERAL (SELECT started_at FROM headwater.refresh
                       WHERE stream_table_id = st.id AND status = 'completed' ORDER BY id DESC LIMIT 1) r ON true
    WHERE st.status <> 'initializing'
), waiting AS MATERIALIZED (
    SELECT l.id, min(greatest(l.refreshed_at, m.at)) AS since
    FROM headwater.waiting_changes() w
    JOIN last l ON l.id = w.stream_table_id
    LEFT JOIN LATERAL (SELECT at FROM headwater.moment WHERE xid <= w.xid ORDER BY xid DESC LIMIT 1) m ON true
    GROUP BY l.id
  UNION ALL
    SELECT l.id, l.refreshed_at FROM last l WHERE l.rebuild_reason IS NOT NULL
), behind(id, since) AS (
    SELECT w.id, w.since FROM waiting w
  UNION
    SELECT d.stream_table_id, b.since
    FROM behind b
    JOIN headwater.source s ON s.stream_table_id = b.id
    JOIN headwater.dependency d ON d.source_id = s.id
)
SELECT l.id,
       least((SELECT min(w.since) FROM waiting w WHERE w.id = l.id), untold.since),
       least((SELECT min(b.since) FROM behind b WHERE b.id = l.id), untold.since)
FROM last l
LEFT JOIN LATERAL (SELECT l.refreshed_at AS since WHERE l.mode = 'full') untold ON true
WHERE untold.since IS NOT NULL OR l.id IN (SELECT b.id FROM behind b)
$$;

-- Statistics of each stream table. Durations are those of its latest 100 refreshes that completed: more
-- would make it dear to look at a thousand stream tables.
CREATE VIEW headwater.pg_stat_headwater AS
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

CREATE FUNCTION headwater.worker_pool_status(
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

-- Jobs that wait or run, and those that ended in the last so many seconds; newest first.
CREATE FUNCTION headwater.parallel_job_status(
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

-- How long changes may wait for a stream table: its schedule times its tier; for one that follows its readers, the shortest of
-- theirs. No row where a duration does not say it.
CREATE FUNCTION headwater.deadlines(OUT stream_table_id bigint, OUT allowed interval) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
WITH RECURSIVE wanted(id, allowed) AS (
    SELECT st.id, headwater.duration(st.schedule) * CASE st.tier WHEN 'warm' THEN 2 WHEN 'cold' THEN 10 ELSE 1 END
    FROM headwater.stream_table st
    WHERE st.tier IS DISTINCT FROM 'frozen' AND headwater.duration(st.schedule) IS NOT NULL
  UNION
    SELECT st.id, w.allowed
    FROM wanted w
    JOIN headwater.dependency d ON d.stream_table_id = w.id
    JOIN headwater.source s ON s.id = d.source_id
    JOIN headwater.stream_table st ON st.id = s.stream_table_id
    WHERE coalesce(st.schedule, 'calculated') = 'calculated' AND st.tier IS DISTINCT FROM 'frozen'
)
SELECT id, min(allowed) FROM wanted GROUP BY id
$$;

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

-- What the change tables hold. Rows are counted up to 10,000; beyond that the number is the server's estimate.
CREATE FUNCTION headwater.change_buffer_sizes(
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

-- Each stream table with what it reads below it. What is read by several is drawn below each, and what it reads
-- itself below one of them only.
CREATE FUNCTION headwater.dependency_tree(
    OUT tree text, OUT node text, OUT kind text, OUT parent text, OUT depth integer, OUT stream_table_id bigint,
    OUT status text, OUT schedule text
) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
WITH RECURSIVE named AS MATERIALIZED (
    SELECT st.id, st.stream_table COLLATE "C" AS name, st.status, st.schedule FROM headwater.stream_tables st
    WHERE st.status <> 'initializing'
), edge AS MATERIALIZED (
    SELECT d.stream_table_id AS reader, s.stream_table_id AS read_id,
           coalesce(r.name, format('%I.%I', coalesce(n.nspname, s.schema_name), coalesce(c.relname, s.table_name)))
               COLLATE "C" AS name,
           d.stream_table_id = min(d.stream_table_id) OVER (PARTITION BY s.id) AS opened
    FROM headwater.dependency d
    JOIN named ON named.id = d.stream_table_id
    JOIN headwater.source s ON s.id = d.source_id
    LEFT JOIN named r ON r.id = s.stream_table_id
    LEFT JOIN pg_class c ON c.oid = s.relation
    LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
), child AS MATERIALIZED (
    SELECT e.*, row_number() OVER siblings AS number,
           row_number() OVER siblings = count(*) OVER (PARTITION BY e.reader) AS last
    FROM edge e WINDOW siblings AS (PARTITION BY e.reader ORDER BY e.name)
), drawn AS (
    SELECT n.id, n.name, NULL::text COLLATE "C" AS parent, 0 AS depth, n.name AS tree, '' COLLATE "C" AS margin, true AS opened,
           ARRAY[row_number() OVER (ORDER BY n.name)] AS place
    FROM named n
    WHERE n.id NOT IN (SELECT read_id FROM edge WHERE read_id IS NOT NULL)
  UNION ALL
    SELECT c.read_id, c.name, d.name, d.depth + 1,
           d.margin || CASE WHEN c.last THEN '└── ' ELSE '├── ' END || c.name
           || CASE WHEN c.read_id IS NOT NULL AND NOT c.opened THEN ' …' ELSE '' END,
           d.margin || CASE WHEN c.last THEN '    ' ELSE '│   ' END,
           c.opened, d.place || c.number
    FROM drawn d JOIN child c ON c.reader = d.id
    WHERE d.opened
)
SELECT d.tree, d.name, CASE WHEN d.id IS NULL THEN 'table' ELSE 'stream table' END, d.parent, d.depth, d.id,
       n.status, n.schedule
FROM drawn d LEFT JOIN named n ON n.id = d.id
ORDER BY d.place
$$;

-- The stream table of a name, read as PostgreSQL reads it, under a search_path; null if there is none.
CREATE FUNCTION headwater.find_stream_table(name text, path text) RETURNS bigint
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

-- What the refreshes in the history say for or against deltas; of one stream table, or of all.
CREATE FUNCTION headwater.recommend_refresh_mode(
    name text DEFAULT NULL,
    OUT stream_table text, OUT recommended_mode text, OUT current_mode text, OUT reason text,
    OUT avg_delta_ms double precision, OUT avg_full_ms double precision, OUT sampled_refreshes bigint
) RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
DECLARE
    -- Of the caller: this function has none of its own, and calls nothing that is not named in full.
    path pg_catalog.text := pg_catalog.current_setting('search_path'::pg_catalog.text);
BEGIN
    RETURN QUERY SELECT r.* FROM headwater.recommendations(name, path) r;
END
$$;

CREATE FUNCTION headwater.recommendations(
    name text, path text,
    OUT stream_table text, OUT recommended_mode text, OUT current_mode text, OUT reason text,
    OUT avg_delta_ms double precision, OUT avg_full_ms double precision, OUT sampled_refreshes bigint
) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    number bigint;
BEGIN
    IF name IS NOT NULL THEN
        number := headwater.find_stream_table(name, path);
        IF number IS NULL THEN
            RAISE EXCEPTION 'there is no stream table %', name
                USING ERRCODE = 'undefined_table', HINT = 'SELECT * FROM headwater.stream_tables shows those there are';
        END IF;
    END IF;
    RETURN QUERY
    SELECT s.stream_table, advice.mode, s.requested_mode, advice.reason, s.delta_ms, s.full_ms, s.deltas + s.fulls
    FROM (SELECT st.stream_table, st.requested_mode, st.mode, st.reason,
                 h.delta_ms, h.full_ms, h.deltas, h.fulls
          FROM headwater.stream_tables st
          CROSS JOIN LATERAL (
              SELECT avg(ms) FILTER (WHERE action = 'delta') AS delta_ms, avg(ms) FILTER (WHERE action <> 'delta') AS full_ms,
                     count(*) FILTER (WHERE action = 'delta') AS deltas, count(*) FILTER (WHERE action <> 'delta') AS fulls
              FROM (SELECT action, date_part('epoch', finished_at - started_at) * 1000 AS ms
                    FROM headwater.refresh
                    WHERE stream_table_id = st.id AND status = 'completed' AND action <> 'nothing'
                    ORDER BY id DESC LIMIT 100) latest
          ) h
          WHERE st.status <> 'initializing' AND (number IS NULL OR st.id = number)) s
    CROSS JOIN LATERAL (
        SELECT CASE WHEN s.mode = 'full' AND s.requested_mode <> 'full' THEN 'full'
                    WHEN s.deltas < 3 OR s.fulls < 1 THEN CASE s.requested_mode WHEN 'full' THEN 'auto' ELSE s.requested_mode END
                    WHEN s.delta_ms <= s.full_ms THEN 'differential' ELSE 'full' END,
               CASE WHEN s.mode = 'full' AND s.requested_mode <> 'full'
                    THEN 'it cannot be maintained by deltas: ' || s.reason
                    WHEN s.requested_mode = 'full' AND s.deltas = 0
                    THEN 'no delta of it was measured; auto computes deltas, and recomputes where that takes less'
                    WHEN s.deltas < 3 OR s.fulls < 1
                    THEN format('%s deltas and %s full refreshes are too few to tell', s.deltas, s.fulls)
                    ELSE format('a delta takes %s times as long as a full refresh',
                                round((s.delta_ms / nullif(s.full_ms, 0))::numeric, 2)) END
    ) AS advice (mode, reason)
    ORDER BY s.stream_table;
END
$$;

-- Writes down what a user asks for. Only what is the same for every version of the service is checked here; the rest the service
-- checks. The schema "$user" is that of who asks.
CREATE FUNCTION headwater.record_request(verb text, arguments jsonb, path text, zone text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    asking text := coalesce(nullif(current_setting('role'), 'none'), session_user);
    choice record;
    recorded bigint;
BEGIN
    IF coalesce(btrim(arguments ->> 'name'), '') = '' THEN
        RAISE EXCEPTION '% stream table: no name was given', verb
            USING ERRCODE = 'invalid_parameter_value', HINT = 'give the name of a stream table: table or schema.table';
    END IF;
    IF verb = 'create' AND coalesce(btrim(arguments ->> 'query'), '') = '' THEN
        RAISE EXCEPTION '% cannot be created: no query was given', arguments ->> 'name'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'give one SELECT that could define a view';
    END IF;
    FOR choice IN
        SELECT * FROM (VALUES ('refresh_mode', ARRAY['auto', 'differential', 'full']),
                              ('engine', ARRAY['auto', 'postgres', 'spark']),
                              ('tier', ARRAY['auto', 'hot', 'warm', 'cold', 'frozen'])) AS c (argument, known)
    LOOP
        IF lower(arguments ->> choice.argument) <> ALL (choice.known) THEN
            RAISE EXCEPTION '%: there is no % %', arguments ->> 'name', choice.argument, quote_literal(arguments ->> choice.argument)
                USING ERRCODE = 'invalid_parameter_value', HINT = 'use ' || array_to_string(choice.known, ', ');
        END IF;
        IF arguments ->> choice.argument IS NOT NULL THEN
            arguments := jsonb_set(arguments, ARRAY[choice.argument], to_jsonb(lower(arguments ->> choice.argument)));
        END IF;
    END LOOP;
    INSERT INTO headwater.request (verb, arguments, requested_by, search_path, time_zone)
    VALUES (record_request.verb, record_request.arguments, asking, replace(path, '"$user"', quote_ident(asking)), zone)
    RETURNING id INTO recorded;
    PERFORM pg_notify('headwater_requests', '');
    RETURN recorded;
END
$$;

-- The functions below run with the rights of their owner and under the search_path of who calls them, which they hand on. So they
-- call nothing that is not named in full.
CREATE FUNCTION headwater.request_create_stream_table(
    name text, query text, schedule text DEFAULT NULL, refresh_mode text DEFAULT 'auto', engine text DEFAULT 'auto',
    tier text DEFAULT 'auto', if_not_exists boolean DEFAULT false, or_replace boolean DEFAULT false, "cascade" boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    RETURN headwater.record_request(
        'create'::pg_catalog.text,
        pg_catalog.jsonb_build_object(
            'name', name, 'query', query, 'schedule', schedule, 'refresh_mode', refresh_mode, 'engine', engine, 'tier', tier,
            'if_not_exists', if_not_exists, 'or_replace', or_replace, 'cascade', "cascade"),
        pg_catalog.current_setting('search_path'::pg_catalog.text), pg_catalog.current_setting('TimeZone'::pg_catalog.text));
END
$$;

CREATE FUNCTION headwater.request_alter_stream_table(
    name text, query text DEFAULT NULL, schedule text DEFAULT NULL, no_schedule boolean DEFAULT false,
    refresh_mode text DEFAULT NULL, engine text DEFAULT NULL, tier text DEFAULT NULL, "cascade" boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    RETURN headwater.record_request(
        'alter'::pg_catalog.text,
        pg_catalog.jsonb_build_object(
            'name', name, 'query', query, 'schedule', schedule, 'no_schedule', no_schedule, 'refresh_mode', refresh_mode,
            'engine', engine, 'tier', tier, 'cascade', "cascade"),
        pg_catalog.current_setting('search_path'::pg_catalog.text), pg_catalog.current_setting('TimeZone'::pg_catalog.text));
END
$$;

CREATE FUNCTION headwater.request_drop_stream_table(
    name text, "cascade" boolean DEFAULT false, if_exists boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    RETURN headwater.record_request(
        'drop'::pg_catalog.text,
        pg_catalog.jsonb_build_object('name', name, 'cascade', "cascade", 'if_exists', if_exists),
        pg_catalog.current_setting('search_path'::pg_catalog.text), pg_catalog.current_setting('TimeZone'::pg_catalog.text));
END
$$;

CREATE FUNCTION headwater.request_refresh_stream_table(
    name text, "full" boolean DEFAULT false, engine text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    RETURN headwater.record_request(
        'refresh'::pg_catalog.text,
        pg_catalog.jsonb_build_object('name', name, 'full', "full", 'engine', engine),
        pg_catalog.current_setting('search_path'::pg_catalog.text), pg_catalog.current_setting('TimeZone'::pg_catalog.text));
END
$$;

CREATE FUNCTION headwater.request_suspend_stream_table(name text, reason text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    RETURN headwater.record_request(
        'suspend'::pg_catalog.text,
        pg_catalog.jsonb_build_object('name', name, 'reason', reason),
        pg_catalog.current_setting('search_path'::pg_catalog.text), pg_catalog.current_setting('TimeZone'::pg_catalog.text));
END
$$;

CREATE FUNCTION headwater.request_resume_stream_table(name text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    RETURN headwater.record_request(
        'resume'::pg_catalog.text,
        pg_catalog.jsonb_build_object('name', name),
        pg_catalog.current_setting('search_path'::pg_catalog.text), pg_catalog.current_setting('TimeZone'::pg_catalog.text));
END
$$;

CREATE VIEW headwater.requests AS
SELECT r.id,
       r.verb,
       r.arguments ->> 'name' AS stream_table,
       r.status,
       r.arguments,
       r.requested_by,
       r.requested_at,
       r.picked_at,
       r.finished_at,
       r.attempt,
       r.result,
       r.error,
       r.detail,
       r.hint,
       r.sqlstate
FROM headwater.request r;

CREATE FUNCTION headwater.request_status(number bigint) RETURNS SETOF headwater.requests
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT * FROM headwater.requests r WHERE r.id = number
$$;

-- What the service says to a request: null while it has said nothing. Its error is raised as it is. Where nobody is there to
-- answer, waits no longer than given: no scheduler ticks, and no session holds the lock of a request that it carries out.
CREATE FUNCTION headwater.answer(number bigint, wait interval) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    asked headwater.request;
BEGIN
    SELECT * INTO asked FROM headwater.request r WHERE r.id = number;
    IF asked.status = 'done' THEN
        RETURN coalesce(asked.result ->> 'said', 'done');
    ELSIF asked.status = 'failed' AND asked.detail IS NOT NULL AND asked.hint IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = asked.error, ERRCODE = asked.sqlstate, DETAIL = asked.detail, HINT = asked.hint;
    ELSIF asked.status = 'failed' AND asked.detail IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = asked.error, ERRCODE = asked.sqlstate, DETAIL = asked.detail;
    ELSIF asked.status = 'failed' AND asked.hint IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = asked.error, ERRCODE = asked.sqlstate, HINT = asked.hint;
    ELSIF asked.status = 'failed' THEN
        RAISE EXCEPTION USING MESSAGE = asked.error, ERRCODE = asked.sqlstate;
    ELSIF asked.id IS NULL THEN
        RAISE EXCEPTION 'there is no request %', number USING ERRCODE = 'no_data_found';
    ELSIF clock_timestamp() > asked.requested_at + wait AND headwater.scheduler_status() IN ('stopped', 'not installed')
          AND NOT EXISTS (SELECT FROM pg_locks l
                          WHERE l.locktype = 'advisory' AND l.classid = 1214610 AND l.objsubid = 2
                            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) THEN
        RAISE EXCEPTION 'no service of Headwater runs for database %: request % waits for one', current_database(), number
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('start it with headwater serve, which then carries the request out; SELECT * FROM'
                                ' headwater.request_status(%s) shows what becomes of it', number);
    END IF;
    RETURN NULL;
END
$$;

-- What the server says when something commits that must not, in its language.
CREATE FUNCTION headwater.refusal_to_commit() RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    RETURN NULL;
EXCEPTION WHEN invalid_transaction_termination THEN
    RETURN SQLERRM;
END
$$;

-- Commits a request and waits for its answer, in a transaction for each look, so that no snapshot is held meanwhile. Neither
-- of the rights of an owner nor of a search_path of its own, for then it could not commit.
--
-- An error of COMMIT cannot be caught: where it could be, there is a subtransaction, and it fails always. It says one thing in
-- a transaction block, as it does in any function, and another where it could commit but for the subtransaction. So it is tried,
-- and what it says is compared with what it says in a function.
CREATE PROCEDURE headwater.await_request(number bigint, verb text, wait interval)
LANGUAGE plpgsql AS $$
DECLARE
    said pg_catalog.text;
    pause pg_catalog.float8 := 0.01;
BEGIN
    BEGIN
        COMMIT;
    EXCEPTION WHEN invalid_transaction_termination THEN
        said := SQLERRM;
    END;
    IF said OPERATOR(pg_catalog.=) headwater.refusal_to_commit() THEN
        RAISE EXCEPTION 'headwater.%_stream_table cannot be called inside a transaction block', verb
            USING ERRCODE = 'active_sql_transaction',
                  DETAIL = 'It commits what it asks for, so that the service sees it, and waits for the answer.',
                  HINT = pg_catalog.concat('call it by itself; or SELECT headwater.request_', verb, '_stream_table(…), which'
                                           ' records the request for when you commit, and returns its number');
    END IF;
    COMMIT;
    LOOP
        said := headwater.answer(number, wait);
        EXIT WHEN said IS NOT NULL;
        COMMIT;
        PERFORM pg_catalog.pg_sleep(pause);
        pause := LEAST(0.1::pg_catalog.float8, pause OPERATOR(pg_catalog.*) 1.5::pg_catalog.float8);
    END LOOP;
    RAISE NOTICE '%', said;
END
$$;

CREATE PROCEDURE headwater.create_stream_table(
    name text, query text, schedule text DEFAULT NULL, refresh_mode text DEFAULT 'auto', engine text DEFAULT 'auto',
    tier text DEFAULT 'auto', if_not_exists boolean DEFAULT false, or_replace boolean DEFAULT false, "cascade" boolean DEFAULT false,
    wait interval DEFAULT '10s'
) LANGUAGE plpgsql AS $$
BEGIN
    CALL headwater.await_request(
        headwater.request_create_stream_table(name, query, schedule, refresh_mode, engine, tier, if_not_exists, or_replace, "cascade"),
        'create'::pg_catalog.text, wait);
END
$$;

CREATE PROCEDURE headwater.alter_stream_table(
    name text, query text DEFAULT NULL, schedule text DEFAULT NULL, no_schedule boolean DEFAULT false,
    refresh_mode text DEFAULT NULL, engine text DEFAULT NULL, tier text DEFAULT NULL, "cascade" boolean DEFAULT false,
    wait interval DEFAULT '10s'
) LANGUAGE plpgsql AS $$
BEGIN
    CALL headwater.await_request(
        headwater.request_alter_stream_table(name, query, schedule, no_schedule, refresh_mode, engine, tier, "cascade"),
        'alter'::pg_catalog.text, wait);
END
$$;

CREATE PROCEDURE headwater.drop_stream_table(
    name text, "cascade" boolean DEFAULT false, if_exists boolean DEFAULT false, wait interval DEFAULT '10s'
) LANGUAGE plpgsql AS $$
BEGIN
    CALL headwater.await_request(
        headwater.request_drop_stream_table(name, "cascade", if_exists), 'drop'::pg_catalog.text, wait);
END
$$;

CREATE PROCEDURE headwater.refresh_stream_table(
    name text, "full" boolean DEFAULT false, engine text DEFAULT NULL, wait interval DEFAULT '10s'
) LANGUAGE plpgsql AS $$
BEGIN
    CALL headwater.await_request(
        headwater.request_refresh_stream_table(name, "full", engine), 'refresh'::pg_catalog.text, wait);
END
$$;

CREATE PROCEDURE headwater.suspend_stream_table(name text, reason text DEFAULT NULL, wait interval DEFAULT '10s')
LANGUAGE plpgsql AS $$
BEGIN
    CALL headwater.await_request(
        headwater.request_suspend_stream_table(name, reason), 'suspend'::pg_catalog.text, wait);
END
$$;

CREATE PROCEDURE headwater.resume_stream_table(name text, wait interval DEFAULT '10s')
LANGUAGE plpgsql AS $$
BEGIN
    CALL headwater.await_request(
        headwater.request_resume_stream_table(name), 'resume'::pg_catalog.text, wait);
END
$$;

-- Stores a setting, if it is one and takes the value; the value as it is stored.
CREATE FUNCTION headwater.set_config(name text, value text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bare text := regexp_replace(name, '^headwater\.', '');
    given text := btrim(value);
    number numeric;
    rule headwater.known_setting;
    wrong text;
BEGIN
    SELECT * INTO rule FROM headwater.known_setting k WHERE k.name = bare;
    IF rule.name IS NULL THEN
        RAISE EXCEPTION 'there is no setting %', quote_nullable(name)
            USING ERRCODE = 'undefined_object',
                  HINT = 'there are ' || (SELECT string_agg(k.name, ', ' ORDER BY k.name) FROM headwater.known_setting k);
    ELSIF given IS NULL THEN
        wrong := 'null is no value';
    ELSIF rule.kind = 'choice' THEN
        given := lower(given);
        wrong := CASE WHEN given <> ALL (rule.choices)
                      THEN quote_literal(given) || ' is not ' || array_to_string(rule.choices, ' or ') END;
    ELSIF rule.kind = 'switch' THEN
        wrong := CASE WHEN lower(given) NOT IN ('on', 'true', 'yes', '1', 'off', 'false', 'no', '0')
                      THEN quote_literal(given) || ' is not on or off' END;
        given := CASE WHEN lower(given) IN ('on', 'true', 'yes', '1') THEN 'on' ELSE 'off' END;
    ELSIF rule.kind = 'duration' THEN
        IF rule.zero_is_off AND given IN ('0', '0s') THEN
            given := '0ms';
        END IF;
        number := extract(epoch FROM headwater.duration(given)) * 1000;
        wrong := CASE WHEN number IS NULL THEN quote_literal(given) || ' is not a duration such as 500ms, 1s, 5m, 1h or 1d'
                      WHEN number = 0 AND NOT rule.zero_is_off THEN quote_literal(given) || ' is not longer than zero'
                      WHEN number > rule.maximum THEN quote_literal(given) || ' is too long' END;
    ELSIF rule.kind = 'number' THEN
        number := CASE WHEN given ~ '^[+-]?\d[\d_]{0,40}$' THEN replace(given, '_', '')::numeric END;
        wrong := CASE WHEN number IS NULL THEN quote_literal(given) || ' is not a whole number'
                      WHEN number < rule.minimum THEN given || ' is below ' || rule.minimum
                      WHEN number > rule.maximum THEN given || ' is above ' || rule.maximum END;
        given := coalesce(number::text, given);
    ELSE
        RAISE EXCEPTION 'setting % cannot be stored from SQL, which cannot check it', bare
            USING ERRCODE = 'feature_not_supported', HINT = format('headwater set %s VALUE', bare);
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'setting %: %', bare, wrong USING ERRCODE = 'invalid_parameter_value', HINT = rule.description;
    END IF;
    INSERT INTO headwater.setting AS s (name, value, changed_by) VALUES (bare, given, session_user)
    ON CONFLICT ON CONSTRAINT setting_pkey
    DO UPDATE SET value = excluded.value, changed_at = clock_timestamp(), changed_by = excluded.changed_by;
    RETURN given;
END
$$;

-- Has the service begin no more refreshes, while capture goes on, until headwater.resume().
CREATE FUNCTION headwater.drain() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT headwater.set_config('drain', 'on')
$$;

CREATE FUNCTION headwater.resume() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT headwater.set_config('drain', 'off')
$$;

-- Sums of refreshes, by the minute and by the hour in which they finished, in UTC. A refresh is in one sum of each length. No
-- reference to stream_table, for the clean-up is to wait for nobody: dropping a stream table deletes its sums.
CREATE TABLE headwater.refresh_sum (
    stream_table_id bigint NOT NULL,
    bucket_length   interval NOT NULL,
    bucket_start    timestamptz NOT NULL,
    action          text NOT NULL,
    engine          text NOT NULL,
    refreshes       bigint NOT NULL,
    failures        bigint NOT NULL,    -- of these
    rows_in         bigint NOT NULL,
    rows_inserted   bigint NOT NULL,
    rows_updated    bigint NOT NULL,
    rows_deleted    bigint NOT NULL,
    total_ms        double precision NOT NULL,  -- durations are those of the refreshes that completed
    min_ms          double precision,
    max_ms          double precision,
    duration_buckets smallint[] NOT NULL,  -- headwater.duration_bucket() of them, ascending
    duration_counts  integer[] NOT NULL,   -- how many are in each of these
    PRIMARY KEY (stream_table_id, bucket_length, bucket_start, action, engine)
);
CREATE INDEX ON headwater.refresh_sum (bucket_length, bucket_start);

-- How far the clean-up of the history is.
CREATE TABLE headwater.history_state (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    counted_to   bigint NOT NULL,       -- refreshes up to this number are in the sums
    decided_to   bigint NOT NULL,       -- refreshes up to this number are committed, or never will be
    drawn_to     bigint NOT NULL,       -- numbers up to this one had been drawn
    drawn_by     text[] NOT NULL,       -- by these virtual transactions, as far as they had not ended then
    swept_to     bigint NOT NULL,       -- single deltas up to this number are deleted, but for the latest
    cleaned_at   timestamptz,
    compacted_at timestamptz
);
INSERT INTO headwater.history_state (counted_to, decided_to, drawn_to, drawn_by, swept_to) VALUES (0, 0, 0, '{}', 0);

-- Deltas of a stream table up to this number are deleted. Its latest ones are above it.
CREATE TABLE headwater.refresh_swept (
    stream_table_id bigint PRIMARY KEY,
    swept_to        bigint NOT NULL
);

-- The bucket of a duration: bucket b has those above 1.2 ^ (b - 1) and up to 1.2 ^ b milliseconds.
CREATE FUNCTION headwater.duration_bucket(ms double precision) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ceil(ln(CASE WHEN ms < 0.01 THEN 0.01 ELSE ms END) / ln(1.2::double precision))::smallint;

-- The duration that stands for a bucket: it differs from each that is in it by at most 1/11 of that, 9.1 %.
CREATE FUNCTION headwater.bucket_ms(bucket integer) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 2 / 2.2::double precision * 1.2::double precision ^ bucket;

-- The sums of the refreshes with these numbers: above the first one, up to the second.
CREATE FUNCTION headwater.sum_refreshes(
    above bigint, up_to bigint,
    OUT stream_table_id bigint, OUT bucket_length interval, OUT bucket_start timestamptz, OUT action text, OUT engine text,
    OUT refreshes bigint, OUT failures bigint, OUT rows_in bigint, OUT rows_inserted bigint, OUT rows_updated bigint,
    OUT rows_deleted bigint, OUT total_ms double precision, OUT min_ms double precision, OUT max_ms double precision,
    OUT duration_buckets smallint[], OUT duration_counts integer[]
) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
SELECT b.stream_table_id, b.bucket_length, b.bucket_start, b.action, b.engine,
       sum(b.refreshes)::bigint, sum(b.failures)::bigint, sum(b.rows_in)::bigint, sum(b.rows_inserted)::bigint,
       sum(b.rows_updated)::bigint, sum(b.rows_deleted)::bigint, coalesce(sum(b.total_ms), 0), min(b.min_ms), max(b.max_ms),
       coalesce(array_agg(b.bucket ORDER BY b.bucket) FILTER (WHERE b.bucket IS NOT NULL), '{}'),
       coalesce(array_agg(b.refreshes::integer ORDER BY b.bucket) FILTER (WHERE b.bucket IS NOT NULL), '{}')
FROM (
    SELECT r.stream_table_id, l.bucket_length, date_bin(l.bucket_length, r.finished_at, '2000-01-01 00:00+00') AS bucket_start,
           r.action, r.engine, headwater.duration_bucket(r.ms) AS bucket,
           count(*) AS refreshes, count(*) FILTER (WHERE r.ms IS NULL) AS failures,
           coalesce(sum(r.rows_in), 0) AS rows_in, coalesce(sum(r.rows_inserted), 0) AS rows_inserted,
           coalesce(sum(r.rows_updated), 0) AS rows_updated, coalesce(sum(r.rows_deleted), 0) AS rows_deleted,
           sum(r.ms) AS total_ms, min(r.ms) AS min_ms, max(r.ms) AS max_ms
    FROM (SELECT *, CASE status WHEN 'completed' THEN date_part('epoch', finished_at - started_at) * 1000 END AS ms
          FROM headwater.refresh WHERE id > above AND id <= up_to) r
    CROSS JOIN (VALUES (interval '1 minute'), (interval '1 hour')) AS l (bucket_length)
    GROUP BY 1, 2, 3, 4, 5, 6
) b
GROUP BY 1, 2, 3, 4, 5
$$;

-- What refreshes did and took, by the minute and by the hour: what is counted, and what happened since. Where much more is to be
-- counted, as after an upgrade, all but the latest has to wait for that.
CREATE VIEW headwater.refresh_stats AS
SELECT s.stream_table_id,
       st.stream_table,
       s.bucket_start,
       s.bucket_length,
       s.action,
       s.engine,
       s.refreshes,
       s.failures,
       s.rows_in,
       s.rows_inserted,
       s.rows_updated,
       s.rows_deleted,
       s.total_ms,
       s.total_ms / nullif(s.refreshes - s.failures, 0) AS avg_ms,
       s.min_ms,
       s.max_ms,
       least(s.max_ms, greatest(s.min_ms, headwater.bucket_ms(p.buckets[1]))) AS p50_ms,
       least(s.max_ms, greatest(s.min_ms, headwater.bucket_ms(p.buckets[2]))) AS p95_ms,
       least(s.max_ms, greatest(s.min_ms, headwater.bucket_ms(p.buckets[3]))) AS p99_ms,
       s.duration_buckets,
       s.duration_counts
FROM (
    SELECT stream_table_id, bucket_length, bucket_start, action, engine,
           sum(refreshes)::bigint AS refreshes, sum(failures)::bigint AS failures, sum(rows_in)::bigint AS rows_in,
           sum(rows_inserted)::bigint AS rows_inserted, sum(rows_updated)::bigint AS rows_updated,
           sum(rows_deleted)::bigint AS rows_deleted, sum(total_ms) AS total_ms, min(min_ms) AS min_ms, max(max_ms) AS max_ms,
           -- at most one of each kind
           max(duration_buckets) FILTER (WHERE counted) || max(duration_buckets) FILTER (WHERE NOT counted) AS duration_buckets,
           max(duration_counts) FILTER (WHERE counted) || max(duration_counts) FILTER (WHERE NOT counted) AS duration_counts
    FROM (SELECT *, true AS counted FROM headwater.refresh_sum
        UNION ALL
          SELECT *, false
          FROM headwater.sum_refreshes(
              greatest((SELECT counted_to FROM headwater.history_state), (SELECT max(id) - 20000 FROM headwater.refresh)),
              9223372036854775807)) either
    GROUP BY stream_table_id, bucket_length, bucket_start, action, engine
) s
JOIN headwater.stream_table_name st ON st.id = s.stream_table_id
CROSS JOIN LATERAL (
    SELECT ARRAY[min(bucket) FILTER (WHERE up_to >= 0.5 * total), min(bucket) FILTER (WHERE up_to >= 0.95 * total),
                 min(bucket) FILTER (WHERE up_to >= 0.99 * total)] AS buckets
    FROM (SELECT bucket, sum(count) OVER (ORDER BY bucket) AS up_to, sum(count) OVER () AS total
          FROM unnest(s.duration_buckets, s.duration_counts) AS d (bucket, count)) c
) p;

-- Whether anything changed that a plan was made from, at the cost of looking its catalog rows up: a row that was written
-- again has another xmin. It sees what `signature` and `capture_signature` see, and more. Types and collations are those of
-- the relations' columns.
CREATE FUNCTION headwater.fingerprint(relations oid[], functions oid[], types oid[], collations oid[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = '' AS $$
BEGIN
RETURN (
SELECT pg_catalog.concat_ws(
    ' ',
    (SELECT max(m.version) FROM headwater.migration m),
    (SELECT d.datcollversion FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()),
    -- what TRUNCATE, GRANT or VACUUM write in these rows does not matter
    (SELECT pg_catalog.bit_xor(pg_catalog.hashtextextended(
                pg_catalog.concat_ws(' ', n.nspname, c.relname, c.relkind, c.relowner, c.reltype, c.relhassubclass,
                                     c.relispartition, c.relrowsecurity, c.relforcerowsecurity), c.oid::bigint))
     FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = ANY (relations)),
    (SELECT pg_catalog.bit_xor(pg_catalog.hashtextextended(a.xmin::pg_catalog.text, a.attrelid::bigint * 2048 + a.attnum))
     FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY (relations) AND a.attnum > 0),
    (SELECT pg_catalog.bit_xor(pg_catalog.hashtextextended(d.xmin::pg_catalog.text, d.oid::bigint))
     FROM pg_catalog.pg_attrdef d WHERE d.adrelid = ANY (relations)),
    (SELECT pg_catalog.bit_xor(pg_catalog.hashtextextended(t.xmin::pg_catalog.text, t.oid::bigint))
     FROM pg_catalog.pg_trigger t WHERE t.tgrelid = ANY (relations)),
    (SELECT pg_catalog.bit_xor(pg_catalog.hashtextextended(r.xmin::pg_catalog.text, r.oid::bigint))
     FROM pg_catalog.pg_rewrite r WHERE r.ev_class = ANY (relations)),
    (SELECT pg_catalog.bit_xor(pg_catalog.hashtextextended(i.inhparent::pg_catalog.text, i.inhrelid::bigint))
     FROM pg_catalog.pg_inherits i WHERE i.inhrelid = ANY (relations)),
    (SELECT pg_catalog.bit_xor(pg_catalog.hashtextextended(t.xmin::pg_catalog.text, t.oid::bigint))
     FROM pg_catalog.pg_type t WHERE t.oid = ANY (types)),
    (SELECT pg_catalog.bit_xor(pg_catalog.hashtextextended(o.xmin::pg_catalog.text, o.oid::bigint))
     FROM pg_catalog.pg_collation o WHERE o.oid = ANY (collations)),
    (SELECT pg_catalog.bit_xor(pg_catalog.hashtextextended(p.xmin::pg_catalog.text, p.oid::bigint))
     FROM pg_catalog.pg_proc p WHERE p.oid = ANY (functions)),
    (SELECT pg_catalog.bit_xor(pg_catalog.hashtextextended(g.xmin::pg_catalog.text, g.aggfnoid::bigint))
     FROM pg_catalog.pg_aggregate g WHERE g.aggfnoid = ANY (functions)))
);
END
$$;

-- Says how far a stream table is: up to the snapshot of this transaction, and what it wrote itself. The row names the
-- transaction that writes it, by which a restored one is told: not in a subtransaction.
CREATE FUNCTION headwater.move_frontier(moved bigint) RETURNS pg_snapshot
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reached pg_snapshot;
BEGIN
    INSERT INTO headwater.frontier (stream_table_id, node, snapshot, applied_by)
    VALUES (moved, 0, pg_current_snapshot(), pg_current_xact_id())
    ON CONFLICT (stream_table_id, node)
    DO UPDATE SET snapshot = excluded.snapshot, applied_by = excluded.applied_by
    RETURNING snapshot INTO reached;
    RETURN reached;
END
$$;

-- Writes a delta of a compiled refresh into the history, and counts it.
CREATE FUNCTION headwater.record_delta(
    refreshed bigint, began timestamptz, why text, change_rows bigint, inserted bigint, updated bigint, deleted bigint,
    reached pg_snapshot, timings jsonb
) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    recorded bigint;
BEGIN
    INSERT INTO headwater.refresh_total AS t (stream_table_id, refreshes, full_refreshes, delta_refreshes, delta_rows)
    VALUES (refreshed, 1, 0, 1, change_rows)
    ON CONFLICT (stream_table_id) DO UPDATE
    SET refreshes = t.refreshes + 1, delta_refreshes = t.delta_refreshes + 1, delta_rows = t.delta_rows + excluded.delta_rows;
    INSERT INTO headwater.refresh
        (stream_table_id, started_at, finished_at, mode, engine, action, status, reason, snapshot, rows_in, rows_inserted,
         rows_updated, rows_deleted, phases, engine_reason)
    VALUES
        (refreshed, began, clock_timestamp(), 'differential', 'postgres', 'delta', 'completed', why, reached, change_rows,
         inserted, updated, deleted, timings, 'its compiled refresh takes small changes')
    RETURNING id INTO recorded;
    RETURN recorded;
END
$$;

-- The right to refresh stream tables for as long as the transaction lasts, for compiled refreshes: who does not get it
-- leaves by a SQLSTATE of its own.
CREATE FUNCTION headwater.hold_claim(members bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT (SELECT bool_and(pg_try_advisory_xact_lock(1214611, (m & 2147483647)::int)) FROM unnest(members) AS m) THEN
        RAISE EXCEPTION 'another worker is refreshing the same' USING ERRCODE = 'HW003';
    END IF;
END
$$;

-- Locks the attempt number of a job as it is, if it still is.
CREATE FUNCTION headwater.check_claim(job bigint, wanted integer, worker uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM headwater.worker_jobs j WHERE j.id = job AND j.attempt = wanted AND j.worker_id = worker FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the attempt was taken back' USING ERRCODE = 'HW003';
    END IF;
EXCEPTION WHEN serialization_failure OR deadlock_detected THEN
    RAISE EXCEPTION 'the attempt was taken back' USING ERRCODE = 'HW003';
END
$$;

-- What changes something is for those who are granted it, what shows something for those who monitor.
REVOKE EXECUTE ON ROUTINE
    headwater.scheduler_status, headwater.waiting_changes, headwater.lags, headwater.worker_pool_status,
    headwater.parallel_job_status, headwater.deadlines, headwater.health_summary, headwater.change_buffer_sizes,
    headwater.dependency_tree, headwater.find_stream_table, headwater.recommend_refresh_mode, headwater.recommendations,
    headwater.record_request, headwater.request_create_stream_table, headwater.request_alter_stream_table,
    headwater.request_drop_stream_table, headwater.request_refresh_stream_table, headwater.request_suspend_stream_table,
    headwater.request_resume_stream_table, headwater.request_status, headwater.create_stream_table,
    headwater.alter_stream_table, headwater.drop_stream_table, headwater.refresh_stream_table,
    headwater.suspend_stream_table, headwater.resume_stream_table, headwater.set_config, headwater.drain, headwater.resume,
    headwater.sum_refreshes, headwater.fingerprint, headwater.move_frontier, headwater.record_delta, headwater.hold_claim,
    headwater.check_claim
FROM PUBLIC;
GRANT USAGE ON SCHEMA headwater TO pg_monitor;
GRANT SELECT ON
    headwater.stream_tables, headwater.health, headwater.refresh_history, headwater.running_jobs, headwater.consumers,
    headwater.requests, headwater.pg_stat_headwater, headwater.refresh_stats, headwater.worker_registry, headwater.worker_jobs
TO pg_monitor;
-- but for the columns with rows of users' tables
GRANT SELECT (id, stream_table, found_at, found_by, reason, status, missing_count, surplus_count, columns, query, plan, version,
              server_version, released_at)
ON headwater.audits TO pg_monitor;
GRANT EXECUTE ON ROUTINE
    headwater.lags, headwater.worker_pool_status, headwater.parallel_job_status, headwater.health_summary,
    headwater.change_buffer_sizes, headwater.dependency_tree, headwater.recommend_refresh_mode, headwater.request_status,
    headwater.sum_refreshes
TO pg_monitor;
