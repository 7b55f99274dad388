-- name: next
-- The oldest request that waits, or whose session is gone though it runs; of those for one stream table, one after the other.
SELECT r.id, r.verb, r.arguments, r.search_path, r.time_zone, r.attempt + 1
FROM headwater.request r
WHERE r.status IN ('pending', 'running')
  AND NOT EXISTS (SELECT FROM headwater.request e
                  WHERE e.status IN ('pending', 'running') AND e.id < r.id AND e.arguments ->> 'name' = r.arguments ->> 'name')
  AND NOT EXISTS (SELECT FROM pg_locks l
                  WHERE l.locktype = 'advisory' AND l.classid = %(lock)s AND l.objid = (r.id & 2147483647)::oid AND l.objsubid = 2
                    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
ORDER BY r.id LIMIT 1
FOR UPDATE SKIP LOCKED

-- name: lock
-- Holds a request until it is answered, or the session ends.
SELECT pg_try_advisory_lock(%(lock)s, (%(id)s::bigint & 2147483647)::int)

-- name: unlock
-- Releases a request that was answered.
SELECT pg_advisory_unlock(%(lock)s, (%(id)s::bigint & 2147483647)::int)

-- name: pick
-- Records that a request is being carried out.
UPDATE headwater.request SET status = 'running', attempt = %(attempt)s, picked_at = clock_timestamp() WHERE id = %(id)s

-- name: assume
-- Makes names and times mean what they mean to the session that asked.
SELECT set_config('headwater.user_search_path', %(search_path)s, false), set_config('TimeZone', %(time_zone)s, false)

-- name: own
-- How this session itself looks up names and reads times.
SELECT current_setting('headwater.user_search_path'), current_setting('TimeZone')

-- name: answer
-- Records the result of a request.
UPDATE headwater.request
SET status = %(status)s, finished_at = clock_timestamp(), result = %(result)s, error = %(error)s, detail = nullif(%(detail)s, ''),
    hint = nullif(%(hint)s, ''), sqlstate = %(sqlstate)s
WHERE id = %(id)s AND attempt = %(attempt)s AND status = 'running'

-- name: made_by
-- Whether a stream table was created, with this query, after a request was recorded.
SELECT EXISTS (SELECT FROM headwater.stream_table st, headwater.request r
               WHERE st.id = %(stream_table_id)s AND r.id = %(id)s AND st.query = r.arguments ->> 'query'
                 AND st.created_at >= r.requested_at)
