"""A database restored from a dump: nothing stale is used, no write fails, and `repair` makes all of it work.

Both servers are new, so that their oids start from the same number: what had an oid in the one is something
else in the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.servers import (
    as_role,
    carrier,
    dump,
    new_database,
    oldest_and_newest,
    restore,
    start,
)
from tests.integration.support import assert_fresh, capture_triggers, contents, value

import headwater
from headwater import Headwater
from headwater.embedded import Installation, Server
from headwater.errors import ConsumerLost, MissingPrivilege, RefreshFailed, RepairNeeded
from headwater.lifecycle.create import Place
from headwater.lifecycle.options import Options

Connection = psycopg.Connection[Any]

TABLES = """
CREATE TYPE kind AS ENUM ('a', 'b', 'c');
CREATE DOMAIN price AS int CHECK (VALUE >= 0);
CREATE TABLE items (id int PRIMARY KEY, kind kind, price price);
INSERT INTO items SELECT n, (ARRAY['a', 'b', 'c'])[n % 3 + 1]::kind, n FROM generate_series(1, 60) n;
CREATE TABLE labels (kind kind PRIMARY KEY, label text);
INSERT INTO labels VALUES ('a', 'A'), ('b', 'B');
CREATE TABLE sales (id int, kind kind) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF sales FOR VALUES FROM (0) TO (100);
CREATE TABLE high PARTITION OF sales DEFAULT;
INSERT INTO sales VALUES (1, 'a'), (150, 'b');
CREATE SCHEMA marts;
"""
QUERIES = {
    "counts": "SELECT kind, count(*) AS n, sum(price) AS s FROM items GROUP BY kind",
    "named": "SELECT i.id, i.price, l.label FROM items i JOIN labels l ON l.kind = i.kind",
    "most": "SELECT max(n) AS n FROM counts",
    "sold": "SELECT kind, count(*) AS n FROM sales GROUP BY kind",
    "today": "SELECT count(*) AS n, current_date AS day FROM items",
}
RENAMED = "marts.totals"  # from counts
WRITES = (
    "INSERT INTO items VALUES (101, 'a', 5), (102, 'c', 7)",
    "UPDATE items SET price = price + 1 WHERE kind = 'b'",
    "DELETE FROM items WHERE id % 7 = 0",
    "UPDATE labels SET label = 'AA' WHERE kind = 'a'",
    "INSERT INTO sales VALUES (2, 'c'), (300, 'a')",
    "UPDATE sales SET id = id + 100 WHERE id = 2",
    "DELETE FROM low",
)


@pytest.fixture(scope="module")
def origin(installation: Installation) -> Iterator[Server]:
    with start(installation) as server:
        with headwater.connect(new_database(server, "shop")) as hw:
            hw.init()
            fill(hw)
        yield server


@pytest.fixture(scope="module")
def target(installation: Installation) -> Iterator[Server]:
    with start(installation) as server:
        yield server


@pytest.fixture(params=["plain", "custom"])
def dumped(request: pytest.FixtureRequest, origin: Server, tmp_path: Path) -> Path:
    file = tmp_path / "shop.dump"
    dump(origin.installation, origin.dsn("shop"), file, f"--format={request.param}")
    return file


def fill(hw: Headwater) -> None:
    connection = hw.connection
    connection.execute("SET search_path = public")
    connection.execute(TABLES)
    for name, query in QUERIES.items():
        hw.create(f"public.{name}", qualified(query))
    connection.execute("ALTER VIEW counts RENAME TO totals")
    connection.execute("ALTER VIEW totals SET SCHEMA marts")
    hw.refresh("public.named")
    connection.execute("INSERT INTO items VALUES (99, 'a', 1)")  # waits in the change table
    connection.execute("SET search_path = ''")


def qualified(query: str) -> str:
    for table in ("items", "labels", "sales", "counts"):
        query = query.replace(f"FROM {table}", f"FROM public.{table}").replace(
            f"JOIN {table}", f"JOIN public.{table}"
        )
    return query


def names() -> list[str]:
    return [RENAMED if name == "counts" else f"public.{name}" for name in QUERIES]


def write(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in WRITES:
            conn.execute(statement)


def assert_repaired(dsn: str) -> None:
    with headwater.connect(dsn) as hw:
        found = hw.repair()
        assert [(item.stream_table, item.status) for item in found] == [
            (name, "rebuilt") for name in names()
        ], found
        assert {item.reason for item in found} == {"the database was restored from a dump"}
        for name in names():
            assert_fresh(hw, name)
        assert {item.status for item in hw.repair()} == {"intact"}
        hw.connection.execute("INSERT INTO public.items VALUES (201, 'c', 9), (202, 'b', 0)")
        hw.connection.execute("DELETE FROM public.sales WHERE id = 300")
        hw.connection.execute("INSERT INTO public.high VALUES (500, 'a')")
        for name in (item for item in names() if item != "public.today"):
            assert hw.refresh(name)[-1].action in ("delta", "nothing")
            assert_fresh(hw, name)
        for name in ("public.most", "public.sold", "public.named"):
            assert hw.verify(name).equal
            hw.drop(name)
        assert capture_triggers(hw.connection, "public.low") == set()
        assert len(capture_triggers(hw.connection, "public.items")) == 4


def test_a_restored_database(dumped: Path, target: Server) -> None:
    dsn = new_database(target, f"restored_{dumped.read_bytes()[:5].hex()}")
    restore(target.installation, dsn, dumped)
    write(dsn)
    with headwater.connect(dsn) as hw:
        before = contents(hw.connection, "public.named")
        for verb in (hw.refresh, hw.verify, hw.explain, hw.drop, hw.status):
            with pytest.raises(RepairNeeded) as caught:
                verb("public.named")
            assert "headwater repair" in caught.value.hint
        with pytest.raises(RepairNeeded):
            hw.create("public.more", "SELECT 1 AS one")
        assert contents(hw.connection, "public.named") == before
    assert_repaired(dsn)


def test_a_restored_database_beside_the_old_one(origin: Server, tmp_path: Path) -> None:
    """In one cluster transactions are the same, and oids are not."""
    dump(origin.installation, origin.dsn("shop"), tmp_path / "shop.sql")
    dsn = new_database(origin, "beside")
    restore(origin.installation, dsn, tmp_path / "shop.sql")
    write(dsn)
    assert_repaired(dsn)


def test_a_dump_of_a_repaired_database(origin: Server, target: Server, tmp_path: Path) -> None:
    """Restored twice in the same way, it may well have the same oids; its transactions tell."""
    dump(origin.installation, origin.dsn("shop"), tmp_path / "first.sql")
    first = new_database(target, "first")
    restore(target.installation, first, tmp_path / "first.sql")
    with headwater.connect(first) as hw:
        hw.repair()
        hw.refresh(RENAMED)
    dump(target.installation, first, tmp_path / "second.sql")
    second = new_database(target, "second")
    restore(target.installation, second, tmp_path / "second.sql")
    write(second)
    with headwater.connect(second) as hw, pytest.raises(RepairNeeded):
        hw.refresh(RENAMED)
    assert_repaired(second)


def test_a_dump_restored_into_an_installed_database(origin: Server, target: Server, tmp_path: Path) -> None:
    """The rows of stream tables come in, those of migrations are refused as double."""
    dump(origin.installation, origin.dsn("shop"), tmp_path / "shop.dump", "--format=custom")
    dsn = new_database(target, "installed")
    with headwater.connect(dsn) as hw:
        hw.init()
    restore(target.installation, dsn, tmp_path / "shop.dump", check=False)
    write(dsn)
    with headwater.connect(dsn) as hw, pytest.raises(RepairNeeded):
        hw.refresh("public.named")
    assert_repaired(dsn)


def test_schema_and_data_in_two_steps(origin: Server, target: Server, tmp_path: Path) -> None:
    """Between the two the catalog is empty; triggers fire while data come in; then some come twice."""
    dump(origin.installation, origin.dsn("shop"), tmp_path / "schema.sql", "--schema-only")
    dump(origin.installation, origin.dsn("shop"), tmp_path / "data.dump", "--data-only", "--format=custom")
    dsn = new_database(target, "two_steps")
    restore(target.installation, dsn, tmp_path / "schema.sql")
    with headwater.connect(dsn) as hw:
        for verb in (hw.init, hw.migrate, hw.list, hw.repair):
            with pytest.raises(RepairNeeded) as caught:
                verb()
            assert "restore the data" in caught.value.hint
    restore(target.installation, dsn, tmp_path / "data.dump")
    restore(target.installation, dsn, tmp_path / "data.dump", check=False)
    with psycopg.connect(dsn) as conn:
        assert value(conn, "SELECT count(*) FROM sales") == 4  # it has no key
    assert_repaired(dsn)


def test_another_role_owns_what_is_restored(origin: Server, target: Server, tmp_path: Path) -> None:
    dump(origin.installation, origin.dsn("shop"), tmp_path / "shop.dump", "--format=custom")
    with psycopg.connect(target.dsn(), autocommit=True) as admin:
        admin.execute("CREATE ROLE newcomer LOGIN PASSWORD 'newcomer'")
        admin.execute("CREATE ROLE stranger LOGIN PASSWORD 'stranger'")
    dsn = new_database(target, "owned", owner="newcomer")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("ALTER SCHEMA public OWNER TO newcomer")
    restore(target.installation, as_role(dsn, "newcomer", "newcomer"), tmp_path / "shop.dump", "--no-owner")
    write(as_role(dsn, "newcomer", "newcomer"))
    with headwater.connect(as_role(dsn, "stranger", "stranger")) as hw:
        with pytest.raises(MissingPrivilege):
            hw.repair()
    assert_repaired(as_role(dsn, "newcomer", "newcomer"))


def test_a_consumer_must_start_anew(origin: Server, target: Server, tmp_path: Path) -> None:
    from headwater.capture import consumers
    from headwater.catalog import stream_tables as catalog

    with headwater.connect(origin.dsn("shop")) as hw:
        named = catalog.find(hw.connection, "public.named")
        position = consumers.begin(hw.connection, named, "reader", "now")
        dump(origin.installation, origin.dsn("shop"), tmp_path / "shop.sql")
        consumers.drop(hw.connection, "reader")
    dsn = new_database(target, "followed")
    restore(target.installation, dsn, tmp_path / "shop.sql")
    with headwater.connect(dsn) as hw:
        hw.repair()
        with pytest.raises(ConsumerLost, match="restored from a dump"):
            consumers.latest(hw.connection, position)
        named = catalog.find(hw.connection, "public.named")
        again = consumers.begin(hw.connection, named, "reader", "now")
        hw.connection.execute("INSERT INTO public.items VALUES (203, 'a', 4)")
        hw.refresh("public.named")
        assert consumers.latest(hw.connection, again) != again


def test_a_repair_that_was_interrupted_is_completed_by_refreshes(
    origin: Server, target: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump(origin.installation, origin.dsn("shop"), tmp_path / "shop.sql")
    dsn = new_database(target, "interrupted")
    restore(target.installation, dsn, tmp_path / "shop.sql")
    write(dsn)
    with headwater.connect(dsn) as hw:
        hw.connection.execute("DELETE FROM headwater.frontier")  # as if each had been given up
        with pytest.raises(RepairNeeded):
            hw.refresh("public.named")
        with monkeypatch.context() as patch:
            patch.setattr("headwater.lifecycle.repair.Repair._repair", interrupt)
            with pytest.raises(KeyboardInterrupt):
                hw.repair()
        for name in reversed(names()):
            hw.refresh(name)
            assert_fresh(hw, name)
        hw.connection.execute("INSERT INTO public.items VALUES (204, 'a', 4)")
        assert hw.refresh("public.most")[-1].action == "delta"


def test_one_table_restored_after_it_was_dropped(target: Server, tmp_path: Path) -> None:
    """With its triggers, which call a function that was made for the table before."""
    dsn = new_database(target, "one_table")
    with headwater.connect(dsn) as hw:
        hw.init()
        fill(hw)
        dump(target.installation, dsn, tmp_path / "items.sql", "--table=public.items")
        hw.connection.execute("DROP TABLE public.items CASCADE")
        restore(target.installation, dsn, tmp_path / "items.sql")
        assert len(capture_triggers(hw.connection, "public.items")) == 4
        write(dsn)
        with pytest.raises(RefreshFailed, match=r"public\.items, which it reads, was dropped"):
            hw.refresh("public.most")
        repaired = {item.stream_table: item.status for item in hw.repair()}
        intact = {"public.most", "public.sold"}
        assert repaired == {name: "intact" if name in intact else "rebuilt" for name in names()}
        hw.connection.execute("INSERT INTO public.items VALUES (205, 'c', 4)")
        for name in names():
            hw.refresh(name)
            assert_fresh(hw, name)
        assert hw.verify("public.named").equal


def test_what_the_dump_lacks_does_not_hold_up_the_rest(
    origin: Server, target: Server, tmp_path: Path
) -> None:
    """Also it was taken in the middle of a creation."""
    with headwater.connect(origin.dsn("shop")) as hw:
        query = qualified(QUERIES["sold"])
        half = hw._creation()._prepare(hw.connection, Place("public", "half"), query, Options())
        options = ("--format=custom", "--exclude-table=public.labels")
        dump(origin.installation, origin.dsn("shop"), tmp_path / "shop.dump", *options)
        hw._removal().remove(half, cascade=False)
    dsn = new_database(target, "lacking")
    restore(target.installation, dsn, tmp_path / "shop.dump", check=False)
    with headwater.connect(dsn) as hw:
        found = {item.stream_table: item for item in hw.repair()}
        assert found["public.half"].status == "removed"
        assert found["public.named"].status == "failed"
        assert "public.labels" in found["public.named"].error
        assert "repeat headwater repair" in found["public.named"].error
        others = [name for name in names() if name != "public.named"]
        assert {found[name].status for name in others} == {"rebuilt"}
        hw.connection.execute("INSERT INTO public.items VALUES (206, 'c', 4)")
        for name in others:
            hw.refresh(name)
            assert_fresh(hw, name)
        with pytest.raises(RefreshFailed):
            hw.refresh("public.named")
        hw.connection.execute("CREATE TABLE public.labels (label text, kind public.kind)")
        hw.connection.execute("INSERT INTO public.labels VALUES ('new', 'c')")
        assert {item.stream_table for item in hw.repair() if item.status == "rebuilt"} == {"public.named"}
        hw.connection.execute("INSERT INTO public.items VALUES (207, 'c', 4)")
        assert hw.refresh("public.named")[-1].action == "delta"
        assert_fresh(hw, "public.named")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_from_the_oldest_server_to_the_newest(tmp_path: Path) -> None:
    oldest, newest = oldest_and_newest()
    program = carrier(oldest, newest, tmp_path)
    with start(oldest) as old, start(newest) as new:
        with headwater.connect(new_database(old, "shop")) as hw:
            hw.init()
            fill(hw)
        dump(program, old.dsn("shop"), tmp_path / "shop.dump", "--format=custom")
        dsn = new_database(new, "shop")
        restore(newest, dsn, tmp_path / "shop.dump")
        write(dsn)
        assert_repaired(dsn)
