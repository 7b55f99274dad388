-- What version 3 made of a table and two stream tables, taken from a database of that version; :items, :sums and :tops
-- stand for oids.

CREATE TABLE public.items (id int PRIMARY KEY, kind text, price int);
INSERT INTO public.items VALUES (1, 'a', 1), (2, 'b', 2);
CREATE TABLE headwater_data.st_1 (
    kind text, n bigint, s bigint, __hw_count bigint, __hw_s1 numeric, __hw_s2 bigint, __hw_hash bigint
) WITH (fillfactor = 90);
CREATE TABLE headwater_data.st_2 (most bigint, __hw_count bigint, __hw_s1 bigint, __hw_hash bigint)
    WITH (fillfactor = 90);
CREATE INDEX ON headwater_data.st_1 (__hw_hash);
CREATE INDEX ON headwater_data.st_2 (__hw_hash);
INSERT INTO headwater_data.st_1 VALUES
    ('a', 1, 1, 1, 1, 1, 3591986179850072241), ('b', 1, 2, 1, 2, 1, -1633062336851484768);
INSERT INTO headwater_data.st_2 VALUES (2, 2, 2, 0);
CREATE VIEW headwater_defs.def_1 AS SELECT kind, count(*) AS n, sum(price) AS s FROM public.items GROUP BY kind;
CREATE VIEW public.sums AS SELECT kind, n, s FROM headwater_data.st_1;
CREATE VIEW headwater_defs.def_2 AS SELECT max(s) AS most FROM public.sums;
CREATE VIEW public.tops AS SELECT most FROM headwater_data.st_2;
CREATE TRIGGER headwater_refuse_write INSTEAD OF INSERT OR DELETE OR UPDATE ON public.sums
    FOR EACH ROW EXECUTE FUNCTION headwater.refuse_write();
CREATE TRIGGER headwater_refuse_write INSTEAD OF INSERT OR DELETE OR UPDATE ON public.tops
    FOR EACH ROW EXECUTE FUNCTION headwater.refuse_write();

-- from here on with oids

CREATE TABLE headwater_changes.src_:items (
    xid xid8 NOT NULL, node integer NOT NULL DEFAULT 0, w integer NOT NULL, c2 text, c3 integer
);
CREATE TABLE headwater_changes.src_:sums (
    xid xid8 NOT NULL, node integer NOT NULL DEFAULT 0, w integer NOT NULL, c3 bigint
);
CREATE INDEX ON headwater_changes.src_:items (xid);
CREATE INDEX ON headwater_changes.src_:sums (xid);

CREATE FUNCTION headwater_changes.capture_:items() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    columns text;
    targets text;
BEGIN
    IF TG_OP = 'TRUNCATE' OR false THEN
        INSERT INTO "headwater_changes"."src_:items" (xid, w) VALUES (pg_catalog.pg_current_xact_id(), 0);
        RETURN NULL;
    END IF;
    IF (SELECT array_agg(attname ORDER BY attnum) FROM pg_catalog.pg_attribute WHERE attrelid = :items AND attnum = ANY ('{2,3}'::smallint[])) = ARRAY['kind', 'price']::name[] THEN
        CASE TG_OP
            WHEN 'INSERT' THEN INSERT INTO "headwater_changes"."src_:items" (xid, w, "c2", "c3") SELECT pg_catalog.pg_current_xact_id(), 1, r."kind", r."price" FROM new_rows AS r;
            WHEN 'DELETE' THEN INSERT INTO "headwater_changes"."src_:items" (xid, w, "c2", "c3") SELECT pg_catalog.pg_current_xact_id(), -1, r."kind", r."price" FROM old_rows AS r;
            ELSE INSERT INTO "headwater_changes"."src_:items" (xid, w, "c2", "c3") SELECT pg_catalog.pg_current_xact_id(), -1, r."kind", r."price" FROM old_rows AS r UNION ALL SELECT pg_catalog.pg_current_xact_id(), 1, r."kind", r."price" FROM new_rows AS r;
        END CASE;
    ELSE
        SELECT string_agg(', ' || format('%I', attname), ''), string_agg(', c' || attnum, '')
        INTO columns, targets
        FROM pg_catalog.pg_attribute
        WHERE attrelid = :items AND attnum = ANY ('{2,3}'::smallint[]) AND NOT attisdropped;
        IF TG_OP <> 'INSERT' THEN
            EXECUTE format('INSERT INTO %s (xid, w%s) SELECT pg_current_xact_id(), -1%s FROM old_rows',
                           'headwater_changes.src_:items', targets, columns);
        END IF;
        IF TG_OP <> 'DELETE' THEN
            EXECUTE format('INSERT INTO %s (xid, w%s) SELECT pg_current_xact_id(), 1%s FROM new_rows',
                           'headwater_changes.src_:items', targets, columns);
        END IF;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER headwater_capture_delete AFTER DELETE ON public.items REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION headwater_changes.capture_:items();
CREATE TRIGGER headwater_capture_insert AFTER INSERT ON public.items REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION headwater_changes.capture_:items();
CREATE TRIGGER headwater_capture_truncate AFTER TRUNCATE ON public.items
    FOR EACH STATEMENT EXECUTE FUNCTION headwater_changes.capture_:items();
CREATE TRIGGER headwater_capture_update AFTER UPDATE ON public.items
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION headwater_changes.capture_:items();

INSERT INTO headwater.stream_table (schema_name, table_name, relation, query, fingerprint, signature, signature_of,
                                    requested_mode, mode, engine, status, time_zone)
VALUES ('public', 'sums', :sums, 'SELECT kind, count(*) AS n, sum(price) AS s FROM public.items GROUP BY kind',
        '90a630b89b549994e8cb33dc58b90638495d6cf73b2f24de07ad7d234dc38e26 kind n s __hw_count __hw_s1 __hw_s2 __hw_hash ',
        headwater.signature('headwater_defs.def_1'::regclass, '{:items}'), '{:items}', 'auto', 'differential', 'auto', 'active', 'Etc/UTC'),
       ('public', 'tops', :tops, 'SELECT max(s) AS most FROM public.sums',
        '775f76d95572bba4ecf509acc26c09bdf65782d8d521489457ddd78ac480c3cc most __hw_count __hw_s1 __hw_hash ',
        headwater.signature('headwater_defs.def_2'::regclass, '{:sums}'), '{:sums}', 'auto', 'differential', 'auto', 'active', 'Etc/UTC');
INSERT INTO headwater.source (relation, schema_name, table_name, stream_table_id, change_table)
VALUES (:items, 'public', 'items', NULL, 'src_:items'), (:sums, 'public', 'sums', 1, 'src_:sums');
INSERT INTO headwater.source_column VALUES (1, 2), (1, 3), (2, 3);
INSERT INTO headwater.dependency VALUES (1, 1, '{2,3}'), (2, 2, '{3}');
INSERT INTO headwater.lineage VALUES (1, 1, 2, 'kind'), (1, 1, 3, 's'), (1, 1, 2, NULL), (2, 2, 3, 'most');
INSERT INTO headwater.frontier SELECT id, 0, pg_current_snapshot(), pg_current_xact_id() FROM headwater.stream_table;
