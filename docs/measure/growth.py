"""What refreshes leave in the server's own catalogs: dead rows for each refresh, by catalog.

    .venv/bin/python docs/measure/growth.py [--refreshes 200] [--server system]

One session refreshes one stream table, then it goes around several, each after a change of one row. Autovacuum is off, so
that nothing is removed while it is counted. A new process for each refresh is what a line in crontab does.
"""

from __future__ import annotations

import argparse

import psycopg

import headwater
from headwater.embedded import Server, find_installations

CATALOGS = ("pg_attribute", "pg_class", "pg_depend", "pg_index", "pg_statistic", "pg_type")
TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, region text);
CREATE TABLE orders (id int PRIMARY KEY, customer_id int, price numeric, note text);
CREATE INDEX ON orders (customer_id);
INSERT INTO customers SELECT i, 'region ' || i % 10 FROM generate_series(1, 1000) i;
INSERT INTO orders SELECT i, 1 + i % 1000, i % 97, 'note ' || i FROM generate_series(1, 20000) i;
ANALYZE;
"""
QUERIES = (
    "SELECT c.region, count(*) AS n, sum(o.price) AS total FROM orders o"
    " JOIN customers c ON c.id = o.customer_id GROUP BY c.region",
    "SELECT o.id, c.region, o.price FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.price > 90",
    "SELECT customer_id, max(price) AS most, string_agg(note, ',' ORDER BY id) AS notes"
    " FROM orders GROUP BY customer_id",
    "SELECT id, rank() OVER (PARTITION BY customer_id ORDER BY price, id) AS place FROM orders",
    "SELECT c.id, o.id AS order_id FROM customers c LEFT JOIN orders o ON o.customer_id = c.id AND o.price > 95",
)


def dead(connection: psycopg.Connection) -> dict[str, int]:
    connection.execute("SELECT pg_stat_force_next_flush()")
    rows = connection.execute(
        "SELECT relname::text, n_dead_tup FROM pg_stat_sys_tables"
        " WHERE schemaname = 'pg_catalog' AND relname = ANY (%s)",
        (list(CATALOGS),),
    )
    return dict(rows.fetchall())


def measure(server: Server, name: str, tables: int, refreshes: int, *, anew: bool = False) -> None:
    dsn = server.dsn()
    with psycopg.connect(dsn, autocommit=True) as connection:
        hw = headwater.connect(dsn)

        def refresh(number: int) -> None:
            nonlocal hw
            connection.execute("UPDATE orders SET price = price + 1 WHERE id = %s", (1 + number % 20000,))
            if anew:
                hw.close()
                hw = headwater.connect(dsn)
            hw.refresh(f"st{number % tables}")

        for number in range(2 * tables):  # what is done once in a session
            refresh(number)
        connection.execute("VACUUM")
        hw.connection.execute("SELECT pg_stat_force_next_flush()")
        before = dead(connection)
        for number in range(refreshes):
            refresh(number)
        hw.connection.execute("SELECT pg_stat_force_next_flush()")
        hw.close()
        after = dead(connection)
        figures = ", ".join(f"{name} {(after[name] - before[name]) / refreshes:.1f}" for name in CATALOGS)
        print(f"{name}: {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--refreshes", type=int, default=200)
    parser.add_argument("--server", choices=("embedded", "system"), default="embedded")
    options = parser.parse_args()
    found = find_installations()
    installation = next(i for i in found if (i.origin == "wheel") == (options.server == "embedded"))
    with Server.start(installation=installation, fsync=False, settings={"autovacuum": "off"}) as server:
        print(installation)
        with headwater.connect(server.dsn()) as hw:
            hw.init()
            hw.connection.execute("SET search_path = public")
            hw.connection.execute(TABLES)
            hw.connection.execute("SET search_path = ''")
            for number, query in enumerate(QUERIES):
                hw.create(f"st{number}", query, engine="postgres")
        measure(server, "one stream table, one session", 1, options.refreshes)
        measure(server, f"{len(QUERIES)} in turn, one session", len(QUERIES), options.refreshes)
        measure(server, f"{len(QUERIES)} in turn, a session each", len(QUERIES), options.refreshes, anew=True)


if __name__ == "__main__":
    main()
