"""Spark Connect: a session of a server elsewhere, with no JVM here.

Temporary views, SQL, Arrow tables in and out, mapInArrow and Python data sources work through it. Whatever
needs the JVM (`session.sparkContext`, `session._jvm`) does not: one cannot ask whether a JDBC driver is
there, jobs are cancelled by tag instead of by group, and the settings that Spark takes only at its start are
the server's.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.config import spark_options
from headwater.engine.spark.runtime.master import EXACT, Wanted, check_reachable, first_line
from headwater.errors import EngineUnavailable


def is_connect(session: SparkSession) -> bool:
    """Tell whether the session goes through Spark Connect, where there is no JVM to talk to."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def connect(wanted: Wanted) -> SparkSession:
    """Return a session of the server, with the settings on which results depend."""
    try:
        retries = importlib.import_module("pyspark.sql.connect.client.retries")
    except ImportError as error:
        raise EngineUnavailable(
            "Spark Connect needs packages that are not installed",
            detail=first_line(error),
            hint="pip install 'pyspark[connect]'",
        ) from error
    check_reachable(wanted.master)
    try:
        builder = SparkSession.builder.remote(wanted.master)
        for name, value in spark_options(wanted.conf).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        # By default a client waits ten minutes for a server that is gone.
        policy = retries.DefaultPolicy(max_retries=8, max_backoff=4000)
        cast(Any, session).client.set_retry_policies([policy])
        for name, value in EXACT.items():
            session.conf.set(name, value)
        session.sql("SELECT 1").collect()
    except Exception as error:
        disconnected()
        raise EngineUnavailable(
            f"cannot connect to Spark at {wanted.master}", detail=first_line(error)
        ) from error
    return session


def disconnected() -> None:
    """Let PySpark start a JVM here again."""
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


def is_of_a_lost_server(error: BaseException) -> bool:
    """Tell whether an error says that the server, or our session there, is gone."""
    if isinstance(error, PySparkException):
        return (error.getCondition() or "").startswith(_SERVER_GONE)
    # The packages of Spark Connect need not be installed, so the class cannot be named.
    status = error.code() if type(error).__module__.startswith("grpc") and hasattr(error, "code") else None
    return getattr(status, "name", "") == "UNAVAILABLE"


_SERVER_GONE = ("RETRIES_EXCEEDED", "INVALID_HANDLE", "NO_ACTIVE_SESSION", "SESSION_")
