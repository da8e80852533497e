"""What every part of a plan is made of: a model that takes no unknown key, Kafka's settings, the name of a rack."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def text_of(value: object) -> object:
    """Kafka's configs are text: ``2`` -> ``"2"``, ``true`` -> ``"true"``."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


RackName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,7}$")]
ConfigText = Annotated[str, BeforeValidator(text_of)]


class Part(BaseModel):
    """Base of every part of a plan: no unknown keys, no change after the fact."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
