-- name: mark_stream_table
-- Marks a stream table, if somebody reads its changes.
SELECT headwater.mark_changed(relation) FROM headwater.source
WHERE stream_table_id = %(id)s AND change_table IS NOT NULL

-- name: notifies
-- Whether leaving a mark also notifies.
SELECT prosrc LIKE '%%pg_notify%%' FROM pg_proc WHERE oid = 'headwater.mark_changed'::regproc

-- name: forget_unscheduled
-- Deletes marks that nobody will read: no session holds the lock of a scheduler.
DELETE FROM headwater.changed_source
WHERE NOT EXISTS (SELECT FROM pg_locks l
                  WHERE l.locktype = 'advisory' AND l.classid = 1214612 AND l.objid = 0 AND l.objsubid = 2
                    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
