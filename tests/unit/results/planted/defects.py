"""The whole catalogue: importing a module of defects registers its defects."""

from aftershock.tests.unit.results.planted import (
    commits,
    explained,
    inputs,
    latencies,
    load,
    members,
    readers,
    records,
    trust,
)
from aftershock.tests.unit.results.planted.catalogue import DEFECTS

__all__ = ["DEFECTS", "commits", "explained", "inputs", "latencies", "load", "members", "readers", "records", "trust"]
