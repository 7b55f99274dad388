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
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
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
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- Two creations of one name; once there is a view, the server itself keeps names apart.
CREATE UNIQUE INDEX ON headwater.stream_table (schema_name, table_name) WHERE relation IS NULL;

CREATE TABLE headwater.source (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relation        oid NOT NULL UNIQUE,
    schema_name     name NOT NULL,
    table_name      name NOT NULL,
    stream_table_id bigint REFERENCES headwater.stream_table ON DELETE CASCADE,  -- if the source is one
    change_table    name                -- in headwater_changes; null while nobody needs its changes
);

-- The columns that are captured: what the dependencies need, no less and no more.
CREATE TABLE headwater.source_column (
    source_id bigint NOT NULL REFERENCES headwater.source ON DELETE CASCADE,
    attnum    smallint NOT NULL,
    PRIMARY KEY (source_id, attnum)
);

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
    phases          jsonb NOT NULL DEFAULT '{}'  -- milliseconds by phase
);
CREATE INDEX ON headwater.refresh (stream_table_id, id);

CREATE TABLE headwater.setting (
    name       text PRIMARY KEY,
    value      text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by name NOT NULL DEFAULT current_user
);

-- Everything that a plan is made from: the deparsed queries of a definition view and of the plain views below
-- it, and all relations that they read with their columns. It changes when one of them does.
CREATE FUNCTION headwater.signature(definition oid, relations oid[]) RETURNS text
LANGUAGE sql STABLE SET search_path = '' SET quote_all_identifiers = off AS $$
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
    -- functions of users' own (16384 is the first oid that is not PostgreSQL's) that the queries call
    (SELECT pg_catalog.string_agg(
                pg_catalog.concat_ws(' ', p.oid, p.provolatile, p.prosrc, p.probin, p.prosqlbody),
                E'\n' ORDER BY p.oid)
     FROM pg_catalog.pg_proc p
     WHERE p.oid >= 16384 AND p.oid IN (
         SELECT found[1]::pg_catalog.oid
         FROM pg_catalog.pg_rewrite r,
              pg_catalog.regexp_matches(r.ev_action::pg_catalog.text, ':(?:funcid|aggfnoid|opfuncid) (\d+)', 'g') m(found)
         WHERE r.ev_class = ANY (definition || relations)))))
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
       r.phases
FROM headwater.refresh r
JOIN headwater.stream_tables st ON st.id = r.stream_table_id;
