-- name: record
-- Records that a stream table, or what its plan computes, differs from its query.
INSERT INTO headwater.incident
    (stream_table_id, stream_table, found_by, reason, columns, missing_count, surplus_count, missing, surplus, changes,
     query, plan, fingerprint, version, server_version)
VALUES (%(stream_table_id)s, %(stream_table)s, %(found_by)s, %(reason)s, %(columns)s, %(missing_count)s, %(surplus_count)s,
        %(missing)s, %(surplus)s, %(changes)s, %(query)s, %(plan)s, %(fingerprint)s, %(version)s,
        current_setting('server_version'))
RETURNING id

-- name: standing
-- The incidents for which a stream table is recomputed at each refresh.
SELECT id, found_at, reason FROM headwater.incident
WHERE stream_table_id = %(id)s AND released_at IS NULL AND fingerprint = %(fingerprint)s AND version = %(version)s
ORDER BY id

-- name: release
-- Ends the consequences of incidents that another definition or version had.
UPDATE headwater.incident SET released_at = clock_timestamp()
WHERE stream_table_id = %(id)s AND released_at IS NULL
  AND (fingerprint IS DISTINCT FROM %(fingerprint)s OR version <> %(version)s)

-- name: recent
-- Incidents, newest first; of one stream table, or of all.
SELECT a.id, a.stream_table, a.found_at, a.found_by, a.reason, a.status, a.missing_count, a.surplus_count, a.columns, a.missing,
       a.surplus, a.changes, a.query, a.plan, a.version, a.server_version, a.released_at
FROM headwater.audits a JOIN headwater.incident i USING (id)
WHERE %(stream_table_id)s::bigint IS NULL OR i.stream_table_id = %(stream_table_id)s
ORDER BY a.id DESC LIMIT %(limit)s

-- name: record_load
-- Records how the rows of a stream table were compared with its query when they were loaded. An audit of the old rows ends here.
INSERT INTO headwater.audit (stream_table_id, load_check) VALUES (%(id)s, %(said)s)
ON CONFLICT (stream_table_id) DO UPDATE
SET load_check = excluded.load_check, started_at = NULL, slice = 0, slice_column = NULL, after = NULL
