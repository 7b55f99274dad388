-- name: stream_tables
-- All stream tables, or those with the given ids.
SELECT st.id, coalesce(n.nspname, st.schema_name), coalesce(c.relname, st.table_name),
       format('%%I.%%I', coalesce(n.nspname, st.schema_name), coalesce(c.relname, st.table_name)), c.oid, st.query,
       st.fingerprint, st.requested_mode, st.mode, st.mode_reasons, st.engine, st.schedule, st.status,
       st.rebuild_reason, st.time_zone, st.search_path, st.tier, st.suspended_reason, a.load_check, f.snapshot::text,
       f.applied_by::text
FROM headwater.stream_table st
LEFT JOIN pg_class c ON c.oid = st.relation
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN headwater.frontier f ON f.stream_table_id = st.id AND f.node = 0
LEFT JOIN headwater.audit a ON a.stream_table_id = st.id
WHERE st.id = ANY (coalesce(%(ids)s::bigint[], array(SELECT id FROM headwater.stream_table)))
ORDER BY st.id

-- name: ids
-- The numbers of all stream tables, in the order of their creation.
SELECT id FROM headwater.stream_table ORDER BY id

-- name: health
-- The health of all stream tables, or of those with the given ids.
SELECT stream_table_id, status, fault, reason, remedy FROM headwater.health
WHERE stream_table_id = ANY (coalesce(%(ids)s::bigint[], array(SELECT id FROM headwater.stream_table)))

-- name: find_stream_table
-- The id of the stream table of a name; without a schema, the one that the user's search_path finds first.
SELECT st.id
FROM headwater.stream_table st
LEFT JOIN pg_class c ON c.oid = st.relation
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN unnest(%(path)s::text[]) WITH ORDINALITY p(schema_name, position)
       ON p.schema_name = coalesce(n.nspname, st.schema_name)
WHERE coalesce(c.relname, st.table_name) = %(name)s
  AND (coalesce(n.nspname, st.schema_name) = %(schema)s
       OR %(schema)s::text IS NULL AND p.position IS NOT NULL)
ORDER BY p.position NULLS LAST, c.oid IS NULL, st.id LIMIT 1

-- name: insert_stream_table
-- A new stream table, not yet loaded.
INSERT INTO headwater.stream_table
    (schema_name, table_name, query, requested_mode, mode, engine, schedule, tier, status, time_zone,
     search_path)
VALUES (%(schema)s, %(name)s, %(query)s, %(mode)s, 'full', %(engine)s, %(schedule)s, nullif(%(tier)s, 'auto'), 'initializing',
        current_setting('TimeZone'),
        -- Whoever refreshes it may be another role.
        replace(current_setting('headwater.user_search_path'), '"$user"', quote_ident(current_user)))
RETURNING id

-- name: initializing
-- Stream tables that are not loaded yet, or whether that of the given id is one.
SELECT id FROM headwater.stream_table
WHERE status = 'initializing' AND (%(id)s::bigint IS NULL OR id = %(id)s) ORDER BY id

-- name: set_planned
-- Stores the results of planning.
UPDATE headwater.stream_table
SET definition = %(definition)s, fingerprint = %(fingerprint)s, signature = %(signature)s,
    signature_of = %(signature_of)s::oid[], mode = %(mode)s, mode_reasons = %(reasons)s::text[]
WHERE id = %(id)s

-- name: set_fingerprint
-- Stores the fingerprint of what the storage holds.
UPDATE headwater.stream_table SET fingerprint = %(fingerprint)s WHERE id = %(id)s

-- name: distrust_storage
-- Records that the stored rows do not match the definition.
UPDATE headwater.stream_table SET fingerprint = NULL, rebuild_reason = %(reason)s WHERE id = %(id)s

-- name: outdated
-- Stream tables among these that lack a part which a refresh cannot make again, with columns that were renamed where they are
-- shown, that have no frontier, whose definition is not the one that was planned, or that are recomputed for an incident of
-- another version; and sources of these whose capture lacks a trigger that fires, whose function was made for other objects than there are now, of which
-- changes were lost, or that have other partitions than when it was installed.
SELECT 'broken', h.stream_table_id
FROM headwater.health h
WHERE h.stream_table_id = ANY (%(ids)s::bigint[]) AND h.fault <> 'capture'
UNION ALL
SELECT 'renamed', st.id
FROM headwater.stream_table st
WHERE st.id = ANY (%(ids)s::bigint[]) AND EXISTS (
    SELECT FROM pg_attribute v
    JOIN pg_attribute d ON d.attrelid = headwater.definition(st.id) AND d.attnum = v.attnum
    WHERE v.attrelid = st.relation AND v.attnum > 0 AND NOT v.attisdropped AND v.attname <> d.attname)
UNION ALL
SELECT 'definition', st.id
FROM headwater.stream_table st
CROSS JOIN LATERAL headwater.definition(st.id) AS d(oid)
WHERE st.id = ANY (%(ids)s::bigint[]) AND d.oid IS NOT NULL
  AND (st.signature IS DISTINCT FROM headwater.signature(d.oid, st.signature_of)
       OR EXISTS (SELECT FROM headwater.incident i
                  WHERE i.stream_table_id = st.id AND i.released_at IS NULL AND i.version <> %(version)s))
UNION ALL
SELECT 'capture', s.id
FROM (SELECT DISTINCT s.id, s.relation, s.capture_signature, c.relkind  -- first, or all sources would be looked at
      FROM headwater.dependency d
      JOIN headwater.stream_table st ON st.id = d.stream_table_id AND st.mode = 'differential'
      JOIN headwater.source s ON s.id = d.source_id AND s.change_table IS NOT NULL AND s.stream_table_id IS NULL
      JOIN pg_class c ON c.oid = s.relation
      WHERE d.stream_table_id = ANY (%(ids)s::bigint[])) s
WHERE (4 > (SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = s.relation
            AND t.tgfoid = to_regproc('headwater_changes.capture_' || s.relation) AND t.tgenabled IN ('O', 'A'))
       OR s.capture_signature IS DISTINCT FROM headwater.capture_signature(s.relation)
       OR EXISTS (SELECT FROM headwater.lost_change l WHERE l.relation = s.relation)
       OR s.relkind = 'p' AND (
           EXISTS (SELECT FROM pg_partition_tree(s.relation) m WHERE CASE WHEN m.isleaf THEN 4 ELSE 5 END > (
               SELECT count(*) FROM pg_trigger t
               WHERE t.tgrelid = m.relid AND t.tgfoid = to_regproc('headwater_changes.capture_' || s.relation)
                 AND t.tgenabled IN ('O', 'A')))
           OR obj_description(to_regproc('headwater_changes.capture_' || s.relation), 'pg_proc') IS DISTINCT FROM (
               SELECT array_agg(relid::oid ORDER BY relid::oid)::text FROM pg_partition_tree(s.relation))))
UNION ALL
SELECT 'frontier', st.id
FROM headwater.stream_table st
WHERE st.id = ANY (%(ids)s::bigint[]) AND st.mode = 'differential'
  AND NOT EXISTS (SELECT FROM headwater.frontier f WHERE f.stream_table_id = st.id AND f.node = 0)

-- name: renamed_columns
-- Columns of the views that show these stream tables that were renamed there: their number, and the name that definition and
-- storage have.
SELECT st.id, v.attnum, d.attname, v.attname
FROM headwater.stream_table st
JOIN pg_attribute v ON v.attrelid = st.relation AND v.attnum > 0 AND NOT v.attisdropped
JOIN pg_attribute d ON d.attrelid = headwater.definition(st.id) AND d.attnum = v.attnum
WHERE st.id = ANY (%(ids)s::bigint[]) AND v.attname <> d.attname
ORDER BY st.id, v.attnum

-- name: capture_parts
-- Whether a source that is captured has its change table, triggers that fire on each of its members, and the
-- function that was made for it; one that an earlier version made is not known.
SELECT to_regclass(format('headwater_changes.%%I', s.change_table)) IS NOT NULL,
       NOT EXISTS (SELECT FROM (SELECT s.relation, 4 UNION
                                SELECT relid, CASE WHEN isleaf THEN 4 ELSE 5 END FROM pg_partition_tree(s.relation)
                               ) AS m(oid, wanted)
                   WHERE m.wanted > (SELECT count(*) FROM pg_trigger t
                              WHERE t.tgrelid = m.oid AND t.tgenabled IN ('O', 'A')
                                AND t.tgfoid = to_regproc('headwater_changes.capture_' || s.relation))),
       coalesce(split_part(s.capture_signature, ':', 2)
                = split_part(headwater.capture_signature(s.relation), ':', 2), true)
FROM headwater.source s WHERE s.id = %(id)s

-- name: capture_layout
-- What a capture function is made for: the oids of the schema of change tables, of the change table, of the
-- table of lost changes, of the catalog's schema, the table of marks and of the function that leaves them; the columns of the change table; the source's columns; and how many bytes a change row
-- takes at most when every value that can be is stored out of line; none if some cannot be.
SELECT n.oid, c.oid, 'headwater.lost_change'::regclass::oid,
       'headwater'::regnamespace::oid, 'headwater.changed_source'::regclass::oid,
       'headwater.mark_changed'::regproc::oid,
       array(SELECT attname::text FROM pg_attribute
             WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
       array(SELECT attnum::int FROM pg_attribute
             WHERE attrelid = %(relation)s::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
       (SELECT CASE WHEN bool_and(attlen > 0 OR attlen = -1 AND attstorage <> 'p')
                    THEN sum(CASE WHEN attlen > 0 THEN attlen + 7 ELSE 24 END + 1)::int END
        FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
WHERE n.nspname = %(schema)s AND c.relname = %(table)s

-- name: capture_function
-- The oid of the view that guards a capture, and the text of its function; null for what does not exist.
SELECT to_regclass('headwater_defs.captured_' || %(relation)s::oid)::oid,
       (SELECT prosrc FROM pg_proc WHERE oid = to_regproc('headwater_changes.capture_' || %(relation)s::oid))

-- name: fitting_columns
-- Those of these columns that a change table has with these types.
SELECT a.attname
FROM unnest(%(names)s::name[], %(types)s::text[]) AS wanted (name, type)
JOIN pg_attribute a ON a.attrelid = %(table)s::regclass AND a.attname = wanted.name AND a.attnum > 0
                   AND NOT a.attisdropped AND a.atttypid = wanted.type::regtype

-- name: set_capture_signature
-- Stores what the capture function of a source was made for.
UPDATE headwater.source SET capture_signature = headwater.capture_signature(relation) WHERE id = %(id)s

-- name: forget_lost
-- Forgets that changes of a source were lost; returns why they were.
DELETE FROM headwater.lost_change WHERE relation = %(relation)s::oid RETURNING reason

-- name: partitions_moved
-- Of these tables, one that has other partitions than when it was last captured. Even in an older snapshot the
-- partitions are the current ones.
SELECT format('%%I.%%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(relations)s::oid[]) AND c.relkind = 'p'
  AND obj_description(to_regproc('headwater_changes.capture_' || c.oid), 'pg_proc') IS DISTINCT FROM (
      SELECT array_agg(relid::oid ORDER BY relid::oid)::text FROM pg_partition_tree(c.oid))
LIMIT 1

-- name: members
-- A table, and after it all its partitions.
SELECT c.oid, n.nspname, c.relname, c.relkind::text
FROM (SELECT %(relation)s::oid UNION SELECT relid FROM pg_partition_tree(%(relation)s::oid)) AS m(oid)
JOIN pg_class c ON c.oid = m.oid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY c.oid <> %(relation)s::oid, c.oid

-- name: partition_columns
-- The columns by which these partitioned tables choose the partition of a row; null if expressions do.
SELECT DISTINCT a.attname
FROM pg_partitioned_table p
CROSS JOIN LATERAL unnest(p.partattrs::smallint[]) AS k(attnum)
LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.attnum AND k.attnum > 0
WHERE p.partrelid = ANY (%(members)s::oid[])
ORDER BY 1

-- name: share_patience
-- Divides lock_timeout, which is per lock, among all the tables that these and some more are made of; until the end
-- of the transaction.
SELECT set_config('lock_timeout', greatest(1, s.setting::int / greatest(1, (
    WITH RECURSIVE tree(relid) AS (
        SELECT unnest(%(relations)s::oid[])
      UNION ALL
        SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.relid)
    SELECT %(more)s + count(*) FROM tree))) || 'ms', true)
FROM pg_settings s WHERE s.name = 'lock_timeout' AND s.setting <> '0'

-- name: distrust_consumers
-- Marks every stream table that reads the changes of a source for a rebuild.
UPDATE headwater.stream_table st SET rebuild_reason = %(reason)s
FROM headwater.dependency d
WHERE d.stream_table_id = st.id AND d.source_id = %(source)s AND st.mode = 'differential'

-- name: source
SELECT relation, format('%%I.%%I', schema_name, table_name) FROM headwater.source WHERE id = %(id)s
-- name: set_active
-- The stream table can be read; its name comes from its view from now on. Whoever read the one before it reads this one.
-- One that is suspended stays so.
WITH source AS (UPDATE headwater.source SET relation = %(relation)s::oid WHERE stream_table_id = %(id)s)
UPDATE headwater.stream_table
SET status = CASE status WHEN 'suspended' THEN status ELSE 'active' END, relation = %(relation)s::oid WHERE id = %(id)s

-- name: take_over
-- One stream table gets the query, options and dependencies of another, which is forgotten. What uses its number stays, and
-- whether it is suspended.
WITH dependencies_gone AS (
    DELETE FROM headwater.dependency WHERE stream_table_id = %(id)s
), lineage_gone AS (
    DELETE FROM headwater.lineage WHERE stream_table_id = %(id)s
)
UPDATE headwater.stream_table st
SET query = c.query, definition = c.definition, fingerprint = c.fingerprint, signature = c.signature, signature_of = c.signature_of,
    requested_mode = c.requested_mode, mode = c.mode, mode_reasons = c.mode_reasons, engine = c.engine,
    schedule = c.schedule, tier = c.tier, time_zone = c.time_zone, search_path = c.search_path,
    rebuild_reason = NULL
FROM headwater.stream_table c WHERE st.id = %(id)s AND c.id = %(candidate)s

-- name: take_over_dependencies
-- The rest of `take_over`: what the other one reads, and what was found when it was loaded.
WITH dependencies AS (
    UPDATE headwater.dependency SET stream_table_id = %(id)s WHERE stream_table_id = %(candidate)s
), incidents AS (
    UPDATE headwater.incident SET stream_table_id = %(id)s WHERE stream_table_id = %(candidate)s
)
UPDATE headwater.lineage SET stream_table_id = %(id)s WHERE stream_table_id = %(candidate)s

-- name: set_query
-- Another text of the same query, under the search_path of the session that gave it.
UPDATE headwater.stream_table
SET query = %(query)s,
    search_path = replace(current_setting('headwater.user_search_path'), '"$user"', quote_ident(current_user))
WHERE id = %(id)s

-- name: set_options
-- Options that need no rebuild; null keeps the old one.
UPDATE headwater.stream_table
SET schedule = CASE WHEN %(change_schedule)s THEN %(schedule)s ELSE schedule END,
    engine = coalesce(%(engine)s, engine),
    tier = CASE WHEN %(tier)s::text IS NULL THEN tier ELSE nullif(%(tier)s, 'auto') END,
    requested_mode = coalesce(%(mode)s, requested_mode)
WHERE id = %(id)s

-- name: suspend
-- Stops refreshes of a stream table until it is resumed; a reason that is not given stays as it was.
UPDATE headwater.stream_table
SET status = 'suspended', suspended_reason = coalesce(%(reason)s, suspended_reason, 'it was suspended by ' || session_user)
WHERE id = %(id)s

-- name: resume
-- Allows refreshes of a stream table again.
UPDATE headwater.stream_table SET status = 'active', suspended_reason = NULL WHERE id = %(id)s AND status = 'suspended'

-- name: set_rebuild_reason
-- Marks a stream table whose stored rows no delta can bring up to date, or clears the mark.
UPDATE headwater.stream_table SET rebuild_reason = %(reason)s
WHERE id = %(id)s AND rebuild_reason IS DISTINCT FROM %(reason)s

-- name: delete_stream_table
-- Also deletes the sums of its refreshes, which do not refer to it.
WITH sums AS (
    DELETE FROM headwater.refresh_sum WHERE stream_table_id = %(id)s
), swept AS (
    DELETE FROM headwater.refresh_swept WHERE stream_table_id = %(id)s
)
DELETE FROM headwater.stream_table WHERE id = %(id)s

-- name: lock_stream_table
-- Blocks other refreshes; fails with 40001 if the row changed since this transaction's snapshot.
SELECT FROM headwater.stream_table WHERE id = %(id)s FOR NO KEY UPDATE

-- name: touch_source_stream_table
-- Waits for a running refresh of a source, and makes one that has its snapshot already fail with 40001.
UPDATE headwater.stream_table SET created_at = created_at
WHERE id = (SELECT stream_table_id FROM headwater.source WHERE id = %(id)s)

-- name: upsert_source
-- The catalog's row for a relation that some stream table reads.
INSERT INTO headwater.source (relation, schema_name, table_name, stream_table_id)
VALUES (%(relation)s::oid, %(schema)s, %(name)s, %(stream_table_id)s)
ON CONFLICT (relation) DO UPDATE SET schema_name = excluded.schema_name, table_name = excluded.table_name
RETURNING id

-- name: captured_columns
-- The change table of a source and the numbers of the columns in it; no row if it is not captured.
SELECT s.change_table, array(SELECT attnum FROM headwater.source_column c WHERE c.source_id = s.id ORDER BY attnum)
FROM headwater.source s WHERE s.id = %(id)s AND s.change_table IS NOT NULL

-- name: set_captured
UPDATE headwater.source SET change_table = %(change_table)s WHERE id = %(id)s

-- name: add_captured_column
INSERT INTO headwater.source_column (source_id, attnum) VALUES (%(id)s, %(attnum)s) ON CONFLICT DO NOTHING

-- name: add_dependency
INSERT INTO headwater.dependency (stream_table_id, source_id, columns)
VALUES (%(stream_table_id)s, %(source_id)s, %(columns)s::smallint[])

-- name: delete_dependencies
-- Also deletes the lineage that belongs to them.
WITH gone AS (DELETE FROM headwater.lineage WHERE stream_table_id = %(id)s)
DELETE FROM headwater.dependency WHERE stream_table_id = %(id)s

-- name: add_lineage
INSERT INTO headwater.lineage (stream_table_id, source_id, attnum, output_column)
VALUES (%(stream_table_id)s, %(source_id)s, %(attnum)s, %(output_column)s) ON CONFLICT DO NOTHING

-- name: sources_of
-- What stream tables read, with the change table of each captured source, whether LOCK TABLE takes it,
-- whether it is partitioned, and how many tables it is made of.
SELECT d.stream_table_id, s.id, s.relation, n.nspname, c.relname,
       format('%%I.%%I', coalesce(n.nspname, s.schema_name), coalesce(c.relname, s.table_name)),
       s.stream_table_id, s.change_table, coalesce(c.relkind IN ('r', 'p', 'v'), false), coalesce(c.relkind = 'p', false),
       CASE WHEN c.relkind = 'p' THEN (
           WITH RECURSIVE tree(relid) AS (
               SELECT c.oid UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.relid)
           SELECT count(*) FROM tree) ELSE 1 END
FROM headwater.dependency d
JOIN headwater.source s ON s.id = d.source_id
LEFT JOIN pg_class c ON c.oid = s.relation
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE d.stream_table_id = ANY (%(ids)s::bigint[])
ORDER BY d.stream_table_id, s.id

-- name: source_edges
-- Which stream table reads which, as (reader, read).
SELECT d.stream_table_id, s.stream_table_id
FROM headwater.dependency d JOIN headwater.source s ON s.id = d.source_id
WHERE s.stream_table_id IS NOT NULL

-- name: superfluous_capture
-- Sources that no stream table reads, or of which more is captured than differential stream tables and consumers need:
-- whether any reads it, whether any needs its changes, and the columns that are captured for nobody.
SELECT * FROM (
    SELECT s.id, s.relation, s.change_table,
           EXISTS (SELECT FROM headwater.dependency d WHERE d.source_id = s.id) OR followed AS read,
           EXISTS (SELECT FROM headwater.dependency d JOIN headwater.stream_table st ON st.id = d.stream_table_id
                   WHERE d.source_id = s.id AND st.mode = 'differential') OR followed AS needed,
           array(SELECT c.attnum FROM headwater.source_column c WHERE c.source_id = s.id
                 EXCEPT
                 SELECT unnest(d.columns) FROM headwater.dependency d
                 JOIN headwater.stream_table st ON st.id = d.stream_table_id
                 WHERE d.source_id = s.id AND st.mode = 'differential'
                 EXCEPT
                 SELECT unnest(o.columns) FROM headwater.consumer o WHERE o.source_id = s.id
                 ORDER BY 1) AS superfluous
    FROM headwater.source s,
         LATERAL (SELECT EXISTS (SELECT FROM headwater.consumer o WHERE o.source_id = s.id)) AS f(followed)) found
WHERE NOT read OR change_table IS NOT NULL AND NOT needed OR superfluous <> '{}'
ORDER BY relation

-- name: remove_captured_columns
DELETE FROM headwater.source_column WHERE source_id = %(id)s AND attnum = ANY (%(numbers)s::smallint[])

-- name: delete_source
DELETE FROM headwater.source WHERE id = %(id)s

-- name: delete_own_source
DELETE FROM headwater.source WHERE stream_table_id = %(id)s

-- name: forget_capture
WITH gone AS (DELETE FROM headwater.source_column WHERE source_id = %(id)s),
     found AS (DELETE FROM headwater.lost_change l USING headwater.source s
               WHERE s.id = %(id)s AND l.relation = s.relation),
     marks AS (DELETE FROM headwater.changed_source m USING headwater.source s
               WHERE s.id = %(id)s AND m.relation = s.relation)
UPDATE headwater.source SET change_table = NULL, capture_signature = NULL WHERE id = %(id)s

-- name: forget_own_capture
WITH gone AS (DELETE FROM headwater.source_column c USING headwater.source s
              WHERE s.id = c.source_id AND s.stream_table_id = %(id)s),
     marks AS (DELETE FROM headwater.changed_source m USING headwater.source s
               WHERE s.stream_table_id = %(id)s AND m.relation = s.relation)
UPDATE headwater.source SET change_table = NULL WHERE stream_table_id = %(id)s

-- name: set_frontier
-- A stream table is as far as this transaction.
SELECT headwater.move_frontier(%(id)s)::text
