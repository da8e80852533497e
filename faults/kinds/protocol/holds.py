"""Protocol fault that holds requests of transactional producers until a later transaction is open.

A producer whose request has no answer repeats it on a new connection. The request itself may still be on its way: in
the buffers of a network, or in the queue of a slow broker. ``hold_request`` keeps it in the wire proxy until the
repeated request has ended its transaction, and the brokers have acknowledged as many records of the next transaction as
``until`` says. Then the coordinator gets it, while that transaction is open. The broker's answer is recorded.

With version 1 of the transactions (KIP-98), which librdkafka speaks on any cluster, all transactions of a producer have
the same epoch. The coordinator takes a late EndTxn for one of the open transaction, and ends that (KAFKA-17754). With
version 2 (KIP-890), each end raises the epoch, and the late request is refused.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from aftershock.faults.kinds.fault import Band, Draws, PlanContext
from aftershock.faults.kinds.protocol.base import undecoded
from aftershock.faults.kinds.protocol.messages import UnprobedFault
from aftershock.faults.runtime.record import Witness
from aftershock.faults.sections.document import Problem
from aftershock.faults.wire_proxy.rules import RuleOutcome


class Until(BaseModel):
    """Moment at which a held request is released."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sent: Annotated[
        StrictInt,
        Field(ge=0, description="acknowledged records of the producer's next transaction; 0: the end of its own one"),
    ]


class HoldRequest(UnprobedFault):
    """Hold a request of a transaction until the producer's next transaction is open."""

    band = Band("#8c6d31", "held request")
    proof = (
        "The wire proxy counts the held requests that a broker answered while a later transaction of the producer was "
        "open (read each second). The fault is proven by at least one. Each held request is an event in `events.jsonl`."
    )
    remedy = "The rule is removed. A request that is still held is dropped, and its connections are closed."

    allowance_ms = 500  # a rule is added and removed in some ms, and nothing is probed
    rule_fields = ("connection", "outcome")
    kind: Literal["hold_request"] = "hold_request"
    api: Literal["EndTxn", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "Produce"]
    until: Annotated[
        Until,
        Field(
            description="the broker gets the request when so many records of the producer's next transaction are "
            "acknowledged, like {sent: 5}; with {sent: 0}, when its own transaction has ended",
        ),
    ]
    outcome: Annotated[
        RuleOutcome | None, Field(description="hold only an EndTxn that commits, or that aborts, a transaction")
    ] = None
    connection: Annotated[
        Literal["closed", "silent"],
        Field(description="the producer's connection is closed at once, or stays open without an answer"),
    ] = "closed"

    def rule_action(self, draws: Draws) -> dict[str, Any]:
        return super().rule_action(draws) | {"sent": self.until.sent}

    def interpret_counters(self, counters: Mapping[str, int], *, last: bool) -> Witness:
        """Return a witness that held requests arrived late; until the heal, none need have done so."""
        when = "while a later transaction of its producer was open" if self.until.sent else "after its transaction"
        what = f"held {self.api} requests that a broker answered {when}, of {counters['hit']} held"
        ok = not counters["untouched"] and (counters["exposed"] > 0 or not last)
        return Witness(f"{what}{undecoded(counters)}", 1, counters["exposed"], "requests", 1, ok)

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        if self.outcome is not None and self.api != "EndTxn":
            yield Problem(("outcome",), f"a request of {self.api} ends no transaction: remove `outcome`")

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().surprises(plan)
        planned = any(
            (workload.produce and workload.produce.transaction) or workload.pipe for workload in plan.workloads.values()
        )
        if not (planned or plan.unreadable_workloads or self.client_id):
            yield Problem((), "no workload has transactions whose requests can be held: add `transaction` to `produce`")
