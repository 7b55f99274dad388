-- name: find
-- A consumer, and whether the stream table that it reads still exists.
SELECT c.id, c.name, c.source_id, s.stream_table_id, format('%%I.%%I', s.schema_name, s.table_name), s.relation,
       s.change_table, c.columns, c.epoch, c.start, c.initial::text, c.snapshot::text, c.committed, c.given_up
FROM headwater.consumer c JOIN headwater.source s ON s.id = c.source_id
WHERE c.name = %(name)s

-- name: register
-- A consumer at its beginning. Its snapshot protects change rows until it has a beginning of its own.
INSERT INTO headwater.consumer (name, source_id, columns, start, snapshot)
VALUES (%(name)s, %(source)s, %(columns)s::smallint[], %(start)s, pg_current_snapshot())
ON CONFLICT (name) DO UPDATE
SET source_id = excluded.source_id, columns = excluded.columns, start = excluded.start, snapshot = excluded.snapshot,
    epoch = consumer.epoch + 1, initial = NULL, committed = false, given_up = NULL, last_seen_at = clock_timestamp()

-- name: begin
-- Stores where a consumer begins: now, when every later refresh records its changes.
UPDATE headwater.consumer SET initial = pg_current_snapshot(), snapshot = pg_current_snapshot()
WHERE name = %(name)s AND initial IS NULL

-- name: kept
-- Whether the change rows after a snapshot are kept for a consumer.
SELECT EXISTS (
    SELECT FROM headwater.consumer c
    WHERE c.name = %(name)s AND c.epoch = %(epoch)s
      AND pg_snapshot_xmin(c.snapshot) <= pg_snapshot_xmin(%(snapshot)s::pg_snapshot)
      AND pg_snapshot_xmax(c.snapshot) <= pg_snapshot_xmax(%(snapshot)s::pg_snapshot)
      AND NOT EXISTS (SELECT FROM pg_snapshot_xip(%(snapshot)s::pg_snapshot) AS x(xid)
                      WHERE pg_visible_in_snapshot(x.xid, c.snapshot)))

-- name: commit
-- Records that a consumer has consumed everything visible in a snapshot; it never goes back.
UPDATE headwater.consumer c
SET snapshot = %(snapshot)s::pg_snapshot, committed = true, last_seen_at = clock_timestamp()
WHERE c.name = %(name)s AND c.epoch = %(epoch)s
  AND pg_snapshot_xmin(c.snapshot) <= pg_snapshot_xmin(%(snapshot)s::pg_snapshot)
  AND pg_snapshot_xmax(c.snapshot) <= pg_snapshot_xmax(%(snapshot)s::pg_snapshot)
RETURNING c.source_id

-- name: seen
-- Records, once a minute, that a consumer is active.
UPDATE headwater.consumer SET last_seen_at = clock_timestamp()
WHERE name = %(name)s AND last_seen_at < clock_timestamp() - interval '1 minute'

-- name: delete
-- Forgets a consumer.
DELETE FROM headwater.consumer WHERE name = %(name)s RETURNING id

-- name: lock_followers
-- The consumers of a source for which change rows are kept, except those that are committing now.
SELECT c.id, c.snapshot::text
FROM headwater.consumer c WHERE c.source_id = %(source)s AND c.snapshot IS NOT NULL
ORDER BY c.id
FOR NO KEY UPDATE SKIP LOCKED

-- name: give_up
-- Keeps no more change rows for a consumer.
UPDATE headwater.consumer SET snapshot = NULL, given_up = %(reason)s WHERE id = %(id)s

-- name: followed
-- Those of these stream tables that have consumers, as sources.
SELECT s.id, s.relation, n.nspname, c.relname,
       format('%%I.%%I', coalesce(n.nspname, s.schema_name), coalesce(c.relname, s.table_name)),
       s.stream_table_id, s.change_table
FROM headwater.source s
LEFT JOIN pg_class c ON c.oid = s.relation
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE s.stream_table_id = ANY (%(ids)s::bigint[])
  AND EXISTS (SELECT FROM headwater.consumer o WHERE o.source_id = s.id)

-- name: names
-- The names of the consumers of these stream tables.
SELECT c.name FROM headwater.consumer c JOIN headwater.source s ON s.id = c.source_id
WHERE s.stream_table_id = ANY (%(ids)s::bigint[]) ORDER BY c.name
