"""Protocol faults that answer requests with an error, with a throttle time, or by a script.

Under ``answer_error``, a request that would change state at the broker never reaches the broker; the wire proxy answers
with the error. Of Produce, OffsetCommit and TxnOffsetCommit, only the fault's ``topic`` and ``partition`` are refused,
and the broker gets the rest of the request; other requests are refused as a whole. With ``applied``, the broker serves
the request, and its answer is hidden behind the error, as if it were lost within the broker. The broker serves a
read-only request, and the wire proxy puts the error into the broker's response, for the fault's topic and partition.

A script (``answers``) gives each matching request the next answer, until it is used up; then the broker answers. An
incremental Fetch names no partition, so of a partition's script it takes an answer when its response has the partition.
Each given answer is an event ``scripted_answer`` in ``events.jsonl``.

Under ``throttle_response``, brokers serve the requests, and their responses ask the client to send nothing for a time
(KIP-219). The connection is not muted for that time, as a broker would do it, so a client that sends nevertheless is
served.

Under ``hide_error``, the broker refuses the request, and the wire proxy reports success to the client. No probe shows
that, so the wire proxy's count of changed responses is the only witness.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from aftershock.faults.kinds.fault import Band, Draws, PlanContext
from aftershock.faults.kinds.protocol.base import (
    ROOM_MS,
    SILENCE_MS,
    SLACK_MS,
    Api,
    TamperFault,
    known_to_kafka,
    undecoded,
)
from aftershock.faults.kinds.protocol.messages import SHARE, UnprobedFault
from aftershock.faults.runtime.record import Witness
from aftershock.faults.sections.document import Problem
from aftershock.faults.sections.units import Duration
from aftershock.faults.targets.values import Answer
from aftershock.faults.wire_proxy.rules import ScriptedAnswer

ANSWERS_MAX = 1_000
_OK = "ok"
_SESSION_ERRORS = ("FETCH_SESSION_ID_NOT_FOUND", "INVALID_FETCH_SESSION_EPOCH", "FETCH_SESSION_TOPIC_ID_ERROR")
_WAIT_MS_MAX = 600_000
NEVER_WRITTEN = (
    "CLUSTER_AUTHORIZATION_FAILED",
    "INVALID_RECORD",
    "INVALID_REQUIRED_ACKS",
    "INVALID_TIMESTAMP",
    "INVALID_TOPIC_EXCEPTION",
    "MESSAGE_TOO_LARGE",
    "POLICY_VIOLATION",
    "RECORD_LIST_TOO_LARGE",
    "TOPIC_AUTHORIZATION_FAILED",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
)
"""Errors of Produce that each attempt gets alike, so that a client may promise that the records are in no log."""


@cache
def error_codes() -> dict[str, int]:
    """Return the code of each of Kafka's errors, by its name."""
    from kio.schema.errors import ErrorCode  # noqa: PLC0415 -- imports kio's messages

    return {code.name.upper(): code.value for code in ErrorCode if code.value}


KafkaError = Annotated[
    str,
    AfterValidator(lambda name: known_to_kafka("error", name, error_codes())),
    WithJsonSchema({"type": "string", "description": "Kafka's name of an error, like NOT_LEADER_OR_FOLLOWER"}),
]
Wait = Annotated[Duration, Field(ge=1, le=_WAIT_MS_MAX)]


class PlannedAnswer(BaseModel):
    """One answer of a script; ``ok`` is the broker's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    error: KafkaError | None = Field(default=None, description="error of the response")
    applied: StrictBool = Field(
        default=False, description="let the broker serve the request, and hide its answer behind the `error`"
    )
    after: Wait | None = Field(default=None, description="time by which the answer is late")
    lost: Literal["request", "response"] | None = Field(
        default=None, description="lose the request, or the response, instead of an answer"
    )
    connection: Literal["closed", "silent"] = Field(
        default="closed", description="state of the connection after the request or response is `lost`"
    )
    throttle_time: Wait | None = Field(
        default=None, description="time for which the response asks the client to send nothing"
    )
    times: Annotated[StrictInt, Field(ge=1, le=ANSWERS_MAX)] = Field(
        default=1, description="number of requests in a row that get this answer"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.lost and (self.error or self.after or self.throttle_time):
            raise ValueError(
                f"a lost {self.lost} has no answer: remove `lost`, or `error`, `after` and `throttle_time`"
            )
        if self.applied and not self.error:
            raise ValueError("`applied` needs an `error` that hides the broker's answer: add the error")
        if self.connection == "silent" and not self.lost:
            raise ValueError("`connection` is for a lost message: add `lost: request` or `lost: response`")
        return self

    @model_serializer(mode="wrap")
    def _as_planned(self, handler: Any) -> Any:
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        fields = {name: value for name, value in handler(self).items() if getattr(self, name) != defaults[name]}
        return fields if fields.keys() - {"times"} else fields | {_OK: True} if fields else _OK

    def scripted(self) -> ScriptedAnswer:
        return ScriptedAnswer(
            error=error_codes()[self.error] if self.error else 0,
            applied=self.applied,
            after_ms=self.after or 0,
            lost=self.lost,
            connection=self.connection,
            throttle_ms=self.throttle_time or 0,
        )


def _read_ok(value: Any) -> Any:
    """Read ``ok``, and ``{ok: true, times: 3}``, as an answer without any fields of its own."""
    if value == _OK:
        return {}
    if isinstance(value, dict) and value.get(_OK) is True:
        return {key: inner for key, inner in value.items() if key != _OK}
    return value


OneAnswer = Annotated[PlannedAnswer, BeforeValidator(_read_ok, json_schema_input_type=Literal["ok"] | PlannedAnswer)]


class ErrorFault(TamperFault):
    """Base of faults that put an error into the responses of a Kafka API, or remove it."""

    api: Api


def _response_fields(api: str) -> frozenset[str]:
    from aftershock.faults.wire_proxy.messages import answer_fields  # noqa: PLC0415 -- imports kio's messages

    return answer_fields(api)


def _is_read_only(api: str) -> bool:
    from aftershock.faults.wire_proxy.responses import READ_ONLY  # noqa: PLC0415 -- imports kio's messages
    from aftershock.faults.wire_proxy.rules import API_KEYS  # noqa: PLC0415

    return API_KEYS[api] in READ_ONLY


def _throttle_problems(api: str, where: tuple[str | int, ...]) -> Iterator[Problem]:
    if "throttle_time" not in _response_fields(api):
        yield Problem(where, f"no response of the API {api} has a throttle time: use another API")


class AnswerError(ErrorFault):
    """Answer requests of a Kafka API with an error, or by a script of errors, delays and losses."""

    band = Band("#e6550d", "error")
    proof = (
        "A probe gets the error, or what else the script's first answer but `ok` is. The wire proxy counts altered "
        "requests, and of a script the given answers (read each second). A script with fewer given answers than it has "
        "is named."
    )
    remedy = "The rule is removed, and a probe is answered without the error."

    drawn = (
        "{api: Produce, error: [NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT], probability: [0.1,0.5]}",  # noqa: E501 -- YAML in one piece
        "{api: Produce, error: [REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND], applied: true, probability: [0.1,0.5]}",  # noqa: E501 -- YAML in one piece
        "{api: Fetch, error: [NOT_LEADER_OR_FOLLOWER, OFFSET_NOT_AVAILABLE, FENCED_LEADER_EPOCH], probability: [0.1,0.5]}",  # noqa: E501 -- YAML in one piece
        "{api: OffsetCommit, error: [NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS], probability: [0.1, 0.5]}",
        "{api: Produce, answers: [[{error: REQUEST_TIMED_OUT, after: 1s}, {error: NOT_LEADER_OR_FOLLOWER}, ok, {lost: response}]], per: client}",  # noqa: E501 -- YAML in one piece
        "{api: Fetch, answers: [[{error: UNKNOWN_LEADER_EPOCH}, {after: 1s}, {error: FENCED_LEADER_EPOCH}]], per: client}",  # noqa: E501 -- YAML in one piece
    )
    kind: Literal["answer_error"] = "answer_error"
    error: KafkaError | None = Field(default=None, description="error of each response")
    applied: StrictBool = Field(
        default=False, description="let the broker serve the requests, and hide its answers behind the `error`"
    )
    answers: tuple[OneAnswer, ...] = Field(
        default=(),
        description="script in place of `error`: each matching request takes the next answer, like [{error: "
        "REQUEST_TIMED_OUT, after: 2s}, ok, {lost: response}]; after the script the broker answers. With `nth`, the "
        "script begins with that request",
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.error is None) == (not self.answers):
            raise ValueError("give either `error`, for each matching request, or `answers`, a script")
        if self.answers and self.applied:
            raise ValueError("`applied` goes into the answer of the script that it is about")
        if self.answers and all(answer.scripted().is_plain for answer in self.answers):
            raise ValueError("each answer of the script is `ok`, so nothing would happen: add an error, delay or loss")
        if len(self.script) > ANSWERS_MAX:
            raise ValueError(f"the script has {len(self.script)} answers, and {ANSWERS_MAX} are possible")
        return self

    @property
    def script(self) -> tuple[ScriptedAnswer, ...]:
        return tuple(answer.scripted() for answer in self.answers for _ in range(answer.times))

    @property
    def first(self) -> PlannedAnswer:
        """The answer that a probe gets."""
        answers = self.answers or (PlannedAnswer(error=self.error, applied=self.applied),)
        return next(answer for answer in answers if not answer.scripted().is_plain)

    def rule_action(self, draws: Draws) -> dict[str, Any]:
        action = super().rule_action(draws)
        if self.answers:
            return action | {"answers": [asdict(answer) for answer in self.script]}
        return action | {"error": error_codes()[str(self.error)], "applied": self.applied}

    @property
    def probing_ms(self) -> int:
        first = self.first
        return SILENCE_MS if first.connection == "silent" else (first.after or 0) + SLACK_MS

    @property
    def limit_ms(self) -> int:
        return self.probing_ms + (0 if self.first.connection == "silent" else ROOM_MS)

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> Witness:  # noqa: ARG002 -- the client sees it
        """Return a witness that a probe got the answer."""
        first = self.first
        if first.lost:
            ok, what = now.outcome == first.connection, f"without a {first.lost}, connection {first.connection}"
        elif first.error:
            ok, what = error_codes()[first.error] in now.errors, f"answered with {first.error}"
        elif first.throttle_time:
            ok, what = now.throttle_ms == first.throttle_time, f"with a throttle time of {first.throttle_time} ms"
        else:
            ok, what = now.ms - before.ms >= SHARE * (first.after or 0), f"answered {first.after} ms later than before"
        return Witness(f"matching probes {what}", 1, float(ok), "probes", 1, ok)

    def interpret_counters(self, counters: Mapping[str, int], *, last: bool) -> Witness:
        """Return a witness with the number of altered requests; at the end of a script, how many answers it has."""
        if not self.answers:
            return super().interpret_counters(counters, last=last)
        scripts, given = counters["scripts"], counters["hit"]
        asked = sum(not answer.is_plain for answer in self.script) * max(1, scripts)
        of_clients = f" for {scripts} client{'s' * (scripts != 1)}" if self.per == "client" else ""
        unfinished = max(1, scripts) - counters["finished"]
        left = f"; the script is used up for all but {unfinished} of them" if of_clients and unfinished else ""
        left = left or ("; the script is not used up" if unfinished else "")
        what = f"given answers of the script{of_clients}, to {counters['matched']} matching requests{left}"
        return Witness(f"{what}{undecoded(counters)}", asked, given, "requests", 1, ok=not counters["untouched"])

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        answers: list[tuple[tuple[str | int, ...], PlannedAnswer]]
        answers = [(("answers", index), answer) for index, answer in enumerate(self.answers)]
        for where, answer in answers or [((), self.first)]:
            if answer.error:
                yield from self._error_problems(answer.error, (*where, "error"))
            if answer.applied and _is_read_only(self.api):
                message = f"a request of the API {self.api} changes nothing that could be hidden: remove `applied`"
                yield Problem((*where, "applied"), message)
            if answer.applied and self.api == "Produce" and answer.error in NEVER_WRITTEN:
                message = (
                    f"{answer.error} promises that the records are in no log, so clients would be blamed for what they "
                    "believe: use an error like REQUEST_TIMED_OUT, or remove `applied`"
                )
                yield Problem((*where, "applied"), message)
            if answer.throttle_time:
                yield from _throttle_problems(self.api, (*where, "throttle_time"))

    def _error_problems(self, error: str, where: tuple[str | int, ...]) -> Iterator[Problem]:
        fields, of_session = _response_fields(self.api), error in _SESSION_ERRORS
        errors = {"error_code", "partition_error_code"}
        if not errors & fields:
            yield Problem(where, f"no response of the API {self.api} has an error: use `after`, `lost` or another API")
        elif of_session and self.api != "Fetch":
            yield Problem(where, f"{error} is about a fetch session, which the API {self.api} has not: use Fetch")
        elif self.partition is not None and (of_session or not {f"partition.{name}" for name in errors} & fields):
            message = f"a response of the API {self.api} has no {error} for one partition: remove `partition`"
            yield Problem(("partition",), message)

    def surprises(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().surprises(plan)
        arms = sum(len(workload.arms) for workload in plan.workloads.values())
        if self.answers and self.per == "fault" and self.client is None and self.client_id is None and arms > 1:
            yield Problem(
                ("answers",),
                f"the {arms} arms share one script, so that the first requests of any of them use it up: add `per: "
                "client`, or a `client`",
            )


class HideError(UnprobedFault, ErrorFault):
    """Hide an error in brokers' responses, so that clients take refused requests for successful ones."""

    band = Band("#a63603", "hidden error")
    unavailable = "unknown"  # a client may wait for records that no broker has
    proof = "The wire proxy counts the responses in which it hid the error (read each second)."
    remedy = "The rule is removed."

    kind: Literal["hide_error"] = "hide_error"
    error: KafkaError

    def rule_action(self, draws: Draws) -> dict[str, Any]:
        return super().rule_action(draws) | {"error": error_codes()[self.error]}


class ThrottleResponse(TamperFault):
    """Ask clients to send nothing for a time, in the responses of a Kafka API, as a broker with a quota does."""

    band = Band("#fee6ce", "throttle time")
    proof = "A probe's response has the throttle time. The wire proxy counts altered responses (read each second)."
    remedy = "The rule is removed, and a probe's response has no throttle time."

    drawn = ("{api: [Produce, Fetch, OffsetCommit], throttle_time: [200ms, 1s], probability: 0.2}",)
    kind: Literal["throttle_response"] = "throttle_response"
    api: Api
    throttle_time: Annotated[
        Wait, Field(description="time for which the response asks the client to send nothing (`throttle_time_ms`)")
    ]

    def rule_action(self, draws: Draws) -> dict[str, Any]:
        return super().rule_action(draws) | {"throttle_ms": self.throttle_time}

    def interpret_probe(self, before: Answer, now: Answer, probed: int) -> Witness:  # noqa: ARG002 -- the client sees it
        """Return a witness that the response to a probe has the throttle time."""
        ok = now.throttle_ms == self.throttle_time
        return Witness("throttle time of a matching probe", self.throttle_time, now.throttle_ms, "ms", 1, ok)

    def problems(self, plan: PlanContext) -> Iterator[Problem]:
        yield from super().problems(plan)
        yield from _throttle_problems(self.api, ("api",))
