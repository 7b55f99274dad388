-- The history in bounded space: single refreshes for a while, sums of all of them for longer. Rows of earlier versions stay
-- where they are; the clean-up counts and deletes them by and by.

-- Sums of refreshes, by the minute and by the hour in which they finished, in UTC. A refresh is in one sum of each length. No
-- reference to stream_table, for the clean-up is to wait for nobody: dropping a stream table deletes its sums.
CREATE TABLE headwater.refresh_sum (
    stream_table_id bigint NOT NULL,
    bucket_length   interval NOT NULL,
    bucket_start    timestamptz NOT NULL,
    action          text NOT NULL,
    engine          text NOT NULL,
    refreshes       bigint NOT NULL,
    failures        bigint NOT NULL,    -- of these
    rows_in         bigint NOT NULL,
    rows_inserted   bigint NOT NULL,
    rows_updated    bigint NOT NULL,
    rows_deleted    bigint NOT NULL,
    total_ms        double precision NOT NULL,  -- durations are those of the refreshes that completed
    min_ms          double precision,
    max_ms          double precision,
    duration_buckets smallint[] NOT NULL,  -- headwater.duration_bucket() of them, ascending
    duration_counts  integer[] NOT NULL,   -- how many are in each of these
    PRIMARY KEY (stream_table_id, bucket_length, bucket_start, action, engine)
);
CREATE INDEX ON headwater.refresh_sum (bucket_length, bucket_start);

-- How far the clean-up of the history is.
CREATE TABLE headwater.history_state (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    counted_to   bigint NOT NULL,       -- refreshes up to this number are in the sums
    decided_to   bigint NOT NULL,       -- refreshes up to this number are committed, or never will be
    drawn_to     bigint NOT NULL,       -- numbers up to this one had been drawn
    drawn_by     text[] NOT NULL,       -- by these virtual transactions, as far as they had not ended then
    swept_to     bigint NOT NULL,       -- single deltas up to this number are deleted, but for the latest
    cleaned_at   timestamptz,
    compacted_at timestamptz
);
INSERT INTO headwater.history_state (counted_to, decided_to, drawn_to, drawn_by, swept_to)
SELECT first, first, first, '{}', first FROM (SELECT coalesce(min(id) - 1, 0) AS first FROM headwater.refresh) f;

-- Deltas of a stream table up to this number are deleted. Its latest ones are above it.
CREATE TABLE headwater.refresh_swept (
    stream_table_id bigint PRIMARY KEY,
    swept_to        bigint NOT NULL
);

-- Rows come at one end and go at the other: their room is to be reused before much more is taken.
ALTER TABLE headwater.refresh SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1);

-- The bucket of a duration: bucket b has those above 1.2 ^ (b - 1) and up to 1.2 ^ b milliseconds.
CREATE FUNCTION headwater.duration_bucket(ms double precision) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ceil(ln(CASE WHEN ms < 0.01 THEN 0.01 ELSE ms END) / ln(1.2::double precision))::smallint;

-- The duration that stands for a bucket: it differs from each that is in it by at most 1/11 of that, 9.1 %.
CREATE FUNCTION headwater.bucket_ms(bucket integer) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 2 / 2.2::double precision * 1.2::double precision ^ bucket;

-- The sums of the refreshes with these numbers: above the first one, up to the second.
CREATE FUNCTION headwater.sum_refreshes(
    above bigint, up_to bigint,
    OUT stream_table_id bigint, OUT bucket_length interval, OUT bucket_start timestamptz, OUT action text, OUT engine text,
    OUT refreshes bigint, OUT failures bigint, OUT rows_in bigint, OUT rows_inserted bigint, OUT rows_updated bigint,
    OUT rows_deleted bigint, OUT total_ms double precision, OUT min_ms double precision, OUT max_ms double precision,
    OUT duration_buckets smallint[], OUT duration_counts integer[]
) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
SELECT b.stream_table_id, b.bucket_length, b.bucket_start, b.action, b.engine,
       sum(b.refreshes)::bigint, sum(b.failures)::bigint, sum(b.rows_in)::bigint, sum(b.rows_inserted)::bigint,
       sum(b.rows_updated)::bigint, sum(b.rows_deleted)::bigint, coalesce(sum(b.total_ms), 0), min(b.min_ms), max(b.max_ms),
       coalesce(array_agg(b.bucket ORDER BY b.bucket) FILTER (WHERE b.bucket IS NOT NULL), '{}'),
       coalesce(array_agg(b.refreshes::integer ORDER BY b.bucket) FILTER (WHERE b.bucket IS NOT NULL), '{}')
FROM (
    SELECT r.stream_table_id, l.bucket_length, date_bin(l.bucket_length, r.finished_at, '2000-01-01 00:00+00') AS bucket_start,
           r.action, r.engine, headwater.duration_bucket(r.ms) AS bucket,
           count(*) AS refreshes, count(*) FILTER (WHERE r.ms IS NULL) AS failures,
           coalesce(sum(r.rows_in), 0) AS rows_in, coalesce(sum(r.rows_inserted), 0) AS rows_inserted,
           coalesce(sum(r.rows_updated), 0) AS rows_updated, coalesce(sum(r.rows_deleted), 0) AS rows_deleted,
           sum(r.ms) AS total_ms, min(r.ms) AS min_ms, max(r.ms) AS max_ms
    FROM (SELECT *, CASE status WHEN 'completed' THEN date_part('epoch', finished_at - started_at) * 1000 END AS ms
          FROM headwater.refresh WHERE id > above AND id <= up_to) r
    CROSS JOIN (VALUES (interval '1 minute'), (interval '1 hour')) AS l (bucket_length)
    GROUP BY 1, 2, 3, 4, 5, 6
) b
GROUP BY 1, 2, 3, 4, 5
$$;

-- What refreshes did and took, by the minute and by the hour: what is counted, and what happened since. Where much more is to be
-- counted, as after an upgrade, all but the latest has to wait for that.
CREATE VIEW headwater.refresh_stats AS
SELECT s.stream_table_id,
       st.stream_table,
       s.bucket_start,
       s.bucket_length,
       s.action,
       s.engine,
       s.refreshes,
       s.failures,
       s.rows_in,
       s.rows_inserted,
       s.rows_updated,
       s.rows_deleted,
       s.total_ms,
       s.total_ms / nullif(s.refreshes - s.failures, 0) AS avg_ms,
       s.min_ms,
       s.max_ms,
       least(s.max_ms, greatest(s.min_ms, headwater.bucket_ms(p.buckets[1]))) AS p50_ms,
       least(s.max_ms, greatest(s.min_ms, headwater.bucket_ms(p.buckets[2]))) AS p95_ms,
       least(s.max_ms, greatest(s.min_ms, headwater.bucket_ms(p.buckets[3]))) AS p99_ms,
       s.duration_buckets,
       s.duration_counts
FROM (
    SELECT stream_table_id, bucket_length, bucket_start, action, engine,
           sum(refreshes)::bigint AS refreshes, sum(failures)::bigint AS failures, sum(rows_in)::bigint AS rows_in,
           sum(rows_inserted)::bigint AS rows_inserted, sum(rows_updated)::bigint AS rows_updated,
           sum(rows_deleted)::bigint AS rows_deleted, sum(total_ms) AS total_ms, min(min_ms) AS min_ms, max(max_ms) AS max_ms,
           -- at most one of each kind
           max(duration_buckets) FILTER (WHERE counted) || max(duration_buckets) FILTER (WHERE NOT counted) AS duration_buckets,
           max(duration_counts) FILTER (WHERE counted) || max(duration_counts) FILTER (WHERE NOT counted) AS duration_counts
    FROM (SELECT *, true AS counted FROM headwater.refresh_sum
        UNION ALL
          SELECT *, false
          FROM headwater.sum_refreshes(
              greatest((SELECT counted_to FROM headwater.history_state), (SELECT max(id) - 20000 FROM headwater.refresh)),
              9223372036854775807)) either
    GROUP BY stream_table_id, bucket_length, bucket_start, action, engine
) s
JOIN headwater.stream_table_name st ON st.id = s.stream_table_id
CROSS JOIN LATERAL (
    SELECT ARRAY[min(bucket) FILTER (WHERE up_to >= 0.5 * total), min(bucket) FILTER (WHERE up_to >= 0.95 * total),
                 min(bucket) FILTER (WHERE up_to >= 0.99 * total)] AS buckets
    FROM (SELECT bucket, sum(count) OVER (ORDER BY bucket) AS up_to, sum(count) OVER () AS total
          FROM unnest(s.duration_buckets, s.duration_counts) AS d (bucket, count)) c
) p;

REVOKE EXECUTE ON FUNCTION headwater.sum_refreshes FROM PUBLIC;
GRANT EXECUTE ON FUNCTION headwater.sum_refreshes TO pg_monitor;
GRANT SELECT ON headwater.refresh_stats TO pg_monitor;
