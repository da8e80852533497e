"""``rolling_upgrade``: every node in turn is replaced by one of another Kafka version, on the same disk.

::

    k1 4.1.2 ─▶ stopped ─▶ 4.3.1, in every ISR ─▶ pause ─▶ k2 ... ─▶ kN ─▶ (finalize: metadata.version raised)

Isolated controllers go first, then brokers. Meanwhile versions are mixed, which is what Kafka promises to bear. With
``for`` (the upgrade included) the heal is the same way back, node by node; without it the upgrade stays. ``finalize``
raises the cluster's ``metadata.version`` to the highest that all nodes know, and from then on there is no way back:
``upgrading.py`` has these rules. It needs a cluster that was launched with an older version: one that a newer version
formatted has a level that no older node knows.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from aftershock.errors import FaultError
from aftershock.faults.fault import READ_BACK_US, Band, Draws, Family, Report, Rest, Scene, Strike
from aftershock.faults.problem import Problem
from aftershock.faults.record import Undo, Witness
from aftershock.faults.roles import brokers_of
from aftershock.faults.strikes.rolling import RollingFault, RollingStrike, in_turn
from aftershock.faults.upgrading import METADATA_VERSION, minor
from aftershock.faults.values import BrokerId
from aftershock.faults.waiting import READ_DEADLINE_MS, patiently, to_the_end, until

RAISED_DEADLINE_MS = 15_000


class RollingUpgradeStrike(RollingStrike):
    """All nodes, replaced. ``before``: their versions, ``knew``: the highest metadata level that each broker knew."""

    to: str
    finalize: bool
    before: Mapping[BrokerId, str]
    knew: Mapping[BrokerId, int]
    level: int

    async def take_down(self, node: BrokerId) -> None:
        """Stop it; another one takes its place in `bring_back`."""
        await to_the_end(self.scene.world.stop(node))

    async def bring_back(self, node: BrokerId) -> None:
        """The same disk, another image."""
        await to_the_end(self.scene.world.replace(node, self.to))

    async def inject(self) -> None:
        """Replace one after the other; then raise the level, if that was asked for."""
        await super().inject()
        if self.finalize:
            highest = min((await self._known()).values())
            await self.scene.world.raise_feature(METADATA_VERSION, highest)
            await until(lambda: self._not_raised(highest), self.scene.clock, RAISED_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """What the turns were; then what the nodes say of themselves, each second."""
        for witness in self.seen():
            report(witness)
        report(await self._said())
        report(await self._finalised())
        while True:
            report(await self._levels())
            if until_us is None or (now_us := self.scene.clock.now_us()) >= until_us:
                return
            await self.scene.clock.sleep_until_us(min(now_us + READ_BACK_US, until_us))

    async def confirm_healed(self) -> None:
        """Each is in service, and of its old version by its own word."""
        await super().confirm_healed()
        for node, version in self.before.items():
            if (told := await self.scene.world.told_version(node)) != version:
                raise FaultError(f"node {node} says that it is {told}, and it was {version} before the upgrade")

    async def _said(self) -> Witness:
        """Each process names its version as it starts: its own word, not the image's."""
        told = [await self.scene.world.told_version(node) for node in self.nodes]
        what = f"nodes whose process says that it is {self.to}"
        asked, of_it = len(self.nodes), told.count(self.to)
        return Witness(what, asked, of_it, "nodes", asked, ok=of_it == asked)

    async def _levels(self) -> Witness:
        """ApiVersions tells the levels that a broker knows; a release with a level of its own shows there."""
        known = await self._known()
        due = [broker for broker in self.knew if minor(self.before[broker]) != minor(self.to)]
        changed = sum(known[broker] != self.knew[broker] for broker in due)
        what = f"brokers whose highest {METADATA_VERSION}, asked over Kafka's protocol, is another than before"
        return Witness(what, len(due), changed, "brokers", len(known), ok=changed == len(due) and bool(self.turns))

    async def _finalised(self) -> Witness:
        """The level must have risen if that was asked for, and only then."""
        level = (await patiently(self.scene.world.features, self.scene.clock, READ_DEADLINE_MS))[METADATA_VERSION]
        what = f"levels by which {METADATA_VERSION}, finalised, is above {self.level}"
        asked = min((await self._known()).values()) - self.level if self.finalize else 0
        rise = level - self.level
        return Witness(what, asked, rise, "levels", 1, ok=rise == asked and bool(self.turns))

    async def _known(self) -> dict[BrokerId, int]:
        return await patiently(lambda: known_levels(self.scene), self.scene.clock, READ_DEADLINE_MS)

    async def _not_raised(self, wanted: int) -> str | None:
        level = (await self.scene.world.features()).get(METADATA_VERSION)
        return None if level == wanted else f"{METADATA_VERSION} is {level}, and {wanted} was asked for"


class RollingUpgrade(RollingFault):
    """Replace every node by one of another Kafka version, one after the other."""

    family: ClassVar[Family] = "process"
    band: ClassVar[Band] = Band("#0b7a75", "rolling upgrade")
    proof: ClassVar[str] = (
        "each seen down and back, one at a time; the version that each process says, the levels it knows"
    )
    remedy: ClassVar[str] = (
        "with `for`, or interrupted: each node is of its old version again, and in service; once finalised there is "
        "no way back, and every node is started"
    )
    leaves: ClassVar[str | None] = (
        "without `for`, nodes of another version; with `finalize`, its metadata level as well"
    )
    for_rule: ClassVar[Literal["needed", "optional", "refused"]] = "optional"
    allowance_ms: ClassVar[int] = 120_000  # for each node 6-12 s there, and as long back

    kind: Literal["rolling_upgrade"] = "rolling_upgrade"
    to: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$", description="a Kafka version, like 4.3.1")]
    finalize: Annotated[bool, Field(description="raise metadata.version when all nodes are upgraded")] = False

    @model_validator(mode="after")
    def _no_way_back(self) -> Self:
        if self.finalize and self.for_ is not None:
            sentence = "a finalised upgrade can't be taken back: take `for` or `finalize` away"
            raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
        return self

    def kafka_versions(self) -> tuple[str, ...]:
        """The one to upgrade to."""
        return (self.to,)

    def nodes(self, rest: Rest) -> frozenset[int]:
        """Controllers too."""
        return frozenset(rest.cluster.node_racks if rest.cluster else ())

    def problems(self, rest: Rest) -> Iterator[Problem]:
        """No way down from the version that formatted the cluster."""
        launched = rest.cluster.kafka if rest.cluster else "default"
        if launched != "default" and minor(self.to) < minor(launched):
            sentence = f"the cluster is formatted by {launched}, and no {self.to} knows its metadata: launch it with "
            yield Problem(("to",), sentence + f"`kafka: {self.to}` and upgrade from there")

    async def aim(self, scene: Scene, draws: Draws) -> Strike:  # noqa: ARG002 -- nothing is drawn
        """FaultError if a node doesn't run, if all are of that version already, or if there is no such image."""
        world = scene.world
        order = await in_turn(world, sorted(world.racks()))
        before = {node: await world.version(node) for node in order}
        due = [node for node in order if before[node] != self.to]
        if not due:
            raise FaultError(f"every node is {self.to} already, so there is nothing to upgrade")
        await world.fetch(self.to)
        level = (await world.features())[METADATA_VERSION]
        roles = {"asked": f"every node to {self.to}", "turns": due, "from": sorted({*before.values()}), "to": self.to}
        strike = RollingUpgradeStrike(scene, due, self.pause, roles)
        strike.to, strike.finalize, strike.before, strike.level = self.to, self.finalize, before, level
        strike.knew = {node: known for node, known in (await known_levels(scene)).items() if node in due}
        strike.undo = Undo("roll_back", {"nodes": [[node, before[node]] for node in reversed(due)], "level": level})
        return strike


async def known_levels(scene: Scene) -> dict[BrokerId, int]:
    """The highest metadata level that each broker says it knows."""
    brokers = sorted(brokers_of(scene.world))
    return {broker: (await scene.world.supported_features(broker))[METADATA_VERSION] for broker in brokers}
