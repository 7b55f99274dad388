-- name: source_size
-- Rows and pages of a table, or of the storage behind a stream table's view; its name, and the condition for a row
-- that users see. Without statistics, rows are guessed from the size.
SELECT CASE WHEN c.reltuples > 0 AND c.relpages > 0 THEN c.reltuples::float8 * greatest(s.pages, 1) / c.relpages
            ELSE s.pages * 50.0 END,
       s.pages, format('%%I.%%I', n.nspname, c.relname),
       (SELECT quote_ident(a.attname) FROM pg_attribute a
        WHERE st.id IS NOT NULL AND a.attrelid = c.oid AND a.attname = '__hw_visible' AND NOT a.attisdropped)
FROM (SELECT %(relation)s::oid AS relation) r
LEFT JOIN headwater.stream_table st ON st.relation = r.relation
JOIN pg_class c ON c.oid = CASE WHEN st.id IS NULL THEN r.relation
                                ELSE to_regclass(format('headwater_data.st_%%s', st.id))::oid END
JOIN pg_namespace n ON n.oid = c.relnamespace,
LATERAL (SELECT pg_relation_size(c.oid) / current_setting('block_size')::int AS pages) s

-- name: observations
-- How long recent deltas of a stream table took, in total and in the database, and how long full computations took;
-- latest first. Deltas are looked for among the latest 250 refreshes, or one that never had any would search all its history. The stream
-- table is given as a range, so that only an index by stream table has the order: the server could take that of all refreshes,
-- expecting to find some soon, and read all of them for one that has none. Planning is left out: a session does it once. So are refreshes that one engine began and another one finished. A delta that was given
-- up counts with the time until then. Of a load only its phases count: the rest is done once, like making the view.
(SELECT 'delta', engine, rows_in, took, took - coalesce((phases->>'start')::float8, 0)
        - CASE engine WHEN 'spark' THEN coalesce((phases->>'compute')::float8, 0) ELSE 0 END
 FROM (
     SELECT id, engine, rows_in, phases,
            coalesce(abandoned_ms,
                     extract(epoch FROM finished_at - started_at)::float8 * 1000
                     - coalesce((phases->>'plan')::float8, 0)) AS took
     FROM (SELECT * FROM headwater.refresh WHERE stream_table_id >= %(id)s AND stream_table_id <= %(id)s
           ORDER BY stream_table_id DESC, id DESC LIMIT 250) latest
     WHERE (action = 'delta' OR abandoned_ms IS NOT NULL AND sqlstate IS NULL) AND status = 'completed' AND rows_in > 0
       AND NOT fell_back
     ORDER BY id DESC LIMIT %(recent)s
 ) recent
 ORDER BY id DESC)
UNION ALL
(SELECT action, engine, 0,
        coalesce(CASE action WHEN 'load' THEN (SELECT sum(p.value::float8) FROM jsonb_each_text(phases) p WHERE p.key <> 'check') END,
                 extract(epoch FROM finished_at - started_at)::float8 * 1000) - coalesce((phases->>'plan')::float8, 0), 0
 FROM headwater.refresh
 WHERE stream_table_id >= %(id)s AND stream_table_id <= %(id)s AND action IN ('load', 'recompute') AND status = 'completed'
   AND NOT fell_back
 ORDER BY stream_table_id DESC, id DESC LIMIT %(recent_full)s)

-- name: given_up
-- How often a stream table was recomputed instead of a delta of at least this many change rows since the last such delta.
SELECT count(*) FROM headwater.refresh
WHERE stream_table_id = %(id)s AND action = 'recompute' AND status = 'completed' AND rows_in >= %(rows)s
  AND id > coalesce((SELECT max(id) FROM headwater.refresh
                     WHERE stream_table_id = %(id)s AND action = 'delta' AND status = 'completed'
                       AND rows_in >= %(rows)s), 0)

-- name: failures
-- The deltas of a stream table that met errors since its last successful one, among its latest refreshes: how many,
-- how many refreshes recomputed after the last of them, and its SQLSTATE.
WITH latest AS (
    SELECT id, action, sqlstate FROM headwater.refresh
    WHERE stream_table_id >= %(id)s AND stream_table_id <= %(id)s AND status = 'completed'
    ORDER BY stream_table_id DESC, id DESC LIMIT %(looked_at)s
), since AS (
    SELECT * FROM latest WHERE id > coalesce((SELECT max(id) FROM latest WHERE action = 'delta'), 0)
), last AS (
    SELECT id, sqlstate FROM since WHERE sqlstate IS NOT NULL ORDER BY id DESC LIMIT 1
)
SELECT count(sqlstate), count(*) FILTER (WHERE id > (SELECT id FROM last)), (SELECT sqlstate FROM last)
FROM since

-- name: reader_schedules
-- The schedules that a stream table without one of its own must keep: of those that read it, directly or through others
-- that have none, with their time zones.
WITH RECURSIVE readers(id, schedule, time_zone) AS (
    SELECT id, NULL::text, time_zone FROM headwater.stream_table WHERE id = %(id)s
  UNION
    SELECT st.id, st.schedule, st.time_zone
    FROM readers r
    JOIN headwater.source s ON s.stream_table_id = r.id
    JOIN headwater.dependency d ON d.source_id = s.id
    JOIN headwater.stream_table st ON st.id = d.stream_table_id
    WHERE coalesce(r.schedule, 'calculated') = 'calculated')
SELECT schedule, time_zone FROM readers WHERE schedule <> 'calculated'
