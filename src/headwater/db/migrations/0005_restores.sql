-- What is needed to notice that a database was restored from a dump, or that what a query means was changed otherwise.

-- The row of a migration, like that of a frontier, names the transaction that wrote it. A dump carries the column and
-- not the transaction.
ALTER TABLE headwater.migration ADD COLUMN applied_by xid8;
UPDATE headwater.migration SET applied_by = pg_current_xact_id();
ALTER TABLE headwater.migration ALTER COLUMN applied_by SET NOT NULL;
ALTER TABLE headwater.migration ALTER COLUMN applied_by SET DEFAULT pg_current_xact_id();

-- From which a definition view can be made again that went with a table it reads.
ALTER TABLE headwater.stream_table ADD COLUMN definition text;
SELECT set_config('search_path', '', true);
UPDATE headwater.stream_table SET definition = pg_get_viewdef(to_regclass('headwater_defs.def_' || id)::oid);

-- The view that holds a stream table's query: its name starts with the number and goes on with the name of the stream
-- table, for the server names it when it refuses a change to what it reads.
CREATE FUNCTION headwater.definition(stream_table_id bigint) RETURNS oid LANGUAGE sql STABLE SET search_path = '' AS $$
SELECT c.oid
FROM pg_catalog.pg_class c
WHERE c.relnamespace = pg_catalog.to_regnamespace('headwater_defs') AND c.relkind = 'v'
  AND c.relname >= pg_catalog.concat('def_', stream_table_id)::pg_catalog.name
  AND c.relname < pg_catalog.concat('def_', stream_table_id, '!')::pg_catalog.name
$$;

-- Everything that a plan is made from: the deparsed queries of a definition view and of the plain views below
-- it, and all relations that they read with their columns. It changes when one of them does. In PL/pgSQL, for a
-- session plans it once.
CREATE OR REPLACE FUNCTION headwater.signature(definition oid, relations oid[]) RETURNS text
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
