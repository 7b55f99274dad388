"""Takes the picture of `headwater status --watch`, from a real service on a private server.

    python docs/measure/watch.py docs/images/status.svg

A hundred stream tables, a writer, a service, an external worker; one stream table that fails, one that is
suspended, and some that cannot keep up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import ConsoleDimensions

import headwater
from headwater.cli.watch import overview
from headwater.demo.screen import svg
from headwater.embedded import Server

TABLES = 100
SIZE = ConsoleDimensions(150, 26)


def main(target: Path) -> None:
    with Server.start(fsync=False) as server, headwater.connect(server.dsn()) as hw:
        prepare(hw)
        environment = {**os.environ, "HEADWATER_DSN": server.dsn()}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "headwater", *verb],
                env=environment,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for verb in (["serve"], ["worker", "--jobs", "2"])
        ]
        try:
            while True:
                write(hw)
                found = hw.overview()
                states = {glance.state for glance in found.stream_tables}
                if found.workers and states >= {"failing", "suspended", "behind", "running", "waiting"}:
                    break
                time.sleep(0.3)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
        target.write_text(
            svg(overview(found, SIZE), "headwater status --watch", SIZE.width), encoding="utf-8"
        )


def prepare(hw: headwater.Headwater) -> None:
    hw.init()
    hw.connection.execute("CREATE SCHEMA shop")
    for number in range(TABLES):
        hw.connection.execute(f"CREATE TABLE shop.sales_{number} (id serial, region int, amount numeric)")
        query = f"SELECT region, sum(amount) AS total FROM shop.sales_{number} GROUP BY region"
        hw.create(f"shop.revenue_{number}", query, schedule=("1s", "2s", "30s", "0 * * * *")[number % 4])
    hw.create("shop.shares", "SELECT id, 1 / amount AS x FROM shop.sales_1", schedule="1m")
    hw.create("shop.ratios", "SELECT id, 2 / amount AS x FROM shop.sales_2", schedule="50ms")
    for name in ("shop.shares", "shop.ratios"):
        hw.connection.execute(
            "UPDATE headwater.stream_table SET tier = 'hot' WHERE table_name = split_part(%s, '.', 2)",
            (name,),
        )
    hw.connection.execute("INSERT INTO shop.sales_1 (region, amount) VALUES (1, 0)")
    hw.connection.execute("INSERT INTO shop.sales_2 (region, amount) VALUES (1, 0)")


def write(hw: headwater.Headwater) -> None:
    for number in range(0, TABLES, 3):
        hw.connection.execute(
            f"INSERT INTO shop.sales_{number} (region, amount)"
            " SELECT n %% 9, n FROM generate_series(1, %s) AS n",
            (20 * (1 + number % 5),),
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
