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
BEGIN
    -- 1. Nothing changed that this function was made from.
    IF __hw_token <> 'ebb39c92ff67524a'
       OR headwater.fingerprint('{9,101,102}'::oid[], '{}'::oid[], '{}'::oid[], '{100}'::oid[]) <> 'f00'
       OR (SELECT concat_ws(' ', s.change_table, array(SELECT c.attnum FROM headwater.source_column AS c WHERE c.source_id = s.id ORDER BY c.attnum)) FROM headwater.source AS s WHERE s.stream_table_id = 1 AND s.change_table IS NOT NULL) IS NOT NULL THEN
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
SELECT c1 AS "id", c3 AS "amount", w AS __hw_w FROM unnest(__hw_changes1) AS c
), __hw_delta AS MATERIALIZED (
SELECT row_number() OVER () AS __hw_number, z.* FROM (
SELECT z."id", z."amount", hash_record_extended(ROW(z."id", z."amount"::text COLLATE "C"), 0) AS __hw_hash, z.__hw_w FROM (
SELECT z."id" AS "id", z."amount" AS "amount", sum(z.__hw_w)::bigint AS __hw_w FROM (
SELECT r1.id AS "id", r1.amount AS "amount", "r1".__hw_w AS __hw_w FROM __hw_source0 AS "r1" WHERE (r1.amount > 10)
) AS z GROUP BY z."id", z."amount", scale(z."amount") HAVING sum(z.__hw_w) <> 0
) AS z
) AS z
), __hw_gone AS MATERIALIZED (
SELECT c.__hw_row FROM (SELECT s.ctid AS __hw_row, -d.__hw_w AS wanted, row_number() OVER (PARTITION BY d.__hw_number) AS copy FROM __hw_delta AS d JOIN "headwater_data"."st_1" AS s ON s.__hw_hash = d.__hw_hash AND CASE WHEN s."id" IS NOT DISTINCT FROM d."id" AND s."amount"::text COLLATE "C" IS NOT DISTINCT FROM d."amount"::text COLLATE "C" THEN true ELSE false END WHERE d.__hw_w < 0) AS c WHERE c.copy <= c.wanted
), __hw_deleted AS (
DELETE FROM "headwater_data"."st_1" AS s USING __hw_gone AS c WHERE s.ctid = c.__hw_row RETURNING 1
), __hw_inserted AS (
INSERT INTO "headwater_data"."st_1" ("id", "amount", "__hw_hash") SELECT d."id", d."amount", d."__hw_hash" FROM __hw_delta AS d, generate_series(1, d.__hw_w) AS copy WHERE d.__hw_w > 0 AND (SELECT count(*) FROM __hw_deleted) IS NOT NULL
)
SELECT (SELECT count(*) FROM __hw_gone), c.* FROM (
SELECT coalesce(sum(-__hw_w) FILTER (WHERE __hw_w < 0), 0)::bigint, coalesce(sum(__hw_w) FILTER (WHERE __hw_w > 0), 0)::bigint FROM __hw_delta
) AS c
INTO __hw_count1, __hw_count2, __hw_count3;
        IF __hw_count1 <> __hw_count2 THEN
            RAISE EXCEPTION USING ERRCODE = 'HW001',
                MESSAGE = 'groups must be read again, or stored rows are not what they were';
        END IF;
        __hw_inserted := __hw_count3;
        __hw_deleted := __hw_count1;
    __hw_computed := clock_timestamp();

    -- 6. Those that read it are told, its frontier moves on, and the refresh is recorded.
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
