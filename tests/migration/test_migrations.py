"""Installing and migrating the catalog: `schema.sql` is where the migrations lead, no step is half done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import headwater
from headwater import Headwater, HeadwaterError
from headwater.catalog import installed
from headwater.catalog.installed import SCHEMAS, Migration, latest_version, migrations
from headwater.errors import CatalogVersionMismatch, NotInstalled
from headwater.install import migrate

Connection = psycopg.Connection[Any]

# What there is in Headwater's schemas, each kind of object by its full definition.
INTROSPECTION = {
    "schemas": "SELECT nspname, obj_description(oid) FROM pg_namespace WHERE nspname = ANY (%(schemas)s)",
    "relations": "SELECT oid::regclass::text, relkind, relpersistence, relreplident, reloptions,"
    " obj_description(oid) FROM pg_class WHERE relnamespace::regnamespace::text = ANY (%(schemas)s)",
    "columns": "SELECT attrelid::regclass::text, attnum, attname, format_type(atttypid, atttypmod),"
    " attnotnull, attidentity, attgenerated, attcollation, pg_get_expr(d.adbin, d.adrelid)"
    " FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid"
    " LEFT JOIN pg_attrdef d ON d.adrelid = attrelid AND d.adnum = attnum"
    " WHERE attnum > 0 AND relnamespace::regnamespace::text = ANY (%(schemas)s)",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace::regnamespace::text = ANY (%(schemas)s)",
    "indexes": "SELECT schemaname, indexdef FROM pg_indexes WHERE schemaname = ANY (%(schemas)s)",
    "views": "SELECT schemaname, viewname, definition FROM pg_views WHERE schemaname = ANY (%(schemas)s)",
    "functions": "SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc"
    " WHERE pronamespace::regnamespace::text = ANY (%(schemas)s)",
    "triggers": "SELECT tgrelid::regclass::text, pg_get_triggerdef(t.oid) FROM pg_trigger t"
    " JOIN pg_class c ON c.oid = tgrelid WHERE NOT tgisinternal"
    " AND relnamespace::regnamespace::text = ANY (%(schemas)s)",
    "types": "SELECT oid::regtype::text, typtype FROM pg_type"
    " WHERE typnamespace::regnamespace::text = ANY (%(schemas)s)",
}  # fmt: skip


def introspect(connection: Connection) -> dict[str, set[tuple[str, ...]]]:
    return {
        kind: {tuple(map(str, row)) for row in connection.execute(query, {"schemas": list(SCHEMAS)})}
        for kind, query in INTROSPECTION.items()
    }


@pytest.fixture
def empty(empty_dsn: str) -> Iterator[Headwater]:
    """A handle to a database without the catalog."""
    with headwater.connect(empty_dsn) as handle:
        yield handle


@pytest.fixture
def next_step() -> Migration:
    return Migration(
        latest_version() + 1, "colours", "ALTER TABLE headwater.stream_table ADD COLUMN colour text"
    )


@pytest.mark.smoke
def test_the_schema_equals_its_migrations(empty: Headwater, dsn: str) -> None:
    with headwater.connect(dsn) as installed:
        installed.init()
        expected = introspect(installed.connection)
        versions = installed.connection.execute("SELECT version, name FROM headwater.migration").fetchall()
    assert empty.migrate() == [migration.version for migration in migrations()]
    replayed = introspect(empty.connection)
    assert all(
        expected[kind] for kind in ("schemas", "columns", "constraints", "indexes", "views", "functions")
    )
    for kind in INTROSPECTION:
        assert replayed[kind] == expected[kind], kind
    assert empty.connection.execute("SELECT version, name FROM headwater.migration").fetchall() == versions


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.version for migration in migrations()] == list(range(1, latest_version() + 1))


def test_init_twice_changes_nothing(empty: Headwater) -> None:
    assert empty.init() is True
    installed = introspect(empty.connection)
    assert empty.init() is False
    assert empty.migrate() == []
    assert introspect(empty.connection) == installed


def test_an_older_catalog_is_told_from_this_program(empty: Headwater) -> None:
    empty.init()
    empty.connection.execute("DELETE FROM headwater.migration WHERE version = %s", (latest_version(),))
    for verb in (empty.init, empty.list, empty.settings):
        with pytest.raises(CatalogVersionMismatch) as caught:
            verb()
        assert f"version {migrations()[-2].version}" in caught.value.message
        assert caught.value.hint == "run headwater migrate"


def test_a_newer_catalog_is_told_from_this_program(empty: Headwater, next_step: Migration) -> None:
    empty.init()
    assert migrate.migrate(empty.connection, steps=[*migrations(), next_step]) == [next_step.version]
    for verb in (empty.init, empty.list, empty.settings):
        with pytest.raises(CatalogVersionMismatch) as caught:
            verb()
        assert f"version {next_step.version}" in caught.value.message
        assert "upgrade this program" in caught.value.hint


def test_a_migration_keeps_stream_tables_working(empty: Headwater, next_step: Migration) -> None:
    empty.init()
    connection = empty.connection
    connection.execute("CREATE TABLE public.items (id int)")
    empty.create("public.st", "SELECT id FROM public.items")
    before = introspect(connection)
    steps = [*migrations(), next_step]
    assert migrate.migrate(connection, steps=steps) == [next_step.version]
    assert migrate.migrate(connection, steps=steps) == []
    after = introspect(connection)
    assert {row[2] for row in after["columns"] - before["columns"]} == {"colour"}
    connection.execute("DELETE FROM headwater.migration WHERE version = %s", (next_step.version,))
    connection.execute("INSERT INTO public.items VALUES (1)")
    assert empty.refresh("public.st")[-1].action == "delta"
    assert empty.verify("public.st").equal


def test_a_failing_step_is_rolled_back_wholly(empty: Headwater, next_step: Migration) -> None:
    empty.init()
    before = introspect(empty.connection)
    broken = Migration(
        next_step.version, "broken", f"{next_step.text}; SELECT 1 / 0; CREATE TABLE headwater.x ()"
    )
    with pytest.raises(HeadwaterError) as caught:
        migrate.migrate(empty.connection, steps=[*migrations(), broken])
    assert f"migration {broken.version} (broken)" in caught.value.message
    assert introspect(empty.connection) == before
    assert installed.installed_version(empty.connection) == latest_version()
    assert migrate.migrate(empty.connection, steps=[*migrations(), next_step]) == [next_step.version]


def test_steps_before_a_failing_one_stay(empty: Headwater, next_step: Migration) -> None:
    empty.init()
    broken = Migration(next_step.version + 1, "broken", "SELECT 1 / 0")
    with pytest.raises(HeadwaterError):
        migrate.migrate(empty.connection, steps=[*migrations(), next_step, broken])
    assert installed.installed_version(empty.connection) == next_step.version


def test_a_failing_init_leaves_nothing(empty: Headwater) -> None:
    empty.connection.execute("CREATE SCHEMA headwater")
    empty.connection.execute("CREATE TABLE headwater.setting (mine int)")
    before = introspect(empty.connection)
    with pytest.raises(HeadwaterError):
        empty.init()
    assert introspect(empty.connection) == before


VERBS: dict[str, Callable[[Headwater], object]] = {
    "create": lambda hw: hw.create("public.st", "SELECT 1 AS one"),
    "alter": lambda hw: hw.alter("public.st", mode="full"),
    "drop": lambda hw: hw.drop("public.st"),
    "refresh": lambda hw: hw.refresh("public.st"),
    "verify": lambda hw: hw.verify("public.st"),
    "explain": lambda hw: hw.explain("public.st"),
    "list": lambda hw: hw.list(),
    "status": lambda hw: hw.status("public.st"),
    "history": lambda hw: hw.history(),
    "settings": lambda hw: hw.settings(),
    "set": lambda hw: hw.set("lock_attempts", "3"),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_verb_on_a_database_without_the_catalog(
    empty: Headwater, verb: Callable[[Headwater], object]
) -> None:
    with pytest.raises(NotInstalled) as caught:
        verb(empty)
    assert caught.value.hint == "run headwater init"
    assert introspect(empty.connection)["schemas"] == set()


def test_a_step_alone_does_not_install(empty: Headwater, next_step: Migration) -> None:
    with pytest.raises(NotInstalled):
        migrate.migrate(empty.connection, steps=[next_step])
    assert introspect(empty.connection)["schemas"] == set()


def test_a_worker_that_is_registered_is_active_after_the_new_names(empty: Headwater) -> None:
    names = [migration.name for migration in migrations()]
    before = migrations()[: names.index("operator_names")]
    migrate.migrate(empty.connection, steps=before)
    empty.connection.execute(
        "INSERT INTO headwater.worker_registry"
        " (worker_id, kind, host_name, pid, backend_pid, capacity, status)"
        " VALUES (gen_random_uuid(), 'worker', 'far', 1, 2, 3, 'running'),"
        " (gen_random_uuid(), 'worker', 'near', 4, 5, 6, 'draining')"
    )
    empty.migrate()
    found = empty.connection.execute("SELECT hostname, status FROM headwater.worker_registry ORDER BY pid")
    assert found.fetchall() == [("far", "active"), ("near", "draining")]
