"""Keeps the history in bounded space.

Each refresh writes a row of about 1 kB. The clean-up adds these rows to sums, by the minute and by the hour,
and deletes them in time:

- a delta, after `history_single_retention`, unless it is one of the `history_latest` latest of its stream
  table;
- a failure, a load or a recomputation, after `history_retention`; the latest success of each stream table
  stays;
- a sum, after `history_minute_retention` or `history_hour_retention`;
- for want of room, by `history_max_mb`: the oldest deltas, then the oldest minutes, then the other refreshes,
  then the hours.

A refresh is counted exactly once. Numbers are drawn in order, but committed in any order, so a refresh may
appear below one that is counted already. Hence only numbers that are decided are counted: whoever drew one
held a lock on the table before. When all who held one at a later moment have ended, each number that was
drawn before that moment is there or never will be. The sums and the number up to which they are made change
in one transaction, and no refresh above that number is deleted. So a clean-up may die at any moment. A
refresh itself does nothing for all this.

A refresh that goes on for long after it wrote its row holds back the counting and the deleting, as it holds
back vacuum.

The work is done in batches, each a short transaction, by one process at a time: others find the row of
`headwater.history_state` locked and leave it to that one. Deleting frees room inside the files, which later
rows take. Where the files are larger than `history_max_mb` though the rows are not, they are rewritten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import psycopg

from headwater.config import Settings
from headwater.db.connection import Connection, is_pooled, one, transaction
from headwater.db.queries import query

BATCH = 5_000
"""Numbers of refreshes, or rows, of one transaction."""
PAUSE = "2min"
"""Where somebody cleaned up within this time, as a service does, a refresh does not."""
SECONDS_OF_A_REFRESH = 1.0
"""How long the clean-up after a refresh may take; what is left, the next one does."""
BETWEEN_COMPACTIONS = "1h"
"""While an old snapshot needs what was deleted, rewriting would not make the files smaller."""
COMPACTION_LOCK_TIMEOUT = "200ms"
"""So long others may have to wait behind a rewriting that waits for its lock, …"""
COMPACTION_TIMEOUT = "5s"
"""… and so long for one that has it. What takes longer is left to the operator."""
NEARLY_FULL, ROOMY = 0.8, 0.7
"""When the files take the first share of `history_max_mb`, the rows are held to the second one. The rest is
for rows that vacuum has not removed yet."""
FEWEST_SWEPT = 500
"""Numbers of refreshes that are looked at for deltas at once, however little room is wanted."""
ROW_BYTES = 1024
"""Of a single refresh with its share of the indexes, before any was measured."""
INDEX_BYTES = 110
"""The share of a row in the indexes of its table."""
SAMPLED_PAGES = 1_000
"""By so many pages, at least, the rows of a table are counted."""
PAGE_BYTES = 8_192
MINUTE, HOUR = "1 minute", "1 hour"
ANY_AGE = "0s"
EVERY_NUMBER = 2**62


class _State(NamedTuple):
    counted_to: int
    decided_to: int
    drawn_to: int
    drawn_by: list[str]
    swept_to: int
    may_compact: bool


class _Ended(Exception):
    """The time is up, it was stopped, or another process is cleaning up."""


@dataclass(frozen=True)
class _Weight:
    """What the rows of a table take, as opposed to its files."""

    rows: float
    row_bytes: float

    @property
    def bytes(self) -> float:
        return self.rows * self.row_bytes


def clean_up(
    connection: Connection, settings: Settings, seconds: float, is_stopped: Callable[[], bool] = lambda: False
) -> bool:
    """Counts refreshes and deletes what is not to be kept; False if something was left undone.

    Needs a connection without a transaction. Ends after so many seconds, or when it is stopped.
    """
    deadline = time.monotonic() + seconds
    try:
        _CleanUp(connection, settings, lambda: is_stopped() or time.monotonic() >= deadline).run()
    except _Ended:
        return False
    return True


def clean_up_if_due(connection: Connection, settings: Settings) -> None:
    """Cleans up unless somebody does so regularly."""
    if one(connection, query("cleanup", "is_due"), {"pause": PAUSE})[0]:
        clean_up(connection, settings, SECONDS_OF_A_REFRESH)


class _CleanUp:
    def __init__(self, connection: Connection, settings: Settings, must_end: Callable[[], bool]) -> None:
        self._connection = connection
        self._settings = settings
        self._must_end = must_end
        self._limit = settings.history_max_mb << 20
        self._stay = 0  # of the oldest refreshes, those that were found to be the latest of their kind

    def run(self) -> None:
        self._decide()
        while self._count():
            pass
        latest = self._latest()
        aged = one(
            self._connection,
            query("cleanup", "aged"),
            {"retention": self._settings.history_single_retention},
        )[0]
        while self._sweep(aged, latest) is not None:
            pass
        self._forget()
        self._bound(latest)

    @contextmanager
    def _batch(self) -> Iterator[_State]:
        """A transaction of this clean-up, with the state that it starts from."""
        if self._must_end():
            raise _Ended
        with transaction(self._connection):
            found = self._connection.execute(
                query("cleanup", "state"), {"between_compactions": BETWEEN_COMPACTIONS}
            ).fetchone()
            if found is None:
                raise _Ended
            yield _State(*found)

    def _decide(self) -> None:
        """Finds out which refreshes nobody can commit any more that are not committed yet."""
        with self._batch() as state:
            drawn = one(self._connection, query("cleanup", "drawn"))[0]  # before the writers are listed
            writers: dict[str, bool] = dict(self._connection.execute(query("cleanup", "writers")).fetchall())
            if not writers:
                decided, drawn_to, drawn_by = drawn, drawn, list[str]()
            elif any(writers.values()) or not writers.keys().isdisjoint(state.drawn_by):
                decided, drawn_to, drawn_by = state.decided_to, state.drawn_to, state.drawn_by
            else:
                decided, drawn_to, drawn_by = state.drawn_to, drawn, list(writers)
            self._connection.execute(
                query("cleanup", "set_decided"),
                {"decided_to": decided, "drawn_to": drawn_to, "drawn_by": drawn_by},
            )

    def _count(self) -> bool:
        """Adds a batch of refreshes to the sums; False if there was none."""
        with self._batch() as state:
            up_to = min(state.counted_to + BATCH, state.decided_to)
            if up_to > state.counted_to:
                self._connection.execute(
                    query("cleanup", "count"),
                    {
                        "above": state.counted_to,
                        "up_to": up_to,
                        "minute_retention": self._settings.history_minute_retention,
                        "hour_retention": self._settings.history_hour_retention,
                    },
                )
            return up_to > state.counted_to

    def _latest(self) -> int:
        """How many deltas of each stream table are kept: all these may fill half of the room."""
        stream_tables: int = one(self._connection, query("cleanup", "stream_table_count"))[0]
        room = self._limit // ROW_BYTES // 2
        return max(1, min(self._settings.history_latest, room // max(1, stream_tables)))

    def _sweep(self, last: int, latest: int, most: int = BATCH) -> int | None:
        """Deletes deltas among the next numbers, at most up to the last one; how many, None at the end."""
        with self._batch() as state:
            up_to = min(last, state.counted_to, state.swept_to + most)
            if up_to <= state.swept_to:
                return None
            values = {"above": state.swept_to, "up_to": up_to, "latest": latest}
            return int(one(self._connection, query("cleanup", "sweep"), values)[0])

    def _forget(self) -> None:
        """Deletes what is older than its retention."""
        settings = self._settings
        with self._batch():
            self._connection.execute(
                query("cleanup", "forget_requests"), {"retention": settings.history_retention}
            )
        while self._forget_refreshes(settings.history_retention, BATCH):
            pass
        for length, retention in (
            (MINUTE, settings.history_minute_retention),
            (HOUR, settings.history_hour_retention),
        ):
            while self._forget_sums(length, retention, BATCH):
                pass

    def _forget_refreshes(self, retention: str, limit: int) -> int:
        """Deletes old refreshes of any kind; how many, 0 if no more can go."""
        looked_at, gone = 1, 0
        while looked_at and not gone:
            with self._batch() as state:
                values = {
                    "retention": retention,
                    "limit": limit,
                    "counted_to": state.counted_to,
                    "stay": self._stay,
                }
                looked_at, gone = one(self._connection, query("cleanup", "forget_refreshes"), values)
            self._stay += looked_at - gone
        return gone

    def _forget_sums(self, length: str, retention: str, limit: int) -> int:
        with self._batch():
            values = {"length": length, "retention": retention, "limit": limit}
            return self._connection.execute(query("cleanup", "forget_sums"), values).rowcount

    def _bound(self, latest: int) -> None:
        """Holds the history to its size."""
        sizes = one(self._connection, query("cleanup", "sizes"))
        if sum(sizes) <= NEARLY_FULL * self._limit:
            return
        refreshes, sums = self._weigh(sizes)
        surplus = refreshes.bytes + sums.bytes - ROOMY * self._limit
        for weight, delete in (
            (refreshes, partial(self._sweep_for_room, latest)),
            (sums, partial(self._forget_sums, MINUTE, ANY_AGE)),
            (refreshes, partial(self._forget_refreshes, ANY_AGE)),
            (sums, partial(self._forget_sums, HOUR, ANY_AGE)),
        ):
            surplus = _without(surplus, weight, delete)
        if sum(sizes) > self._limit:
            self._compact()

    def _sweep_for_room(self, latest: int, wanted: int) -> int:
        """Deletes deltas, however young; how many, 0 if no more can go."""
        gone: int | None = 0
        while gone == 0:
            gone = self._sweep(EVERY_NUMBER, latest, max(FEWEST_SWEPT, wanted))
        return gone or 0

    def _weigh(self, sizes: tuple[int, ...]) -> tuple[_Weight, _Weight]:
        """What single refreshes and sums would take in files without room between them."""
        weights = []
        for text, size in zip(
            (query("cleanup", "weigh_refreshes"), query("cleanup", "weigh_sums")), sizes, strict=True
        ):
            percent = min(100.0, 100.0 * SAMPLED_PAGES * PAGE_BYTES / max(1, size))
            rows, width = one(self._connection, text, {"percent": percent})
            weights.append(_Weight(rows, width + INDEX_BYTES))
        return weights[0], weights[1]

    def _compact(self) -> None:
        """Rewrites files that are larger than what they hold, unless others would wait for long."""
        if is_pooled(self._connection):
            return
        with self._batch() as state:
            if not state.may_compact:
                return
            self._connection.execute(query("cleanup", "set_compacted"))
        before = [
            (name, one(self._connection, "SELECT current_setting(%s)", (name,))[0])
            for name in ("lock_timeout", "statement_timeout")
        ]
        limits = [("lock_timeout", COMPACTION_LOCK_TIMEOUT), ("statement_timeout", COMPACTION_TIMEOUT)]
        try:
            self._limit_session(limits)
            self._connection.execute(
                "VACUUM (FULL, ANALYZE) headwater.refresh, headwater.refresh_sum", prepare=False
            )
        except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            pass  # the next one has another try
        finally:
            if not self._connection.closed:
                self._limit_session(before)

    def _limit_session(self, limits: list[tuple[str, str]]) -> None:
        for name, limit in limits:
            self._connection.execute("SELECT set_config(%s, %s, false)", (name, limit))


def _without(surplus: float, weight: _Weight, delete: Callable[[int], int]) -> float:
    """Deletes rows until so many bytes are free, or no more rows can go; the bytes that are left to free."""
    while surplus > 0:
        wanted = min(BATCH, int(surplus / weight.row_bytes) + 1)
        if not (gone := delete(wanted)):
            break
        surplus -= gone * weight.row_bytes
    return surplus
