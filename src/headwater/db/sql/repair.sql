-- name: capture_functions
-- The capture functions that triggers call, for tables of any database.
SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = %(schema)s AND starts_with(p.proname, 'capture_') ORDER BY p.proname

-- name: guards
-- The views that protect what those functions capture.
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'v' AND starts_with(c.relname, 'captured_') ORDER BY c.relname

-- name: change_tables
-- The tables that those functions write to.
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND starts_with(c.relname, 'src_') ORDER BY c.relname

-- name: forget_sources
-- What is recorded of tables, by numbers that mean nothing here; each stream table registers what it reads again.
WITH dependencies AS (DELETE FROM headwater.dependency),
     lost AS (DELETE FROM headwater.lost_change),
     lineage AS (DELETE FROM headwater.lineage),
     columns AS (DELETE FROM headwater.source_column),
     frontiers AS (DELETE FROM headwater.frontier)
SELECT

-- name: forget_tables
DELETE FROM headwater.source WHERE stream_table_id IS NULL

-- name: out_of_the_way
-- Assigns numbers that no relation has, so that the right ones can be assigned in any order.
WITH sources AS (
    UPDATE headwater.source SET relation = (4294967295 - id)::oid, change_table = NULL)
UPDATE headwater.stream_table SET relation = (4294967295 - id)::oid WHERE relation IS NOT NULL

-- name: find_views
-- The views that show stream tables are known by what they read and by the trigger that refuses writes.
WITH shown AS (
    SELECT st.id, c.oid, n.nspname, c.relname
    FROM headwater.stream_table st
    JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass
         AND d.refobjid = to_regclass('headwater_data.st_' || st.id) AND d.classid = 'pg_rewrite'::regclass
    JOIN pg_rewrite r ON r.oid = d.objid
    JOIN pg_class c ON c.oid = r.ev_class AND c.relkind = 'v'
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE EXISTS (SELECT FROM pg_trigger t
                  WHERE t.tgrelid = c.oid AND t.tgfoid = to_regproc('headwater.refuse_write'))
), sources AS (
    UPDATE headwater.source s SET relation = shown.oid FROM shown WHERE s.stream_table_id = shown.id
)
UPDATE headwater.stream_table st SET relation = shown.oid, schema_name = shown.nspname, table_name = shown.relname
FROM shown WHERE st.id = shown.id

-- name: lose_views
-- Records which stream tables have no view.
UPDATE headwater.stream_table st SET relation = NULL
WHERE relation IS NOT NULL AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = st.relation)

-- name: distrust_all
-- Makes the next refresh of each stream table plan and compute it again.
UPDATE headwater.stream_table
SET fingerprint = NULL, signature = NULL, signature_of = NULL, rebuild_reason = %(reason)s

-- name: distrust
-- The same for one of them.
UPDATE headwater.stream_table SET fingerprint = NULL, signature = NULL, signature_of = NULL, rebuild_reason = %(reason)s
WHERE id = %(id)s

-- name: distrust_readers
-- The same for those that read the changes of one, which are gone; returns these.
UPDATE headwater.stream_table st
SET fingerprint = NULL, signature = NULL, signature_of = NULL, rebuild_reason = %(reason)s
FROM headwater.dependency d JOIN headwater.source s ON s.id = d.source_id
WHERE d.stream_table_id = st.id AND s.stream_table_id = %(id)s AND st.status <> 'initializing'
RETURNING st.id

-- name: give_up_consumers
-- Positions of another database are useless: gives up all consumers.
UPDATE headwater.consumer SET snapshot = NULL, initial = NULL, given_up = %(reason)s

-- name: give_up_followers
-- So are those of a view that no longer exists: gives up its consumers.
UPDATE headwater.consumer c SET snapshot = NULL, initial = NULL, given_up = %(reason)s
FROM headwater.source s WHERE s.id = c.source_id AND s.stream_table_id = %(id)s

-- name: planned_query
-- The query of a stream table as it was last planned.
SELECT definition FROM headwater.stream_table WHERE id = %(id)s
