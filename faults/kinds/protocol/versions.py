"""Protocol fault ``cap_versions``, which lets brokers offer older versions of their APIs, and older transactions.

Clients negotiate API versions once for each connection, so injection and heal of ``cap_versions`` close the connections
of the affected clients. Brokers don't offer an API whose lowest version is above its cap, or whose cap is ``none``.

Brokers go by the version of each request, and Kafka's own clients decide by the finalized feature
``transaction.version`` whether they use version 2 of the transactions (KIP-890). A cap of one of the APIs alone would
mix the two versions, as no client does; ``transaction_version`` caps all that belongs to version 2.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StrictInt, model_validator

from aftershock.faults.kinds.fault import Band, Draws, PlanContext
from aftershock.faults.kinds.protocol.base import Api, TamperFault
from aftershock.faults.runtime.record import Witness
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.transactional_ids import has_transactions
from aftershock.faults.targets.values import Answer
from aftershock.names import ON_LIBRDKAFKA

_NONE = "none"
_NOT_OFFERED = -1
TRANSACTION_VERSION = "transaction.version"


Cap = Annotated[
    Annotated[StrictInt, Field(ge=0, le=100)] | None, BeforeValidator(lambda value: None if value == _NONE else value)
]


TRANSACTIONS_1_MOST = {"Produce": 11, "TxnOffsetCommit": 4, "EndTxn": 4}
"""Highest versions of the requests of version 1 of the transactions (KIP-890); brokers go by those of the requests."""


class CapVersions(TamperFault):
    """Let brokers offer no API version above the given versions, like an older broker.

    ``transaction_version: 1`` caps all that belongs to version 2 of the transactions: Produce at 11, TxnOffsetCommit
    and EndTxn at 4, and the finalized feature ``transaction.version``, by which Kafka's clients decide.
    """

    band = Band("#c49c94", "old broker")
    unavailable = "unknown"  # which versions a client needs is its own affair
    closes_connections = True
    proof = "A probe is offered no API version and feature above the caps. The wire proxy counts altered responses."
    remedy = "The rule is removed and connections are closed. A probe is offered all API versions."

    drawn = ("{versions: {Produce: 9}}", "{versions: {Fetch: 12}}")
    kind: Literal["cap_versions"] = "cap_versions"
    versions: Annotated[
        dict[Api, Cap],
        Field(
            description="highest offered version of each API, like {Fetch: 12}; with `none`, the API is not offered",
        ),
    ] = {}  # noqa: RUF012 -- pydantic copies defaults
    transaction_version: Annotated[
        Literal[0, 1] | None,
        Field(
            description="let clients see a cluster whose `transaction.version` is at most this: caps Produce, "
            "TxnOffsetCommit, EndTxn and the finalized feature together",
        ),
    ] = None

    @model_validator(mode="after")
    def _has_a_cap(self) -> Self:
        if not self.versions and self.transaction_version is None:
            raise ValueError("give `versions`, like {Fetch: 12}, or `transaction_version: 1`")
        if twice := sorted(
            self.versions.keys() & (TRANSACTIONS_1_MOST if self.transaction_version is not None else {})
        ):
            raise ValueError(f"`transaction_version` caps {twice[0]} already: remove it from `versions`")
        return self

    @property
    def named_api(self) -> str:
        return "ApiVersions"  # the API in which brokers offer their API versions

    @property
    def caps(self) -> dict[str, int | None]:
        """Highest offered version of each capped API, None for an API that is not offered."""
        return {**self.versions, **(TRANSACTIONS_1_MOST if self.transaction_version is not None else {})}

    @property
    def features(self) -> dict[str, int]:
        return {} if self.transaction_version is None else {TRANSACTION_VERSION: self.transaction_version}

    def rule_action(self, draws: Draws) -> dict[str, Any]:
        return super().rule_action(draws) | {"versions": self.caps, "features": self.features}

    def parameters(self) -> dict[str, Any]:
        """Return the fault's parameters as plans write them, with ``none`` for an API that is not offered."""
        versions = {api: _NONE if cap is None else cap for api, cap in self.versions.items()}
        plain = {key: value for key, value in super().parameters().items() if key != "versions"}
        return plain | ({"versions": versions} if versions else {})

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        """Warn about caps that would let a transactional producer mix requests of both versions, as no client does."""
        capped = [api for api, most in TRANSACTIONS_1_MOST.items() if (self.versions.get(api, most + 1) or 0) <= most]
        finalized = ((plan.cluster.features if plan.cluster else None) or {}).get(TRANSACTION_VERSION, 2)
        # librdkafka speaks version 1 only
        others = (
            load for load in plan.workloads.values() if {arm.client for arm in load.arms.values()} - {*ON_LIBRDKAFKA}
        )
        mixing = next((load.name for load in others if has_transactions(load)), None)
        if capped and mixing and finalized > 1:
            yield Problem(
                ("versions",),
                f"a transactional producer of `{mixing}` may send {capped[0]} of version 1 of the transactions and "
                "others of version 2, as no client does by itself: use `transaction_version: 1`, which caps all",
            )

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> Witness:  # noqa: ARG002 -- the client sees it
        """Return a witness that the response to a probe offers no API version and no feature above its cap."""
        caps = {api: _NOT_OFFERED if cap is None else cap for api, cap in self.caps.items()}
        within = [api for api, cap in caps.items() if now.versions.get(api, _NOT_OFFERED) <= cap]
        within += [name for name, level in self.features.items() if now.features.get(name, 0) <= level]
        count = len(caps) + len(self.features)
        ok = now.outcome == "answered" and len(within) == count
        what = "APIs and features offered to a probe with no version above the cap"
        return Witness(what, count, len(within), "APIs", 1, ok)
