"""Compiled refreshes: the delta of a stream table for small changes, as one PL/pgSQL function.

The function does what the driver (`transaction`, `member`, `run`) does for a small change, from the same plan
and the same statements, in one round trip and with plans that the session keeps. It checks first that
nothing changed that it was made from. Whatever it does not cover, it leaves to the driver, by a SQLSTATE of
its own and with nothing done: many rows, a truncated source, a rebuild, stored rows that are not as expected.

This module writes the function. All of it is pure: the text depends on its subject alone, and golden files in
the tests show it. `headwater.refresh.fast_path` has functions made and calls them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwater.apply.merge import Target
from headwater.apply.single_statement import SingleStatement, take_in_by_one
from headwater.capture import buffers, staging
from headwater.engine.postgres.engine import MOST_AT_ONCE, PostgresEngine, is_one_query
from headwater.engine.postgres.stepwise_joins import MANY_ROWS
from headwater.plan.operators import Source
from headwater.plan.quoting import identifier, literal
from headwater.plan.storage_plan import IncrementalPlan

SCHEMA = "headwater_defs"
"""Where the functions are."""
LEFT_TO_DRIVER = "HW001"
"""The SQLSTATE of a refresh that the driver is to do instead."""
OUTDATED = "HW002"
"""The SQLSTATE of a function that was made from something else than there is now."""


class NotCovered(Exception):
    """A stream table has no compiled refresh; says why."""


@dataclass(frozen=True)
class Subject:
    """All that a compiled refresh is made from."""

    stream_table_id: int
    label: str
    time_zone: str
    signature: str
    plan: IncrementalPlan
    target: Target
    change_tables: dict[int, str]  # by source
    labels: dict[int, str]
    view: int  # the relation that shows the stream table
    checked: Sequence[Sequence[int]]  # the arguments of headwater.fingerprint()
    fingerprint: str  # its result


@dataclass(frozen=True)
class CompiledFunction:
    """The statement that makes a function, and the token for which the function runs."""

    sql: str
    token: str


def function_name(stream_table_id: int) -> str:
    """The function's name as SQL."""
    return f"{identifier(SCHEMA)}.{identifier(f'refresh_{stream_table_id}')}"


def most_rows(plan: IncrementalPlan) -> int:
    """The most change rows that the delta of a plan takes in as one query; raises NotCovered if none."""
    if not plan.sources:
        raise NotCovered("it reads nothing that changes")
    for rows in (MOST_AT_ONCE, MANY_ROWS):
        if is_one_query(plan, {0: rows - 1}):
            return rows - 1
    raise NotCovered("its delta needs steps that depend on what the steps before them found")


def compile_refresh(subject: Subject) -> CompiledFunction:
    """Write the function of a stream table."""
    body = _body(subject)
    token = hashlib.sha256(body.encode()).hexdigest()[:16]
    body = body.replace(_TOKEN, token)
    tag = "$headwater$"
    while tag in body:
        tag = f"{tag[:-1]}_$"
    return CompiledFunction(
        f"CREATE OR REPLACE FUNCTION {function_name(subject.stream_table_id)}(__hw_token text) RETURNS jsonb"
        f" LANGUAGE plpgsql AS {tag}\n{body}{tag}",
        token,
    )


_TOKEN = "@token@"
_NOT_BEFORE = buffers.not_before_sql("__hw_oldest", "__hw_xid")
_WINDOW = buffers.window_sql(_NOT_BEFORE, "__hw_snapshot", "__hw_applied_by")

_TEMPLATE = """\
#variable_conflict use_column
-- Takes small changes into {name}.
-- Headwater made it from the plan of the query. It runs for one token, so nobody calls it who knows another
-- definition. What it does not cover it leaves to Headwater's driver, by SQLSTATE {left}; by {outdated} it
-- asks to be made anew.
DECLARE
    __hw_began timestamptz := clock_timestamp();
    __hw_chosen timestamptz;
    __hw_computed timestamptz;
    __hw_snapshot pg_snapshot;
    __hw_applied_by xid8;
    __hw_xid xid8;
    __hw_oldest bigint;
    __hw_rows bigint;
    __hw_timeout text;
    __hw_reason text;
    __hw_phases jsonb;
    __hw_inserted bigint := 0;
    __hw_updated bigint := 0;
    __hw_deleted bigint := 0;
    __hw_reached pg_snapshot;
    __hw_recorded bigint;
{variables}
BEGIN
    -- 1. Nothing changed that this function was made from.
    IF __hw_token <> '{token}'
       OR headwater.fingerprint({checked}) <> {fingerprint}
       OR {own_changes_differ} THEN
        RAISE EXCEPTION USING ERRCODE = '{outdated}', MESSAGE = 'what it was compiled from has changed';
    END IF;

    -- 2. How far the stream table is.
    SELECT f.snapshot, f.applied_by, pg_snapshot_xmin(f.snapshot), pg_snapshot_xmin(f.snapshot)::text::bigint
    INTO __hw_snapshot, __hw_applied_by, __hw_xid, __hw_oldest
    FROM headwater.stream_table AS st
    JOIN headwater.frontier AS f ON f.stream_table_id = st.id AND f.node = 0
    WHERE st.id = {id} AND st.status = 'active' AND st.mode = 'differential' AND st.engine <> 'spark'
      AND st.rebuild_reason IS NULL AND st.signature = {signature} AND st.time_zone = {time_zone};
    IF NOT FOUND OR EXISTS (SELECT FROM headwater.lost_change AS l WHERE l.relation = ANY ({sources})) THEN
        RAISE EXCEPTION USING ERRCODE = '{left}', MESSAGE = 'it is suspended, or to be rebuilt';
    END IF;

    -- 3. The changes that wait for it. A plan that is kept cannot know how few they are: ask for the index.
    PERFORM set_config('enable_seqscan', 'off', true);
{fetches}
    PERFORM set_config('enable_seqscan', 'on', true);
    __hw_rows := {rows};
    IF __hw_rows = 0 THEN
        -- Consumed change rows can go once the frontier has moved on.
        IF pg_snapshot_xmin(pg_current_snapshot()) > __hw_xid AND ({consumed}) THEN
            __hw_reached := headwater.move_frontier({id});
        END IF;
        RETURN jsonb_build_object(
            'label', {label}, 'action', 'nothing', 'reason', 'no source changed',
            'moved', __hw_reached IS NOT NULL, 'elapsed', extract(epoch FROM clock_timestamp() - __hw_began));
    END IF;
    IF __hw_rows > {most} OR EXISTS ({truncations}) THEN
        RAISE EXCEPTION USING ERRCODE = '{left}', MESSAGE = 'many rows changed, or a source was truncated';
    END IF;

    -- 4. No other refresh of it runs, nor has one moved its frontier since the snapshot of this one.
    __hw_timeout := current_setting('lock_timeout');
    PERFORM set_config('lock_timeout', '0', true);
    PERFORM FROM headwater.stream_table AS st WHERE st.id = {id} FOR NO KEY UPDATE;
    PERFORM FROM headwater.frontier AS f WHERE f.stream_table_id = {id} FOR NO KEY UPDATE;
    PERFORM set_config('lock_timeout', __hw_timeout, true), set_config('TimeZone', {time_zone}, true);
    __hw_chosen := clock_timestamp();

    -- 5. The delta, computed and applied by one statement for the sources that changed.
{deltas}
    __hw_computed := clock_timestamp();

    -- 6. Those that read it are told, its frontier moves on, and the refresh is recorded.
{marking}    __hw_reached := headwater.move_frontier({id});
    __hw_reason := __hw_rows || CASE __hw_rows WHEN 1 THEN ' change row in ' ELSE ' change rows in ' END
        || {names};
    __hw_phases := jsonb_build_object(
        'choose', round((extract(epoch FROM __hw_chosen - __hw_began) * 1000)::numeric, 3),
        'compute', round((extract(epoch FROM __hw_computed - __hw_chosen) * 1000)::numeric, 3));
    __hw_recorded := headwater.record_delta(
        {id}, __hw_began, __hw_reason, __hw_rows, __hw_inserted, __hw_updated, __hw_deleted, __hw_reached,
        __hw_phases);
    RETURN jsonb_build_object(
        'label', {label}, 'action', 'delta', 'reason', __hw_reason, 'moved', true, 'rows', __hw_rows,
        'applied', jsonb_build_array(__hw_inserted, __hw_updated, __hw_deleted), 'snapshot', __hw_reached,
        'history', __hw_recorded, 'phases', __hw_phases, 'changed', {changed},
        'elapsed', extract(epoch FROM clock_timestamp() - __hw_began));
END
"""

_FETCH = """\
    SELECT array_agg(f.c) INTO {changes}
    FROM (SELECT c FROM {table} AS c WHERE {window} LIMIT {limit}) AS f;"""

_OWN_CHANGES = (
    "(SELECT concat_ws(' ', s.change_table, array("
    "SELECT c.attnum FROM headwater.source_column AS c WHERE c.source_id = s.id ORDER BY c.attnum))"
    " FROM headwater.source AS s WHERE s.stream_table_id = {id} AND s.change_table IS NOT NULL)"
)


def _body(subject: Subject) -> str:
    sources = [source for source in subject.plan.sources if source.relation in subject.change_tables]
    tables = [buffers.change_table_sql(subject.change_tables[source.relation]) for source in sources]
    fetched = [_changes(number) for number in range(len(sources))]
    most = most_rows(subject.plan)
    alternatives = [(_alone(number, len(sources)), [source]) for number, source in enumerate(sources)]
    if len(sources) > 1:
        alternatives.append(("", sources))
    deltas = [(when, _delta(subject, sources, changed)) for when, changed in alternatives]
    counts = range(max(delta.counts.columns for _, delta in deltas))
    variables = [f"    {variable} {table}[];" for variable, table in zip(fetched, tables, strict=True)]
    return _TEMPLATE.format(
        id=subject.stream_table_id,
        name=subject.label.replace("\n", " "),
        label=literal(subject.label),
        left=LEFT_TO_DRIVER,
        outdated=OUTDATED,
        token=_TOKEN,
        variables="\n".join([*variables, *(f"    {_count(place)} bigint;" for place in counts)]),
        checked=", ".join(map(_oids, subject.checked)),
        fingerprint=literal(subject.fingerprint),
        own_changes_differ=_own_changes_differ(subject),
        signature=literal(subject.signature),
        time_zone=literal(subject.time_zone),
        sources=_oids(source.relation for source in sources),
        fetches="\n".join(
            _FETCH.format(changes=variable, table=table, window=_WINDOW, limit=most + 1)
            for variable, table in zip(fetched, tables, strict=True)
        ),
        rows=" + ".join(f"coalesce(cardinality({variable}), 0)" for variable in fetched),
        consumed=" OR ".join(f"EXISTS (SELECT FROM {table} WHERE {_NOT_BEFORE})" for table in tables),
        most=most,
        truncations=" UNION ALL ".join(
            f"SELECT FROM unnest({variable}) AS c WHERE c.w = 0" for variable in fetched
        ),
        deltas=_branches(deltas),
        marking=_marking(subject),
        names=_names(subject, sources),
        changed=_changed(sources),
    )


def _delta(subject: Subject, sources: Sequence[Source], changed: Sequence[Source]) -> SingleStatement:
    """The statement for changes of these sources, which were fetched into variables."""
    plan = subject.plan
    in_place = PostgresEngine().in_place(plan, {source.relation: 1 for source in changed})
    changes = {}
    for source in changed:
        relation = source.relation
        columns = plan.wanted[relation]
        rows = staging.fetched_sql(source, columns, _changes(sources.index(source)))
        if relation not in in_place:
            condition = plan.own_conditions.get(relation)
            rows = staging.consolidated_changes_sql(source, columns, rows, condition)
        changes[relation] = rows
    return take_in_by_one(plan, subject.target, changes)


def _branches(deltas: Sequence[tuple[str, SingleStatement]]) -> str:
    if len(deltas) == 1:
        return _run(deltas[0][1])
    parts = []
    for number, (when, statement) in enumerate(deltas):
        keyword = "IF" if number == 0 else "ELSIF"
        parts += [f"    {keyword} {when} THEN" if when else "    ELSE", _run(statement)]
    return "\n".join([*parts, "    END IF;"])


def _run(statement: SingleStatement) -> str:
    """Run a statement, and leave unless its counts say that all is as it should be."""
    counts = statement.counts
    wrong = [f"{_count(place)} <> 0" for place in counts.nonzero]
    if counts.differing is not None:
        wrong.append(" <> ".join(map(_count, counts.differing)))
    lines = [
        f"{statement.sql}\nINTO {', '.join(map(_count, range(counts.columns)))};",
        f"        IF {' OR '.join(wrong)} THEN",
        f"            RAISE EXCEPTION USING ERRCODE = '{LEFT_TO_DRIVER}',",
        "                MESSAGE = 'groups must be read again, or stored rows are not what they were';",
        "        END IF;",
        f"        __hw_inserted := {_count(counts.inserted)};",
        f"        __hw_deleted := {_count(counts.deleted)};",
    ]
    if counts.updated is not None:
        lines.append(f"        __hw_updated := {_count(counts.updated)};")
    return "\n".join(lines)


def _own_changes_differ(subject: Subject) -> str:
    """Whether other changes of the stream table are wanted than this function writes."""
    found = _OWN_CHANGES.format(id=subject.stream_table_id)
    if subject.target.change_table is None:
        return f"{found} IS NOT NULL"
    numbers = ",".join(str(number) for _, number in subject.target.change_columns)
    return f"{found} IS DISTINCT FROM {literal(f'{subject.target.change_table} {{{numbers}}}')}"


def _marking(subject: Subject) -> str:
    if subject.target.change_table is None:
        return ""
    return (
        "    IF __hw_inserted + __hw_updated + __hw_deleted > 0 THEN\n"
        f"        PERFORM headwater.mark_changed({subject.view}::oid);\n"
        "    END IF;\n"
    )


def _names(subject: Subject, sources: Sequence[Source]) -> str:
    """The names of the sources that changed, sorted, as SQL."""
    named = sorted((subject.labels[source.relation], number) for number, source in enumerate(sources))
    if len(named) == 1:
        return literal(named[0][0])
    cases = (f"CASE WHEN {_changes(number)} IS NOT NULL THEN {literal(label)} END" for label, number in named)
    return f"concat_ws(', ', {', '.join(cases)})"


def _changed(sources: Sequence[Source]) -> str:
    """The sources that changed, as SQL."""
    cases = (
        f"CASE WHEN {_changes(number)} IS NOT NULL THEN {source.relation} END"
        for number, source in enumerate(sources)
    )
    return f"array_remove(ARRAY[{', '.join(cases)}], NULL)"


def _alone(number: int, sources: int) -> str:
    """Whether one source alone changed, as SQL."""
    return " AND ".join(f"{_changes(other)} IS NULL" for other in range(sources) if other != number)


def _changes(number: int) -> str:
    return f"__hw_changes{number + 1}"


def _count(place: int) -> str:
    return f"__hw_count{place + 1}"


def _oids(numbers: Iterable[int]) -> str:
    return f"'{{{','.join(map(str, sorted(numbers)))}}}'::oid[]"
