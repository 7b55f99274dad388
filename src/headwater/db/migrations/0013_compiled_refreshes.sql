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

REVOKE EXECUTE ON ROUTINE
    headwater.fingerprint, headwater.move_frontier, headwater.record_delta, headwater.hold_claim, headwater.check_claim
FROM PUBLIC;
