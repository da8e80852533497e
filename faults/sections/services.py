"""Models of the parts of a plan about services under test: the pipe between two topics, and when a service is ready."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal, Self

import re2
from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, model_validator

from aftershock.faults.sections.cluster import Part, RackName, TopicName
from aftershock.faults.sections.units import Duration

MEMBERS_MAX = 64
GroupName = TopicName
QUIET = re2.Options()
QUIET.log_errors = False


def _mark_place(value: object) -> object:
    if isinstance(value, dict) and set(value) == {"value"} and isinstance(value["value"], str):
        value = value["value"]
        if not _JSON_PATH.fullmatch(value):
            raise ValueError(f"`{value}` is not the path of a JSON field: write it like $.id or $.order.id")
    elif value not in ("header", "key"):
        raise ValueError('an output names its input by `header`, `key`, or a JSON field like {value: "$.id"}')
    return value


def _fan_out(value: object) -> object:
    match = _FAN_OUT.fullmatch(str(value))
    if match is None or int(match["most"] or match["least"]) < int(match["least"]):
        raise ValueError(f"`{value}` is no number of outputs: write 1, 2, or a range like 1..3")
    return value


_JSON_PATH = re.compile(r"\$(\.[A-Za-z_][A-Za-z0-9_]{0,63}){1,8}")
_FAN_OUT = re.compile(r"(?P<least>[1-9]\d{0,2})(\.\.(?P<most>[1-9]\d{0,2}))?")


class Pipe(Part):
    """Service of each arm, which reads the topic ``from`` and writes outputs to the topic ``to``.

    An output names its input by its ``mark``: the header ``aftershock`` of the input, the input's key, or a field of
    its JSON value, which the service copies. An input has ``fan_out`` outputs (1, or a range), or none if ``filter`` is
    ``allowed``. The ``members`` are processes of the consumer group ``group``, which a coordinator must know for checks
    of committed offsets. A ``transactional`` service promises exactly once: it writes outputs and commits offsets in
    one transaction. A member that ends by itself is started again after ``restart``, as an orchestrator would.

    With several arms, the arm A writes to the topic ``<to>-A`` in the group ``<group>-A``.
    """

    from_: TopicName = Field(alias="from")
    to: TopicName
    group: GroupName | None = None
    members: Annotated[StrictInt, Field(ge=1, le=MEMBERS_MAX)] = 1
    rack: RackName | None = None
    mark: Annotated[str, BeforeValidator(_mark_place)] = "header"
    filter: Literal["allowed"] | None = None
    fan_out: Annotated[StrictInt | str, BeforeValidator(_fan_out)] = 1
    transactional: StrictBool = False
    restart: Annotated[Duration, Field(ge=100, le=60_000)] = 1_000

    @property
    def outputs(self) -> tuple[int, int]:
        """Return the least and the largest number of outputs of an input."""
        match = _FAN_OUT.fullmatch(str(self.fan_out))
        least, most = (match["least"], match["most"] or match["least"]) if match else (1, 1)
        return 0 if self.filter else int(least), int(most)

    def topic_names(self, _declared: Iterable[str]) -> tuple[str, ...]:
        return self.from_, self.to

    def named(self, name: str, arm: str, arms: int) -> str:
        """Return the name of an arm's topic or group, which has the arm's name as its end if there are several."""
        return name if arms == 1 else f"{name}-{arm}"


def _line_pattern(text: str) -> str:
    try:
        re2.compile(text, QUIET)
    except re2.error as error:
        raise ValueError(f"`{text}` is not a regular expression ({error.args[0].decode()}): correct it") from None
    return text


class Ready(Part):
    """How a service tells that it is ready: a line that matches ``log``, or a successful answer at ``http``."""

    log: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_line_pattern)] | None = None
    http: Annotated[str, Field(pattern=r"^http://(localhost|127\.0\.0\.1):\d{1,5}(/\S{0,200})?$")] | None = None

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.log is None) == (self.http is None):
            raise ValueError(
                "give either `log`, a pattern of a line, or `http`, an address like http://localhost:8080/"
            )
        return self
