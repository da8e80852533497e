"""History of partition leaders during a run, read from ``leaders.jsonl``.

A partition's leader epoch rises with each change of its leader. A new leader truncates nothing, but the other replicas
truncate their logs to the offset at which its epoch starts (KIP-101), so a record that an earlier leader wrote at or
above that offset is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAME = "leaders.jsonl"


@dataclass(frozen=True)
class Leadership:
    """One leader epoch of a partition.

    ``start_offset`` is the first offset of the epoch in the final log. The leader was elected between ``after_us`` and
    ``by_us``. ``unclean`` is True if the leader was not in the in-sync replicas. Fields are None where unknown;
    ``sources`` names where they come from.
    """

    topic: str
    topic_id: str | None
    partition: int
    epoch: int
    leader: int | None = None
    isr: tuple[int, ...] = ()
    unclean: bool | None = None
    start_offset: int | None = None
    after_us: int | None = None
    by_us: int | None = None
    sources: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Leadership":
        """Read a line of ``leaders.jsonl``. Raises KeyError, TypeError or ValueError if a field is wrong."""
        numbers: dict[str, int | None] = {}
        for name in ("leader", "start_offset", "after_us", "by_us"):
            value = line.get(name)
            if value is not None and not isinstance(value, int):
                raise TypeError(f"field {name!r} is not an integer: {value!r}")
            numbers[name] = value
        unclean, topic_id = line.get("unclean"), line.get("topic_id")
        if unclean is not None and not isinstance(unclean, bool):
            raise TypeError(f"field 'unclean' is not true, false or null: {unclean!r}")
        return cls(
            topic=str(line["topic"]),
            topic_id=None if topic_id is None else str(topic_id),
            partition=int(line["partition"]),
            epoch=int(line["epoch"]),
            isr=tuple(map(int, line.get("isr") or ())),
            unclean=unclean,
            sources=tuple(map(str, line.get("sources") or ())),
            **numbers,
        )
