"""The whole catalogue: importing a module of defects registers its defects."""

from aftershock.tests.unit.results.planted import (
    commits,
    explained,
    explained_groups,
    inputs,
    latencies,
    load,
    members,
    obligations,
    pipes,
    readers,
    records,
    replicas,
    stable_offsets,
    standstills,
    transactions,
    trust,
)
from aftershock.tests.unit.results.planted.catalogue import DEFECTS

__all__ = [
    "DEFECTS",
    "commits",
    "explained",
    "explained_groups",
    "inputs",
    "latencies",
    "load",
    "members",
    "obligations",
    "pipes",
    "readers",
    "records",
    "replicas",
    "stable_offsets",
    "standstills",
    "transactions",
    "trust",
]
