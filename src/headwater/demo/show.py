"""The demo from start to end: a small shop, and `headwater serve` behind it.

The service is a process of its own, as in production, and knows nothing of the demo. Three threads work
beside it: the shop's writer, a verifier, and the one that watches; they know of the service only what the
catalog says. The first interrupt ends the run as if its time were over, or the preparations at the next step;
another one ends the current work at once. What was made is removed in every case.

The picture in the documentation is a frame of a real run, taken when two thirds of it are over:

    HEADWATER_DEMO_SVG=docs/images/demo.svg headwater demo --seconds 30
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import psycopg
from psycopg import sql
from rich.console import Console
from rich.live import Live

from headwater.api import Headwater, connect
from headwater.catalog.stream_tables import EngineName
from headwater.config import Settings
from headwater.db.connection import Connection, one, translated
from headwater.demo import screen
from headwater.demo.board import Board, Speed
from headwater.demo.service import Service
from headwater.demo.shop import EXAMPLES, ITEMS, ORDERS, SCHEMA, VIEWS, Shop, Written, connect_writer
from headwater.embedded import Server, find_installation
from headwater.errors import AlreadyExists, ConnectionFailed, HeadwaterError, NotFound
from headwater.inspect import overview

TRANSACTIONS_PER_SECOND = 40
VERIFY_PAUSE = 0.25
FRAMES_PER_SECOND = 4
SPEED_ROUNDS = 3
LOOK_PAUSE = 0.1
ENTRIES = 500
"""Entries of the history, read at once; more than a service writes for these stream tables in half a second.
"""
PATIENCE = 300.0
"""Seconds that the service has to start, and to catch up at the end."""
OWNER_MARK = "made by headwater demo, which removes it"
DEMO_LOCK = 4_855_311_390
"""Held while a demo runs in a database."""
INTERRUPTED = 130


def run(seconds: float, dsn: str | None, console: Console, engine: EngineName = "spark") -> int:
    """Show stream tables at work; return 0 if every verification was equal and every refresh succeeded.

    Without a DSN it runs on a private server, which is removed afterwards; with one, in a schema of that
    database. The engine is that of the large stream table. Raises HeadwaterError when it cannot even begin.
    """
    interrupts = _Interrupts()
    with interrupts.installed():
        try:
            with _database(dsn, console, interrupts) as (address, description):
                board = _perform(seconds, address, description, engine, console, interrupts)
        except KeyboardInterrupt:
            console.print("Stopped before there was a result. What the demo made is removed.")
            return INTERRUPTED
        except psycopg.Error as error:
            raise translated(error, "demo", HeadwaterError) from error
    console.print(screen.summary(board, given=dsn is not None))
    return 1 if board.problems else 0


def _perform(
    seconds: float,
    dsn: str,
    description: str,
    engine: EngineName,
    console: Console,
    interrupts: _Interrupts,
) -> Board:
    shop = Shop()
    with connect(dsn) as headwater, connect_writer(dsn) as writer:
        _prepare(headwater, shop, engine, console, interrupts)
        with Service(dsn, headwater.connection.info.dbname) as service:
            with _step(console, "Waiting until headwater serve has refreshed each of them"):
                seen = _hand_over(headwater, writer, shop, service, interrupts)
            shop.written = Written()
            board = Board(description, seconds, shop.written)
            board.start()
            threads = [
                _Thread("the shop's writer", board, interrupts.stop, lambda stop: _trade(writer, shop, stop)),
                _Thread("the verifier", board, interrupts.stop, lambda stop: _verify(dsn, board, stop)),
            ]
            for thread in threads:
                thread.start()
            watch = _Watch(headwater, board, service, seen)
            try:
                watch.show(console, interrupts.stop)
            except (HeadwaterError, psycopg.Error) as error:
                board.problem(f"the screen: {error}")
            finally:
                interrupts.stop.set()
                for thread in threads:
                    thread.join()
                board.end()
            with _step(console, "Letting headwater serve catch up, and verifying all of them once more"):
                _finish(headwater, board, watch, service)
        if not board.problems:
            with _step(console, "Timing deltas against recomputing"), suppress(KeyboardInterrupt):
                rounds = 1 if interrupts.received else SPEED_ROUNDS
                board.speeds = _speeds(headwater, writer, shop, rounds)
    return board


# the database


@contextmanager
def _database(dsn: str | None, console: Console, interrupts: _Interrupts) -> Iterator[tuple[str, str]]:
    """Provide a database with Headwater and an empty schema for the shop, and its name for users."""
    if dsn is None:
        installation = find_installation()
        version = "{}.{}".format(*installation.version)
        server: Server | None = None
        try:
            with _step(console, f"Starting a private PostgreSQL {version}"):
                server = Server.start(installation=installation)
            interrupts.checkpoint()
            address = server.dsn()
            with connect(address) as headwater, _step(console, "Installing Headwater"):
                headwater.init()
                _create_schema(headwater.connection)
            yield address, f"private PostgreSQL {version}"
        finally:
            interrupts.cleaning = True
            if server is not None:
                with _step(console, "Stopping the server and removing its directory"):
                    server.stop()
        return
    with connect(dsn) as headwater:
        with _step(console, "Installing Headwater"):
            headwater.init()
        if not one(headwater.connection, "SELECT pg_try_advisory_lock(%s)", (DEMO_LOCK,))[0]:
            raise AlreadyExists("another demo is running in this database", hint="wait for it to end")
        _remove_abandoned(headwater)
        try:
            _create_schema(headwater.connection)
            query = "SELECT split_part(current_setting('server_version'), ' ', 1)"
            yield dsn, f"PostgreSQL {one(headwater.connection, query)[0]}"
        finally:
            interrupts.cleaning = True
            with _step(console, f"Removing the schema {SCHEMA} and its stream tables"):
                _remove(dsn)


def _create_schema(connection: Connection) -> None:
    with connection.transaction():
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        connection.execute(
            sql.SQL("COMMENT ON SCHEMA {} IS {}").format(sql.Identifier(SCHEMA), sql.Literal(OWNER_MARK))
        )


def _remove_abandoned(headwater: Headwater) -> None:
    """Remove what a killed demo left; a schema that is not ours is left alone."""
    row = headwater.connection.execute(
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", (SCHEMA,)
    ).fetchone()
    if row is None:
        return
    if row[0] != OWNER_MARK:
        raise AlreadyExists(
            f"the database has a schema {SCHEMA} that the demo did not make",
            hint="give another database with --dsn, or none for a private server",
        )
    _drop_everything(headwater)


def _remove(dsn: str) -> None:
    """Remove the shop, over a new connection, because the others may be broken or busy."""
    with connect(dsn) as headwater:
        _drop_everything(headwater)


def _drop_everything(headwater: Headwater) -> None:
    for example in reversed(EXAMPLES):
        with suppress(NotFound):
            headwater.drop(example.label, cascade=True)
    headwater.connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def _prepare(
    headwater: Headwater, shop: Shop, engine: EngineName, console: Console, interrupts: _Interrupts
) -> None:
    interrupts.checkpoint()
    if engine != "postgres":
        console.print("Starting Spark in the background …", style="dim", highlight=False)
        headwater.start_spark()
    with _step(console, f"Loading a shop with {ORDERS:,} orders of {ITEMS:,} items and {VIEWS:,} page views"):
        with headwater.connection.transaction():
            shop.load(headwater.connection)
    small = [example for example in EXAMPLES if not example.large]
    with _step(console, f"Creating {len(small)} stream tables in PostgreSQL"):
        for example in small:
            interrupts.checkpoint()
            headwater.create(
                example.label,
                example.query,
                schedule=example.schedule,
                mode="differential",
                engine="postgres",
            )
    where = {"postgres": "in PostgreSQL", "spark": "on Spark", "auto": "where it costs less"}[engine]
    for example in EXAMPLES:
        if example.large:
            interrupts.checkpoint()
            with _step(console, f"Creating {example.name} over {VIEWS:,} rows {where}"):
                headwater.create(
                    example.label,
                    example.query,
                    schedule=example.schedule,
                    mode="differential",
                    engine=engine,
                )


def _hand_over(
    headwater: Headwater, writer: Connection, shop: Shop, service: Service, interrupts: _Interrupts
) -> int:
    """Write until the service has refreshed each stream table; return the latest entry of the history.

    It takes as long as the service needs to start, and to start Spark: that counts as a slow refresh, after
    which the service pauses, so the large one is waited for twice.
    """
    before = headwater.history(limit=1)[0].id
    done: dict[str, set[int]] = {example.label: set() for example in EXAMPLES}
    wanted = {example.label: 2 if example.large else 1 for example in EXAMPLES}
    deadline = time.monotonic() + PATIENCE
    while waiting := [label for label, entries in done.items() if len(entries) < wanted[label]]:
        interrupts.checkpoint()
        shop.trade(writer)
        for entry in headwater.history(limit=ENTRIES):
            if entry.id > before and entry.status == "completed" and entry.stream_table in done:
                done[entry.stream_table].add(entry.id)
        _check(service)
        if time.monotonic() > deadline:
            raise HeadwaterError(
                f"headwater serve has not refreshed {', '.join(waiting)} in {PATIENCE:.0f} s",
                detail=service.said,
            )
        time.sleep(LOOK_PAUSE)
    return headwater.history(limit=1)[0].id


def _check(service: Service) -> None:
    if (end := service.ended) is not None:
        raise HeadwaterError("the demo lost its service", detail=end)


# what runs meanwhile


class _Thread(threading.Thread):
    """A thread that cannot fail unseen."""

    def __init__(
        self, what: str, board: Board, stop: threading.Event, work: Callable[[threading.Event], None]
    ) -> None:
        super().__init__(name=what, daemon=True)
        self._what, self._board, self._stop_event, self._work = what, board, stop, work

    def run(self) -> None:
        try:
            self._work(self._stop_event)
        except Exception as error:
            self._board.problem(f"{self._what} ended early: {str(error) or type(error).__name__}")
            self._stop_event.set()


def _trade(connection: Connection, shop: Shop, stop: threading.Event) -> None:
    """Trade at a steady rate: a late transaction is not made up for, so a slow server is not flooded."""
    pause = 1 / TRANSACTIONS_PER_SECOND
    due = time.monotonic()
    while not stop.is_set():
        shop.trade(connection)
        due = max(due + pause, time.monotonic())
        stop.wait(due - time.monotonic())


def _verify(dsn: str, board: Board, stop: threading.Event) -> None:
    with connect(dsn) as headwater:
        while not stop.is_set():
            for label in board.rows:
                if stop.wait(VERIFY_PAUSE):
                    break
                _verify_one(headwater, board, label)


def _verify_one(headwater: Headwater, board: Board, label: str) -> None:
    try:
        board.compared(headwater.verify(label))
    except ConnectionFailed:
        raise
    except HeadwaterError as error:
        board.problem(f"verifying {label} failed: {error}")


# the screen


class _Watch:
    """Brings the state of the catalog onto the board, and the board onto the screen."""

    def __init__(self, headwater: Headwater, board: Board, service: Service, seen: int) -> None:
        """Start after `seen`, the latest entry of the history that does not count."""
        self._headwater, self._board, self._service = headwater, board, service
        self._after, self._counted = seen, set[int]()

    def show(self, console: Console, stop: threading.Event) -> None:
        """Show the run until its time is over or something stops it."""
        board = self._board
        if not console.is_terminal:
            while not stop.wait(min(1.0, board.left)) and board.left:
                self.observe()
                console.print(screen.line(board), soft_wrap=True, highlight=False, markup=False)
            return
        frames = 0
        self.observe()
        with Live(screen.frame(board, console.size), console=console, auto_refresh=False) as live:
            while not stop.wait(min(1 / FRAMES_PER_SECOND, board.left)) and board.left:
                frames += 1
                if frames % (FRAMES_PER_SECOND // 2) == 0:
                    self.observe()
                live.update(screen.frame(board, console.size), refresh=True)

    def observe(self) -> None:
        headwater, board = self._headwater, self._board
        _check(self._service)
        for label in board.rows:
            board.observed(headwater.status(label))
        self.count()
        board.service = overview.service(headwater.connection, Settings())
        board.saw_top(
            headwater.connection.execute(
                f"SELECT region, revenue, items FROM {SCHEMA}.revenue_by_region ORDER BY revenue DESC"
            ).fetchall()
        )
        picture = os.environ.get("HEADWATER_DEMO_SVG")
        if picture and not board.pictured and board.elapsed > board.seconds * 2 / 3:
            board.pictured = True
            Path(picture).write_text(screen.picture(board), encoding="utf-8")

    def count(self) -> None:
        """Count what the history has recorded since the last time."""
        for entry in reversed(self._headwater.history(limit=ENTRIES)):
            # Two refreshes that ran at once need not commit in the order of their numbers.
            if entry.id > self._after and entry.id not in self._counted:
                self._counted.add(entry.id)
                self._board.refreshed(entry)


@contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    """Announce a slow step: on a terminal with the time that it took."""
    if not console.is_terminal:
        console.print(f"{what} …", highlight=False, soft_wrap=True)
        yield
        return
    started = time.monotonic()
    with console.status(f"{what} …"):
        yield
    console.print(f"{what}: {time.monotonic() - started:.1f} s", style="dim", highlight=False, soft_wrap=True)


# the end


def _finish(headwater: Headwater, board: Board, watch: _Watch, service: Service) -> None:
    """Wait until no changes wait, and then compare what the service has stored."""
    try:
        deadline = time.monotonic() + PATIENCE
        while behind := [label for label in board.rows if headwater.status(label).lag_seconds != 0]:
            _check(service)
            if time.monotonic() > deadline:
                board.problem(f"headwater serve does not catch up: {', '.join(behind)}")
                break
            time.sleep(LOOK_PAUSE)
        watch.count()
        for label in board.rows:
            _verify_one(headwater, board, label)
    except HeadwaterError as error:
        board.problem(f"the last verification: {error}")


def _speeds(headwater: Headwater, writer: Connection, shop: Shop, rounds: int) -> list[Speed]:
    """Return the medians of rounds: a second's worth of changes, then each as a delta, then recomputed.

    Only after everything was verified, because recomputing would hide a difference.
    """
    deltas: dict[str, list[float]] = {example.name: [] for example in EXAMPLES}
    fulls: dict[str, list[float]] = {example.name: [] for example in EXAMPLES}
    for _ in range(rounds):
        for _ in range(TRANSACTIONS_PER_SECOND):
            shop.trade(writer)
        for example in EXAMPLES:
            outcome = headwater.refresh(example.label)[-1]
            if outcome.action == "delta":
                deltas[example.name].append(outcome.duration_ms)
        for example in EXAMPLES:
            fulls[example.name].append(headwater.refresh(example.label, full=True)[-1].duration_ms)
    return [
        Speed(name, statistics.median(deltas[name]), statistics.median(fulls[name]))
        for name in deltas
        if deltas[name]
    ]


class _Interrupts:
    """What Ctrl-C and SIGTERM mean in each part of the run."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.received = False
        self.cleaning = False  # none may keep us from removing what was made

    def checkpoint(self) -> None:
        """Check for interrupts between two steps of the preparations."""
        if self.received:
            raise KeyboardInterrupt

    @contextmanager
    def installed(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first, self.received = not self.received, True
        if self.cleaning:
            return
        self.stop.set()
        if not first:
            raise KeyboardInterrupt
