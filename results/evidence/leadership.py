"""Leaders of partitions as evidence: the lines of ``leaders.jsonl``, one per topic id, partition and leader epoch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Strict

from aftershock.errors import EvidenceError
from aftershock.results.evidence import files, manifest
from aftershock.results.evidence.documents import Int, Name, Number, Time

_StrictInt = Annotated[Int, Strict()]
_StrictTime = Annotated[Time, Strict()]


@dataclass(frozen=True)
class Leadership:
    """One leader epoch of a partition, a line of ``leaders.jsonl``.

    ``leader`` is None if the partition had no leader, and unknown if ``isr`` is None. ``isr`` is the ISR with which the
    epoch began. ``start_offset`` is the first offset that the epoch wrote, or would have written, in the final log. The
    leader was elected between ``after_us`` and ``by_us``. ``checkpoints`` maps brokers to the start offset in their
    own replica, where it differs. None in any field but ``leader`` means unknown.
    """

    topic: Name
    topic_id: Name
    partition: _StrictInt
    epoch: _StrictInt
    leader: _StrictInt | None
    isr: tuple[_StrictInt, ...] | None
    unclean: Annotated[bool, Strict()] | None
    start_offset: _StrictInt | None
    after_us: _StrictTime | None
    by_us: _StrictTime | None
    sources: tuple[Name, ...]
    checkpoints: Mapping[Number, _StrictInt] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the line of ``leaders.jsonl``, which has ``checkpoints`` only if one differs."""
        return {name: value for name, value in asdict(self).items() if name != "checkpoints" or value}


def leaderships(where: str, content: bytes) -> tuple[Leadership, ...]:
    """Parse the content of ``leaders.jsonl``.

    Raises EvidenceError for a damaged or incomplete line, or for a second line of one epoch of a partition.
    """
    from aftershock.results.evidence.shapes import SHAPES  # noqa: PLC0415 - most commands read no document

    epochs: dict[tuple[str, str, int, int], Leadership] = {}
    for number, line in files.whole_lines(where, content):
        leadership: Leadership = SHAPES[manifest.LEADERS].validate_python(line)
        key = leadership.topic, leadership.topic_id, leadership.partition, leadership.epoch
        if epochs.setdefault(key, leadership) is not leadership:
            what = f"a second line of epoch {key[3]} of {key[0]}/{key[2]}, which has one leader"
            raise EvidenceError(f"{where}:{number}: {what}; restore the file or run the plan again")
    return tuple(epochs.values())
