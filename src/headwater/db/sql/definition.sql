-- name: canonical_text
-- The query of a view as the server writes it, fully parenthesized.
SELECT pg_get_viewdef(%(view)s::oid)

-- name: signature
-- What a plan is made from.
SELECT headwater.signature(%(view)s::oid, %(relations)s::oid[])

-- name: relations_read
-- Every relation that a view reads, through plain views too; views that show a stream table are not entered. What a view
-- shows of a table with row-level security is up to the policies for its owner. Children
-- are those that inherit from a table, or foreign tables among the partitions of a partitioned one.
WITH RECURSIVE reads(reader, relation) AS (
    SELECT r.ev_class, m.found[1]::oid
    FROM pg_rewrite r, regexp_matches(r.ev_action::text, ':relid (\d+)', 'g') m(found)
    WHERE r.ev_class = %(view)s::oid
  UNION
    SELECT r.ev_class, m.found[1]::oid
    FROM reads
    JOIN pg_class c ON c.oid = reads.relation AND c.relkind = 'v'
    JOIN pg_rewrite r ON r.ev_class = c.oid AND r.ev_type = '1',
    regexp_matches(r.ev_action::text, ':relid (\d+)', 'g') m(found)
    WHERE NOT EXISTS (SELECT FROM headwater.stream_table st WHERE st.relation = c.oid)
)
SELECT c.oid, n.nspname, c.relname, format('%%I.%%I', n.nspname, c.relname), c.relkind::text, c.relpersistence::text, st.id,
       CASE c.relkind WHEN 'p' THEN EXISTS (SELECT FROM pg_partition_tree(c.oid) m JOIN pg_class f ON f.oid = m.relid
                                            WHERE f.relkind = 'f')
                      ELSE c.relhassubclass END,
       EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid), c.relispartition,
       row_security_active(c.oid) OR c.relrowsecurity AND EXISTS (
           SELECT FROM reads r JOIN pg_class v ON v.oid = r.relation AND v.relkind = 'v'
           JOIN pg_roles o ON o.oid = v.relowner
           WHERE o.rolname <> current_user AND NOT (o.rolsuper OR o.rolbypassrls)),
       n.nspname IN ('pg_catalog', 'information_schema', 'pg_toast'),
       has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'TRIGGER')
FROM (SELECT DISTINCT relation FROM reads WHERE relation <> %(view)s::oid) found
JOIN pg_class c ON c.oid = found.relation
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN headwater.stream_table st ON st.relation = c.oid
ORDER BY c.oid

-- name: parse_trees
-- The stored parse trees of views.
SELECT r.ev_action::text FROM pg_rewrite r WHERE r.ev_class = ANY (%(views)s::oid[]) AND r.ev_type = '1'

-- name: functions
-- The functions with these oids, and those behind these operators.
SELECT p.oid, n.nspname, p.proname, p.provolatile::text, p.prokind::text, n.nspname = 'pg_catalog',
       md5(concat_ws(' ', p.prosrc, p.probin, p.prosqlbody::text, a.agginitval, a.aggtranstype,
           (SELECT string_agg(concat_ws(' ', q.oid, q.prosrc, q.probin, q.prosqlbody::text), ' ' ORDER BY q.oid)
            FROM pg_proc q
            WHERE q.oid IN (a.aggtransfn, a.aggfinalfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn)))),
       p.proretset
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid
WHERE p.oid = ANY (%(functions)s::oid[])
   OR p.oid IN (SELECT oprcode FROM pg_operator WHERE oid = ANY (%(operators)s::oid[]))

-- name: collations
-- The versions of the collations by which columns of these relations are sorted.
SELECT DISTINCT co.oid::bigint, CASE co.oid WHEN 100 THEN d.datcollversion ELSE co.collversion END
FROM pg_attribute a JOIN pg_collation co ON co.oid = a.attcollation
JOIN pg_database d ON d.datname = current_database()
WHERE a.attrelid = ANY (%(relations)s::oid[])
  AND CASE co.oid WHEN 100 THEN d.datcollversion ELSE co.collversion END IS NOT NULL
ORDER BY 1

-- name: columns
-- The columns of relations with what is known of their types; the base type is the one behind any domains.
WITH RECURSIVE domain(attrelid, attnum, typid, typmod) AS (
    SELECT attrelid, attnum, atttypid, atttypmod FROM pg_attribute
    WHERE attrelid = ANY (%(relations)s::oid[]) AND attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT d.attrelid, d.attnum, t.typbasetype, CASE WHEN t.typtypmod <> -1 THEN t.typtypmod ELSE d.typmod END
    FROM domain d JOIN pg_type t ON t.oid = d.typid AND t.typtype = 'd'
)
SELECT a.attrelid, a.attnum, a.attname,
       -- since 18 a constraint may be there and not be validated
       a.attnotnull AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = a.attrelid
           AND k.contype = 'n' AND k.conkey[1] = a.attnum AND NOT k.convalidated),
       coalesce((SELECT pg_get_expr(e.adbin, e.adrelid) FROM pg_attrdef e
                 WHERE e.adrelid = a.attrelid AND e.adnum = a.attnum AND a.attgenerated <> ''), ''),
       a.attgenerated::text,
       format_type(a.atttypid, a.atttypmod), b.typid, format_type(b.typid, b.typmod), b.typmod,
       t.typtype::text,
       CASE WHEN a.attcollation <> 0 THEN format('%%I.%%I', cn.nspname, co.collname) END,
       coalesce(co.collisdeterministic, true),
       -- whether text is sorted by the bytes of UTF-8 (100 is the database's own collation)
       getdatabaseencoding() = 'UTF8' AND a.attcollation <> 0 AND CASE a.attcollation
           WHEN 100 THEN (SELECT d.datlocprovider = 'c' AND d.datcollate IN ('C', 'POSIX') FROM pg_database d
                          WHERE d.datname = current_database())
           ELSE co.collprovider = 'c' AND co.collcollate IN ('C', 'POSIX') END,
       (SELECT format('OPERATOR(%%I.%%s)', opn.nspname, o.oprname)
        FROM pg_opclass oc
        JOIN pg_am am ON am.oid = oc.opcmethod AND am.amname IN ('btree', 'hash')
        JOIN pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amoplefttype = oc.opcintype
             AND ao.amoprighttype = oc.opcintype
             AND ao.amopstrategy = CASE am.amname WHEN 'btree' THEN 3 ELSE 1 END
        JOIN pg_operator o ON o.oid = ao.amopopr
        JOIN pg_namespace opn ON opn.oid = o.oprnamespace
        WHERE oc.opcdefault AND oc.opcintype = b.typid
        ORDER BY am.amname LIMIT 1)
FROM domain b
JOIN pg_type t ON t.oid = b.typid AND t.typtype <> 'd'
JOIN pg_attribute a ON a.attrelid = b.attrelid AND a.attnum = b.attnum
LEFT JOIN pg_collation co ON co.oid = a.attcollation
LEFT JOIN pg_namespace cn ON cn.oid = co.collnamespace
ORDER BY a.attrelid, a.attnum

-- name: relation
-- The name of a relation, and whether it shows a stream table.
SELECT n.nspname, c.relname, EXISTS (SELECT FROM headwater.stream_table st WHERE st.relation = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(relation)s::oid

-- name: function_bodies
-- Functions of users' own, given by oid, or by schema and name: their bodies, and what they are made of.
SELECT p.oid, format('%%I.%%I()', n.nspname, p.proname), l.lanname, p.prosrc, p.prosqlbody::text,
       EXISTS (SELECT FROM unnest(p.proconfig) c WHERE c LIKE 'search\_path=%%'),
       array(SELECT t::bigint FROM unnest(p.proargtypes::oid[] || p.prorettype) t),
       array(SELECT f::bigint FROM unnest(ARRAY[a.aggtransfn, a.aggfinalfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn]) f
             WHERE f <> 0)
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid
WHERE n.nspname <> 'pg_catalog'
  AND (p.oid = ANY (%(functions)s::oid[])
       OR (n.nspname::text, p.proname::text) IN (SELECT * FROM unnest(%(schemas)s::text[], %(names)s::text[])))

-- name: telling_types
-- Those of these types that are, or have in them, base types outside pg_catalog, or types of names of catalog objects: which, and
-- whether it is one of the latter.
WITH RECURSIVE part(whole, oid) AS (
    SELECT t, t FROM unnest(%(types)s::oid[]) t
  UNION
    SELECT part.whole, inner_type.oid
    FROM part JOIN pg_type t ON t.oid = part.oid
    CROSS JOIN LATERAL (
        SELECT t.typelem WHERE t.typelem <> 0
      UNION ALL
        SELECT t.typbasetype WHERE t.typbasetype <> 0
      UNION ALL
        SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
      UNION ALL
        SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid OR r.rngmultitypid = t.oid
    ) inner_type(oid)
)
SELECT part.whole, format_type(t.oid, NULL), t.typnamespace = 'pg_catalog'::regnamespace
FROM part JOIN pg_type t ON t.oid = part.oid
WHERE t.typtype = 'b' AND t.typcategory <> 'A'
  AND (t.typnamespace <> 'pg_catalog'::regnamespace OR t.typname LIKE 'reg%%')
ORDER BY 1, 2

-- name: stable_functions
-- Those of these functions of PostgreSQL's own that depend on more than their arguments.
SELECT oid FROM pg_proc
WHERE oid = ANY (%(functions)s::oid[]) AND pronamespace = 'pg_catalog'::regnamespace AND provolatile <> 'i'

-- name: names_outside
-- Those of these names that something has outside PostgreSQL's own schemas and ours; a function whose name one of PostgreSQL's own
-- has, too, is left out.
SELECT found.name
FROM (SELECT relnamespace, relname::text FROM pg_class WHERE relname::text = ANY (%(names)s::text[])
          AND relkind NOT IN ('i', 'I', 't')
      UNION ALL
      SELECT typnamespace, typname::text FROM pg_type WHERE typname::text = ANY (%(names)s::text[])
      UNION ALL
      SELECT collnamespace, collname::text FROM pg_collation WHERE collname::text = ANY (%(names)s::text[])
      UNION ALL
      SELECT cfgnamespace, cfgname::text FROM pg_ts_config WHERE cfgname::text = ANY (%(names)s::text[])
      UNION ALL
      SELECT dictnamespace, dictname::text FROM pg_ts_dict WHERE dictname::text = ANY (%(names)s::text[])
      UNION ALL
      SELECT p.pronamespace, p.proname::text FROM pg_proc p WHERE p.proname::text = ANY (%(names)s::text[])
          AND NOT EXISTS (SELECT FROM pg_proc q WHERE q.proname = p.proname AND q.pronamespace = 'pg_catalog'::regnamespace)
     ) found(namespace, name)
JOIN pg_namespace n ON n.oid = found.namespace
WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^(headwater($|_)|pg_toast|pg_temp)'
GROUP BY found.name

-- name: operators_outside
-- Those of these operators that are outside pg_catalog only.
SELECT DISTINCT o.oprname::text FROM pg_operator o
WHERE o.oprname::text = ANY (%(names)s::text[]) AND o.oprnamespace <> 'pg_catalog'::regnamespace
  AND NOT EXISTS (SELECT FROM pg_operator b WHERE b.oprname = o.oprname AND b.oprnamespace = 'pg_catalog'::regnamespace)
