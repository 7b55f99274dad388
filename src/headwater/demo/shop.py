"""The shop: its tables, the stream tables over them, and customers who never rest.

Everything is derived from a seed: the rows that are loaded and the sequence of the writer's transactions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import psycopg

from headwater.db.connection import Connection

SCHEMA = "headwater_shop"
SEED = 20
CUSTOMERS, PRODUCTS, ORDERS, ITEMS = 10_000, 300, 100_000, 250_000
VIEWS = 1_000_000
VIEWS_AT_ONCE = 40
OPEN_SHARE = 0.1

REGIONS = ("Amazon", "Congo", "Danube", "Ganges", "Mekong", "Nile", "Rhine", "Yukon")
_REGION_WEIGHTS = (14, 9, 12, 18, 11, 16, 13, 7)
_CATEGORIES = ("boats", "camping", "clothing", "fishing", "maps", "optics")
_GOODS = ("paddle", "tent", "jacket", "rod", "atlas", "lens", "rope", "stove", "boots", "lantern")
_FIRST = ("Ada", "Bo", "Cleo", "Dov", "Eli", "Fay", "Gus", "Hana", "Ivo", "Jun", "Kai", "Lea", "Mio", "Noa")
_LAST = ("Brook", "Creek", "Dale", "Ford", "Glen", "Lake", "Marsh", "Pond", "Reed", "Shore", "Wells")

TABLES = f"""
CREATE TABLE {SCHEMA}.customers (
    id integer PRIMARY KEY,
    name text NOT NULL,
    region text NOT NULL
);
CREATE TABLE {SCHEMA}.products (
    id integer PRIMARY KEY,
    name text NOT NULL,
    category text NOT NULL,
    price numeric(10,2) NOT NULL
);
CREATE TABLE {SCHEMA}.orders (
    id integer PRIMARY KEY,
    customer_id integer NOT NULL,
    status text NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE {SCHEMA}.order_items (
    order_id integer NOT NULL,
    line integer NOT NULL,
    product_id integer NOT NULL,
    quantity integer NOT NULL,
    price numeric(10,2) NOT NULL,
    PRIMARY KEY (order_id, line)
);
CREATE TABLE {SCHEMA}.page_views (
    product_id integer NOT NULL,
    milliseconds integer NOT NULL
);
"""

KEYS = f"""
ALTER TABLE {SCHEMA}.orders ADD FOREIGN KEY (customer_id) REFERENCES {SCHEMA}.customers;
ALTER TABLE {SCHEMA}.order_items
    ADD FOREIGN KEY (order_id) REFERENCES {SCHEMA}.orders,
    ADD FOREIGN KEY (product_id) REFERENCES {SCHEMA}.products;
CREATE INDEX ON {SCHEMA}.orders (customer_id);
CREATE INDEX ON {SCHEMA}.order_items (product_id);
ANALYZE {SCHEMA}.customers, {SCHEMA}.products, {SCHEMA}.orders, {SCHEMA}.order_items, {SCHEMA}.page_views;
"""


@dataclass(frozen=True)
class Example:
    """A stream table of the demo."""

    name: str
    shows: str  # the parts of SQL that it demonstrates
    query: str
    schedule: str = "1s"
    large: bool = False  # for Spark

    @property
    def label(self) -> str:
        return f"{SCHEMA}.{self.name}"


EXAMPLES = (
    Example(
        "revenue_by_region",
        "join, count, sum, avg",
        f"""
        SELECT c.region, count(*) AS items, sum(i.quantity * i.price) AS revenue,
               avg(i.price) AS average_price
        FROM {SCHEMA}.customers AS c
        JOIN {SCHEMA}.orders AS o ON o.customer_id = c.id
        JOIN {SCHEMA}.order_items AS i ON i.order_id = o.id
        GROUP BY c.region
        """,
        schedule="calculated",
    ),
    Example(
        "best_sellers",
        "min, max, avg, HAVING",
        f"""
        SELECT p.id, p.name, p.category, sum(i.quantity) AS sold,
               min(i.price) AS cheapest, max(i.price) AS dearest, avg(i.price) AS average_price
        FROM {SCHEMA}.products AS p JOIN {SCHEMA}.order_items AS i ON i.product_id = p.id
        GROUP BY p.id, p.name, p.category
        HAVING sum(i.quantity) >= 2000
        """,
        schedule="2s",
    ),
    Example(
        "open_orders",
        "four tables joined",
        f"""
        SELECT o.id AS order_id, c.name AS customer, c.region, p.name AS product, i.quantity, i.price,
               p.price AS list_price
        FROM {SCHEMA}.orders AS o
        JOIN {SCHEMA}.customers AS c ON c.id = o.customer_id
        JOIN {SCHEMA}.order_items AS i ON i.order_id = o.id
        JOIN {SCHEMA}.products AS p ON p.id = i.product_id
        WHERE o.status = 'open'
        """,
    ),
    Example(
        "waiting_customers",
        "DISTINCT",
        f"""
        SELECT DISTINCT c.name, c.region
        FROM {SCHEMA}.customers AS c JOIN {SCHEMA}.orders AS o ON o.customer_id = c.id
        WHERE o.status = 'open'
        """,
    ),
    Example(
        "revenue_bands",
        "stream table, string_agg",
        f"""
        SELECT floor(revenue / 50000) * 50000 AS at_least, count(*) AS regions,
               string_agg(region, ', ' ORDER BY region) AS names
        FROM {SCHEMA}.revenue_by_region
        GROUP BY floor(revenue / 50000) * 50000
        """,
    ),
    Example(
        "views_by_category",
        f"{VIEWS:,} rows on Spark",
        f"""
        SELECT p.category, count(*) AS views, sum(v.milliseconds) AS milliseconds,
               avg(v.milliseconds) AS average
        FROM {SCHEMA}.page_views AS v JOIN {SCHEMA}.products AS p ON p.id = v.product_id
        GROUP BY p.category
        """,
        schedule="2s",
        large=True,
    ),
)


@dataclass
class Written:
    """What the writer has done so far."""

    transactions: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    placed: int = 0
    shipped: int = 0
    cancelled: int = 0
    priced: int = 0
    moved: int = 0
    viewed: int = 0


class Shop:
    """Loads the shop and keeps trading. It knows its open orders and prices, so it never has to ask."""

    def __init__(self, seed: int = SEED) -> None:
        self.written = Written()
        self._random = random.Random(seed)
        self._prices: list[Decimal] = []
        self._open: list[int] = []
        self._lines: dict[int, int] = {}  # lines of the open orders
        self._last_order = ORDERS
        self._operations: tuple[Callable[[Connection], None], ...] = (
            self._place_order,
            self._ship_orders,
            self._cancel_order,
            self._change_price,
            self._move_customer,
            self._view_pages,
        )

    def load(self, connection: Connection) -> None:
        """Create the tables in the schema, which exists, and fill them."""
        connection.execute(TABLES)
        pick = self._random
        with connection.cursor() as cursor:
            with cursor.copy(f"COPY {SCHEMA}.customers (id, name, region) FROM STDIN") as copy:
                for number in range(1, CUSTOMERS + 1):
                    name = f"{pick.choice(_FIRST)} {pick.choice(_LAST)} {number}"
                    copy.write_row((number, name, self._region()))
            with cursor.copy(f"COPY {SCHEMA}.products (id, name, category, price) FROM STDIN") as copy:
                for number in range(1, PRODUCTS + 1):
                    price = Decimal(pick.randint(200, 9_900)) / 100
                    self._prices.append(price)
                    name = f"{pick.choice(_GOODS)} {number}"
                    copy.write_row((number, name, pick.choice(_CATEGORIES), price))
            lines = [0] * ORDERS
            for number in range(ITEMS):
                lines[number if number < ORDERS else pick.randrange(ORDERS)] += 1
            with cursor.copy(f"COPY {SCHEMA}.orders (id, customer_id, status) FROM STDIN") as copy:
                for number in range(1, ORDERS + 1):
                    is_open = pick.random() < OPEN_SHARE
                    if is_open:
                        self._open.append(number)
                        self._lines[number] = lines[number - 1]
                    status = "open" if is_open else "shipped"
                    copy.write_row((number, pick.randint(1, CUSTOMERS), status))
            columns = "order_id, line, product_id, quantity, price"
            with cursor.copy(f"COPY {SCHEMA}.order_items ({columns}) FROM STDIN") as copy:
                for number in range(1, ORDERS + 1):
                    for line in range(1, lines[number - 1] + 1):
                        copy.write_row((number, line, *self._item()))
        connection.execute(
            f"INSERT INTO {SCHEMA}.page_views SELECT 1 + i %% {PRODUCTS}, 100 + i::bigint * 7919 %% 20000"
            " FROM generate_series(1, %s) AS i",
            (VIEWS,),
        )
        connection.execute(KEYS)

    def trade(self, connection: Connection) -> None:
        """Run one transaction of the shop's day."""
        [operation] = self._random.choices(self._operations, weights=(44, 20, 6, 12, 8, 10))
        with connection.transaction():
            operation(connection)
        self.written.transactions += 1

    def _item(self) -> tuple[int, int, Decimal]:
        """Return product, quantity and price of an order's line; low product numbers sell best."""
        product = int(PRODUCTS * self._random.random() ** 1.5) + 1
        return product, self._random.randint(1, 4), self._prices[product - 1]

    def _region(self) -> str:
        return self._random.choices(REGIONS, weights=_REGION_WEIGHTS)[0]

    def _place_order(self, connection: Connection) -> None:
        self._last_order += 1
        order, lines = self._last_order, self._random.randint(1, 4)
        connection.execute(
            f"INSERT INTO {SCHEMA}.orders (id, customer_id, status) VALUES (%s, %s, 'open')",
            (order, self._random.randint(1, CUSTOMERS)),
        )
        for line in range(1, lines + 1):
            connection.execute(
                f"INSERT INTO {SCHEMA}.order_items VALUES (%s, %s, %s, %s, %s)", (order, line, *self._item())
            )
        self._open.append(order)
        self._lines[order] = lines
        self.written.placed += 1
        self.written.inserted += 1 + lines

    def _ship_orders(self, connection: Connection) -> None:
        orders = [self._take_open() for _ in range(min(2, len(self._open)))]
        connection.execute(
            f"UPDATE {SCHEMA}.orders SET status = 'shipped' WHERE id = ANY(%s)",
            (orders,),
        )
        self.written.shipped += len(orders)
        self.written.updated += len(orders)

    def _cancel_order(self, connection: Connection) -> None:
        if not self._open:
            return
        order = self._take_open()
        connection.execute(f"DELETE FROM {SCHEMA}.order_items WHERE order_id = %s", (order,))
        connection.execute(f"DELETE FROM {SCHEMA}.orders WHERE id = %s", (order,))
        self.written.cancelled += 1
        self.written.deleted += 1 + self._lines.pop(order)

    def _change_price(self, connection: Connection) -> None:
        product = self._random.randint(1, PRODUCTS)
        factor = Decimal(self._random.randint(90, 111)) / 100
        price = max(Decimal("1.00"), (self._prices[product - 1] * factor).quantize(Decimal("0.01")))
        self._prices[product - 1] = price
        connection.execute(f"UPDATE {SCHEMA}.products SET price = %s WHERE id = %s", (price, product))
        self.written.priced += 1
        self.written.updated += 1

    def _move_customer(self, connection: Connection) -> None:
        connection.execute(
            f"UPDATE {SCHEMA}.customers SET region = %s WHERE id = %s",
            (self._region(), self._random.randint(1, CUSTOMERS)),
        )
        self.written.moved += 1
        self.written.updated += 1

    def _view_pages(self, connection: Connection) -> None:
        connection.execute(
            f"INSERT INTO {SCHEMA}.page_views SELECT 1 + (random() * {PRODUCTS - 1})::integer, 100 + i * 37"
            " FROM generate_series(1, %s) AS i",
            (VIEWS_AT_ONCE,),
        )
        self.written.viewed += VIEWS_AT_ONCE
        self.written.inserted += VIEWS_AT_ONCE

    def _take_open(self) -> int:
        return self._open.pop(self._random.randrange(len(self._open)))


def connect_writer(dsn: str) -> Connection:
    """Return the shop's own connection, as an application would have it."""
    connection = psycopg.connect(dsn, autocommit=True, application_name="headwater demo shop")
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection
