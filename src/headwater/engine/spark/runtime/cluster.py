"""What executors on other machines need, and a clear error when it is missing.

Code of ours travels with the tasks that run it, so executors need not have Headwater. They need the minor
version of Python that runs here, pyarrow and the ADBC driver, and a route to PostgreSQL.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.engine.spark.runtime.connect import is_connect
from headwater.errors import EngineUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

MODULES = ("pyarrow", "pandas", "adbc_driver_manager", "adbc_driver_postgresql")
_PACKAGES = {
    "adbc_driver_manager": "adbc-driver-manager",
    "adbc_driver_postgresql": "adbc-driver-postgresql",
}
_WAIT_SECONDS = 120.0


def check_executors(session: SparkSession, seconds: float = _WAIT_SECONDS) -> None:
    """Run a tiny job; raise EngineUnavailable with what executors lack and how to install it."""
    tag = f"headwater-check-{uuid4().hex}"
    remote = is_connect(session)
    expired = threading.Event()

    def give_up() -> None:
        expired.set()
        session.interruptTag(tag) if remote else session.sparkContext.cancelJobsWithTag(tag)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    session.addTag(tag) if remote else session.sparkContext.addJobTag(tag)
    timer.start()
    try:
        found = set(_probed_through_connect(session) if remote else _probed(session))
    except Exception as error:
        if expired.is_set():
            raise EngineUnavailable(
                f"no executor of Spark took a task within {seconds:.0f} s",
                hint="check that the cluster has workers with free cores and memory; spark_conf can ask for"
                " less: spark.cores.max, spark.executor.memory",
            ) from error
        raise _explained(error) from error
    finally:
        timer.cancel()
        session.removeTag(tag) if remote else session.sparkContext.removeJobTag(tag)
    missing = sorted({name for host, version, names in found for name in names.split()})
    if missing:
        packages = " ".join(_PACKAGES.get(name, name) for name in missing)
        where = ", ".join(sorted({f"{host} (Python {version})" for host, version, names in found if names}))
        raise EngineUnavailable(
            f"executors of Spark lack the Python packages {packages}",
            detail=f"on {where}",
            hint=f"pip install {packages} for the Python of the executors, or point spark.pyspark.python in"
            " spark_conf to one that has them",
        )


def _probed(session: SparkSession) -> list[tuple[str, str, str]]:
    """Return host, Python and missing modules, from as many tasks as the cluster runs at once."""
    context, probe = session.sparkContext, _probe(MODULES)
    tasks = max(2, 2 * context.defaultParallelism)
    return context.parallelize(range(tasks), tasks).mapPartitions(lambda _: [probe()]).collect()


def _probed_through_connect(session: SparkSession) -> list[tuple[str, str, str]]:
    """Return the same where there are no RDDs; a missing pyarrow then appears as an error of the task."""
    probe = _probe(MODULES)

    def over_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pylist([dict(zip("abc", probe(), strict=True))])

    rows = (
        session.range(0, 8, numPartitions=8).mapInArrow(over_arrow, "a string, b string, c string").collect()
    )
    return [tuple(row) for row in rows]


def _probe(modules: tuple[str, ...]) -> Callable[[], tuple[str, str, str]]:
    # A nested function travels by value; it uses only what executors have anyway.
    def probe() -> tuple[str, str, str]:
        import importlib.util
        import platform

        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        return platform.node(), platform.python_version(), " ".join(missing)

    return probe


def _explained(error: Exception) -> EngineUnavailable:
    """Explain an error of the probe itself, by Spark's condition in brackets."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = str(error)
    if "[PYTHON_VERSION_MISMATCH]" in text:
        return EngineUnavailable(
            f"executors of Spark run another Python than {here}",
            detail=next(line.strip() for line in text.splitlines() if "[PYTHON_VERSION_MISMATCH]" in line),
            hint=f"install Python {here} there and name it: spark.pyspark.python=PATH in spark_conf",
        )
    if "java.io.IOException: Cannot run program" in text:
        return EngineUnavailable(
            "executors of Spark cannot run Python",
            detail=next(line.strip() for line in text.splitlines() if "Cannot run program" in line),
            hint=f"install Python {here} there and name it: spark.pyspark.python=PATH in spark_conf",
        )
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return EngineUnavailable(
        "executors of Spark cannot run Python tasks" + (f" ({condition})" if condition else ""),
        detail="\n".join(text.strip().splitlines()[:15]),
        hint=f"executors need Python {here} with {', '.join(MODULES)}",
    )
