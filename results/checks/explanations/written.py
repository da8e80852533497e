"""When the offsets of a log were written, which limits when a record at an offset can have been sent and acknowledged.

A leader writes a partition's records one behind the other. So a record that a truncation at offset S took was
acknowledged after the record at S - 1 was sent, and a record below the first offset that a deletion left was sent
before the record at that offset was acknowledged. The log and the outcomes tell both, if their files are on this host.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from aftershock.results.checks.explanations.model import Explanation
from aftershock.results.evidence.evidence import Evidence

Place: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset."""


class Written(NamedTuple):
    """When the record at an offset was sent and acknowledged, and in which leader epoch it was written."""

    sent_us: int
    done_us: int
    epoch: int | None


def timed(evidence: Evidence, explanations: Sequence[Explanation]) -> list[Explanation]:
    """Return the explanations with the limits of time that their offsets imply."""
    places = [_beside(one) for one in explanations]
    written = dict(_written(evidence, {place for place in places if place is not None}))
    return [
        _limited(one, written.get(place)) if place is not None else one
        for one, place in zip(explanations, places, strict=True)
    ]


def _beside(one: Explanation) -> Place | None:
    """Return the place of the nearest record that a truncation or deletion of a partition left in the log."""
    if one.topic is None or one.partition is None:
        return None
    if one.until_offset is not None:
        return one.topic, one.partition, one.until_offset
    return (one.topic, one.partition, one.from_offset - 1) if one.truncation and one.from_offset else None


def _limited(one: Explanation, neighbour: Written | None) -> Explanation:
    if neighbour is None:
        return one
    if one.until_offset is not None:
        return replace(one, sent_by_us=neighbour.done_us)
    # of a later epoch, the record itself was written after the truncation
    earlier = neighbour.epoch is not None and one.epoch is not None and neighbour.epoch < one.epoch
    return replace(one, from_us=max(one.from_us or 0, neighbour.sent_us)) if earlier else one


def _written(evidence: Evidence, places: Collection[Place]) -> Iterator[tuple[Place, Written]]:
    if not places:
        return
    log, outcomes = (_on_this_host(evidence, name) for name in ("log", "outcomes"))
    if not log or not outcomes:
        return
    offsets = pc.field("offset").isin([offset for _, _, offset in places])
    topics = pc.field("topic").isin([topic for topic, _, _ in places])
    rows = ds.dataset(log).to_table(filter=offsets & topics)
    logged = {
        (row["producer_id"], row["seq"]): row
        for row in rows.to_pylist()
        if (row["topic"], row["partition"], row["offset"]) in places and row["seq"] is not None
    }
    if not logged:
        return
    acked = (pc.field("op") == "produce") & (pc.field("status") == "ok")
    seqs = pc.field("seq").isin(pa.array([seq for _, seq in logged], pa.int64()))
    records = ds.dataset(outcomes).to_table(["producer_id", "seq", "sent_us", "done_us"], filter=acked & seqs)
    for record in records.to_pylist():
        row = logged.get((record["producer_id"], record["seq"]))
        if row is not None and None not in (record["sent_us"], record["done_us"]):
            place = row["topic"], row["partition"], row["offset"]
            yield place, Written(record["sent_us"], record["done_us"], row.get("leader_epoch"))


def _on_this_host(evidence: Evidence, table: str) -> list[Path]:
    return [part for part in evidence.parquet[table] if isinstance(part, Path)]


def logged_offsets(evidence: Evidence, topic: str) -> dict[int, tuple[int, int]] | None:
    """Return the first and last offset in the log by partition; None if the log's files are not on this host."""
    files = _on_this_host(evidence, "log")
    if not files:
        return None
    rows = ds.dataset(files).to_table(["partition", "offset"], filter=pc.field("topic") == topic)
    ends = rows.group_by("partition").aggregate([("offset", "min"), ("offset", "max")])
    columns = (ends[name].to_pylist() for name in ("partition", "offset_min", "offset_max"))
    return {number: (first, last) for number, first, last in zip(*columns, strict=True)}
