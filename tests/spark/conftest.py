"""One Spark for the whole run: starting it takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.engines import SPARK_MASTER

from headwater.config import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.engine.spark.runtime.session import Runtime

SPARK_SETTINGS = Settings(spark_master=SPARK_MASTER)


@pytest.fixture(scope="session")
def spark_settings() -> Settings:
    """Settings under which the tests' Spark runs; others would need another process."""
    return SPARK_SETTINGS


@pytest.fixture(scope="session")
def spark_runtime() -> Iterator[Runtime]:
    """The Spark of this process, ended after the run; after a test that stops it, it starts again."""
    from headwater.engine.spark.runtime.session import runtime

    yield runtime()
    runtime().stop()


@pytest.fixture
def spark(spark_runtime: Runtime, spark_settings: Settings) -> SparkSession:
    """The session of this thread, with the settings for bulk work."""
    from headwater.engine.spark.runtime.workload import bulk_work

    session = spark_runtime.session(spark_settings)
    with bulk_work(session):
        return session
