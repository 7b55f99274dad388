"""The options of the data source, and the values that each takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Literal, cast, get_args

import psycopg

from headwater.catalog.stream_tables import split_name
from headwater.clock import parse_duration
from headwater.db.connection import Connection
from headwater.engine.spark.transport.columns import SETTINGS, Rules
from headwater.errors import ConnectionFailed, HeadwaterError, InvalidSetting

COMMON = frozenset({"dsn", "numeric", "infinity"})
READING = frozenset(
    "table query columns where partitions partition_column snapshot snapshot_timeout snapshot_linger".split()
)
STREAMING = frozenset({"stream_table", "consumer", "changes", "start"})
MOST_PARTITIONS = 100_000
_OUTSIDE_QUOTES = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)')

Changes = Literal["weights", "rows"]
Start = Literal["now", "snapshot"]


class Options:
    """Checked options of one frame."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self.streams = "stream_table" in self._given
        known = COMMON | (STREAMING if self.streams else READING)
        unknown = sorted(self._given.keys() - known)
        if unknown:
            raise InvalidSetting(
                f"there is no option {', '.join(unknown)}"
                + (" with stream_table" if self.streams else "")
                + (" without stream_table" if not self.streams and STREAMING & set(unknown) else ""),
                hint=f"there are {', '.join(sorted(known))}",
            )
        self.dsn = self._required("dsn", "postgresql://user@host:5432/dbname")
        self.rules = Rules.parse(self._given.get("numeric", "string"), self._given.get("infinity", "error"))
        if self.streams:
            self._read_streaming()
        else:
            self._read_reading()

    def _read_reading(self) -> None:
        self.table = self._given.get("table")
        query = self._given.get("query")
        if (self.table is None) == (query is None):
            raise InvalidSetting(
                "one of the options table and query is needed, and not both",
                hint='for example option("table", "public.orders")',
            )
        self.query = query.strip().rstrip(";") if query is not None else None
        self.where = self._given.get("where", "").strip()
        self.columns = tuple(
            self._name("columns", part)
            for part in _OUTSIDE_QUOTES.split(self._given.get("columns", ""))
            if part.strip()
        )
        if self.columns and self.query is not None:
            raise InvalidSetting("option columns goes with table", hint="name them in the query")
        self.partitions = self._whole_number("partitions")
        column = self._given.get("partition_column")
        self.partition_column = None if column is None else self._name("partition_column", column)
        self.snapshot = self._given.get("snapshot")
        self.snapshot_timeout = self._duration("snapshot_timeout", "10m")
        self.snapshot_linger = self._duration("snapshot_linger", "15s")

    def _read_streaming(self) -> None:
        self.stream_table = self._given["stream_table"]
        self.consumer = self._required("consumer", "a name for what follows the stream table")
        self.changes = cast(Changes, self._one_of("changes", "weights", get_args(Changes)))
        self.start = cast(Start, self._one_of("start", "now", get_args(Start)))

    def _required(self, name: str, example: str) -> str:
        value = self._given.get(name, "").strip()
        if not value:
            raise InvalidSetting(f"option {name} is needed", hint=f"for example {example}")
        return value

    def _one_of(self, name: str, default: str, known: tuple[str, ...]) -> str:
        value = self._given.get(name, default)
        if value not in known:
            raise InvalidSetting(f"option {name}: there is no {value!r}", hint=f"use {' or '.join(known)}")
        return value

    def _name(self, option: str, text: str) -> str:
        try:
            schema, name = split_name(text)
        except HeadwaterError as error:
            raise InvalidSetting(f"option {option}: {error.message}", hint=error.hint) from None
        if schema is not None:
            raise InvalidSetting(f"option {option}: {text} is not a column", hint="leave the table out")
        return name

    def _whole_number(self, name: str) -> int | None:
        text = self._given.get(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or not 0 < int(text) <= MOST_PARTITIONS:
            raise InvalidSetting(
                f"option {name}: {text!r} is not a number of partitions",
                hint=f"use a whole number from 1 to {MOST_PARTITIONS}",
            )
        return int(text)

    def _duration(self, name: str, default: str) -> timedelta:
        try:
            return parse_duration(self._given.get(name, default))
        except InvalidSetting as error:
            raise InvalidSetting(f"option {name}: {error.message}", hint=error.hint) from None


@contextmanager
def open_connection(dsn: str) -> Iterator[Connection]:
    """Return a connection with the user's own search_path, because names in queries are the user's."""
    try:
        connection = psycopg.connect(dsn, autocommit=True, application_name="headwater")
    except psycopg.Error as error:
        raise ConnectionFailed(
            "cannot connect to the database", detail=str(error).strip(), hint="check option dsn"
        ) from None
    with connection:
        for name, value in {**SETTINGS, "client_encoding": "UTF8"}.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        yield connection
