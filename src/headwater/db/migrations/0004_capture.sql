-- Capture that no failure of ours makes a write fail by: what it was made for, and marks for what it lost.

ALTER TABLE headwater.source ADD COLUMN capture_signature text;

-- Changes that could not be captured in any other way, so that consumers of the source must be rebuilt.
CREATE TABLE headwater.lost_change (
    relation oid NOT NULL,
    reason   text NOT NULL,
    lost_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON headwater.lost_change (relation);

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
