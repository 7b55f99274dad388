-- name: looked_into
-- The columns of tables, and of the storage behind the views of stream tables: how many rows and pages the table has,
-- how many values the column, and whether an index that serves any equality starts with it. Without statistics, rows
-- are guessed from the size.
SELECT r.relation, format('%%I.%%I', n.nspname, c.relname), s.rows, s.pages, a.attname, quote_ident(a.attname),
       t.n_distinct, t.avg_width,
       EXISTS (SELECT FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_am m ON m.oid = i.relam
               WHERE x.indrelid = c.oid AND x.indisvalid AND x.indisready AND x.indpred IS NULL
                 AND m.amname IN ('btree', 'hash') AND x.indkey[0] = a.attnum AND x.indcollation[0] = a.attcollation)
FROM unnest(%(relations)s::oid[]) AS r(relation)
LEFT JOIN headwater.stream_table st ON st.relation = r.relation
JOIN pg_class c ON c.oid = CASE WHEN st.id IS NULL THEN r.relation
                                ELSE to_regclass(format('headwater_data.st_%%s', st.id))::oid END
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT sum(CASE WHEN p.reltuples > 0 AND p.relpages > 0 THEN p.reltuples::float8 * z.pages / p.relpages
                    ELSE z.pages * 50.0 END) AS rows, sum(z.pages) AS pages
    FROM (SELECT c.oid UNION SELECT relid FROM pg_partition_tree(c.oid)) AS part(oid)
    JOIN pg_class p ON p.oid = part.oid,
    LATERAL (SELECT pg_relation_size(p.oid) / current_setting('block_size')::int AS pages) z
) s
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN LATERAL (
    SELECT t.n_distinct, t.avg_width FROM pg_stats t
    WHERE t.schemaname = n.nspname AND t.tablename = c.relname AND t.attname = a.attname
    ORDER BY t.inherited = (c.relkind = 'p') DESC LIMIT 1
) t ON true
