"""Nexmark: an auction house, with queries 0 to 9 over its tables instead of over streams.

Windows of event time in the original are buckets of time here: a bucket is complete at any moment, and
changes when a late row comes. A sliding window is a bucket too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import sql

from headwater.db.connection import Connection, one, transaction
from headwater.db.scratch import statement

SCHEMA = "headwater_nexmark"
SEED = 1
INSERTED, UPDATED, DELETED = 0.7, 0.2, 0.1
"""The shares of inserts, updates and deletes in a change."""

QUERIES = {
    # Everything, as it is.
    0: """
SELECT id, auction, bidder, price, channel, date_time FROM headwater_nexmark.bid
""",
    # Another currency.
    1: """
SELECT id, auction, bidder, 0.908 * price AS price, date_time FROM headwater_nexmark.bid
""",
    # Some auctions.
    2: """
SELECT id, auction, price FROM headwater_nexmark.bid WHERE auction % 123 = 0
""",
    # Who sells in certain states?
    3: """
SELECT p.name, p.city, p.state, a.id
FROM headwater_nexmark.auction AS a JOIN headwater_nexmark.person AS p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
""",
    # The average winning price of a category.
    4: """
SELECT q.category, avg(q.final) AS average
FROM (
    SELECT max(b.price) AS final, a.category
    FROM headwater_nexmark.auction AS a JOIN headwater_nexmark.bid AS b ON a.id = b.auction
    WHERE b.date_time BETWEEN a.date_time AND a.expires
    GROUP BY a.id, a.category
) AS q
GROUP BY q.category
""",
    # The auctions with the most bids in each ten seconds.
    5: """
SELECT counted.auction, counted.num, counted.start_time
FROM (
    SELECT auction, count(*) AS num, date_bin('10 seconds', date_time, timestamp '2020-01-01') AS start_time
    FROM headwater_nexmark.bid
    GROUP BY auction, date_bin('10 seconds', date_time, timestamp '2020-01-01')
) AS counted
JOIN (
    SELECT max(each.num) AS most, each.start_time
    FROM (
        SELECT count(*) AS num, date_bin('10 seconds', date_time, timestamp '2020-01-01') AS start_time
        FROM headwater_nexmark.bid
        GROUP BY auction, date_bin('10 seconds', date_time, timestamp '2020-01-01')
    ) AS each
    GROUP BY each.start_time
) AS top ON counted.start_time = top.start_time AND counted.num >= top.most
""",
    # The average price of a seller's last ten sales.
    6: """
SELECT q.seller, q.id,
    avg(q.final) OVER (
        PARTITION BY q.seller ORDER BY q.expires, q.id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
    ) AS average
FROM (
    SELECT a.id, a.seller, a.expires, max(b.price) AS final
    FROM headwater_nexmark.auction AS a JOIN headwater_nexmark.bid AS b ON a.id = b.auction
    WHERE b.date_time BETWEEN a.date_time AND a.expires
    GROUP BY a.id, a.seller, a.expires
) AS q
""",
    # The highest bids of each ten seconds.
    7: """
SELECT b.auction, b.price, b.bidder, b.date_time
FROM headwater_nexmark.bid AS b
JOIN (
    SELECT max(price) AS price, date_bin('10 seconds', date_time, timestamp '2020-01-01') AS start_time
    FROM headwater_nexmark.bid
    GROUP BY date_bin('10 seconds', date_time, timestamp '2020-01-01')
) AS top
    ON b.price = top.price AND date_bin('10 seconds', b.date_time, timestamp '2020-01-01') = top.start_time
""",
    # Who started to sell within the ten seconds of joining?
    8: """
SELECT p.id, p.name, p.start_time
FROM (
    SELECT id, name, date_bin('10 seconds', date_time, timestamp '2020-01-01') AS start_time
    FROM headwater_nexmark.person
    GROUP BY id, name, date_bin('10 seconds', date_time, timestamp '2020-01-01')
) AS p
JOIN (
    SELECT seller, date_bin('10 seconds', date_time, timestamp '2020-01-01') AS start_time
    FROM headwater_nexmark.auction
    GROUP BY seller, date_bin('10 seconds', date_time, timestamp '2020-01-01')
) AS a ON p.id = a.seller AND p.start_time = a.start_time
""",
    # The winning bid of each auction.
    9: """
SELECT ranked.id, ranked.item_name, ranked.seller, ranked.bidder, ranked.price, ranked.bid_time
FROM (
    SELECT a.id, a.item_name, a.seller, b.bidder, b.price, b.date_time AS bid_time,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.id) AS place
    FROM headwater_nexmark.auction AS a JOIN headwater_nexmark.bid AS b ON a.id = b.auction
    WHERE b.date_time BETWEEN a.date_time AND a.expires
) AS ranked
WHERE ranked.place <= 1
""",
}

_TABLES = """
CREATE TABLE person (
    id bigint PRIMARY KEY, name text NOT NULL, email text NOT NULL, city text NOT NULL, state text NOT NULL,
    date_time timestamp NOT NULL
);
CREATE TABLE auction (
    id bigint PRIMARY KEY, item_name text NOT NULL, initial_bid bigint NOT NULL, reserve bigint NOT NULL,
    date_time timestamp NOT NULL, expires timestamp NOT NULL, seller bigint NOT NULL,
    category integer NOT NULL
);
CREATE TABLE bid (
    id bigint PRIMARY KEY, auction bigint NOT NULL, bidder bigint NOT NULL, price bigint NOT NULL,
    channel text NOT NULL, date_time timestamp NOT NULL
);
CREATE INDEX ON auction (seller);
CREATE INDEX ON bid (auction);
CREATE INDEX ON bid (bidder);

-- A number from 0 below the number of choices, by chance.
CREATE FUNCTION draw(key bigint, what text, seed bigint, choices bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (hashint8extended(key, hashtextextended(what, seed)) & 9223372036854775807) % choices;

-- When an event happens: ten in a second.
CREATE FUNCTION at(event bigint) RETURNS timestamp
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN timestamp '2020-01-01' + event * interval '100 milliseconds';
"""

# As in the original: of each fifty events, the first is a person, three are auctions, and the others bids.
_INSERTS = (
    """
INSERT INTO person
SELECT event, 'person ' || draw(event, 'name', {seed}, 1000), 'mail' || event || '@example.com',
    'city ' || draw(event, 'city', {seed}, 20),
    (ARRAY['AZ', 'CA', 'ID', 'OR', 'WA', 'WY'])[1 + draw(event, 'state', {seed}, 6)], at(event)
FROM generate_series({first}::bigint, {last}) AS event
WHERE event % 50 = 0
""",
    # Sellers are mostly new: half of them among the last ten persons.
    """
INSERT INTO auction
SELECT event, 'item ' || draw(event, 'item', {seed}, 1000), draw(event, 'initial', {seed}, 100),
    100 + draw(event, 'reserve', {seed}, 1000), at(event),
    at(event) + (1 + draw(event, 'expires', {seed}, 20)) * interval '1 second',
    event / 50 * 50 - 50 * draw(
        event, 'seller', {seed}, least(event / 50 + 1, CASE WHEN event % 2 = 0 THEN 10 END)
    ),
    10 + draw(event, 'category', {seed}, 5)
FROM generate_series({first}::bigint, {last}) AS event
WHERE event % 50 BETWEEN 1 AND 3
""",
    # Bids are for the auctions of the last fifties, most of them open; one of these is hot.
    """
INSERT INTO bid
SELECT event,
    event / 50 * 50 - 50 * draw(event, 'age', {seed}, least(event / 50 + 1, 3))
        + CASE WHEN event % 2 = 0 THEN 1 ELSE 1 + draw(event, 'auction', {seed}, 3) END,
    50 * draw(event, 'bidder', {seed}, event / 50 + 1), 1 + draw(event, 'price', {seed}, 10000),
    (ARRAY['Google', 'Facebook', 'Baidu', 'Apple'])[1 + draw(event, 'channel', {seed}, 4)], at(event)
FROM generate_series({first}::bigint, {last}) AS event
WHERE event % 50 > 3
""",
)

# Each statement finds, among the chosen events, those of its table.
_CHOSEN = (
    "(SELECT DISTINCT draw(n, {what}, {seed}, {events}) AS id FROM generate_series(1, {rows}) AS n) AS c"
)
_UPDATES = (
    f"UPDATE bid SET price = 1 + draw(c.id, 'price', {{seed}}, 10000) FROM {_CHOSEN} WHERE bid.id = c.id",
    f"""
UPDATE auction
SET category = 10 + draw(c.id, 'category', {{seed}}, 5), expires = expires + interval '5 seconds'
FROM {_CHOSEN} WHERE auction.id = c.id
""",
    f"""
UPDATE person SET state = (ARRAY['CA', 'WY'])[1 + draw(c.id, 'state', {{seed}}, 2)]
FROM {_CHOSEN} WHERE person.id = c.id
""",
)
_DELETES = tuple(
    f"DELETE FROM {table} USING {_CHOSEN} WHERE {table}.id = c.id" for table in ("bid", "auction", "person")
)


_EVENTS = """
SELECT 1 + greatest((SELECT max(id) FROM person), (SELECT max(id) FROM auction), (SELECT max(id) FROM bid))
"""


def load(connection: Connection, events: int, *, seed: int = SEED) -> None:
    """Recreate the tables, from this many events."""
    clear(connection)
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
    with _inside(connection):
        connection.execute(statement(_TABLES))
        for text in _INSERTS:
            _run(connection, text, seed=seed, first=0, last=events - 1)
        connection.execute("ANALYZE person, auction, bid")


def clear(connection: Connection) -> None:
    """Remove the tables, if they exist."""
    connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(SCHEMA)))


def change(connection: Connection, fraction: float, seed: int) -> None:
    """Add events, and update and delete some old ones, each kind in a transaction.

    The same seed makes the same change to the same rows.
    """
    with _inside(connection):
        (events,) = one(connection, _EVENTS)
    chance = random.Random(seed)
    inserted, updated, deleted = (
        math.floor(events * fraction * share + chance.random()) for share in (INSERTED, UPDATED, DELETED)
    )
    with _inside(connection):
        for text in _INSERTS:
            _run(connection, text, seed=seed, first=events, last=events + inserted)
    with _inside(connection):
        for text in _UPDATES:
            _run(connection, text, seed=seed, what="updated", events=events, rows=updated)
    with _inside(connection):
        for text in _DELETES:
            _run(connection, text, seed=seed, what="deleted", events=events, rows=deleted)


@contextmanager
def _inside(connection: Connection) -> Iterator[None]:
    """Run a transaction that finds the tables and functions by their bare names."""
    with transaction(connection):
        connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(SCHEMA)))
        yield


def _run(connection: Connection, text: str, **values: int | str) -> None:
    connection.execute(statement(text).format(**{name: sql.Literal(value) for name, value in values.items()}))
