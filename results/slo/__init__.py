"""The SLO language: one line of text to one value and back. Pure; imports nothing of ours. Every form: ``docs/SLO.md``.

::

    produce.latency p95 < 250ms [in PLACE] [for ARM] [for each SUBJECT] [with 95% confidence]
    produce.latency p99 in PLACE [for ARM] <= 2 * p99 [of METRIC] [in WINDOW] [for ARM] [for each SUBJECT] [with ...]
    p95(ARM) <= 0.7 * p95(ARM) of produce.latency [in PLACE]        the same as: produce.latency p95 for ARM <= ...
    recovery [(p99 <= 3 * steady for 5s)] < 5s after FAULT [for ARM]
    lost == 0 [for ARM]

    PLACE    WINDOW | every 1s of WINDOW
    WINDOW   warmup | steady | fault | recovery | fault/<id> | run;  none means run, everything after warm-up
    SUBJECT  rack | partition | broker | producer | epoch

Rules: spaces are free, a time or a share needs its unit, a word that is almost right is named in the error. Which
metric takes what is a table in ``words``; ``selection`` and ``tree`` are the values, ``parser`` reads them, and
``parse(str(slo)) == slo``.
"""

from aftershock.results.slo.model import (
    COUNTS,
    METRICS,
    Aggregate,
    Count,
    EachWord,
    Measure,
    Metric,
    Multiple,
    Op,
    Recovery,
    Selection,
    Side,
    Slo,
    aggregate_name,
    quantile_needs,
)
from aftershock.results.slo.parser import SloSyntaxError, parse

__all__ = [
    "COUNTS",
    "METRICS",
    "Aggregate",
    "Count",
    "EachWord",
    "Measure",
    "Metric",
    "Multiple",
    "Op",
    "Recovery",
    "Selection",
    "Side",
    "Slo",
    "SloSyntaxError",
    "aggregate_name",
    "parse",
    "quantile_needs",
]
