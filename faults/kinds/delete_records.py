"""``delete_records``: raise the log start of a topic's partitions, so that their oldest records are gone (KIP-107).

It is what retention does, at a moment of our choosing. Consumers that have not read so far are out of range and start
anew by ``auto.offset.reset``. ``share: 0.5`` deletes the older half of each partition, ``before: N`` all below offset
N, neither of them everything up to the high watermark. The plan itself wanted the records gone, so that they are is no
loss of the cluster's.
"""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.fault import Among, Band, Draws, Family, Fault, Place, Report, Scene, Stake, Strike
from aftershock.faults.record import NOTHING, Targets, Witness
from aftershock.faults.values import TopicPartition
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, to_the_end, until

DELETED_DEADLINE_MS = 10_000
ERASES = ("lost",)
"""What integrity rules can't hold where the plan itself had records deleted."""


class DeleteRecordsStrike(Strike):
    """New log starts for some partitions."""

    undo = NOTHING

    def __init__(self, scene: Scene, topic: str, before: Mapping[TopicPartition, int]) -> None:
        self.scene = scene
        self.topic = topic
        self.before = dict(before)
        told = {str(partition): offset for (_, partition), offset in sorted(before.items())}
        self.targets = Targets(topics=(topic,), roles={"before": told, "permits": ERASES})

    async def inject(self) -> None:
        """Delete them, and see every leader's log begin later."""
        await to_the_end(self.scene.world.delete_records(self.before))
        await until(self._missing, self.scene.clock, DELETED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:  # noqa: ARG002 -- it is done
        """Each log begins where it was asked to, or later."""
        left = await patiently(self._left, self.scene.clock, READ_DEADLINE_MS)
        asked = len(self.before)
        what = f"partitions of {self.topic} whose log, by its leader, begins where the deletion ended or later"
        report(Witness(what, asked, asked - len(left), "partitions", asked, not left))

    async def _left(self) -> list[TopicPartition]:
        ends = await self.scene.world.log_ends(self.topic)
        return [where for where, offset in self.before.items() if ends.get(where, (-1, -1))[0] < offset]

    async def _missing(self) -> str | None:
        left = await self._left()
        return f"{len(left)} of {len(self.before)} partitions still have the records" if left else None


class DeleteRecords(Fault):
    """Delete the oldest records of a topic."""

    family: ClassVar[Family] = "Kafka"
    band: ClassVar[Band] = Band("#8c6d31", "delete records")
    proof: ClassVar[str] = "the log start of every partition, read back from its leader"
    remedy: ClassVar[str] = "nothing: the records are gone"
    leaves: ClassVar[str | None] = "logs without the records that it deleted"
    met_by: ClassVar[Among] = "topics"
    stakes: ClassVar[tuple[Stake, ...]] = (Stake("records", "topics"),)
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "refused"
    allowance_ms: ClassVar[int] = 1_000

    kind: Literal["delete_records"] = "delete_records"
    topic: str
    share: Annotated[float, Field(gt=0, le=1, description="how much of each partition, its oldest")] | None = None
    before: Annotated[StrictInt, Field(ge=1, description="up to this offset of each partition")] | None = None

    @model_validator(mode="after")
    def _one_at_most(self) -> Self:
        if self.share is not None and self.before is not None:
            sentence = "a delete_records goes up to a `share` or up to an offset (`before`); say one of them"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def topics(self) -> dict[Place, str]:
        """The topic."""
        return {("topic",): self.topic}

    async def aim(self, scene: Scene, _draws: Draws) -> Strike:
        """FaultError if the topic holds no such records."""
        ends = await scene.world.log_ends(self.topic)
        new_starts = {where: self._new_start(start, end) for where, (start, end) in ends.items()}
        risen = {where: offset for where, offset in new_starts.items() if offset > ends[where][0]}
        if not risen:
            raise FaultError(f"{self.topic} holds no records to delete; let some be produced first")
        return DeleteRecordsStrike(scene, self.topic, risen)

    def _new_start(self, start: int, end: int) -> int:
        if self.before is not None:
            return min(self.before, end)
        return start + math.ceil((end - start) * (1.0 if self.share is None else self.share))
