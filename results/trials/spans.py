"""The worst latency in spans of time that are no window of ``phases.json``: from SIGTERM to exit, say.

Rules: a record belongs to the span of its intended time; one that did not succeed is slower than any; a span that no
record was due in is no block.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from aftershock.results.comparing.blocks import Block
from aftershock.results.files import read_lines
from aftershock.results.trials.part import Part

_BEFORE_US = 50_000
_COLUMNS = ("intended_us", "done_us", "status")

Spans = Mapping[int, tuple[int, int]]
"""Microseconds of the run, by block."""


def struck(part: Part, entry: str) -> Spans:
    """From 50 ms before a fault was asked for until it was in force: of a ``stop``, from SIGTERM to exit.

    Of the blocks whose faults all took hold.
    """
    times = {(line["fault"], line["state"]): line["t_us"] for line in read_lines(part.home / "journal.jsonl")}
    trials, _ = part.run.trials()
    found = {
        step["block"]: (times[step["id"], "intended"] - _BEFORE_US, times[step["id"], "injected"])
        for step in part.run.timeline["steps"]
        if step.get("entry") == entry and {(step["id"], "intended"), (step["id"], "injected")} <= times.keys()
    }
    return {block: span for block, span in found.items() if trials is None or block in trials}


def worst_in(part: Part, client: str, spans: Spans) -> dict[int, Block]:
    """One number a span, of what the client produced."""
    if not spans:
        return {}
    workload, _, arm = client.partition("/")
    whose = (ds.field("op") == "produce") & (ds.field("workload") == workload) & (ds.field("arm") == arm)
    rows = part.outcomes(_COLUMNS, whose)
    found = {block: _worst(rows, *span) for block, span in spans.items()}
    return {block: one for block, one in found.items() if one.n}


def _worst(rows: pa.Table, start_us: int, end_us: int) -> Block:
    intended_us = rows["intended_us"]
    due = rows.filter(pc.and_(pc.greater_equal(intended_us, start_us), pc.less(intended_us, end_us)))
    failed = pc.any(pc.not_equal(due["status"], "ok")).as_py()
    if failed or not due.num_rows:
        return Block(None, due.num_rows)
    return Block(pc.max(pc.subtract(due["done_us"], due["intended_us"])).as_py(), due.num_rows)
