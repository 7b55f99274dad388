-- Consumers: queries outside the database that follow the changes of a stream table.

CREATE TABLE headwater.consumer (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text NOT NULL UNIQUE,
    source_id    bigint NOT NULL REFERENCES headwater.source ON DELETE CASCADE,
    columns      smallint[] NOT NULL,
    epoch        integer NOT NULL DEFAULT 1,
    start        text NOT NULL CHECK (start IN ('now', 'snapshot')),
    initial      pg_snapshot,
    snapshot     pg_snapshot,
    committed    boolean NOT NULL DEFAULT false,
    given_up     text,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON headwater.consumer (source_id);

CREATE VIEW headwater.consumers AS
SELECT c.name AS consumer,
       st.stream_table,
       CASE WHEN c.given_up IS NOT NULL THEN 'given up' WHEN c.committed THEN 'active' ELSE 'starting' END AS status,
       c.given_up AS reason,
       c.snapshot,
       c.created_at,
       c.last_seen_at
FROM headwater.consumer c
JOIN headwater.source s ON s.id = c.source_id
JOIN headwater.stream_tables st ON st.id = s.stream_table_id;
