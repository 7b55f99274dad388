-- Each stream table keeps the search_path of its definer. Nobody knows those of older ones: they stay with the one
-- under which they were evaluated so far.
ALTER TABLE headwater.stream_table ADD COLUMN search_path text NOT NULL DEFAULT 'pg_catalog, pg_temp';
ALTER TABLE headwater.stream_table ALTER COLUMN search_path DROP DEFAULT;

-- As before, and with the settings of functions: a search_path of its own frees a function from that of its caller.
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
