"""Scripts: failures, and the requests that they apply to."""

from dataclasses import dataclass, field
from typing import Any

Partition = tuple[str, int]


@dataclass(kw_only=True)
class Script:
    """``ScriptedBroker.script`` says what the fields mean."""

    api: str
    nth: int = 1
    times: int = 1
    node: int | None = None
    partition: Partition | None = None
    delay_ms: float = 0
    error: int | None = None
    top_error: int | None = None
    hint: tuple[int, int] | None = None
    endpoints: bool = True
    applied: bool = False
    answer: str = "sent"
    cut_bytes: int | None = None
    garble: dict[int, int] = field(default_factory=dict)
    throttle_ms: int = 0
    seen: int = 0
    fired: int = 0

    @classmethod
    def told(cls, **said: Any) -> "Script":
        """From JSON, which has no tuples and no numbers as keys."""
        script = cls(**{name: value for name, value in said.items() if value is not None})
        script.partition = script.partition and (script.partition[0], script.partition[1])
        script.garble = {int(at): byte for at, byte in script.garble.items()}
        return script

    def meets(self, api: str, node: int, partitions: tuple[Partition, ...]) -> bool:
        """Count a request of its kind; whether this is one to go wrong."""
        other_node = self.node not in {None, node}
        if api != self.api or other_node or (self.partition is not None and self.partition not in partitions):
            return False
        self.seen += 1
        if not self.nth <= self.seen < self.nth + self.times:
            return False
        self.fired += 1
        return True

    def error_of(self, partition: Partition) -> int | None:
        """The error code to answer for a partition; None: as it is."""
        return self.error if self.partition in {None, partition} else None

    @property
    def is_done(self) -> bool:
        """Whether the request is carried out."""
        return self.answer not in {"lost", "refuse"} and (
            self.applied or (self.error is None and self.top_error is None)
        )


PLAIN = Script(api="")
"""Nothing goes wrong."""
