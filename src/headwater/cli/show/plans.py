"""The results of `explain` and `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.syntax import Syntax
from rich.text import Text
from rich.tree import Tree

from headwater.cli.invocation import printable
from headwater.cli.show.stream_tables import index_lines
from headwater.cli.show.values import count, heading, lines, pairs, table
from headwater.engine.observations import Prediction
from headwater.inspect.explain import Explanation, Operator
from headwater.inspect.verify import Verification
from headwater.refresh.compare import MOST_DIFFERENCES


def explanation(found: Explanation, console: Console) -> RenderableType:
    shown: list[RenderableType] = [
        pairs(
            [
                ("stream table", found.stream_table),
                ("mode", f"{found.mode} (asked for: {found.requested_mode})"),
                ("engine", f"{found.engine} ({found.engine_reason})"),
                ("schedule", found.schedule or "none"),
                ("compiled", f"no: {found.not_compiled}" if found.not_compiled else "yes, for small changes"),
                *(("reason", reason) for reason in found.reasons),
            ]
        ),
        *_trees(found.operators),
        *_predictions(found.predictions),
        *([heading("missing indexes"), lines(*index_lines(found.indexes))] if found.indexes else []),
        heading("query"),
        _sql(found.query, console),
    ]
    for number, step in enumerate(found.steps, 1):
        shown += [heading(f"step {number}: {step.name}"), _sql(step.sql, console)]
    return Group(*shown)


def compiled(found: Explanation, console: Console) -> RenderableType:
    if found.compiled is None:
        return lines(f"{found.stream_table} has no compiled refresh: {found.not_compiled}")
    return _sql(found.compiled, console)


def _predictions(found: Sequence[Prediction]) -> list[RenderableType]:
    """Return the predictions; nothing as long as there is no refresh to base them on."""
    if not any(item.postgres_ms or item.spark_ms for item in found):
        return []
    columns = ("change rows", "delta in PostgreSQL", "delta on Spark", "recomputing")
    rows = [
        (
            f"{item.rows:,}",
            *(
                f"{ms:,.1f} ms" if ms is not None else None
                for ms in (item.postgres_ms, item.spark_ms, item.full_ms)
            ),
        )
        for item in found
    ]
    return [heading("expected, from its own history"), table(columns, rows)]


def _trees(operators: Sequence[Operator]) -> list[RenderableType]:
    roots: list[Tree] = []
    path: list[Tree] = []
    for operator in operators:
        label = Text.assemble(
            (operator.name, "bold"), " ", printable(operator.detail), "  ", (f"[{operator.rule}]", "dim")
        )
        del path[operator.depth :]
        if path:
            path.append(path[-1].add(label))
        else:
            path.append(Tree(label))
            roots.append(path[0])
    return [heading("operators"), *roots] if roots else []


def _sql(text: str, console: Console) -> RenderableType:
    text = printable(text.strip("\n"))
    if not console.is_terminal:
        return Text(text)
    return Syntax(text, "postgresql", background_color="default", word_wrap=True)


def verification(found: Verification, remedy: str) -> RenderableType:
    note = [f"note: {found.note}"] if found.note else []
    if found.equal:
        return lines(f"{found.stream_table} equals its query: {count(found.rows, 'row')}", *note)
    return Group(
        lines(
            f"{found.stream_table} differs from its query: {_differing(found.missing_count)} missing,"
            f" {_differing(found.surplus_count)} surplus, {found.rows} stored",
            *note,
        ),
        *_rows(
            "missing: the query gives these rows, the stream table lacks them",
            found.columns,
            found.missing,
            found.missing_count,
        ),
        *_rows(
            "surplus: the stream table has these rows, the query does not give them",
            found.columns,
            found.surplus,
            found.surplus_count,
        ),
        lines("", f"next: {remedy}"),
    )


def _differing(number: int) -> str:
    return f"{number} or more" if number == MOST_DIFFERENCES else str(number)


def _rows(
    title: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]], count: int
) -> list[RenderableType]:
    if not rows:
        return []
    part = f" ({len(rows)} of {_differing(count)})" if len(rows) < count else ""
    shown = [tuple("NULL" if value is None else value for value in row) for row in rows]
    return [heading(f"{title}{part}"), table(columns, shown)]
