-- name: oldest_needed
-- The transaction before which every consumer of a source has consumed all change rows. It never goes back: a
-- later snapshot has no older xmin, so a consumer that is added meanwhile needs none of those rows either.
SELECT s.id, coalesce(needed.oldest, pg_snapshot_xmin(pg_current_snapshot()))::text
FROM unnest(%(sources)s::bigint[]) AS s (id)
CROSS JOIN LATERAL (
    SELECT min(pg_snapshot_xmin(snapshot)) AS oldest
    FROM (SELECT f.snapshot
          FROM headwater.dependency d
          JOIN headwater.stream_table st ON st.id = d.stream_table_id AND st.mode = 'differential'
          JOIN headwater.frontier f ON f.stream_table_id = d.stream_table_id AND f.node = 0
          WHERE d.source_id = s.id
        UNION ALL
          SELECT c.snapshot FROM headwater.consumer c WHERE c.source_id = s.id AND c.snapshot IS NOT NULL) reader
) needed

-- name: lock_consumers
-- The differential stream tables that read a source, with their frontiers, except those being refreshed now.
SELECT st.id, f.snapshot::text, f.applied_by::text
FROM headwater.dependency d
JOIN headwater.stream_table st ON st.id = d.stream_table_id AND st.mode = 'differential' AND st.status <> 'initializing'
JOIN headwater.frontier f ON f.stream_table_id = st.id AND f.node = 0
WHERE d.source_id = %(source)s
ORDER BY st.id
FOR NO KEY UPDATE OF st SKIP LOCKED

-- name: give_up
-- Forgets the frontier of a stream table; without one it protects no change rows and is rebuilt.
WITH forgotten AS (DELETE FROM headwater.frontier WHERE stream_table_id = %(id)s)
UPDATE headwater.stream_table SET rebuild_reason = %(reason)s WHERE id = %(id)s
