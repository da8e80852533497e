"""Clocks of the further hosts on which clients of a run were (``run_on`` in its plan)."""

from collections.abc import Mapping
from typing import Any

HOSTS = "hosts"
"""Key of ``run.json``: for each host its name, its clients, and how wrong their times can be, in microseconds."""


def bounds_us(run: Mapping[str, Any]) -> list[int]:
    """Return for each host how wrong the times of its clients can be on the run's clock; empty without further hosts.

    The times of all other clients, of faults and of the harness are of the runner's own clock.
    """
    return [int(host["clock_bound_us"]) for host in run.get(HOSTS, ())]


def apart_us(run: Mapping[str, Any]) -> int:
    """Return how wrong a difference of two times of the run can be: the two largest bounds of its hosts."""
    return sum(sorted(bounds_us(run), reverse=True)[:2])
