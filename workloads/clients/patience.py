"""Getting a client to its starting point on a cluster that may not be quite there yet."""

import logging
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException

ASK_TIMEOUT_S = 2.0
"""How long one question may take. Short, because it is asked again; whoever waits for the worker has the deadline."""

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


def until_answered(ask: Callable[[], T | None]) -> T:
    """What ``ask`` returns, asked again for as long as it raises a ``KafkaException`` or has no answer (None)."""
    while True:
        try:
            answer = ask()
        except KafkaException as error:
            _LOG.warning("not ready: %s", error)
        else:
            if answer is not None:
                return answer
