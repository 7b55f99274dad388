CREATE OR REPLACE FUNCTION "headwater_defs"."refresh_1"(__hw_token text) RETURNS jsonb LANGUAGE plpgsql AS $headwater$
#variable_conflict use_column
-- Takes small changes into public.st.
-- Headwater made it from the plan of the query. It runs for one token, so nobody calls it who knows another
-- definition. What it does not cover it leaves to Headwater's driver, by SQLSTATE HW001; by HW002 it
-- asks to be made anew.
DECLARE
    __hw_began timestamptz := clock_timestamp();
    __hw_chosen timestamptz;
    __hw_computed timestamptz;
    __hw_snapshot pg_snapshot;
    __hw_applied_by xid8;
    __hw_xid xid8;
    __hw_oldest bigint;
    __hw_rows bigint;
    __hw_timeout text;
    __hw_reason text;
    __hw_phases jsonb;
    __hw_inserted bigint := 0;
    __hw_updated bigint := 0;
    __hw_deleted bigint := 0;
    __hw_reached pg_snapshot;
    __hw_recorded bigint;
    __hw_changes1 "headwater_changes"."src_101"[];
    __hw_count1 bigint;
    __hw_count2 bigint;
    __hw_count3 bigint;
    __hw_count4 bigint;
    __hw_count5 bigint;
    __hw_count6 bigint;
BEGIN
    -- 1. Nothing changed that this function was made from.
    IF __hw_token <> '04ecbe31bb17f23e'
       OR headwater.fingerprint('{9,101,102}'::oid[], '{}'::oid[], '{}'::oid[], '{100}'::oid[]) <> 'f00'
       OR (SELECT concat_ws(' ', s.change_table, array(SELECT c.attnum FROM headwater.source_column AS c WHERE c.source_id = s.id ORDER BY c.attnum)) FROM headwater.source AS s WHERE s.stream_table_id = 1 AND s.change_table IS NOT NULL) IS DISTINCT FROM 'src_9 {1}' THEN
        RAISE EXCEPTION USING ERRCODE = 'HW002', MESSAGE = 'what it was compiled from has changed';
    END IF;

    -- 2. How far the stream table is.
    SELECT f.snapshot, f.applied_by, pg_snapshot_xmin(f.snapshot), pg_snapshot_xmin(f.snapshot)::text::bigint
    INTO __hw_snapshot, __hw_applied_by, __hw_xid, __hw_oldest
    FROM headwater.stream_table AS st
    JOIN headwater.frontier AS f ON f.stream_table_id = st.id AND f.node = 0
    WHERE st.id = 1 AND st.status = 'active' AND st.mode = 'differential' AND st.engine <> 'spark'
      AND st.rebuild_reason IS NULL AND st.signature = '0123 55' AND st.time_zone = 'Etc/UTC';
    IF NOT FOUND OR EXISTS (SELECT FROM headwater.lost_change AS l WHERE l.relation = ANY ('{101}'::oid[])) THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = 'it is suspended, or to be rebuilt';
    END IF;

    -- 3. The changes that wait for it. A plan that is kept cannot know how few they are: ask for the index.
    PERFORM set_config('enable_seqscan', 'off', true);
    SELECT array_agg(f.c) INTO __hw_changes1
    FROM (SELECT c FROM "headwater_changes"."src_101" AS c WHERE (xid::text::bigint) >= __hw_oldest AND xid >= __hw_xid AND NOT pg_visible_in_snapshot(xid, __hw_snapshot) AND xid <> __hw_applied_by LIMIT 1000) AS f;
    PERFORM set_config('enable_seqscan', 'on', true);
    __hw_rows := coalesce(cardinality(__hw_changes1), 0);
    IF __hw_rows = 0 THEN
        -- Consumed change rows can go once the frontier has moved on.
        IF pg_snapshot_xmin(pg_current_snapshot()) > __hw_xid AND (EXISTS (SELECT FROM "headwater_changes"."src_101" WHERE (xid::text::bigint) >= __hw_oldest AND xid >= __hw_xid)) THEN
            __hw_reached := headwater.move_frontier(1);
        END IF;
        RETURN jsonb_build_object(
            'label', 'public.st', 'action', 'nothing', 'reason', 'no source changed',
            'moved', __hw_reached IS NOT NULL, 'elapsed', extract(epoch FROM clock_timestamp() - __hw_began));
    END IF;
    IF __hw_rows > 999 OR EXISTS (SELECT FROM unnest(__hw_changes1) AS c WHERE c.w = 0) THEN
        RAISE EXCEPTION USING ERRCODE = 'HW001', MESSAGE = 'many rows changed, or a source was truncated';
    END IF;

    -- 4. No other refresh of it runs, nor has one moved its frontier since the snapshot of this one.
    __hw_timeout := current_setting('lock_timeout');
    PERFORM set_config('lock_timeout', '0', true);
    PERFORM FROM headwater.stream_table AS st WHERE st.id = 1 FOR NO KEY UPDATE;
    PERFORM FROM headwater.frontier AS f WHERE f.stream_table_id = 1 FOR NO KEY UPDATE;
    PERFORM set_config('lock_timeout', __hw_timeout, true), set_config('TimeZone', 'Etc/UTC', true);
    __hw_chosen := clock_timestamp();

    -- 5. The delta, computed and applied by one statement for the sources that changed.
WITH __hw_source0 AS MATERIALIZED (
SELECT c2 AS "customer_id", c3 AS "amount", w AS __hw_w FROM unnest(__hw_changes1) AS c
), __hw_delta AS MATERIALIZED (
SELECT d."k1", hash_record_extended(ROW(d."k1"), 0) AS __hw_hash, d."k1" IS NOT DISTINCT FROM NULL AS __hw_null, coalesce(sum(d.__hw_w), 0)::bigint AS "__hw_count", coalesce(sum(d.__hw_w::numeric * d."a2"), 0)::numeric AS "__hw_s1", coalesce(sum(d.__hw_w) FILTER (WHERE d."a2" IS DISTINCT FROM NULL), 0)::bigint AS "__hw_s2" FROM (
SELECT r1.customer_id AS "k1", r1.amount AS "a2", "r1".__hw_w AS __hw_w FROM __hw_source0 AS "r1"
) AS d GROUP BY d."k1"
), __hw_rescanned AS MATERIALIZED (
SELECT d."k1", d.__hw_hash, d.__hw_null FROM __hw_delta AS d LEFT JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = d.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) d."k1" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND d."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE coalesce(s."__hw_s1", 0) + d."__hw_s1" = ANY ('{NaN,Infinity,-Infinity}'::numeric[])
), __hw_affected AS MATERIALIZED (
SELECT * FROM __hw_delta WHERE NOT EXISTS (SELECT FROM __hw_rescanned)
), __hw_result AS MATERIALIZED (
SELECT (z.r).* FROM (SELECT ROW(y.*)::"headwater_data"."st_1" AS r FROM (
SELECT g.k1 AS "customer_id", g.g1 AS "n", g.g2 AS "s", g."__hw_count", g."__hw_s1", g."__hw_s2", hash_record_extended(ROW(g."k1"), 0) AS __hw_hash FROM (
SELECT s.*, s."__hw_count" AS "g1", CASE WHEN s."__hw_s2" > 0 THEN (s."__hw_s1")::numeric END AS "g2" FROM (
SELECT d."k1", coalesce(s."__hw_count", 0) + d."__hw_count" AS "__hw_count", coalesce(s."__hw_s1", 0) + d."__hw_s1" AS "__hw_s1", coalesce(s."__hw_s2", 0) + d."__hw_s2" AS "__hw_s2" FROM __hw_affected AS d LEFT JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = d.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) d."k1" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND d."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END
) AS s
) AS g WHERE g.__hw_count <> 0
) AS y) AS z
), __hw_changed AS MATERIALIZED (
SELECT s.ctid AS __hw_row, coalesce(s.ctid IS NOT NULL, false) AS __hw_shown, record_image_ne(ROW(s."customer_id", s."n", s."s"), ROW(r."customer_id", r."n", r."s")) AS __hw_differs, r."customer_id", r."n", r."s", r."__hw_count", r."__hw_s1", r."__hw_s2", r."__hw_hash" FROM __hw_result AS r LEFT JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = r.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) r."customer_id" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND r."customer_id" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE s.ctid IS NULL OR record_image_ne(ROW(s."customer_id", s."n", s."s", s."__hw_count", s."__hw_s1", s."__hw_s2", s."__hw_hash"), ROW(r."customer_id", r."n", r."s", r."__hw_count", r."__hw_s1", r."__hw_s2", r."__hw_hash"))
), __hw_gone AS MATERIALIZED (
SELECT s.ctid AS __hw_row, s.ctid IS NOT NULL AS __hw_shown FROM __hw_affected AS a JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = a.__hw_hash AND CASE WHEN (s."customer_id" OPERATOR(pg_catalog.=) a."k1" OR (s."customer_id" IS NOT DISTINCT FROM NULL AND a."k1" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END WHERE NOT EXISTS (SELECT FROM __hw_result AS r WHERE r.__hw_hash = s.__hw_hash AND CASE WHEN (r."customer_id" OPERATOR(pg_catalog.=) s."customer_id" OR (r."customer_id" IS NOT DISTINCT FROM NULL AND s."customer_id" IS NOT DISTINCT FROM NULL)) THEN true ELSE false END)
), __hw_emitted AS (
INSERT INTO "headwater_changes"."src_9" (xid, w, c1) SELECT pg_current_xact_id(), e.__hw_w, e."customer_id" FROM (
SELECT z."customer_id" AS "customer_id", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT s."customer_id", s."n", s."s", -1 AS __hw_w FROM "headwater_data"."st_1" AS s JOIN (SELECT __hw_row, __hw_shown FROM __hw_changed UNION ALL SELECT __hw_row, __hw_shown FROM __hw_gone) AS c ON s.ctid = c.__hw_row AND c.__hw_shown UNION ALL SELECT "customer_id", "n", "s", 1 FROM __hw_changed
) AS z GROUP BY z."customer_id" HAVING sum(z.__hw_w) <> 0
) AS e
), __hw_deleted AS (
DELETE FROM "headwater_data"."st_1" AS s USING __hw_gone AS c WHERE s.ctid = c.__hw_row RETURNING 1
), __hw_updated AS (
UPDATE "headwater_data"."st_1" AS s SET "customer_id" = c."customer_id", "n" = c."n", "s" = c."s", "__hw_count" = c."__hw_count", "__hw_s1" = c."__hw_s1", "__hw_s2" = c."__hw_s2", "__hw_hash" = c."__hw_hash" FROM __hw_changed AS c WHERE s.ctid = c.__hw_row AND (SELECT count(*) FROM __hw_deleted) IS NOT NULL RETURNING 1
), __hw_inserted AS (
INSERT INTO "headwater_data"."st_1" ("customer_id", "n", "s", "__hw_count", "__hw_s1", "__hw_s2", "__hw_hash") SELECT "customer_id", "n", "s", "__hw_count", "__hw_s1", "__hw_s2", "__hw_hash" FROM __hw_changed WHERE __hw_row IS NULL AND (SELECT count(*) FROM __hw_updated) IS NOT NULL
)
SELECT c.*, (SELECT count(*) FROM __hw_rescanned) FROM (
SELECT count(*) FILTER (WHERE true AND NOT __hw_shown), count(*) FILTER (WHERE true AND __hw_shown AND __hw_differs), count(*) FILTER (WHERE NOT true AND __hw_shown) + (SELECT count(*) FROM __hw_gone WHERE __hw_shown), count(*) FILTER (WHERE __hw_row IS NULL), count(*) FILTER (WHERE __hw_count < 0) FROM __hw_changed
) AS c
INTO __hw_count1, __hw_count2, __hw_count3, __hw_count4, __hw_count5, __hw_count6;
        IF __hw_count5 <> 0 OR __hw_count6 <> 0 THEN
            RAISE EXCEPTION USING ERRCODE = 'HW001',
                MESSAGE = 'groups must be read again, or stored rows are not what they were';
        END IF;
        __hw_inserted := __hw_count1;
        __hw_deleted := __hw_count3;
        __hw_updated := __hw_count2;
    __hw_computed := clock_timestamp();

    -- 6. Those that read it are told, its frontier moves on, and the refresh is recorded.
    IF __hw_inserted + __hw_updated + __hw_deleted > 0 THEN
        PERFORM headwater.mark_changed(9::oid);
    END IF;
    __hw_reached := headwater.move_frontier(1);
    __hw_reason := __hw_rows || CASE __hw_rows WHEN 1 THEN ' change row in ' ELSE ' change rows in ' END
        || 'public.orders';
    __hw_phases := jsonb_build_object(
        'choose', round((extract(epoch FROM __hw_chosen - __hw_began) * 1000)::numeric, 3),
        'compute', round((extract(epoch FROM __hw_computed - __hw_chosen) * 1000)::numeric, 3));
    __hw_recorded := headwater.record_delta(
        1, __hw_began, __hw_reason, __hw_rows, __hw_inserted, __hw_updated, __hw_deleted, __hw_reached,
        __hw_phases);
    RETURN jsonb_build_object(
        'label', 'public.st', 'action', 'delta', 'reason', __hw_reason, 'moved', true, 'rows', __hw_rows,
        'applied', jsonb_build_array(__hw_inserted, __hw_updated, __hw_deleted), 'snapshot', __hw_reached,
        'history', __hw_recorded, 'phases', __hw_phases, 'changed', array_remove(ARRAY[CASE WHEN __hw_changes1 IS NOT NULL THEN 101 END], NULL),
        'elapsed', extract(epoch FROM clock_timestamp() - __hw_began));
END
$headwater$;
