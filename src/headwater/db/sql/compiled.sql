-- name: entries
-- What is known of the compiled refreshes of these stream tables, and with `upstream` of those that they read.
WITH RECURSIVE needed (id) AS (
    SELECT unnest(%(ids)s::bigint[])
    UNION
    SELECT r.id FROM needed n JOIN headwater.compiled_refresh c ON c.stream_table_id = n.id
    CROSS JOIN LATERAL unnest(c.reads) AS r (id) WHERE %(upstream)s
)
SELECT c.stream_table_id, c.version, c.signature, c.token, c.tables, c.reads, c.refused
FROM needed n JOIN headwater.compiled_refresh c ON c.stream_table_id = n.id

-- name: lock
-- Whether nobody else compiles the refresh of this stream table at this moment.
SELECT pg_try_advisory_xact_lock(1214613, (%(id)s::bigint & 2147483647)::int)

-- name: subject
-- The signature with which a stream table was planned; all relations whose catalog rows its refresh depends on; the functions
-- of users' own that its query calls, those that aggregates consist of, and those that capture changes; the types of users'
-- own and the collations that the relations' columns have.
WITH read (relations) AS (
    SELECT %(relations)s::oid[] || headwater.definition(%(id)s)
), wanted (relations) AS (
    SELECT array(
        SELECT oid FROM unnest((SELECT relations FROM read)) AS oid
        UNION SELECT st.relation FROM headwater.stream_table st WHERE st.id = %(id)s
        UNION SELECT to_regclass(name)::oid FROM unnest(%(names)s::text[]) AS name
        UNION SELECT to_regclass('headwater_defs.captured_' || captured)::oid FROM unnest(%(captured)s::oid[]) AS captured)
), called (oid) AS (
    SELECT m.found[1]::oid
    FROM pg_rewrite r, regexp_matches(r.ev_action::text, ':(?:funcid|aggfnoid|opfuncid) (\d+)', 'g') m(found)
    WHERE r.ev_class = ANY (SELECT unnest(relations) FROM read)
    UNION
    SELECT to_regproc('headwater_changes.capture_' || captured)::oid FROM unnest(%(captured)s::oid[]) AS captured
)
SELECT (SELECT signature FROM headwater.stream_table WHERE id = %(id)s),
       array(SELECT oid FROM unnest((SELECT relations FROM wanted)) AS oid WHERE oid IS NOT NULL ORDER BY oid)::bigint[],
       array(SELECT p.oid::bigint FROM pg_proc p
             WHERE p.oid >= 16384 AND p.oid IN (
                 SELECT oid FROM called
                 UNION SELECT f FROM called JOIN pg_aggregate a ON a.aggfnoid = called.oid
                 CROSS JOIN LATERAL unnest(ARRAY[a.aggtransfn, a.aggfinalfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn]
                                           ::oid[]) AS f)
             ORDER BY p.oid),
       array(SELECT DISTINCT a.atttypid::bigint FROM pg_attribute a
             WHERE a.attrelid IN (SELECT unnest(relations) FROM wanted) AND a.attnum > 0 AND a.atttypid >= 16384 ORDER BY 1),
       array(SELECT DISTINCT a.attcollation::bigint FROM pg_attribute a
             WHERE a.attrelid IN (SELECT unnest(relations) FROM wanted) AND a.attnum > 0 AND a.attcollation <> 0 ORDER BY 1)

-- name: fingerprint
-- What a compiled refresh compares.
SELECT headwater.fingerprint(%(relations)s::oid[], %(functions)s::oid[], %(types)s::oid[], %(collations)s::oid[])

-- name: uncovered
-- What of these relations a compiled refresh does not cover, if anything.
SELECT format('%%I.%%I is %%s', n.nspname, c.relname,
              CASE WHEN c.relrowsecurity THEN 'under row-level security'
                   WHEN c.relkind NOT IN ('r', 'v') THEN 'no plain table'
                   ELSE 'partitioned or has children' END)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(relations)s::oid[])
  AND (c.relrowsecurity OR c.relkind NOT IN ('r', 'v') OR c.relhassubclass OR c.relispartition
       OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid))
LIMIT 1

-- name: put
-- What became of compiling the refresh of a stream table.
INSERT INTO headwater.compiled_refresh (stream_table_id, version, signature, token, tables, reads, refused)
VALUES (%(id)s, %(version)s, %(signature)s, %(token)s, %(tables)s, %(reads)s, %(refused)s)
ON CONFLICT (stream_table_id) DO UPDATE
SET version = excluded.version, signature = excluded.signature, token = excluded.token, tables = excluded.tables,
    reads = excluded.reads, refused = excluded.refused
