-- What is needed to notice that a database was restored from a dump, and to repair it.

-- The row of a migration, like that of a frontier, names the transaction that wrote it. A dump carries the column and
-- not the transaction.
ALTER TABLE headwater.migration ADD COLUMN applied_by xid8;
UPDATE headwater.migration SET applied_by = pg_current_xact_id();
ALTER TABLE headwater.migration ALTER COLUMN applied_by SET NOT NULL;
ALTER TABLE headwater.migration ALTER COLUMN applied_by SET DEFAULT pg_current_xact_id();

-- From which a definition view can be made again that went with a table it reads.
ALTER TABLE headwater.stream_table ADD COLUMN definition text;
SELECT set_config('search_path', '', true);
UPDATE headwater.stream_table SET definition = pg_get_viewdef(to_regclass('headwater_defs.def_' || id)::oid);
