-- name: state
-- The version of the catalog, the stored settings, the server's own of the names given, and deadlock_timeout in ms.
SELECT (SELECT max(version) FROM headwater.migration),
       (SELECT coalesce(jsonb_object_agg(name, value), '{}') FROM headwater.setting),
       (SELECT coalesce(jsonb_object_agg(n, current_setting('headwater.' || n, true)), '{}')
        FROM unnest(%(names)s::text[]) AS n WHERE nullif(current_setting('headwater.' || n, true), '') IS NOT NULL),
       (extract(epoch FROM current_setting('deadlock_timeout')::interval) * 1000)::bigint
