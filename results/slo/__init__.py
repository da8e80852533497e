"""SLO language, in which a line of text such as ``lost == 0`` is converted to a value and back (``docs/SLO.md``).

::

    produce.latency p95 < 250ms [in PLACE] [for ARM] [for each SUBJECT] [with 95% confidence]
    produce.latency p99 in PLACE [for ARM] <= 2 * p99 [of METRIC] [in WINDOW] [for ARM] [for each SUBJECT] [with ...]
    p95(ARM) <= 0.7 * p95(ARM) of produce.latency [in PLACE]        the same as produce.latency p95 for ARM <= ...
    recovery [(p99 <= 3 * steady for 5s)] < 5s after FAULT [for ARM]
    lost == 0 [for ARM]

    PLACE    WINDOW | every 1s of WINDOW
    WINDOW   warmup | steady | fault | recovery | fault/<id> | run (the default, everything after warm-up)
    SUBJECT  rack | partition | broker | producer | epoch | member

Spaces in an SLO are optional; a time or a share needs its unit. In ``lost == 0``, ``lost`` is the name of an integrity
rule, a row of ``results/model/rules.py``.
"""

from aftershock.results.slo.metrics import (
    METRICS,
    Aggregate,
    EachWord,
    Metric,
    Selection,
    Side,
    aggregate_name,
    quantile_needs,
)
from aftershock.results.slo.model import Count, Measure, Multiple, Recovery, Slo
from aftershock.results.slo.parser import SloSyntaxError, parse

__all__ = [
    "METRICS",
    "Aggregate",
    "Count",
    "EachWord",
    "Measure",
    "Metric",
    "Multiple",
    "Recovery",
    "Selection",
    "Side",
    "Slo",
    "SloSyntaxError",
    "aggregate_name",
    "parse",
    "quantile_needs",
]
