-- name: state
-- The version of the catalog, whether it was restored from a dump, whether nothing can be written, the stored settings, the server's own of
-- the names given, and its deadlock_timeout in milliseconds. The transaction that a row names is the one that wrote it, unless a dump brought it here. A stream table
-- without a frontier must be shown by a view of ours.
SELECT (SELECT coalesce(max(version), 0) FROM headwater.migration),
       EXISTS (SELECT FROM headwater.migration m WHERE m.xmin <> m.applied_by::xid)
       OR EXISTS (SELECT FROM headwater.frontier f WHERE f.xmin <> f.applied_by::xid)
       OR EXISTS (SELECT FROM headwater.stream_table st
                  WHERE st.relation IS NOT NULL
                    AND NOT EXISTS (SELECT FROM headwater.frontier f WHERE f.stream_table_id = st.id)
                    AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = st.relation
                                    AND t.tgfoid = to_regproc('headwater.refuse_write'))),
       current_setting('transaction_read_only')::boolean,
       (SELECT coalesce(jsonb_object_agg(name, value), '{}') FROM headwater.setting),
       (SELECT coalesce(jsonb_object_agg(n, current_setting('headwater.' || n, true)), '{}')
        FROM unnest(%(names)s::text[]) AS n WHERE nullif(current_setting('headwater.' || n, true), '') IS NOT NULL),
       (extract(epoch FROM current_setting('deadlock_timeout')::interval) * 1000)::bigint

-- name: describe_settings
-- Replaces the descriptions of the settings: their names, and what each takes.
WITH rule AS (
    SELECT * FROM jsonb_to_recordset(%(rules)s) AS r (
        name text, kind text, minimum numeric, maximum numeric, zero_is_off boolean, choices text[], description text)
), gone AS (
    DELETE FROM headwater.known_setting WHERE name NOT IN (SELECT name FROM rule)
)
INSERT INTO headwater.known_setting (name, kind, minimum, maximum, zero_is_off, choices, description)
SELECT name, kind, minimum, maximum, zero_is_off, choices, description FROM rule
ON CONFLICT (name) DO UPDATE
SET kind = excluded.kind, minimum = excluded.minimum, maximum = excluded.maximum, zero_is_off = excluded.zero_is_off,
    choices = excluded.choices, description = excluded.description
