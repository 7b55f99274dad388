-- name: columns
-- The columns of a relation: name, type and collation, as SQL writes them.
SELECT a.attname, format_type(a.atttypid, a.atttypmod),
       CASE WHEN c.oid IS NOT NULL THEN format('%%I.%%I', n.nspname, c.collname) END
FROM pg_attribute a
LEFT JOIN pg_collation c ON c.oid = a.attcollation
LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = %(relation)s::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum

-- name: facts
-- The owner, options, comment and row-level security of a relation.
SELECT c.relowner, o.rolname, obj_description(c.oid, 'pg_class'), c.relrowsecurity, c.relforcerowsecurity,
       array(SELECT ARRAY[option_name, option_value] FROM pg_options_to_table(c.reloptions) ORDER BY option_name)
FROM pg_class c JOIN pg_roles o ON o.oid = c.relowner WHERE c.oid = %(relation)s::oid

-- name: grants
-- The privileges on a relation and its columns: the column (null for all of it), the grantee (null for PUBLIC), the
-- privilege, and whether it may be passed on.
SELECT a.attname, g.rolname, x.privilege_type, x.is_grantable
FROM pg_class c
CROSS JOIN LATERAL (
    SELECT NULL::name, coalesce(c.relacl, acldefault('r', c.relowner))
  UNION ALL
    SELECT t.attname, t.attacl FROM pg_attribute t
    WHERE t.attrelid = c.oid AND t.attnum > 0 AND NOT t.attisdropped AND t.attacl IS NOT NULL
) AS a(attname, acl)
CROSS JOIN LATERAL aclexplode(a.acl) AS x
LEFT JOIN pg_roles g ON g.oid = x.grantee
WHERE c.oid = %(relation)s::oid AND (g.rolname IS NOT NULL OR x.grantee = 0)
ORDER BY 1 NULLS FIRST, 2, 3

-- name: column_comments
-- The comments on columns of a relation.
SELECT a.attname, d.description FROM pg_attribute a
JOIN pg_description d ON d.objoid = a.attrelid AND d.objsubid = a.attnum AND d.classoid = 'pg_class'::regclass
WHERE a.attrelid = %(relation)s::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum

-- name: column_defaults
-- The defaults that ALTER VIEW … SET DEFAULT left.
SELECT a.attname, pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d
JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
WHERE d.adrelid = %(relation)s::oid ORDER BY a.attnum

-- name: indexes
-- The indexes that users made on storage: name, whether unique, comment, and the definition from its method on, which
-- follows a beginning that is known exactly.
SELECT i.relname, x.indisunique, obj_description(i.oid, 'pg_class'),
       CASE WHEN starts_with(d.definition, d.beginning) THEN substr(d.definition, length(d.beginning) + 1) END
FROM pg_index x
JOIN pg_class i ON i.oid = x.indexrelid
JOIN pg_class c ON c.oid = x.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT pg_get_indexdef(i.oid),
           format('CREATE %%sINDEX %%I ON %%I.%%I USING ', CASE WHEN x.indisunique THEN 'UNIQUE ' ELSE '' END,
                  i.relname, n.nspname, c.relname)
) AS d(definition, beginning)
WHERE x.indrelid = %(relation)s::oid AND x.indisvalid
  AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.oid)
  AND NOT (x.indnatts = 1 AND x.indpred IS NULL AND EXISTS (
      SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = x.indkey[0] AND a.attname = %(own)s))
ORDER BY i.oid

-- name: indexes_unseen
-- Whether there are indexes that this transaction's snapshot does not show: sizes are always current.
SELECT pg_indexes_size(%(relation)s::oid::regclass) <>
       coalesce((SELECT sum(pg_total_relation_size(indexrelid)) FROM pg_index WHERE indrelid = %(relation)s::oid), 0)

-- name: policies
-- Policies of row-level security: name, kind, command, roles (null for PUBLIC) and expressions.
SELECT p.polname, p.polpermissive,
       CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE'
                     ELSE 'ALL' END,
       array(SELECT r.rolname FROM unnest(p.polroles) AS t(role) LEFT JOIN pg_roles r ON r.oid = t.role ORDER BY 1),
       pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)
FROM pg_policy p WHERE p.polrelid = %(relation)s::oid ORDER BY p.polname

-- name: triggers
-- The triggers that users made: name and definition.
SELECT t.tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t
WHERE t.tgrelid = %(relation)s::oid AND NOT t.tgisinternal AND t.tgname <> %(own)s ORDER BY t.tgname

-- name: left_behind
-- Objects that users put on storage and that are not carried over.
SELECT format('constraint %%I', conname) FROM pg_constraint
WHERE conrelid = %(relation)s::oid AND contype IN ('p', 'u', 'c', 'f', 'x')
UNION ALL
SELECT format('trigger %%I', tgname) FROM pg_trigger WHERE tgrelid = %(relation)s::oid AND NOT tgisinternal
UNION ALL
SELECT format('statistics %%I', stxname) FROM pg_statistic_ext WHERE stxrelid = %(relation)s::oid
UNION ALL
SELECT format('its place in publication %%I', p.pubname) FROM pg_publication_rel r
JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = %(relation)s::oid
ORDER BY 1

-- name: dependents
-- Objects of users' own that need a view: views by their names, others as the server describes them.
SELECT DISTINCT CASE WHEN c.oid IS NOT NULL THEN format('%%I.%%I', n.nspname, c.relname)
                     ELSE pg_describe_object(d.classid, d.objid, d.objsubid) END
FROM pg_depend d
LEFT JOIN pg_rewrite w ON d.classid = 'pg_rewrite'::regclass AND w.oid = d.objid
LEFT JOIN pg_class c ON c.oid = w.ev_class
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (d.refclassid = 'pg_class'::regclass AND d.refobjid = %(view)s::oid
       OR d.refclassid = 'pg_type'::regclass
          AND d.refobjid IN (SELECT t.oid FROM pg_type t WHERE t.typrelid = %(view)s::oid
                             UNION ALL SELECT t.typarray FROM pg_type t WHERE t.typrelid = %(view)s::oid))
  AND d.deptype = 'n' AND w.ev_class IS DISTINCT FROM %(view)s::oid AND n.nspname IS DISTINCT FROM %(definitions)s
  AND NOT (d.classid = 'pg_trigger'::regclass AND d.objid IN (SELECT t.oid FROM pg_trigger t WHERE t.tgrelid = %(view)s::oid))
  AND NOT (d.classid = 'pg_type'::regclass)
ORDER BY 1

-- name: out_of_sight
-- Whether every snapshot shows what a transaction did. For a standby with feedback, the walsender tells.
SELECT NOT EXISTS (
    SELECT FROM pg_stat_activity a
    WHERE (a.datname = current_database() OR a.datname IS NULL) AND a.pid <> pg_backend_pid()
      AND age(a.backend_xmin) >= age(%(xid)s::xid8::xid))
  AND pg_visible_in_snapshot(%(xid)s::xid8, pg_current_snapshot())
