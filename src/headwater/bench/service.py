"""The service at scale: thousands of stream tables, graphs, latency, and pools of workers.

Each part measures a real `headwater serve`, a process of its own, and each figure is one of a pair of the
same run: many stream tables against few, a graph against one refresh, the service against the least that can
be done by hand, many workers against few.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from psycopg import sql

from headwater.api import Headwater
from headwater.bench import service_latency, service_pool, service_scale
from headwater.bench.service_latency import Latencies
from headwater.bench.service_pool import PoolRuns
from headwater.bench.service_scale import Progress, ScaleCosts

Part = Literal["scale", "graphs", "latency", "workers"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    stream_tables: tuple[int, ...] = service_scale.SIZES
    changed: tuple[float, ...] = service_scale.PERCENTS  # percent of the sources
    seconds: float = service_scale.SECONDS  # seconds of rest
    depths: tuple[int, ...] = service_latency.DEPTHS
    layers: int = service_latency.LAYERS
    width: int = service_latency.WIDTH
    samples: int = service_latency.SAMPLES
    workers: tuple[int, ...] = service_pool.WORKERS
    worker_tables: int = service_pool.STREAM_TABLES
    bursts: int = service_pool.BURSTS
    rounds: int = service_scale.REPETITIONS
    repetitions: int = service_latency.REPETITIONS


SHORT = Sizes(
    stream_tables=(5, 10),
    changed=(20.0,),
    seconds=1.0,
    depths=(2,),
    layers=2,
    width=2,
    samples=3,
    workers=(2,),
    worker_tables=5,
    bursts=1,
    rounds=1,
    repetitions=1,
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine, and how busy it was with other work."""

    cores: int
    server: str
    load: list[float]  # the average of the last minute, before, between the parts and after


@dataclass(frozen=True, kw_only=True)
class ServiceCosts:
    """All figures of one run; a part that did not run is None."""

    machine: Machine
    scale: ScaleCosts | None
    latency: Latencies | None  # graphs, and from commit to visible
    workers: PoolRuns | None

    @property
    def equal(self) -> bool:
        """True if all stream tables equalled their queries in the end."""
        return (
            (self.scale is None or not self.scale.different)
            and (self.latency is None or self.latency.equal)
            and (self.workers is None or not self.workers.different)
        )


def measure(
    dsn: str,
    sizes: Sizes,
    *,
    parts: Collection[Part] = PARTS,
    keep: bool = False,
    progress: Progress = lambda _: None,
) -> ServiceCosts:
    """Return the figures of some parts; remove what was made for them, unless it is kept for later."""
    load = [os.getloadavg()[0]]
    latency = pools = scale = None
    with Headwater(dsn) as hw:
        server = hw.connection.info.parameter_status("server_version") or ""
        try:
            if "graphs" in parts or "latency" in parts:
                latency = service_latency.measure(
                    dsn,
                    depths=sizes.depths,
                    layers=sizes.layers,
                    width=sizes.width,
                    repetitions=sizes.repetitions if "graphs" in parts else 0,
                    samples=sizes.samples if "latency" in parts else 0,
                    progress=progress,
                )
                load.append(os.getloadavg()[0])
                _clear(hw, service_latency.SCHEMA, progress)
            if "workers" in parts:
                pools = service_pool.measure(
                    dsn,
                    stream_tables=sizes.worker_tables,
                    workers=sizes.workers,
                    bursts=sizes.bursts,
                    progress=progress,
                )
                load.append(os.getloadavg()[0])
            if "scale" in parts:
                scale = service_scale.measure(
                    dsn,
                    sizes=sizes.stream_tables,
                    percents=sizes.changed,
                    seconds=sizes.seconds,
                    repetitions=sizes.rounds,
                    progress=progress,
                )
                load.append(os.getloadavg()[0])
        finally:
            if not keep:
                _clear(hw, service_latency.SCHEMA, progress)
                _clear(hw, service_scale.SCHEMA, progress)
    machine = Machine(cores=os.cpu_count() or 1, server=server, load=load)
    return ServiceCosts(machine=machine, scale=scale, latency=latency, workers=pools)


def _clear(hw: Headwater, schema: str, progress: Progress) -> None:
    """Drop a schema of this measurement with its stream tables, readers first."""
    rows = hw.connection.execute(
        "SELECT table_name FROM headwater.stream_tables WHERE schema_name = %s ORDER BY id DESC", (schema,)
    ).fetchall()
    for number, (name,) in enumerate(rows):
        if number % 100 == 0:
            progress(f"dropping {len(rows) - number:,} stream tables")
        hw.drop(f"{schema}.{name}")
    hw.connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))
