"""The types of columns and expressions, as the server knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import psycopg
from psycopg import sql

from headwater.db.connection import Connection, one
from headwater.db.queries import query
from headwater.plan.errors import Unsupported
from headwater.plan.expression import Expression
from headwater.plan.operators import ColumnType, Output, Select, SourceColumn
from headwater.plan.render import now_sql
from headwater.plan.values import Column

# Types whose equality is identity. Of the others, equal values can differ: 1.0 and 1.00, 0 and -0.
EXACT_TYPES = frozenset(
    {16, 17, 18, 19, 20, 21, 23, 25, 26, 650, 829, 869, 1043, 1082, 1083, 1114, 1184, 2950, 3220, 5069}
    # reg*: object ids, whose texts follow renames
    | {24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191}
)
INTEGER_TYPES = frozenset({20, 21, 23})
FLOAT_TYPES = frozenset({700, 701})
NUMERIC_TYPE = 1700
# These are known to have hash and equality; the server is asked about the others.
COMPARABLE_TYPES = EXACT_TYPES | FLOAT_TYPES | {NUMERIC_TYPE, 1042, 1186, 1266, 3802}


def expression_types(connection: Connection, block: Select, trees: Sequence[Expression]) -> list[ColumnType]:
    """Return the types of expressions over the inputs of a block; raise Unsupported if one has none."""
    outputs = tuple(Output(f"e{number}", tree) for number, tree in enumerate(trees))
    text = now_sql(Select(block.inputs, (), outputs))
    try:
        with connection.transaction(force_rollback=True):  # so that no type stays locked
            return [column.type for column in TypeReader(connection).columns_of_query(text)]
    except psycopg.ProgrammingError as error:  # ROW (…) and the ANY (…) of a comparison are not values
        raise Unsupported(f"{error.diag.message_primary}") from error


class TypeReader:
    """Reads what the server knows about columns, and remembers what it said about each type."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._comparable: dict[str, tuple[bool, bool]] = {}

    def columns_of(self, relations: Sequence[int]) -> dict[int, list[SourceColumn]]:
        """Return the live columns of relations."""
        columns: dict[int, list[SourceColumn]] = {relation: [] for relation in relations}
        rows = self._connection.execute(
            query("definition", "columns"), {"relations": list(relations)}
        ).fetchall()
        for relation, attnum, name, not_null, expression, generated, *type_facts in rows:
            kind = self._column_type(*type_facts)
            columns[relation].append(
                SourceColumn(
                    attnum,
                    name,
                    kind,
                    not_null=not_null,
                    captured=generated != "v",
                    expression=expression,
                )
            )
        return columns

    def columns_of_query(self, text: str) -> tuple[Column, ...]:
        """Return the columns of a query's result."""
        shape = sql.Identifier("pg_temp", "hw_shape")
        self._connection.execute(
            sql.SQL("CREATE TEMP TABLE hw_shape ON COMMIT DROP AS ({}) WITH NO DATA").format(sql.SQL(text))
        )
        relation = one(self._connection, "SELECT 'pg_temp.hw_shape'::regclass::oid")[0]
        columns = self.columns_of([relation])[relation]
        self._connection.execute(sql.SQL("DROP TABLE {}").format(shape))
        return tuple(Column(column.name, column.type) for column in columns)

    def _column_type(
        self,
        declared: str,
        base_oid: int,
        base: str,
        typmod: int,
        category: str,
        collation: str | None,
        deterministic: bool,
        bytewise: bool,
        equality: str | None,
    ) -> ColumnType:
        kind = ColumnType(
            sql=declared,
            base=base,
            collation=collation,
            exact=(base_oid in EXACT_TYPES or category == "e") and deterministic,
            integer=base_oid in INTEGER_TYPES,
            numeric=base_oid == NUMERIC_TYPE,
            scale=_declared_scale(typmod) if base_oid == NUMERIC_TYPE else None,
            floating=base_oid in FLOAT_TYPES,
            deterministic=deterministic,
            bytewise=bytewise,
        )
        if equality is not None:
            kind = replace(kind, equality=equality)
        if base_oid not in COMPARABLE_TYPES and category != "e":
            groupable, hashes = self._comparisons(base)
            kind = replace(kind, groupable=groupable, hashable=hashes)
        return kind

    def _comparisons(self, base: str) -> tuple[bool, bool]:
        """Tell whether GROUP BY and hash_record_extended accept a type."""
        if base not in self._comparable:
            null = sql.SQL("NULL::{}").format(sql.SQL(base))
            self._comparable[base] = (
                self._works(sql.SQL("SELECT x FROM (SELECT {} AS x) AS t GROUP BY x").format(null)),
                self._works(sql.SQL("SELECT hash_record_extended(ROW({}), 0)").format(null)),
            )
        return self._comparable[base]

    def _works(self, statement: sql.Composed) -> bool:
        try:
            with self._connection.transaction():
                self._connection.execute(statement)
        except psycopg.Error:
            return False
        return True


def _declared_scale(typmod: int) -> int | None:
    """Return the fractional digits of values of a numeric type; a negative scale rounds and shows none."""
    return None if typmod == -1 else max(0, (((typmod - 4) & 0x7FF) ^ 0x400) - 0x400)
