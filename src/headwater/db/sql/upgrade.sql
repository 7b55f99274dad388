-- name: captured_tables
-- Tables of users whose changes are captured.
SELECT id, format('%%I.%%I', schema_name, table_name) FROM headwater.source
WHERE change_table IS NOT NULL AND stream_table_id IS NULL ORDER BY relation

-- name: tables
-- Change tables and storage that this version would make differently: the size, indexes on the transaction to drop,
-- whether the new one is missing, whether nothing identifies rows.
SELECT n.nspname, c.relname, pg_relation_size(c.oid), old.indexes, new.wanted, c.relreplident = 'd'
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(ic.relname::text ORDER BY ic.oid), '{}')
    FROM pg_index i
    JOIN pg_class ic ON ic.oid = i.indexrelid
    JOIN pg_am am ON am.oid = ic.relam AND am.amname = 'btree'
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'xid' AND i.indkey::text = a.attnum::text
    WHERE i.indrelid = c.oid AND n.nspname = 'headwater_changes'
) AS old (indexes)
CROSS JOIN LATERAL (
    SELECT n.nspname = 'headwater_changes' AND NOT EXISTS (
        SELECT FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid
        JOIN pg_am am ON am.oid = ic.relam AND am.amname = 'brin' WHERE i.indrelid = c.oid)
) AS new (wanted)
WHERE c.relkind = 'r' AND c.relpersistence = 'p'
  AND (n.nspname = 'headwater_changes' AND c.relname ~ '^src_\d+$'
       OR n.nspname = 'headwater_data' AND c.relname ~ '^st_\d+(_kept_\w+)?$')
  AND (old.indexes <> '{}' OR new.wanted OR c.relreplident = 'd')
ORDER BY n.nspname, c.oid
