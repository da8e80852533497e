"""Leaders of partitions as evidence: the lines of ``leaders.jsonl``, one per topic id, partition and leader epoch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from aftershock.errors import EvidenceError


@dataclass(frozen=True)
class Leadership:
    """One leader epoch of a partition, a line of ``leaders.jsonl``.

    ``leader`` is None if the partition had no leader, and unknown if ``isr`` is None. ``isr`` is the ISR with which the
    epoch began. ``start_offset`` is the first offset that the epoch wrote, or would have written, in the final log. The
    leader was elected between ``after_us`` and ``by_us``. ``checkpoints`` maps brokers to the start offset in their
    own replica, where it differs. None in any field but ``leader`` means unknown.
    """

    topic: str
    topic_id: str
    partition: int
    epoch: int
    leader: int | None
    isr: tuple[int, ...] | None
    unclean: bool | None
    start_offset: int | None
    after_us: int | None
    by_us: int | None
    sources: tuple[str, ...]
    checkpoints: Mapping[int, int]


_FIELDS: Mapping[str, tuple[type, bool]] = {
    "topic": (str, False),
    "topic_id": (str, False),
    "partition": (int, False),
    "epoch": (int, False),
    "leader": (int, True),
    "isr": (list, True),
    "unclean": (bool, True),
    "start_offset": (int, True),
    "after_us": (int, True),
    "by_us": (int, True),
    "sources": (list, False),
}
"""Type of each field of a line of ``leaders.jsonl``, and whether the field may be null."""


def leaderships(file: str, lines: Iterable[tuple[int, Mapping[str, Any]]]) -> tuple[Leadership, ...]:
    """Return the numbered lines of ``leaders.jsonl`` as leaderships.

    Raises EvidenceError for a damaged line, or for a second line of one epoch of a partition.
    """
    epochs: dict[tuple[str, str, int, int], Leadership] = {}
    for number, line in lines:
        one = leadership(f"{file}:{number}", line)
        if epochs.setdefault((one.topic, one.topic_id, one.partition, one.epoch), one) is not one:
            what = f"a second line of epoch {one.epoch} of {one.topic}/{one.partition}, which has one leader"
            raise EvidenceError(f"{file}:{number}: {what}; restore the file or run the plan again")
    return tuple(epochs.values())


def leadership(where: str, line: Mapping[str, Any]) -> Leadership:
    """Return a parsed line of ``leaders.jsonl``; ``where`` is its place. Raises EvidenceError for a wrong field."""

    def refuse(field: str, expected: str) -> NoReturn:
        found = f"is {line[field]!r}, not {expected}" if field in line else "is missing"
        raise EvidenceError(f"{where}: field {field!r} {found}; restore the file or run the plan again")

    for field, (kind, nullable) in _FIELDS.items():
        if field not in line or not (type(line[field]) is kind or (nullable and line[field] is None)):
            refuse(field, kind.__name__)
    isr, checkpoints = line["isr"], line.get("checkpoints", {})
    if isr is not None and any(type(broker) is not int for broker in isr):
        refuse("isr", "a list of broker ids")
    if any(not isinstance(name, str) for name in line["sources"]):
        refuse("sources", "a list of names")
    if not isinstance(checkpoints, dict) or any(
        not broker.isdecimal() or type(offset) is not int for broker, offset in checkpoints.items()
    ):
        refuse("checkpoints", "an object of brokers and offsets")
    lists = {
        "isr": None if isr is None else tuple(isr),
        "sources": tuple(line["sources"]),
        "checkpoints": {int(broker): offset for broker, offset in checkpoints.items()},
    }
    return Leadership(**{field: line[field] for field in _FIELDS} | lists)
