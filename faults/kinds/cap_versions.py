"""``cap_versions``: an old broker, to any client: it offers no versions above these.

Versions are agreed on once a connection, so inject and heal close the connections of the clients it is for. An API
whose lowest version is above its cap, or whose cap is ``none``, isn't offered at all.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, StrictInt

from aftershock.faults.fault import Band, Draws
from aftershock.faults.strikes.tampered import Api, TamperFault
from aftershock.faults.strikes.tampering import Look
from aftershock.faults.values import Answer

_NONE = "none"
_NOT_OFFERED = -1


def _not_at_all(value: object) -> object:
    return None if value == _NONE else value


Cap = Annotated[Annotated[StrictInt, Field(ge=0, le=100)] | None, BeforeValidator(_not_at_all)]


class CapVersions(TamperFault):
    """Let brokers offer no versions above these."""

    band: ClassVar[Band] = Band("#c49c94", "old broker")
    proof: ClassVar[str] = "the versions that a probe is offered; the proxy's counters each second"
    remedy: ClassVar[str] = "the rule is removed, connections are closed, and a probe is offered all versions"

    kind: Literal["cap_versions"] = "cap_versions"
    versions: Annotated[
        dict[Api, Cap], Field(min_length=1, description="the highest version of each API, or none: {Fetch: 12}")
    ]

    @property
    def named_api(self) -> str:
        """Where versions are offered."""
        return "ApiVersions"

    def parameters(self) -> dict[str, Any]:
        """With `none` as it was written."""
        return super().parameters() | {"versions": {api: _NONE if c is None else c for api, c in self.versions.items()}}

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """None: not at all."""
        return {"do": "cap_versions", "versions": self.versions}

    def look(self, before: Answer, now: Answer, probed: int) -> Look:  # noqa: ARG002 -- it is seen from outside
        """How many of them are capped: all must be."""
        caps = {api: _NOT_OFFERED if cap is None else cap for api, cap in self.versions.items()}
        within = [api for api, cap in caps.items() if now.versions.get(api, _NOT_OFFERED) <= cap]
        ok = now.outcome == "answered" and len(within) == len(caps)
        return Look("APIs of which a probe is offered no version above the cap", len(caps), len(within), "APIs", ok)
