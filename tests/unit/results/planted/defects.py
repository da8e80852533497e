"""The whole catalogue: importing a module of defects enters them."""

from planted import inputs, latencies, readers, records, trust
from planted.catalogue import DEFECTS

__all__ = ["DEFECTS", "inputs", "latencies", "readers", "records", "trust"]
