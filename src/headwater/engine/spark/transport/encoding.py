"""How a value of each PostgreSQL type goes over the wire, so that Spark needs to know none of them.

There are three encodings, all made by PostgreSQL while it reads:

- the *value* comes back as it went: the text of its output function, read back by its input function;
- the *key* is equal on Spark exactly when PostgreSQL's `=` says so: 1.0 and 1.00 have one key;
- the *order* compares on Spark exactly as PostgreSQL's `<` does.

A type without a provable key or order has none, and `Refused` says so. A numeric has an order within bounds
only. If its fraction is too long, it is sent as a text that Spark cannot read as a number; too many digits
before the point, NaN and the infinities are such texts themselves. That ends the attempt, and leaves the work
to PostgreSQL. Nothing is ever rounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headwater.engine.spark.transport.wire import Kind
from headwater.plan.operators import ColumnType
from headwater.plan.values import restored

LARGEST_SCALE = 18
"""Fractional digits that a numeric may have on Spark, without trailing zeros; 20 are left for the rest."""
OUT_OF_BOUNDS = "out of bounds: "

_FOREVER = "1" + "0" * 31  # seconds: more than an interval can have and a decimal of scale 6 can hold
_FIRST, _LAST = "-9223372036854775808", "9223372036854775807"
# As numbers: the names that their texts show may belong to several objects.
_OBJECTS = frozenset(
    "oid regproc regprocedure regoper regoperator regclass regtype regrole regnamespace regconfig"
    " regdictionary regcollation".split()
)
_TEXTS = frozenset({"text", "character varying", "character", "bpchar"})
_TYPMOD = re.compile(r"\([^)]*\)")


class Refused(Exception):
    """Spark cannot compute this exactly; the message is the reason that `explain` gives."""


@dataclass(frozen=True)
class Encoded:
    """A PostgreSQL expression with a wire type, and how Spark reads it."""

    sql: str
    kind: Kind
    cast: str | None = None  # a Spark type

    def on_spark(self, reference: str) -> str:
        return f"CAST({reference} AS {self.cast})" if self.cast else reference


def family(kind: ColumnType) -> str:
    """Return the type without its modifier; types of one family have comparable keys."""
    if kind.integer:
        return "integer"
    if kind.numeric:
        return "numeric"
    if kind.floating:
        return "float"
    base = " ".join(_TYPMOD.sub("", kind.base).split())
    return "text" if base in _TEXTS else base


def is_scalar(kind: ColumnType) -> bool:
    """Tell whether it is certain that the type is not composite."""
    plain = kind.exact or kind.integer or kind.numeric or kind.floating or kind.base.endswith("[]")
    return plain or family(kind) in ("text", "interval", "json", "jsonb")


# Values


def value(reference: str, kind: ColumnType) -> Encoded:
    """Return the value itself, opaque to Spark."""
    if kind.integer:
        return Encoded(f"({reference})::bigint", "bigint")
    if kind.base == "record":
        raise Refused("an anonymous record has no input function that would read it back")
    if kind.base in ("regproc[]", "regoper[]"):
        raise Refused(f"the text of {kind.base} may name several objects")
    if kind.base in _OBJECTS:
        return Encoded(f"({reference})::bigint", "bigint")
    if " ".join(_TYPMOD.sub("", kind.base).split()) in ("character", "bpchar"):
        return Encoded(f"textin(bpcharout({reference}))", "text")  # a cast to text drops trailing blanks
    if "." in kind.base:
        # A user's type may have a cast to text that differs from its output function.
        shown = f"CASE WHEN ({reference}) IS DISTINCT FROM NULL THEN concat(({reference})) END"
        return Encoded(shown, "text")
    return Encoded(f"({reference})::text", "text")


def decoded(reference: str, kind: ColumnType) -> str:
    """Return a value that came back, in its own type and collation."""
    return restored(reference, kind)


def presence(reference: str) -> Encoded:
    """Return 1 unless the value is NULL; a composite that contains a NULL is not NULL."""
    return Encoded(f"CASE WHEN ({reference}) IS DISTINCT FROM NULL THEN 1::bigint END", "bigint")


def truth(reference: str) -> Encoded:
    """Return a condition as 1, 0 or NULL."""
    return Encoded(f"({reference})::integer::bigint", "bigint")


# Keys


def key(reference: str, kind: ColumnType, among: str | None = None) -> Encoded:
    """Return a value for the equality of its type, or of the family of types it is compared in."""
    among = among or family(kind)
    if not kind.deterministic:
        raise Refused(
            f"{kind.collation} is not deterministic: equal texts may differ, which Spark cannot tell"
        )
    match among:
        case "integer":
            return Encoded(f"({reference})::bigint", "bigint")
        case "numeric":
            return Encoded(f"trim_scale(({reference})::numeric)::text", "text")
        case "float":
            return Encoded(
                f"CASE WHEN ({reference}) = 0 THEN '0' ELSE ({reference})::float8::text END", "text"
            )
        case "interval":
            return Encoded(f"coalesce(trim_scale({_seconds(reference)})::text, ({reference})::text)", "text")
        case "text":
            return Encoded(f"({reference})::text", "text")
        case _ if kind.exact:
            return value(reference, kind)
        case _:
            raise Refused(f"the equality of {kind.sql} is not the equality of anything that Spark has")


def common_family(left: ColumnType, right: ColumnType) -> str:
    """Return the family in which PostgreSQL compares two types."""
    families = {family(left), family(right)}
    if len(families) == 1:
        return families.pop()
    for widest in ("float", "numeric"):
        if widest in families and families <= {"integer", "numeric", "float"}:
            return widest
    raise Refused(f"{left.sql} and {right.sql} are compared by an operator of PostgreSQL's own")


# Orders


def order(reference: str, kind: ColumnType, *, among: str | None = None, scale: int | None = None) -> Encoded:
    """Return a value that compares as its type does, or as the family of types it is compared in.

    Numerics that are compared must have one scale: Spark would round the longer fraction to the shorter.
    """
    match among or family(kind):
        case "integer":
            return Encoded(f"({reference})::bigint", "bigint")
        case "numeric":
            own = order_scale(kind)
            return bounded(
                f"({reference})::numeric", own if scale is None else scale, declared=own == kind.scale
            )
        case "float":
            return Encoded(f"({reference})::float8::text", "text", "DOUBLE")
        case "boolean":
            return truth(reference)
        case "date":
            return Encoded(_finite(reference, f"(({reference}) - DATE '2000-01-01')::bigint"), "bigint")
        case "timestamp without time zone" | "timestamp with time zone":
            # Counted from 2000, as the server does: from 1970, the last years exceed a bigint.
            return Encoded(_finite(reference, _microseconds(reference, 946684800)), "bigint")
        case "time without time zone":
            return Encoded(_microseconds(reference), "bigint")
        case "interval":
            return bounded(_finite_seconds(reference), 6, declared=True)
        case "oid":
            return Encoded(f"({reference})::bigint", "bigint")
        case "uuid" | "bytea":  # hexadecimal digits sort as the bytes do
            return Encoded(f"({reference})::text", "text")
        case "text" if kind.bytewise:
            return Encoded(f"({reference})::text", "text")
        case "text":
            raise Refused(f"Spark sorts text by code points, and {kind.collation} does not")
        case _:
            raise Refused(f"the order of {kind.sql} is not the order of anything that Spark has")


def order_scale(kind: ColumnType) -> int:
    """Return the fractional digits by which numerics of a type are compared."""
    return kind.scale if kind.scale is not None and kind.scale <= LARGEST_SCALE else LARGEST_SCALE


def bounded(reference: str, scale: int, *, declared: bool = False) -> Encoded:
    """Return a numeric as an exact decimal of this scale, checked while reading if its type is open."""
    text = f"({reference})::text"
    if not declared:
        text = f"CASE WHEN min_scale({reference}) > {scale} THEN '{OUT_OF_BOUNDS}' ELSE '' END || {text}"
    return Encoded(text, "text", f"DECIMAL(38,{scale})")


def scale_of(reference: str) -> Encoded:
    """Return how many fractional digits a numeric shows."""
    return Encoded(f"scale({reference})::bigint", "bigint")


def _finite(reference: str, sql: str) -> str:
    infinite = f"WHEN ({reference}) = 'infinity' THEN {_LAST} ELSE ({_FIRST})::bigint"
    return f"CASE WHEN ({reference}) IS NULL THEN NULL WHEN isfinite({reference}) THEN {sql} {infinite} END"


def _finite_seconds(reference: str) -> str:
    infinite = f"WHEN ({reference}) > INTERVAL '0' THEN {_FOREVER} WHEN ({reference}) < INTERVAL '0'"
    return f"(CASE WHEN isfinite({reference}) THEN {_seconds(reference)} {infinite} THEN -{_FOREVER} END)"


def _microseconds(reference: str, start: int = 0) -> str:
    return f"((extract(epoch FROM {reference}) - {start}) * 1000000)::bigint"


def _seconds(reference: str) -> str:
    """Return what an interval is compared by: a month has 30 days, a day 24 hours. NULL if infinite."""
    part = {
        name: f"extract({name} FROM {reference})"
        for name in ("year", "month", "day", "hour", "minute", "second")
    }
    days = f"(({part['year']} * 12 + {part['month']}) * 30 + {part['day']})"
    time = f"({part['hour']} * 3600 + {part['minute']} * 60 + {part['second']})"
    return f"(CASE WHEN isfinite({reference}) THEN {days} * 86400 + {time} END)"
