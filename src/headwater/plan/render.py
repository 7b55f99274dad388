"""Operators and delta terms as SQL for PostgreSQL.

A weighted relation has the weight of each row in the column `__hw_w`; a relation as it is now has no such
column, because every weight is 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from headwater.plan.key_filter import HAS_NULL, KeyFilter
from headwater.plan.operators import (
    CORE,
    Aggregate,
    Apply,
    Constant,
    Expansion,
    Input,
    Keyed,
    Lookup,
    Nonlinear,
    Query,
    Scan,
    Select,
    Source,
    UnionAll,
)
from headwater.plan.quoting import identifier
from headwater.plan.semijoin import can_restrict, core_column, grouping_column, path_to, type_of
from headwater.plan.staged import Staged
from headwater.plan.terms import Term, Version, terms
from headwater.plan.values import (
    ANY_TYPE,
    UNKNOWN_TYPE,
    WEIGHT,
    Column,
    is_null,
)


def relation_name(source: Source) -> str:
    return f"{identifier(source.schema)}.{identifier(source.name)}"


# Relations as they are now


def now_sql(node: Query, key_filter: KeyFilter | None = None, names: tuple[str, ...] = ()) -> str:
    """Return the rows of a node as they are now, restricted to keys if there is a filter."""
    names = names or node.output_names
    if isinstance(node, UnionAll):
        return _union_all(
            now_sql(branch, key_filter and _by_position(key_filter, node, branch), names)
            for branch in node.branches
        )
    filters = key_filter.branches() if key_filter and key_filter.keys else (None,)
    return _union_all(_now_sql(node, restriction, names) for restriction in filters)


def _union_all(parts: Iterable[str]) -> str:
    """Return the rows of several queries; one that begins with WITH needs parentheses among others."""
    listed = list(parts)
    if len(listed) == 1:
        return listed[0]
    return "\nUNION ALL\n".join(f"({part})" if part.startswith("WITH ") else part for part in listed)


def _by_position(key_filter: KeyFilter, union: UnionAll, branch: Query) -> KeyFilter:
    names = dict(zip(union.output_names, branch.output_names, strict=True))
    return replace(key_filter, columns=tuple(names[name] for name, _ in key_filter.named()))


def _now_sql(node: Query, key_filter: KeyFilter | None, names: tuple[str, ...]) -> str:
    assert not isinstance(node, UnionAll)
    if not isinstance(node, Select):
        rows = _nonlinear_sql(node, key_filter)
    elif key_filter is None or not node.expands:
        return block_sql(node, _all_new(node), Staged({}), names, key_filter=key_filter)
    else:  # the result of a set-returning function is not known in WHERE
        rows = block_sql(node, _all_new(node), Staged({}), node.output_names)
    if key_filter is None and names == node.output_names:
        return rows
    own = [f"z.{identifier(name)}" for name in node.output_names]
    listed = ", ".join(f"{column} AS {identifier(name)}" for column, name in zip(own, names, strict=True))
    where = ""
    if key_filter is not None:
        where = f" WHERE {key_filter.condition(dict(zip(node.output_names, own, strict=True)))}"
    return f"SELECT {listed} FROM (\n{rows}\n) AS z{where}"


def _nonlinear_sql(node: Nonlinear, key_filter: KeyFilter | None) -> str:
    match node:
        case Aggregate():
            columns = {name: grouping_column(node, name) for name in node.output_names}
            return aggregate_sql(node, now_sql(node.input, key_filter and key_filter.onto(columns)))
        case Keyed():
            return keyed_sql(
                node,
                [
                    now_sql(_query(item), _keyed_filter(node, number, key_filter))
                    for number, item in enumerate(node.inputs)
                ],
            )
        case Apply():
            below = {name: core_column(node, name) for name in node.output_names}
            restriction = key_filter and key_filter.onto(below)
            core = now_sql(node.core, restriction)
            return apply_sql(
                node,
                core,
                {
                    item.name: now_sql(item.node, lookup_filter(item, f"({core})") if restriction else None)
                    for item in node.lookups
                },
            )


def _query(item: Input) -> Query:
    assert not isinstance(item.node, Scan | Constant | Expansion)
    return item.node


def _keyed_filter(node: Keyed, number: int, key_filter: KeyFilter | None) -> KeyFilter | None:
    """Restrict an input by its key; where another column is restricted, by the keys of those rows."""
    if key_filter is None:
        return None
    if len(node.inputs) > 1:
        names = dict(zip(node.output_names, node.keys[number], strict=True))
        return key_filter.onto(names)
    own = key_filter.onto(dict(node.passed))
    if own is None or set(own.columns) <= set(node.keys[0]) or not node.keys[0]:
        return own if own is not None and node.keys[0] else None
    listed = ", ".join(f"k.{identifier(name)}" for name in node.keys[0])
    nulls = " OR ".join(is_null(f"k.{identifier(name)}") for name in node.keys[0])
    rows = now_sql(_query(node.inputs[0]), own)
    table = f"(SELECT DISTINCT {listed}, {nulls} AS {HAS_NULL} FROM (\n{rows}\n) AS k)"
    item = node.inputs[0].node
    known = [(name, kind) for name in node.keys[0] if (kind := type_of(item, name)) is not None]
    if len(known) == len(node.keys[0]):
        return KeyFilter(table, tuple(Column(*key) for key in known), exists=True, hashed=False)
    keys = tuple(Column(name, UNKNOWN_TYPE, nullable=False) for name in node.keys[0])
    return KeyFilter(table, keys, exists=True)


def lookup_filter(lookup: Lookup, core: str) -> KeyFilter | None:
    """Restrict a lookup to what rows of a core can find in it."""
    if lookup.exempt or not lookup.equals:
        return None
    listed = ", ".join(
        f"k.{identifier(column)} AS k{number}" for number, (_, column) in enumerate(lookup.equals)
    )
    keys = tuple(Column(f"k{number}", ANY_TYPE, nullable=False) for number in range(len(lookup.equals)))
    columns = tuple(column for column, _ in lookup.equals)
    return KeyFilter(f"(SELECT DISTINCT {listed} FROM {core} AS k)", keys, columns=columns, exists=True)


def aggregate_sql(node: Aggregate, rows: str) -> str:
    """Return the groups of rows, with the outputs of the query."""
    keys = [f"i.{identifier(key)}" for key in node.keys]
    calls = [f"{call.text} AS {identifier(call.name)}" for call in node.calls]
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    if not keys and not calls:
        calls = ["1 AS one"]
        group = " HAVING true"
    outputs = ", ".join(f"{out.text} AS {identifier(out.name)}" for out in node.outputs)
    having = f" WHERE ({node.having_sql})" if node.having_sql is not None else ""
    grouped = f"SELECT {', '.join([*keys, *calls])} FROM (\n{rows}\n) AS i{group}"
    return f"SELECT {outputs} FROM (\n{grouped}\n) AS g{having}"


def keyed_sql(node: Keyed, rows: Sequence[str]) -> str:
    """Return the query over the rows of its inputs."""
    bound = [
        f"{identifier(item.alias)} AS NOT MATERIALIZED (\n{sql}\n)"
        for item, sql in zip(node.inputs, rows, strict=True)
    ]
    return f"WITH {', '.join(bound)} {node.text}"


def apply_sql(node: Apply, core: str, lookups: Mapping[str, str], *, weighted: bool = False) -> str:
    """Return the rows of a core, each with what it finds in the lookups."""
    bound = [f"{identifier(name)} AS NOT MATERIALIZED (\n{sql}\n)" for name, sql in lookups.items()]
    outputs = [f"{out.text} AS {identifier(out.name)}" for out in node.outputs]
    if weighted:
        outputs.append(f"{CORE}.{WEIGHT} AS {WEIGHT}")
    items = [f"(\n{core}\n) AS {CORE}", *(joined.text for joined in node.joins)]
    where = " AND ".join(f"({predicate})" for predicate in node.predicate_sql)
    with_clause = f"WITH {', '.join(bound)} " if bound else ""
    return f"{with_clause}SELECT {', '.join(outputs)} FROM {' '.join(items)}" + (
        f" WHERE {where}" if where else ""
    )


# Deltas


def delta_sql(node: Query, staged: Staged, names: tuple[str, ...] = ()) -> str:
    """Return the change of a node as a weighted relation, not consolidated."""
    names = names or node.output_names
    match node:
        case Select():
            left = [
                staged.begun.get((node, term), (node, term))
                for term in terms(node, staged.changes, staged.size)
            ]
            found = [item for item in left if item is not None]
            # Without a change it is an empty relation: the server derives the columns' types from all
            # branches.
            return "\nUNION ALL\n".join(
                block_sql(block, term, staged, names, weighted=True, empty=not found)
                for block, term in found or [(node, _all_new(node))]
            )
        case UnionAll():
            return "\nUNION ALL\n".join(delta_sql(branch, staged, names) for branch in node.branches)
        case _:
            listed = "".join(
                f"z.{identifier(own)} AS {identifier(name)}, "
                for own, name in zip(node.output_names, names, strict=True)
            )
            if node in staged.inner:
                return f"SELECT {listed}z.{WEIGHT} FROM {staged.inner[node]} AS z"
            return f"SELECT {listed}1::bigint AS {WEIGHT} FROM (\n{now_sql(node)}\n) AS z WHERE false"


# Blocks


def _all_new(block: Select) -> Term:
    return (Version.NEW,) * len(block.inputs)


def block_sql(
    block: Select,
    versions: Term,
    staged: Staged,
    names: tuple[str, ...],
    *,
    weighted: bool = False,
    empty: bool = False,
    key_filter: KeyFilter | None = None,
) -> str:
    """Return one SELECT over the inputs in the given versions, its columns named by position."""
    items, weights = [], []
    expressions = block.output_sql
    if key_filter is not None and not key_filter.exists:
        items.append(f"{key_filter.table} AS kk")
    begun = _begun_with(block, versions, key_filter) if key_filter is not None and key_filter.first else None
    for item, version in zip(block.inputs, versions, strict=True):
        if key_filter is not None and item is begun:
            items.append(_restricted(item, key_filter.condition(expressions)))
            continue
        restriction = _reached(block, item, versions, staged, key_filter)
        sql, has_weight = input_sql(item, version, staged, restriction)
        items.append(sql)
        if has_weight:
            weights.append(f"{identifier(item.alias)}.{WEIGHT}")
    outputs = [
        f"{expressions[output.name]} AS {identifier(name)}"
        for output, name in zip(block.outputs, names, strict=True)
    ]
    if weighted:
        outputs.append(f"{' * '.join(weights) or '1::bigint'} AS {WEIGHT}")
    predicates = [f"({predicate})" for predicate in block.predicate_sql]
    if key_filter is not None and begun is None:
        predicates += (
            [key_filter.condition(expressions)] if key_filter.exists else key_filter.predicates(expressions)
        )
    if empty:
        predicates.append("false")
    source = f" FROM {', '.join(items)}" if items else ""
    where = f" WHERE {' AND '.join(predicates)}" if predicates else ""
    return f"SELECT {', '.join(outputs)}{source}{where}"


def _begun_with(block: Select, versions: Term, key_filter: KeyFilter) -> Input | None:
    """Return the table that holds all keys of a filter, read as it is now beside others: joins begin there.

    The server spreads the cost of reading a table by an index over all rows of what is joined with it, even
    where a condition leaves few of them. So it tends to join the keys last.
    """
    outputs = {output.name: output.expression for output in block.outputs}
    aliases = {alias for name, _ in key_filter.named() for alias in outputs[name].aliases}
    for item, version in zip(block.inputs, versions, strict=True):
        if {item.alias} == aliases and isinstance(item.node, Scan) and version is Version.NEW:
            return item if len(block.inputs) > 1 else None
    return None


def _restricted(item: Input, condition: str) -> str:
    """Return a table's rows that meet a condition, which is applied before they are joined."""
    assert isinstance(item.node, Scan)
    alias = identifier(item.alias)
    columns = ", ".join(f"{alias}.{identifier(name)}" for name in item.node.columns)
    table = relation_name(item.node.source)
    return f"(SELECT {columns} FROM {table} AS {alias} WHERE {condition} OFFSET 0) AS {alias}"


def _reached(
    block: Select, item: Input, versions: Term, staged: Staged, key_filter: KeyFilter | None
) -> KeyFilter | None:
    """Find the rows of a computed input that a block can match, given a delta or a filter's keys."""
    if isinstance(item.node, Scan | Constant | Expansion):
        return None
    outputs = {output.name: output.expression for output in block.outputs}
    if key_filter is not None:
        shown = {
            name: own.name
            for name, tree in outputs.items()
            if (own := tree.column) is not None
            and own.alias == item.alias
            and can_restrict(item.node, own.name)
        }
        direct = key_filter.onto(shown)
        if direct is not None:
            return direct
    start = {
        other.alias for other, version in zip(block.inputs, versions, strict=True) if version is Version.DELTA
    }
    by_keys: dict[str, str] = {}
    if key_filter is not None:
        tables = {other.alias for other in block.inputs if isinstance(other.node, Scan)}
        by_keys = {
            name: next(iter(used))
            for name, _ in key_filter.named()
            if len(used := outputs[name].aliases) == 1 and used <= tables
        }
        start |= set(by_keys.values())
    path = path_to(block, item.alias, sorted(start))
    if path is None:
        return None
    items = [
        input_sql(other, version, staged)[0]
        for other, version in zip(block.inputs, versions, strict=True)
        if other.alias in path.aliases
    ]
    predicates = [
        f"({text})"
        for predicate, text in zip(block.predicates, block.predicate_sql, strict=True)
        if predicate.aliases <= path.aliases
    ]
    if key_filter is not None:
        known = {name: name for name, alias in by_keys.items() if alias in path.aliases}
        partly = key_filter.onto(known)
        if partly is not None:
            predicates.append(partly.condition({name: block.output_sql[name] for name in known}))
    listed = ", ".join(f"{tree.text} AS k{number}" for number, (_, tree) in enumerate(path.pairs))
    where = f" WHERE {' AND '.join(predicates)}" if predicates else ""
    return KeyFilter(
        f"(SELECT DISTINCT {listed} FROM {', '.join(items)}{where})",
        tuple(Column(f"k{number}", ANY_TYPE, nullable=False) for number in range(len(path.pairs))),
        columns=tuple(column for column, _ in path.pairs),
        exists=True,
    )


def input_sql(
    item: Input, version: Version, staged: Staged, key_filter: KeyFilter | None = None
) -> tuple[str, bool]:
    """Return a FROM item, and whether it has a weight."""
    alias = identifier(item.alias)
    if not staged.changes(item.node):
        version = Version.NEW
    match item.node:
        case Constant(sql=sql, columns=columns):
            return f"({sql}) AS {alias} ({', '.join(map(identifier, columns))})", False
        case Expansion() as expansion:
            named = ", ".join(map(identifier, expansion.columns))
            return f"LATERAL {expansion.sql.text} AS {alias} ({named})", False
        case Scan() as scan:
            if version is Version.NEW:
                return f"{relation_name(scan.source)} AS {alias}", False
            table = staged.tables[scan.source.relation]
            if version is Version.DELTA:
                return f"{table} AS {alias}", True
            listed = "".join(f"{identifier(name)}, " for name in scan.columns)
            now = f"SELECT {listed}1::bigint AS {WEIGHT} FROM {relation_name(scan.source)}"
            undone = f"SELECT {listed}-{WEIGHT} FROM {table} AS o"
            return f"({now} UNION ALL {undone}) AS {alias}", True
        case query:
            if version is Version.NEW:
                return f"({now_sql(query, key_filter)}) AS {alias}", False
            delta = delta_sql(query, staged)
            if version is Version.DELTA:
                return f"({delta}) AS {alias}", True
            names = ", ".join(identifier(name) for name in query.output_names)
            now = f"SELECT {names}, 1::bigint AS {WEIGHT} FROM ({now_sql(query, key_filter)}) AS n"
            return f"({now} UNION ALL SELECT {names}, -{WEIGHT} FROM ({delta}) AS o) AS {alias}", True
