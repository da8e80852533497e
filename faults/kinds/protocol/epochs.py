"""Protocol fault ``falsify_epochs``, which shows clients leader epochs that are absent, do not rise, or are too low.

Each leader of a partition has a higher leader epoch than the one before (KIP-101, KIP-320). Clients that know an epoch
ignore metadata with a lower one. Brokers without leader epochs, brokers whose metadata lags behind, or a topic that was
deleted and created again, show clients what this fault shows them, while the leaders really move.

* ``absent``: there is no epoch (-1), as from a broker that has none.
* ``frozen``: the epoch stays what it was at the injection, whoever leads since.
* ``earlier``: the epoch is lower than at the injection, by ``by``. A client that ignores such metadata follows the
  rules, so no progress is required of the topic's clients while the fault lasts.

The epochs are changed in the responses of Metadata, DescribeTopicPartitions, ListOffsets and OffsetFetch, and in the
hints ``current_leader`` of Produce and Fetch. The epochs of record batches and the answers of OffsetForLeaderEpoch stay
as they are. In requests, the client's epoch of the current leader is removed, so that brokers do not fence the client.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, model_validator

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import Band, Draws, Injection, InjectionContext, PlanContext, Report
from aftershock.faults.kinds.protocol.base import SLACK_MS, TamperInjection
from aftershock.faults.kinds.protocol.messages import UnprobedFault
from aftershock.faults.runtime.record import Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused
from aftershock.faults.sections.document import Problem
from aftershock.faults.wire_proxy.rules import EpochLie

_PROBE_LIMIT_MS = SLACK_MS + 2_000


@dataclass(eq=False)
class EpochInjection(TamperInjection):
    """Rule about the leader epochs of a topic; ``highest`` are the epochs that clients see at most."""

    highest: tuple[int, ...] = ()
    topic: str = ""

    async def _measure(self, report: Report) -> None:
        """Compare the epochs that the controller has with those that a probe sees through the wire proxy.

        While no leader has a higher epoch than clients may see, there is nothing to compare.
        """
        before = await self._true_epochs()
        try:
            seen = await self.context.world.probe_rule(self.context.fault, "Metadata", _PROBE_LIMIT_MS, self.topic)
        except FaultError:
            return  # no broker answers behind the proxy, because of another fault; the counters remain as witness
        after = await self._true_epochs()
        partition = self.fault.partition
        hidden = [
            (number, epoch)
            for number, epoch in before.items()
            if number < len(self.highest) and self.highest[number] < epoch == after.get(number)
            if partition in (None, number)
        ]
        if not hidden:
            return
        false = [number for number, _ in hidden if seen.epochs.get(number, 1 << 31) <= self.highest[number]]
        what = f"partitions of {self.topic} whose leader epoch a probe sees lower than the controller has it"
        report(Witness(what, len(hidden), len(false), "partitions", len(hidden), len(false) == len(hidden)))

    async def hold(self, until_us: int | None, report: Report) -> None:
        self.before = None
        clock = self.context.clock
        until_us = until_us or clock.now_us()
        await self._measure(report)
        while (now_us := clock.now_us()) < until_us - 1000 * SLACK_MS:
            await clock.sleep_until_us(min(now_us + 1_000_000, until_us - 1000 * SLACK_MS))
            report(await self._rule_witness())
        await self._measure(report)
        await clock.sleep_until_us(until_us)
        report(await self._rule_witness(last=True))

    async def _true_epochs(self) -> dict[int, int]:
        states = await retry_refused(
            lambda: self.context.world.partitions([self.topic]), self.context.clock, READ_DEADLINE_MS
        )
        return {state.partition: state.leader_epoch for state in states}


class FalsifyEpochs(UnprobedFault):
    """Show clients no leader epochs of a topic, or epochs that do not rise, or that are lower than before."""

    band = Band("#c7e9c0", "false epochs")
    proof = (
        "A probe through the wire proxy sees lower leader epochs than the controller reports to the harness, once "
        "leaders have higher ones. The wire proxy counts the responses in which it lowered an epoch (read each second)."
    )
    remedy = "The rule is removed."

    drawn = ("{topic: TOPIC, epoch: absent, for: 8s}",)
    drawn_with = "{kind: reassign, topic: TOPIC, rotate: 1}"
    kind: Literal["falsify_epochs"] = "falsify_epochs"
    topic: str = Field(description="topic whose leader epochs are changed")
    epoch: Annotated[
        EpochLie,
        Field(
            description="`absent`: -1; `frozen`: at most the epoch at the injection; `earlier`: at most that less `by`"
        ),
    ]
    by: Annotated[StrictInt, Field(ge=1, le=1_000)] | None = Field(
        default=None, description="epochs by which an `earlier` one is lower than at the injection; 1 by default"
    )

    @model_validator(mode="after")
    def _each_response(self) -> Self:
        for name in ("nth", "probability"):
            if getattr(self, name) is not None:
                raise ValueError(f"a client would see epochs rise and fall: remove `{name}`, each response is changed")
        if self.by is not None and self.epoch != "earlier":
            raise ValueError(f"an epoch that is {self.epoch} is not lower by a number: remove `by`")
        return self

    @property
    def named_api(self) -> str | None:
        return None

    def rule_action(self, draws: Draws) -> dict[str, Any]:
        return super().rule_action(draws) | {"epoch": self.epoch}

    async def resolved(self, context: InjectionContext, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- nothing is drawn
        """Return the highest epoch that clients see of each partition, from the epochs at the injection."""
        states = sorted(await context.world.partitions([self.topic]), key=lambda state: state.partition)
        lower = {"absent": None, "frozen": 0, "earlier": self.by or 1}[self.epoch]
        epochs = [-1 if lower is None else max(0, state.leader_epoch - lower) for state in states]
        chosen = [state for state in states if self.partition in (None, state.partition)]
        if self.epoch == "earlier" and all(state.leader_epoch == 0 for state in chosen):
            raise FaultError(
                f"the topic {self.topic} has had no leader before the present ones, so there is no earlier epoch: move "
                "the leaders before the fault, for example by `reassign`"
            )
        return {"epochs": epochs}

    async def resolve_targets(self, context: InjectionContext, draws: Draws) -> Injection:
        injection = await super().resolve_targets(context, draws)
        rule = injection.targets.roles["rule"]
        return EpochInjection(
            context, injection.targets, self, rule, undo=injection.undo, highest=tuple(rule["epochs"]), topic=self.topic
        )

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().surprises(plan)
        replicated = {topic.name: topic.replication for topic in plan.topics.values()}
        if self.epoch != "absent" and replicated.get(self.topic) == 1:
            message = f"the topic {self.topic} has one replica, so its leaders can't move and no epoch rises"
            yield Problem(("topic",), message)
