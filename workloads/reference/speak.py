"""Which version of an API a shell speaks to one broker, and kio's message classes of that version.

A shell's code is for a range of versions, in which the fields that it sets are the same. ``Dialect`` is that range.
"""

import sys
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from aftershock.errors import UnsupportedError
from aftershock.workloads.rules.values import TopicPartition
from aftershock.workloads.wire.versions import Api, Versions, request_type


class Dialect(NamedTuple):
    """The versions of an API that a shell's code is written for."""

    api: Api
    least: int
    most: int

    def messages(self, versions: Versions, cap: int | None = None) -> Any:
        """The module of the request's classes, of the highest version that both sides have and ``cap`` allows.

        Raises UnsupportedError when there is none, with the broker's range and ours.
        """
        most = self.most if cap is None else min(cap, self.most)
        version = versions.pick(self.api, most)
        if version < self.least:
            lowest, highest = versions.offered[self.api]
            raise UnsupportedError(
                f"{self.api.name}: the broker offers versions {lowest} to {highest}, this client needs {self.least} to "
                f"{most}: use a newer broker"
            )
        return _module(self.api, version)


@lru_cache
def _module(api: Api, version: int) -> Any:
    return sys.modules[request_type(api, version).__module__]


def by_topic(partitions: Collection[TopicPartition]) -> Iterator[tuple[str, Iterator[TopicPartition]]]:
    """Each topic once with its partitions, as most requests want them; an inner iterator is to be used at once."""
    return groupby(sorted(partitions), key=lambda tp: tp.topic)
