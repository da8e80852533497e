"""Spark in a JVM, for what only Spark does: parse SQL, and read evidence at a URI."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CONNECT = "SPARK_CONNECT_MODE_ENABLED"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    from aftershock.results.spark.session import (  # noqa: PLC0415 - tests without Spark should not load it
        LOCAL_SPARK,
        session,
    )

    with ExitStack() as resources:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(CONNECT, raising=False)
            started = resources.enter_context(session(tmp_path_factory.mktemp("spark") / "spark.log", LOCAL_SPARK))
        yield started


@pytest.fixture(autouse=True, scope="module")
def _without_spark_connect() -> Iterator[None]:
    """The session with Sail that other tests share has PySpark's functions build for Spark Connect."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(CONNECT, raising=False)
        yield
