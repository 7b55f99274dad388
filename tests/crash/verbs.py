"""What is run under threat: each verb where it has much to do, and how one goes on after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from headwater import Headwater
from headwater.catalog import installed
from headwater.db.connection import translated
from headwater.errors import HeadwaterError, NotFound
from headwater.install import migrate

SHOP = """
CREATE TABLE kinds (id int PRIMARY KEY, name text, rate int);
CREATE TABLE items (id int PRIMARY KEY, kind int, price int, note text);
CREATE TABLE visits (day int NOT NULL, item int) PARTITION BY RANGE (day);
CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM (0) TO (10);
CREATE TABLE visits_2 (day int NOT NULL, item int);
CREATE VIEW dear AS SELECT id, kind, price FROM items WHERE price > 20;
INSERT INTO kinds SELECT i, 'kind ' || i, i FROM generate_series(1, 6) i;
INSERT INTO items SELECT i, 1 + i % 6, i % 50, 'note ' || i FROM generate_series(1, 200) i;
INSERT INTO visits SELECT i % 10, 1 + i % 200 FROM generate_series(1, 100) i;
INSERT INTO visits_2 SELECT 10 + i % 10, i FROM generate_series(1, 20) i;
"""
STREAM_TABLES = {
    "totals": "SELECT k.name, count(*) AS n, sum(i.price) AS total, max(i.price) AS most"
    " FROM items i JOIN kinds k ON k.id = i.kind GROUP BY k.name",
    "ranks": "SELECT name, total, rank() OVER (ORDER BY total DESC) AS place FROM totals",
    "lonely": "SELECT k.id, k.name, i.id AS item FROM kinds k"
    " LEFT JOIN items i ON i.kind = k.id AND i.price > 45",
    "best": "SELECT r.name, r.place, l.item FROM ranks r JOIN lonely l ON l.name = r.name",
    "kept": "SELECT k.name, max(s.total) AS best FROM kinds k JOIN"
    " (SELECT kind, price % 3 AS part, sum(price) AS total FROM items GROUP BY 1, 2) s ON s.kind = k.id"
    " GROUP BY k.name",
    "daily": "SELECT day, count(*) AS n FROM visits GROUP BY day",
    "viewed": "SELECT kind, count(*) AS n FROM dear GROUP BY kind",
    "whole": "SELECT kind, string_agg(note, ',' ORDER BY id) AS notes FROM items GROUP BY kind",
}
NEW = (
    "SELECT i.id, i.note, k.rate, t.total"
    " FROM items i JOIN kinds k ON k.id = i.kind JOIN totals t USING (name)"
)
CHANGE = """
UPDATE items SET price = price + 3 WHERE id % 7 = 0;
DELETE FROM items WHERE id % 31 = 0;
INSERT INTO items SELECT i, 1 + i % 6, i % 60, 'late ' || i FROM generate_series(300, 320) i;
INSERT INTO visits VALUES (3, 3), (4, 4);
"""
ONE_MORE = """
INSERT INTO items VALUES (1000, 1, 49, 'one more');
UPDATE kinds SET rate = rate + 1 WHERE id = 1;
INSERT INTO visits VALUES (5, 5);
"""


@dataclass(frozen=True)
class Verb:
    """A verb under threat."""

    run: Callable[[Headwater], object]
    again: Callable[
        [Headwater], object
    ]  # what somebody does who wants it and does not know what became of it
    before: str = CHANGE  # done to the tables just before
    installed: bool = True  # whether the database has the catalog and the stream tables


def _create(hw: Headwater) -> None:
    hw.create("new", NEW, if_not_exists=True)


def _refresh(*names: str, full: bool = False) -> Callable[[Headwater], object]:
    return lambda hw: [hw.refresh(name, full=full) for name in names]


def _drop(name: str, *, cascade: bool = False) -> Callable[[Headwater], object]:
    def drop(hw: Headwater) -> None:
        with suppress(NotFound):
            hw.drop(name, cascade=cascade)

    return drop


def _same(run: Callable[[Headwater], object], before: str = CHANGE, installed: bool = True) -> Verb:
    return Verb(run, run, before, installed)


def _migrate_from_first(hw: Headwater) -> None:
    """A catalog as the first version made it, brought up to date."""
    try:
        migrate.migrate(hw.connection, installed.migrations()[:1])
    except psycopg.Error as error:  # which is no verb by itself, that would say it in our words
        raise translated(error, "migrate", HeadwaterError) from error
    hw.migrate()


VERBS = {
    "create": _same(_create),
    "alter to full": _same(lambda hw: hw.alter("totals", mode="full")),
    "alter to auto": _same(lambda hw: hw.alter("whole", mode="auto")),
    "refresh by a delta": _same(_refresh("totals")),
    "refresh of a graph": _same(_refresh("best")),
    "refresh of what is kept": _same(_refresh("kept")),
    "refresh after TRUNCATE": _same(_refresh("totals"), "TRUNCATE items; " + CHANGE),
    "refresh in full": _same(_refresh("lonely", full=True)),
    "refresh with a new meaning": _same(
        _refresh("viewed"),
        CHANGE + "CREATE OR REPLACE VIEW dear AS SELECT id, kind, price FROM items WHERE price > 30",
    ),
    "refresh of partitions": _same(
        _refresh("daily"),
        CHANGE + "ALTER TABLE visits ATTACH PARTITION visits_2 FOR VALUES FROM (10) TO (20)",
    ),
    "refresh without triggers": _same(_refresh("lonely"), CHANGE + "ALTER TABLE kinds DISABLE TRIGGER ALL"),
    "drop": _same(_drop("best")),
    "drop --cascade": _same(_drop("totals", cascade=True)),
    "init": _same(lambda hw: hw.init(), SHOP, installed=False),
    "migrate": Verb(_migrate_from_first, lambda hw: hw.migrate(), SHOP, installed=False),
}


def prepare(hw: Headwater) -> None:
    """The stream tables that are there before a verb is run."""
    hw.connection.execute("SELECT set_config('search_path', 'public', false)")
    hw.connection.execute(SHOP)
    hw.connection.execute("SELECT set_config('search_path', '', false)")
    hw.set("keep_inner", "always")
    for name, query in STREAM_TABLES.items():
        hw.create(name, query, mode="full" if name == "whole" else "auto")
