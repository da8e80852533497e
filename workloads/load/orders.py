"""Orders of the runner to a worker after the assignment: one JSON object per line, distinguished by ``do``."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Order(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Go(_Order):
    """Start a sender's schedule at ``start_us``.

    A restarted worker that receives it after a stop also gets ``stop_us``.
    """

    do: Literal["go"] = "go"
    start_us: int
    stop_us: int | None = None


class Stop(_Order):
    """Send nothing intended at or after ``at_us``, and answer when every record has its final status."""

    do: Literal["stop"] = "stop"
    at_us: int


class Drain(_Order):
    """Read on to ``end_offsets`` (by partition), until ``until_us`` at most, and answer with what is missing."""

    do: Literal["drain"] = "drain"
    end_offsets: dict[int, int]
    until_us: int


class Quit(_Order):
    """Write the final counters, close the client, exit."""

    do: Literal["quit"] = "quit"


Order = Go | Stop | Drain | Quit

_ADAPTER: TypeAdapter[Order] = TypeAdapter(Annotated[Order, Field(discriminator="do")])


def parse_order(line: str | bytes) -> Order:
    """Parse one line; raises pydantic's ``ValidationError`` if it is not an order."""
    return _ADAPTER.validate_json(line)
