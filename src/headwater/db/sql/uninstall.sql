-- name: captured
-- Capture functions, with the tables that have triggers of each. Also those whose schema was renamed.
SELECT p.oid, p.oid::regprocedure::text,
       array(SELECT DISTINCT t.tgrelid::regclass::text FROM pg_trigger t WHERE t.tgfoid = p.oid ORDER BY 1)
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = 'headwater_changes' AND p.proname ~ '^capture_\d+$'
   OR EXISTS (SELECT FROM pg_trigger t
              WHERE t.tgfoid = p.oid AND t.tgname ~ '^headwater_capture_(insert|update|delete|truncate|move)$')
ORDER BY p.oid

-- name: stream_tables
-- The views by which users read stream tables: they are recognised by the trigger that refuses writes or, where that
-- was dropped with the catalog, by what they read.
SELECT c.oid, c.oid::regclass::text
FROM pg_class c
WHERE c.relkind = 'v'
  AND (EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = 'headwater_refuse_write')
       OR to_regproc('headwater.refuse_write') IS NULL
          AND EXISTS (SELECT FROM pg_rewrite r
                      JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
                      JOIN pg_class t ON d.refclassid = 'pg_class'::regclass AND t.oid = d.refobjid
                      JOIN pg_namespace n ON n.oid = t.relnamespace
                      WHERE r.ev_class = c.oid AND n.nspname = 'headwater_data' AND t.relname ~ '^st_\d+$'))
ORDER BY c.oid

-- name: relations
-- What is in Headwater's schemas, and whether Headwater made it, as far as names tell.
SELECT c.oid, c.oid::regclass::text, c.relkind::text,
       CASE n.nspname
           WHEN 'headwater' THEN %(any)s OR c.relname = ANY (%(known)s::name[])
           WHEN 'headwater_defs' THEN c.relkind = 'v' AND c.relname ~ '^(def|captured)_\d+( of |$)'
           WHEN 'headwater_data' THEN c.relkind = 'r' AND c.relname ~ '^(st|job)_\d+(_|$)'
           ELSE c.relkind = 'r' AND c.relname ~ '^src_\d+$'
       END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%(schemas)s::name[]) AND c.relkind IN ('r', 'v', 'm', 'p', 'f', 'S')
  -- sequences of columns go with their tables
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                  AND d.deptype IN ('a', 'i') AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0)
ORDER BY c.relkind <> 'v', c.oid

-- name: functions
-- The functions and procedures in Headwater's schemas, without those that capture, and whether Headwater made them.
SELECT p.oid, p.oid::regprocedure::text, CASE p.prokind WHEN 'p' THEN 'procedure' ELSE 'function' END,
       n.nspname = 'headwater' AND (%(any)s OR p.proname = ANY (%(known)s::name[]))
       OR n.nspname = 'headwater_defs' AND p.proname ~ '^refresh_\d+$'
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = ANY (%(schemas)s::name[])
  AND NOT (n.nspname = 'headwater_changes' AND p.proname ~ '^capture_\d+$')
ORDER BY p.oid

-- name: schemas
-- Those of Headwater's schemas that exist.
SELECT nspname FROM pg_namespace WHERE nspname = ANY (%(schemas)s::name[]) ORDER BY array_position(%(schemas)s::name[], nspname)

-- name: dependents
-- Other objects that read these relations.
SELECT DISTINCT c.oid, c.oid::regclass::text, c.relkind::text
FROM pg_depend d
CROSS JOIN LATERAL (
    SELECT r.ev_class FROM pg_rewrite r WHERE d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
  UNION ALL
    SELECT k.conrelid FROM pg_constraint k WHERE d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
) AS dependent (relation)
JOIN pg_class c ON c.oid = dependent.relation
WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = ANY (%(relations)s::oid[])
  AND d.deptype = 'n' AND c.oid <> ALL (%(relations)s::oid[])
ORDER BY 1
