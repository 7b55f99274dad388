"""Comparing rows with what a query gives, at the snapshot of the open transaction.

Small results are compared row by row, as multisets. A large one is compared by a checksum: the number of
rows and the sum of a hash over all columns of each. Where even evaluating the query once more is too dear,
a sample of keys is compared. A checksum or a sample that differs is followed by a comparison row by row,
which decides.

Equality is that of the types: 1.0 stands for 1.00 in the key of a group. A type without equality is
compared by its text, and floats may differ in their last digits, since their sums depend on the order of
the rows. Some queries leave their own result open: the order in which array_agg takes its rows, or which
rows LIMIT takes among equals. Two evaluations of such a query may differ, and only what it does fix is
compared (see `Freedom`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.db.scratch import statement
from headwater.definition.reader import Definition
from headwater.errors import HeadwaterError
from headwater.plan.freedom import Freedom, called, freedom
from headwater.plan.key_filter import HASH
from headwater.plan.operators import ColumnType
from headwater.plan.quoting import literal
from headwater.plan.values import WEIGHT, Column, hash_sql

FLOAT_TOLERANCE = 1e-9
MOST_DIFFERENCES = 10_000
"""At most this many rows of either kind are fetched; few enough to look at each."""
MOST_ROWS = 100_000
"""Results of up to this many rows are compared row by row."""
DEAREST = 2_000_000.0
"""A query of a higher cost, in the planner's units, is not evaluated once more as a whole."""
COPY = "__hw_copy"
SAMPLED_KEYS = 100
SAMPLED_ROWS = 10_000
"""A sample has fewer keys where they are repeated, so that it has no more than about this many rows."""

Row = tuple[str | None, ...]
"""A row with its values as the server writes them."""
Method = Literal["rows", "checksum", "sample", "view", "none"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Rows that differ from what a query gives, at most MOST_DIFFERENCES of either kind."""

    columns: tuple[str, ...]
    missing: tuple[Row, ...] = ()  # the query gives them, they are not there
    surplus: tuple[Row, ...] = ()  # they are there, the query does not give them
    note: str = ""  # what was disregarded

    def __bool__(self) -> bool:
        return bool(self.missing or self.surplus)

    def __str__(self) -> str:
        many = "at least " if self.is_cut else ""
        return f"{many}{len(self.missing)} rows are missing and {len(self.surplus)} are wrong"

    @property
    def is_cut(self) -> bool:
        """Whether there may be more."""
        return max(len(self.missing), len(self.surplus)) >= MOST_DIFFERENCES


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How rows were compared with a query, and what differs."""

    method: Method
    said: str
    difference: Difference | None = None


class Undecided(Exception):
    """A checksum differs, and a sample does not show where."""


class PlanRefuted(HeadwaterError):
    """The rows that a plan computes are not those of the query: the plan must not be used."""

    def __init__(self, label: str, engine: str, difference: Difference) -> None:
        super().__init__(
            f"the rows that the plan of {label} gives on {engine} are not those of its query",
            detail=str(difference),
            hint="headwater audits shows them; please report the incident",
        )
        self.difference = difference


def compare(
    connection: Connection, definition: Definition, wanted: str, found: str, stored: str, rows: int
) -> Comparison:
    """Compares two queries, one of which reads a table with this many rows that was analysed."""
    cost = estimated_cost(connection, wanted) + estimated_cost(connection, found)
    columns = definition.columns
    if cost <= DEAREST and rows <= MOST_ROWS:
        said, method = f"all {rows:,} rows", "rows"
    elif cost <= DEAREST:
        sums = [one(connection, statement(_checksum_sql(columns, side))) for side in (wanted, found)]
        said = f"a checksum over {rows:,} rows"
        if sums[0] == sums[1]:
            return Comparison(method="checksum", said=said)
        method = "checksum"
    else:
        condition, keys = _sample(connection, columns, stored, rows)
        if condition is None:
            return Comparison(method="none", said="nothing, for it has no column to take a sample by")
        wanted, found = (f"SELECT * FROM (\n{side}\n) AS whole WHERE {condition}" for side in (wanted, found))
        said, method = f"a sample of {keys} keys", "sample"
    difference = disregarding(connection, definition, differences(connection, columns, wanted, found))
    noted = f" ({difference.note})" if difference.note else ""
    chosen: Method = method  # type: ignore[assignment]
    return Comparison(method=chosen, said=said + noted, difference=difference or None)


def compare_beside(
    connection: Connection,
    beside: Connection,
    definition: Definition,
    wanted: str,
    found: str,
    stored: str,
    rows: int,
) -> Comparison:
    """As `compare` does, where only another connection sees what the second query reads.

    Each side gives its checksum. If those differ, or the query is too dear, rows are copied to be compared.
    """
    columns = definition.columns
    whole = estimated_cost(connection, wanted) <= DEAREST
    said, method = f"a checksum over {rows:,} rows", "checksum"
    if whole:
        sums = [
            one(session, statement(_checksum_sql(columns, side)))
            for session, side in ((connection, wanted), (beside, found))
        ]
        if sums[0] == sums[1]:
            return Comparison(method="checksum", said=said)
    if not whole or rows > MOST_ROWS:
        condition, keys = _sample(beside, columns, stored, rows)
        if condition is None:
            return Comparison(method="none", said="nothing, for it has no column to take a sample by")
        wanted, found = (f"SELECT * FROM (\n{side}\n) AS whole WHERE {condition}" for side in (wanted, found))
        if not whole:
            said, method = f"a sample of {keys} keys", "sample"
    connection.execute(statement(f"CREATE TEMP TABLE hw_found ON COMMIT DROP AS ({wanted}) WITH NO DATA"))
    with (
        beside.cursor().copy(statement(f"COPY ({found}) TO STDOUT")) as source,
        connection.cursor().copy("COPY pg_temp.hw_found FROM STDIN") as sink,
    ):
        for data in source:
            sink.write(data)
    difference = disregarding(
        connection, definition, differences(connection, columns, wanted, "TABLE pg_temp.hw_found")
    )
    connection.execute("DROP TABLE pg_temp.hw_found")
    if whole and rows > MOST_ROWS and not difference:
        raise Undecided("the checksum of its rows is not that of its query")
    noted = f" ({difference.note})" if difference.note else ""
    chosen: Method = method  # type: ignore[assignment]
    return Comparison(method=chosen, said=said + noted, difference=difference or None)


def differences(connection: Connection, columns: Sequence[Column], wanted: str, found: str) -> Difference:
    """Compares two queries row by row; each is evaluated once."""
    names = "".join(f"{column.sql}, " for column in columns)
    values = "".join(
        f"{column.sql}, " if column.type.groupable else f"{column.sql}::text AS {column.sql}, "
        for column in columns
    )
    # As text: not every value of the server has one in Python ('infinity' as a date).
    texts = "".join(f", d.{column.sql}::text" for column in columns)
    group = f" GROUP BY {names.removesuffix(', ')}" if columns else ""
    rows = connection.execute(
        statement(
            f"SELECT d.{WEIGHT}{texts} FROM ("
            f"SELECT g.*, row_number() OVER (PARTITION BY g.{WEIGHT} > 0) AS {COPY}"
            f" FROM (SELECT {names}sum({WEIGHT})::bigint AS {WEIGHT} FROM ("
            f"SELECT {values}1 AS {WEIGHT} FROM (\n{wanted}\n) AS q UNION ALL"
            f" SELECT {values}-1 FROM (\n{found}\n) AS s) AS u{group} HAVING sum({WEIGHT}) <> 0) AS g,"
            f" generate_series(1, abs(g.{WEIGHT}))) AS d WHERE d.{COPY} <= {MOST_DIFFERENCES}"
        )
    ).fetchall()
    return Difference(
        columns=tuple(column.name for column in columns),
        missing=tuple(tuple(row[1:]) for row in rows if row[0] > 0),
        surplus=tuple(tuple(row[1:]) for row in rows if row[0] < 0),
    )


def disregarding(connection: Connection, definition: Definition, difference: Difference) -> Difference:
    """A difference, less what the query leaves open itself."""
    missing, surplus, note = difference.missing, difference.surplus, ""
    if not difference:
        return difference
    if not difference.is_cut and within_tolerance(definition.columns, missing, surplus):
        note = (
            f"{len(missing)} rows differ in the last digits of floats, whose sums depend on the rows' order"
        )
    elif len(missing) == len(surplus) or difference.is_cut:
        left_open = _freedom(connection, definition)
        if left_open == "rows":
            note = f"{len(missing)} rows differ: its query does not say which of several rows it takes"
        elif left_open == "order" and (
            difference.is_cut or Counter(map(_shuffled, missing)) == Counter(map(_shuffled, surplus))
        ):
            note = f"{len(missing)} rows differ in the order in which an aggregate took its rows"
    return Difference(columns=difference.columns, note=note) if note else difference


def _freedom(connection: Connection, definition: Definition) -> Freedom:
    view = one(connection, "SELECT %s::regclass::oid", (definition.view,))[0]
    views = {"views": [view, *definition.relations]}
    trees = [row[0] for row in connection.execute(query("definition", "parse_trees"), views)]
    functions = sorted(set().union(*map(called, trees)))
    names = connection.execute(query("comparing", "function_names"), {"functions": functions})
    return freedom(trees, dict(names.fetchall()))


def _shuffled(row: Row) -> tuple[str | None, ...]:
    """The same for two rows whose values hold the same signs in another order."""
    return tuple(value and "".join(sorted(value)) for value in row)


def estimated_cost(connection: Connection, text: str) -> float:
    """What the planner thinks that a query costs."""
    plan = one(connection, statement(f"EXPLAIN (FORMAT JSON) {text}"))[0][0]["Plan"]
    return float(plan["Total Cost"])


def _checksum_sql(columns: Sequence[Column], rows: str) -> str:
    """The number of rows, and the sum of their hashes."""
    hashed = hash_sql([_digested(f"z.{column.sql}", column.type) for column in columns])
    return f"SELECT count(*), coalesce(sum({hashed}::numeric), 0) FROM (\n{rows}\n) AS z"


def _digested(reference: str, kind: ColumnType) -> str:
    """A value's part in a checksum. Equal values should give the same, or they are compared row by row."""
    if kind.floating:
        return f"to_char({reference}, '9.99999EEEE')"  # as many digits as two ways of summing up agree on
    return reference if kind.groupable and kind.hashable else f"{reference}::text"


def _sample(
    connection: Connection, columns: Sequence[Column], stored: str, rows: int
) -> tuple[str | None, int]:
    """A condition that some keys meet, and how many: values of the most varied column of a table."""
    usable = {column.name: column for column in columns if column.type.groupable and not column.type.floating}
    found = connection.execute(
        query("comparing", "distinct_values"), {"table": stored, "columns": list(usable)}
    ).fetchone()
    if found is None:
        return None, 0
    column, values = usable[found[0]], found[1] if found[1] > 0 else -found[1] * rows
    most = max(1, min(SAMPLED_KEYS, int(SAMPLED_ROWS * values / max(1, rows))))
    keys = connection.execute(
        statement(
            f"SELECT DISTINCT k::text FROM (SELECT {column.sql} AS k FROM {stored}"
            f" WHERE {column.sql} IS NOT NULL ORDER BY {HASH} LIMIT {10 * SAMPLED_KEYS}) AS smallest"
            f" LIMIT {most}"
        )
    ).fetchall()
    listed = ", ".join(literal(key) for (key,) in keys)
    return f"whole.{column.sql} = ANY (ARRAY[{listed}]::{column.type.sql}[])", len(keys)


def within_tolerance(columns: tuple[Column, ...], missing: Sequence[Row], surplus: Sequence[Row]) -> bool:
    """Whether the rows pair up when floats may differ in their last digits."""
    floats = [number for number, column in enumerate(columns) if column.type.floating]
    if not floats or len(missing) != len(surplus):
        return False
    sides: list[dict[str, list[Row]]] = []
    for rows in (missing, surplus):
        grouped: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            rest = repr([value for number, value in enumerate(row) if number not in floats])
            grouped[rest].append(tuple(row[number] for number in floats))
        sides.append(grouped)
    left, right = sides
    return left.keys() == right.keys() and all(_pair_up(left[key], right[key]) for key in left)


def _pair_up(left: list[Row], right: list[Row]) -> bool:
    """Whether two lists of rows of floats hold nearly the same."""
    if len(left) != len(right):
        return False
    pairs = zip(sorted(left, key=_by_value), sorted(right, key=_by_value), strict=True)
    return all(_close(*values) for pair in pairs for values in zip(*pair, strict=True))


def _by_value(row: Row) -> tuple[tuple[bool, float], ...]:
    return tuple((value is None, float(value or 0)) for value in row)


def _close(left: str | None, right: str | None) -> bool:
    if left is None or right is None or left == right:
        return left == right
    return math.isclose(float(left), float(right), rel_tol=FLOAT_TOLERANCE)
