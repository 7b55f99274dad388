"""The tables of TPC-H at any scale, filled and changed by SQL alone.

A value is a hash of the row's key, the column's name and a seed: the same seed gives the same rows. They are
distributed as in the standard, with exceptions that let every query find rows at tiny scales too: there are
at least a hundred suppliers, each nation has one, and a constant number of parts and orders satisfy the
rarest conditions of the queries.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from psycopg import sql

from headwater.db.connection import Connection, one, transaction
from headwater.db.scratch import statement

SCHEMA = "headwater_tpch"
SEED = 1
LINES = 4
"""Lines of an order, on average."""

TURNOVER = 1 / 4
"""The share of new rows in a change, and of deleted ones; the others are updated."""

_TABLES = """
CREATE TABLE region (r_regionkey integer, r_name text, r_comment text);
CREATE TABLE nation (
    n_nationkey integer, n_name text, n_regionkey integer NOT NULL, n_comment text
);
CREATE TABLE supplier (
    s_suppkey integer, s_name text NOT NULL, s_address text NOT NULL, s_nationkey integer NOT NULL,
    s_phone text NOT NULL, s_acctbal numeric NOT NULL, s_comment text NOT NULL
);
CREATE TABLE part (
    p_partkey integer, p_name text NOT NULL, p_mfgr text NOT NULL, p_brand text NOT NULL,
    p_type text NOT NULL, p_size integer NOT NULL, p_container text NOT NULL, p_retailprice numeric NOT NULL,
    p_comment text NOT NULL
);
CREATE TABLE partsupp (
    ps_partkey integer, ps_suppkey integer, ps_availqty integer NOT NULL, ps_supplycost numeric NOT NULL,
    ps_comment text NOT NULL
);
CREATE TABLE customer (
    c_custkey integer, c_name text NOT NULL, c_address text NOT NULL, c_nationkey integer NOT NULL,
    c_phone text NOT NULL, c_acctbal numeric NOT NULL, c_mktsegment text NOT NULL, c_comment text NOT NULL
);
CREATE TABLE orders (
    o_orderkey bigint, o_custkey integer NOT NULL, o_orderstatus text NOT NULL, o_totalprice numeric NOT NULL,
    o_orderdate date NOT NULL, o_orderpriority text NOT NULL, o_clerk text NOT NULL,
    o_shippriority integer NOT NULL, o_comment text NOT NULL
);
CREATE TABLE lineitem (
    l_orderkey bigint, l_linenumber integer, l_partkey integer NOT NULL, l_suppkey integer NOT NULL,
    l_quantity numeric NOT NULL, l_extendedprice numeric NOT NULL, l_discount numeric NOT NULL,
    l_tax numeric NOT NULL, l_returnflag text NOT NULL, l_linestatus text NOT NULL, l_shipdate date NOT NULL,
    l_commitdate date NOT NULL, l_receiptdate date NOT NULL, l_shipinstruct text NOT NULL,
    l_shipmode text NOT NULL, l_comment text NOT NULL
);

-- A number from 0 below the number of choices, by chance.
CREATE FUNCTION draw(key bigint, what text, seed bigint, choices integer) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((hashint8extended(key, hashtextextended(what, seed)) & 9223372036854775807) % choices)::integer;

CREATE FUNCTION word(key bigint, what text, seed bigint, words text[]) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN words[1 + draw(key, what, seed, cardinality(words))];

-- The suppliers of a part, from 0 to 3, as the standard spreads them.
CREATE FUNCTION offered(part integer, number integer, suppliers integer) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (part + number * (suppliers / 4 + (part - 1) / suppliers)) % suppliers + 1;

CREATE FUNCTION price(part integer) RETURNS numeric
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (90000 + (part / 10) % 20001 + 100 * (part % 1000)) * 0.01;
"""

_KEYS = """
ALTER TABLE region ADD PRIMARY KEY (r_regionkey);
ALTER TABLE nation ADD PRIMARY KEY (n_nationkey);
ALTER TABLE supplier ADD PRIMARY KEY (s_suppkey);
ALTER TABLE part ADD PRIMARY KEY (p_partkey);
ALTER TABLE partsupp ADD PRIMARY KEY (ps_partkey, ps_suppkey);
ALTER TABLE customer ADD PRIMARY KEY (c_custkey);
ALTER TABLE orders ADD PRIMARY KEY (o_orderkey);
ALTER TABLE lineitem ADD PRIMARY KEY (l_orderkey, l_linenumber);
"""

_INDEXES = """
CREATE INDEX ON nation (n_regionkey);
CREATE INDEX ON supplier (s_nationkey);
CREATE INDEX ON partsupp (ps_suppkey);
CREATE INDEX ON customer (c_nationkey);
CREATE INDEX ON orders (o_custkey);
CREATE INDEX ON lineitem (l_partkey, l_suppkey);
CREATE INDEX ON lineitem (l_suppkey);
"""

_ANALYZE = """
ANALYZE region, nation, supplier, part,
    partsupp, customer, orders, lineitem
"""

REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
NATIONS = (
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0),
    ("FRANCE", 3), ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2),
    ("JORDAN", 4), ("KENYA", 0), ("MOROCCO", 0), ("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2),
    ("ROMANIA", 3), ("SAUDI ARABIA", 4), ("VIETNAM", 2), ("RUSSIA", 3), ("UNITED KINGDOM", 3),
    ("UNITED STATES", 1),
)  # fmt: skip

_WORDS = {
    "colours": (
        "almond antique aquamarine azure beige bisque black blanched blue blush brown burlywood burnished"
        " chartreuse chiffon chocolate coral cornflower cornsilk cream cyan dark deep dim dodger drab"
        " firebrick floral forest frosted gainsboro ghost goldenrod green grey honeydew hot indian ivory"
        " khaki lace lavender lawn lemon light lime linen magenta maroon medium metallic midnight mint misty"
        " moccasin navajo navy olive orange orchid pale papaya peach peru pink plum powder puff purple red"
        " rose rosy royal saddle salmon sandy seashell sienna sky slate smoke snow spring steel tan thistle"
        " tomato turquoise violet wheat white yellow"
    ).split(),
    "finishes": "STANDARD SMALL MEDIUM LARGE ECONOMY PROMO".split(),
    "coatings": "ANODIZED BURNISHED PLATED POLISHED BRUSHED".split(),
    "metals": "TIN NICKEL BRASS STEEL COPPER".split(),
    "sizes": "SM MED LG JUMBO WRAP".split(),
    "boxes": "CASE BOX BAG JAR PKG PACK CAN DRUM".split(),
    "segments": "AUTOMOBILE BUILDING FURNITURE MACHINERY HOUSEHOLD".split(),
    "priorities": ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"],
    "instructions": ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"],
    "modes": ["AIR", "AIR REG", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"],
    "remarks": (
        "carefully final deposits,quickly ironic packages,furiously bold accounts,blithely regular ideas,"
        "slyly express instructions,special packages sleep after requests,pending pinto beans wake"
    ).split(","),
}

_PHONE = "(10 + {nation}) || '-' || (100 + {number}) || '-' || (1000 + {number} * 7 % 9000)"

_SUPPLIERS = f"""
INSERT INTO supplier
SELECT s.key, 'Supplier#' || lpad(s.key::text, 9, '0'), 'Road ' || draw(s.key, 's_address', {{seed}}, 10000),
    s.nation, {_PHONE.format(nation="s.nation", number="draw(s.key, 's_phone', {seed}, 900)")},
    draw(s.key, 's_acctbal', {{seed}}, 1099999) * 0.01 - 999.99,
    CASE s.key % 500 WHEN 13 THEN 'Customer Complaints' WHEN 14 THEN 'Customer Recommends'
        ELSE word(s.key, 's_comment', {{seed}}, {{remarks}}) END
FROM (
    SELECT key, CASE WHEN key <= 25 THEN key - 1 ELSE draw(key, 's_nationkey', {{seed}}, 25) END AS nation
    FROM generate_series({{first}}, {{last}}) AS key
) AS s
"""

# The first parts have what queries 2, 8, 17, 19 and 20 look for.
_PARTS = """
INSERT INTO part
SELECT p.key,
    CASE WHEN p.wanted THEN 'forest' ELSE word(p.key, 'p_name 1', {seed}, {colours}) END
        || ' ' || word(p.key, 'p_name 2', {seed}, {colours})
        || ' ' || word(p.key, 'p_name 3', {seed}, {colours})
        || ' ' || word(p.key, 'p_name 4', {seed}, {colours})
        || ' ' || word(p.key, 'p_name 5', {seed}, {colours}),
    'Manufacturer#' || left(p.brand, 1), 'Brand#' || p.brand,
    CASE WHEN p.wanted THEN (ARRAY['ECONOMY ANODIZED STEEL', 'LARGE PLATED BRASS'])[1 + p.key % 2]
        ELSE word(p.key, 'p_type 1', {seed}, {finishes}) || ' ' || word(p.key, 'p_type 2', {seed}, {coatings})
            || ' ' || word(p.key, 'p_type 3', {seed}, {metals}) END,
    CASE WHEN p.wanted THEN (ARRAY[5, 15])[1 + p.key % 2] ELSE 1 + draw(p.key, 'p_size', {seed}, 50) END,
    CASE WHEN p.wanted THEN (ARRAY['SM BOX', 'MED BOX', 'LG BOX'])[1 + p.key % 3]
        ELSE word(p.key, 'p_container 1', {seed}, {sizes})
            || ' ' || word(p.key, 'p_container 2', {seed}, {boxes}) END,
    price(p.key), word(p.key, 'p_comment', {seed}, {remarks})
FROM (
    SELECT key, key <= 30 AS wanted,
        CASE WHEN key <= 30 THEN (ARRAY['12', '23', '34'])[1 + key % 3]
            ELSE (10 * (1 + draw(key, 'p_mfgr', {seed}, 5)) + 1 + draw(key, 'p_brand', {seed}, 5))::text END
            AS brand
    FROM generate_series({first}, {last}) AS key
) AS p
"""

_PARTSUPPS = """
INSERT INTO partsupp
SELECT p.key, offered(p.key, n.number, {suppliers}),
    1 + draw(4 * p.key + n.number, 'ps_availqty', {seed}, 9999),
    1 + draw(4 * p.key + n.number, 'ps_supplycost', {seed}, 99901) * 0.01,
    word(4 * p.key + n.number, 'ps_comment', {seed}, {remarks})
FROM generate_series({first}, {last}) AS p (key), generate_series(0, 3) AS n (number)
"""

_CUSTOMERS = f"""
INSERT INTO customer
SELECT c.key, 'Customer#' || lpad(c.key::text, 9, '0'), 'Road ' || draw(c.key, 'c_address', {{seed}}, 100000),
    c.nation, {_PHONE.format(nation="c.nation", number="draw(c.key, 'c_phone', {seed}, 900)")},
    draw(c.key, 'c_acctbal', {{seed}}, 1099999) * 0.01 - 999.99,
    word(c.key, 'c_mktsegment', {{seed}}, {{segments}}), word(c.key, 'c_comment', {{seed}}, {{remarks}})
FROM (
    SELECT key, draw(key, 'c_nationkey', {{seed}}, 25) AS nation
    FROM generate_series({{first}}, {{last}}) AS key
) AS c
"""

_ORDER_DATE = "date '1992-01-01' + draw(o.key, 'o_orderdate', {seed}, 2406)"

# The first orders are large enough for query 18.
_LINEITEMS = f"""
INSERT INTO lineitem
SELECT d.orderkey, d.number, d.part, offered(d.part, draw(d.key, 'l_suppkey', {{seed}}, 4), {{suppliers}}),
    d.quantity, d.quantity * price(d.part), draw(d.key, 'l_discount', {{seed}}, 11) * 0.01,
    draw(d.key, 'l_tax', {{seed}}, 9) * 0.01,
    CASE WHEN d.received > date '1995-06-17' THEN 'N'
        ELSE word(d.key, 'l_returnflag', {{seed}}, ARRAY['R', 'A']) END,
    CASE WHEN d.shipped > date '1995-06-17' THEN 'O' ELSE 'F' END,
    d.shipped, d.ordered + 30 + draw(d.key, 'l_commitdate', {{seed}}, 61), d.received,
    word(d.key, 'l_shipinstruct', {{seed}}, {{instructions}}), word(d.key, 'l_shipmode', {{seed}}, {{modes}}),
    word(d.key, 'l_comment', {{seed}}, {{remarks}})
FROM (
    SELECT l.*, l.shipped + 1 + draw(l.key, 'l_receiptdate', {{seed}}, 30) AS received
    FROM (
        SELECT o.key AS orderkey, n.number, 8 * o.key + n.number AS key, {_ORDER_DATE} AS ordered,
            1 + draw(8 * o.key + n.number, 'l_partkey', {{seed}}, {{parts}}) AS part,
            CASE WHEN o.key <= 20 THEN 44 + draw(8 * o.key + n.number, 'l_quantity', {{seed}}, 7)
                ELSE 1 + draw(8 * o.key + n.number, 'l_quantity', {{seed}}, 50) END AS quantity,
            {_ORDER_DATE} + 1 + draw(8 * o.key + n.number, 'l_shipdate', {{seed}}, 121) AS shipped
        FROM generate_series({{first}}::bigint, {{last}}) AS o (key),
            generate_series(
                1, CASE WHEN o.key <= 20 THEN 7 ELSE 1 + draw(o.key, 'lines', {{seed}}, 7) END
            ) AS n (number)
    ) AS l
) AS d
"""

# A third of the customers never order anything, as in the standard.
_ORDERS = f"""
INSERT INTO orders
SELECT o.key,
    3 * draw(o.key, 'o_custkey', {{seed}}, {{customers}} / 3) + 1 + draw(o.key, 'o_custkey 3', {{seed}}, 2),
    o.status, o.total, {_ORDER_DATE}, word(o.key, 'o_orderpriority', {{seed}}, {{priorities}}),
    'Clerk#' || draw(o.key, 'o_clerk', {{seed}}, 1000), 0, word(o.key, 'o_comment', {{seed}}, {{remarks}})
FROM (
    SELECT l_orderkey AS key, round(sum(l_extendedprice * (1 + l_tax) * (1 - l_discount)), 2) AS total,
        CASE WHEN every(l_linestatus = 'F') THEN 'F' WHEN every(l_linestatus = 'O') THEN 'O' ELSE 'P' END
            AS status
    FROM lineitem
    WHERE l_orderkey BETWEEN {{first}} AND {{last}}
    GROUP BY l_orderkey
) AS o
"""

_LARGEST_KEYS = """
SELECT (SELECT max(s_suppkey) FROM supplier), (SELECT max(p_partkey) FROM part),
    (SELECT max(c_custkey) FROM customer), (SELECT max(o_orderkey)::integer FROM orders)
"""
_COUNTS = """
SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM customer), (SELECT count(*) FROM part),
    (SELECT count(*) FROM partsupp)
"""


def _chosen(what: str, most: str) -> str:
    """Return random keys, from 1 to the largest one."""
    return (
        f"(SELECT DISTINCT 1 + draw(number, '{what}', {{seed}}, {{{most}}}) AS key"
        " FROM generate_series(1, {rows}) AS number) AS chosen"
    )


_UPDATE_LINEITEMS = f"""
UPDATE lineitem
SET l_quantity = 1 + draw(chosen.key, 'l_quantity', {{seed}}, 50),
    l_extendedprice = (1 + draw(chosen.key, 'l_quantity', {{seed}}, 50)) * price(l_partkey),
    l_discount = draw(chosen.key, 'l_discount', {{seed}}, 11) * 0.01,
    l_receiptdate = l_shipdate + 1 + draw(chosen.key, 'l_receiptdate', {{seed}}, 30)
FROM {_chosen("lineitems", "orders")}
WHERE l_orderkey = chosen.key AND l_linenumber = 1 + draw(chosen.key, 'l_linenumber', {{seed}}, 7)
"""
_UPDATE_ORDERS = f"""
UPDATE orders
SET o_orderpriority = word(o_orderkey, 'o_orderpriority', {{seed}}, {{priorities}}),
    o_totalprice = o_totalprice + 1, o_comment = word(o_orderkey, 'o_comment', {{seed}}, {{remarks}})
FROM {_chosen("orders", "orders")} WHERE o_orderkey = chosen.key
"""
_DELETE_LINEITEMS = (
    f"DELETE FROM lineitem USING {_chosen('old orders', 'orders')} WHERE l_orderkey = chosen.key"
)
_DELETE_ORDERS = f"DELETE FROM orders USING {_chosen('old orders', 'orders')} WHERE o_orderkey = chosen.key"

# One in four moves: to another nation, market or kind.
_UPDATE_CUSTOMERS = f"""
UPDATE customer
SET c_acctbal = draw(c_custkey, 'c_acctbal', {{seed}}, 1099999) * 0.01 - 999.99,
    c_mktsegment = CASE WHEN chosen.key % 4 = 0 THEN word(c_custkey, 'c_mktsegment', {{seed}}, {{segments}})
        ELSE c_mktsegment END,
    c_nationkey = CASE WHEN chosen.key % 4 = 1 THEN draw(c_custkey, 'c_nationkey', {{seed}}, 25)
        ELSE c_nationkey END
FROM {_chosen("customers", "customers")} WHERE c_custkey = chosen.key
"""
# Every third one never orders.
_DELETE_CUSTOMERS = f"""
DELETE FROM customer USING {_chosen("old customers", "customers")}
WHERE c_custkey = chosen.key - chosen.key % 3
"""
_UPDATE_SUPPLIERS = f"""
UPDATE supplier
SET s_acctbal = draw(s_suppkey, 's_acctbal', {{seed}}, 1099999) * 0.01 - 999.99,
    s_nationkey = CASE WHEN chosen.key % 4 = 0 THEN draw(s_suppkey, 's_nationkey', {{seed}}, 25)
        ELSE s_nationkey END,
    s_comment = CASE WHEN chosen.key % 4 = 1 THEN 'no Customer ever had Complaints' ELSE s_comment END
FROM {_chosen("suppliers", "suppliers")} WHERE s_suppkey = chosen.key
"""
_UPDATE_PARTS = f"""
UPDATE part
SET p_retailprice = p_retailprice + 1,
    p_size = CASE WHEN chosen.key % 4 = 0 THEN 1 + draw(p_partkey, 'p_size', {{seed}}, 50) ELSE p_size END
FROM {_chosen("parts", "parts")} WHERE p_partkey = chosen.key
"""
_UPDATE_PARTSUPPS = f"""
UPDATE partsupp
SET ps_availqty = 1 + draw(ps_partkey, 'ps_availqty', {{seed}}, 9999),
    ps_supplycost = 1 + draw(ps_partkey, 'ps_supplycost', {{seed}}, 99901) * 0.01
FROM {_chosen("partsupps", "parts")}
WHERE ps_partkey = chosen.key AND ps_suppkey = offered(chosen.key, chosen.key % 4, {{suppliers}})
"""
_DELETE_PARTSUPPS = f"""
DELETE FROM partsupp USING {_chosen("old partsupps", "parts")}
WHERE ps_partkey = chosen.key AND ps_suppkey = offered(chosen.key, 3, {{suppliers}})
"""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the tables; a part has four partsupps, an order four lineitems on average."""

    suppliers: int
    parts: int
    customers: int
    orders: int


def sizes(scale: float) -> Sizes:
    """Return the standard's sizes at a scale.

    >>> sizes(0.001)
    Sizes(suppliers=100, parts=200, customers=150, orders=1500)
    """
    return Sizes(
        suppliers=max(100, round(10_000 * scale)),
        parts=max(100, round(200_000 * scale)),
        customers=max(100, round(150_000 * scale)),
        orders=max(100, round(1_500_000 * scale)),
    )


def load(connection: Connection, scale: float, *, seed: int = SEED, indexes: bool = True) -> None:
    """Recreate the tables; `indexes` are those on foreign keys, which the standard leaves to the user."""
    clear(connection)
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
    size = sizes(scale)
    with _inside(connection):
        connection.execute(statement(_TABLES))
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO region VALUES (%s, %s, '')", list(enumerate(REGIONS)))
            cursor.executemany(
                "INSERT INTO nation VALUES (%s, %s, %s, '')",
                [(key, name, region) for key, (name, region) in enumerate(NATIONS)],
            )
        for text, last in (
            (_SUPPLIERS, size.suppliers),
            (_PARTS, size.parts),
            (_PARTSUPPS, size.parts),
            (_CUSTOMERS, size.customers),
            (_LINEITEMS, size.orders),
            (_ORDERS, size.orders),
        ):
            _run(connection, text, size, seed, first=1, last=last)
        connection.execute(statement(_KEYS))
        if indexes:
            connection.execute(statement(_INDEXES))
        connection.execute(statement(_ANALYZE))


def clear(connection: Connection) -> None:
    """Remove the tables, if they exist."""
    connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(SCHEMA)))


def read_once(connection: Connection) -> None:
    """Read all rows, so that their hint bits are set: the first reader after a write does that."""
    with _inside(connection):
        for table in ("supplier", "part", "partsupp", "customer", "orders", "lineitem"):
            connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table)))


def change(connection: Connection, fraction: float, seed: int) -> None:
    """Touch about a fraction of the rows of each table but nation and region, in several transactions.

    Orders are added and deleted with their lineitems, parts are added with their partsupps, customers are
    added, and deleted if they never order. The same seed makes the same change to the same rows.
    """
    with _inside(connection):
        size = Sizes(*one(connection, _LARGEST_KEYS))
        orders, customers, parts, offers = one(connection, _COUNTS)
    chance = random.Random(seed)

    def share(count: float) -> int:
        # Rounded up or down at random: a small change of a small table is mostly none.
        return math.floor(count * fraction + chance.random())

    turnover = max(1, share(orders * TURNOVER))
    updates = max(1, share(orders * LINES * (1 - 2 * TURNOVER)))
    came, new_parts = share(customers * TURNOVER), share(parts * TURNOVER)
    with _inside(connection):
        # A chosen line exists in four of seven cases.
        _run(connection, _UPDATE_LINEITEMS, size, seed, rows=updates * 7 // 4 + 1)
        _run(connection, _UPDATE_ORDERS, size, seed, rows=share(orders / 2))
    with _inside(connection):
        for text in (_DELETE_LINEITEMS, _DELETE_ORDERS):
            _run(connection, text, size, seed, rows=turnover)
    with _inside(connection):
        for text in (_LINEITEMS, _ORDERS):
            _run(connection, text, size, seed, first=size.orders + 1, last=size.orders + turnover)
    with _inside(connection):
        _run(connection, _UPDATE_CUSTOMERS, size, seed, rows=share(customers / 2))
        _run(connection, _DELETE_CUSTOMERS, size, seed, rows=came)
        _run(connection, _CUSTOMERS, size, seed, first=size.customers + 1, last=size.customers + came)
    with _inside(connection):
        _run(connection, _UPDATE_SUPPLIERS, size, seed, rows=share(size.suppliers))
        _run(connection, _UPDATE_PARTS, size, seed, rows=share(parts / 2))
        _run(connection, _UPDATE_PARTSUPPS, size, seed, rows=share(offers / 2))
        _run(connection, _DELETE_PARTSUPPS, size, seed, rows=share(offers * TURNOVER))
        for text in (_PARTS, _PARTSUPPS):
            _run(connection, text, size, seed, first=size.parts + 1, last=size.parts + new_parts)


@contextmanager
def _inside(connection: Connection) -> Iterator[None]:
    """Run a transaction that finds the tables and functions by their bare names."""
    with transaction(connection):
        connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(SCHEMA)))
        yield


def _run(connection: Connection, text: str, size: Sizes, seed: int, **numbers: int) -> None:
    values = {**asdict(size), **_WORDS, "seed": seed, **numbers}
    connection.execute(statement(text).format(**{name: sql.Literal(value) for name, value in values.items()}))
