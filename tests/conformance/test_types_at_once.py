"""Every type in a few stream tables: through Spark and back, as a key, in order.

`tests/integration/test_types.py` has a stream table for each type, which takes minutes on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.integration.support import assert_equal, assert_fresh
from tests.integration.test_types import NOT_GROUPABLE, OWN_TYPES, VALUES

from headwater import Headwater

Connection = psycopg.Connection[Any]

pytestmark = pytest.mark.differential

# Equal values with different texts where the type has them, and a value that is not equal.
KEYS = {
    "bigint": ("7", "7", "8"),
    "numeric": ("1.0", "1.00", "1.000000000000000000000001"),
    "numeric(6,2)": ("NaN", "NaN", "1.1"),
    "price": ("Infinity", "Infinity", "1e40"),
    "real": ("0", "-0", "1.1"),
    "double precision": ("NaN", "NaN", "1e-300"),
    "boolean": ("true", "t", "false"),
    "text": ("a", "a", "a "),
    "varchar(5)": ("", "", " "),
    "char(4)": ("ab", "ab  ", "b"),
    "bpchar": ("ab", "ab  ", " ab"),
    '"char"': ("x", "x", ""),
    "name": ("a", "a", "A"),
    "bytea": ("\\\\x00ff", "\\\\x00FF", "\\\\x00"),
    "date": ("infinity", "infinity", "-infinity"),
    "time": ("24:00", "24:00", "00:00"),
    "timestamp": ("294276-12-31 23:59:59", "294276-12-31 23:59:59", "infinity"),
    "timestamptz": ("2024-02-29 12:00+00", "2024-02-29 13:00+01", "0044-03-15 12:00+00 BC"),
    "interval": ("1 month", "30 days", "29 days 24:00:00.000001"),
    "uuid": (f"{'0f' * 16}", f"{{{'0F' * 16}}}", f"{'00' * 16}"),
    "inet": ("10.0.0.1", "10.0.0.1/32", "10.0.0.1/8"),
    "oid": ("4294967295", "4294967295", "0"),
    "regproc": ("1", "1", "2"),
    "xid8": ("18446744073709551615", "18446744073709551615", "3"),
    "mood": ("sad", "sad", "happy"),
    "positive": ("1", "1", "7"),
    "required": ("a", "a", "b"),
}
ORDERED = (
    "smallint|bigint|numeric(6,2)|real|double precision|date|time|timestamp|timestamptz|interval|oid".split(
        "|"
    )
)


@pytest.fixture
def hw(dsn: str, connect: Callable[[str], Headwater], conn: Connection) -> Iterator[Headwater]:
    conn.execute(OWN_TYPES)
    with connect(dsn) as handle:
        yield handle


def make_table(conn: Connection, kinds: list[str]) -> None:
    """A table t with a column of each type, c0 and so on."""
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    conn.execute(f"CREATE TABLE t (id int, {columns})")


def insert(conn: Connection, number: int, texts: list[str | None]) -> None:
    values = ", ".join("NULL" if text is None else "E'" + text.replace("'", "''") + "'" for text in texts)
    conn.execute(f"INSERT INTO t VALUES ({number}, {values})")


def test_every_type_passes_through(hw: Headwater, conn: Connection) -> None:
    kinds = [kind for kind in VALUES if kind != "required"]
    make_table(conn, kinds)
    longest = max(len(VALUES[kind]) for kind in kinds)
    for number in range(longest):
        insert(conn, number, [VALUES[kind][number % len(VALUES[kind])] for kind in kinds])
    insert(conn, longest, [None] * len(kinds))
    conn.execute("CREATE TABLE k (id int); INSERT INTO k SELECT i % 20 FROM generate_series(0, 39) AS i")
    columns = ", ".join(f"t.c{number}" for number in range(len(kinds)))
    hw.create("rows", f"SELECT {columns} FROM t JOIN k ON k.id = t.id", mode="differential")
    assert_fresh(hw, "rows")
    for change in (
        "UPDATE t SET id = (id + 1) % 3",
        "WITH gone AS (DELETE FROM k WHERE id = 1 RETURNING id) INSERT INTO k SELECT 2 FROM gone",
        "DELETE FROM t",
    ):
        conn.execute(change)
        assert hw.refresh("rows")[-1].action == "delta"
        assert_fresh(hw, "rows")


def test_every_key(hw: Headwater, conn: Connection) -> None:
    """Rows are in one group if all their keys are equal, and in two if one is not."""
    assert not set(KEYS) & NOT_GROUPABLE
    kinds = list(KEYS)
    make_table(conn, kinds)
    keys = ", ".join(f"c{number}" for number in range(len(kinds)))
    hw.create("groups", f"SELECT {keys}, count(*) AS n FROM t GROUP BY {keys}", mode="differential")
    same = " AND ".join(f"r.c{number} = l.c{number}" for number in range(len(kinds)))
    hw.create("pairs", f"SELECT l.id, r.id AS other FROM t l JOIN t r ON {same}", mode="differential")
    equal = [[KEYS[kind][number] for kind in kinds] for number in range(2)]
    for number, texts in enumerate(equal):
        insert(conn, number, [*texts])
    for position, kind in enumerate(kinds):
        texts = list(equal[0])
        texts[position] = KEYS[kind][2]
        insert(conn, 10 + position, [*texts])
        if kind != "required":
            insert(conn, 50 + position, [*texts[:position], None, *texts[position + 1 :]])
    for change in ("SELECT", "INSERT INTO t SELECT * FROM t WHERE id < 60", "DELETE FROM t WHERE id % 2 = 0"):
        conn.execute(change)
        for name in ("groups", "pairs"):
            assert hw.refresh(name)[-1].action == "delta"
            assert_equal(hw, name)
    assert conn.execute("SELECT max(n) FROM groups").fetchone() == (2,)


def test_every_order(hw: Headwater, conn: Connection) -> None:
    make_table(conn, ORDERED)
    values = {
        kind: [text for text in VALUES[kind] if text != "NaN" or kind in ("real", "double precision")]
        for kind in ORDERED
    }
    calls = ", ".join(
        f"min(c{number}) AS a{number}, max(c{number}) AS b{number}" for number in range(len(ORDERED))
    )
    hw.create("extremes", f"SELECT id, {calls} FROM t GROUP BY id", mode="differential")
    for number in range(8):
        insert(conn, number % 3, [values[kind][number % len(values[kind])] for kind in ORDERED])
        insert(conn, number % 3, [None] * len(ORDERED))
    for change in ("SELECT", "UPDATE t SET id = 2 - id", "DELETE FROM t WHERE c1 < 7 AND id > 0"):
        conn.execute(change)
        assert hw.refresh("extremes")[-1].action == "delta"
        assert_equal(hw, "extremes")
