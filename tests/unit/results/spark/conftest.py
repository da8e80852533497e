"""Spark in a JVM, for what only Spark does: parse SQL, and read evidence at a URI."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    from aftershock.results.spark.session import LOCAL_SPARK, session  # noqa: PLC0415 - tests without Spark should not load it

    with session(tmp_path_factory.mktemp("spark") / "spark.log", LOCAL_SPARK) as started:
        yield started


@pytest.fixture(autouse=True)
def _without_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session with Sail that other tests share has PySpark's functions build for Spark Connect."""
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
