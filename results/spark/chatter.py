"""What PySpark itself logs of an exception, Java's stack trace and all: into the log, never onto the terminal."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.logger import PySparkLogger

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def chatter_to(log: Path) -> Iterator[None]:
    """While the block lasts, PySpark's loggers of exceptions write to ``log``."""
    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    before = [list(logger.handlers) for logger in loggers]
    file = logging.FileHandler(log, delay=True)
    try:
        for logger in loggers:
            logger.handlers.clear()
            logger.addHandler(file)
        yield
    finally:
        for logger, handlers in zip(loggers, before, strict=True):
            logger.handlers[:] = handlers
        file.close()
