"""What the runner says to a worker after the assignment: one JSON object a line, told apart by ``do``."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Order(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Go(_Order):
    """A producer's schedule starts at ``start_us``, and ends at ``stop_us`` where a later life is told after that."""

    do: Literal["go"] = "go"
    start_us: int
    stop_us: int | None = None


class Stop(_Order):
    """A producer sends nothing intended at or after ``at_us``, and answers when every record has its final status."""

    do: Literal["stop"] = "stop"
    at_us: int


class Drain(_Order):
    """A consumer goes on to ``end_offsets`` (by partition), at most until ``until_us``, and answers what is missing."""

    do: Literal["drain"] = "drain"
    end_offsets: dict[int, int]
    until_us: int


class Quit(_Order):
    """Write the closing counters, close the client, end."""

    do: Literal["quit"] = "quit"


Order = Go | Stop | Drain | Quit

_ADAPTER: TypeAdapter[Order] = TypeAdapter(Annotated[Order, Field(discriminator="do")])


def parse_order(line: str | bytes) -> Order:
    """The order in one line; pydantic's ``ValidationError`` when it isn't one."""
    return _ADAPTER.validate_json(line)
