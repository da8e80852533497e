"""``answer_error``: requests of an API are answered with an error of Kafka's.

What would change something at the broker never gets there: the proxy answers in its place, for all that the request
names. What only reads is served, and the error put into the broker's answer, for the topic and partition that the fault
is about. An error of fetch sessions is said of a Fetch as a whole, any other of its partitions.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from aftershock.faults.fault import Band, Draws
from aftershock.faults.problem import did_you_mean
from aftershock.faults.strikes.tampered import Api, TamperFault
from aftershock.faults.strikes.tampering import Look
from aftershock.faults.values import Answer
from aftershock.faults.wire_proxy.apis import ERROR_CODES


def _known(error: str) -> str:
    if error not in ERROR_CODES:
        sentence = f"Kafka has no error `{error}`; {did_you_mean(error, ERROR_CODES)}"
        raise PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
    return error


_ERROR = {"type": "string", "description": "Kafka's name of an error, like NOT_LEADER_OR_FOLLOWER"}


class AnswerError(TamperFault):
    """Answer requests of an API with an error."""

    band: ClassVar[Band] = Band("#e6550d", "error")
    proof: ClassVar[str] = "a probe that the rule meets is answered with that error; the proxy's counters each second"
    remedy: ClassVar[str] = "the rule is removed, and a probe is answered without it"

    kind: Literal["answer_error"] = "answer_error"
    api: Api
    error: Annotated[str, AfterValidator(_known), WithJsonSchema(_ERROR)]

    def deed(self, draws: Draws) -> dict[str, Any]:  # noqa: ARG002 -- it draws nothing of its own
        """By its code."""
        return {"do": "answer_error", "error": ERROR_CODES[self.error]}

    def look(self, before: Answer, now: Answer, probed: int) -> Look:  # noqa: ARG002 -- it is seen from outside
        """The error, wherever it stands in the answer."""
        told = ERROR_CODES[self.error] in now.errors
        return Look(f"probes that the rule meets, answered with {self.error}", 1, float(told), "probes", told)
