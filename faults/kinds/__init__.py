"""The catalogue: every kind of fault there is.

Ours are found in the modules of this folder, one file a kind. A package of a user's own adds its kinds through the
entry point group ``aftershock.faults``: an entry for each, named as the kind, that leads to its class.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from aftershock.faults.fault import FAMILIES, Fault

GROUP = "aftershock.faults"


def kind_of(fault: type[Fault]) -> str | None:
    """The word for this kind of fault; None for a class that only others build on."""
    word = fault.model_fields["kind"].default
    return word if isinstance(word, str) else None


def _ours() -> Iterator[type[Fault]]:
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        for name, value in vars(import_module(module.name)).items():
            local = isinstance(value, type) and issubclass(value, Fault) and value.__module__ == module.name
            if local and not name.startswith("_") and kind_of(value):
                yield value


def _theirs() -> Iterator[type[Fault]]:
    yield from (entry.load() for entry in entry_points(group=GROUP))


def _found() -> dict[str, type[Fault]]:
    kinds = sorted(_ours(), key=lambda kind: (FAMILIES.index(kind.family), str(kind_of(kind))))
    return {str(kind_of(kind)): kind for kind in (*kinds, *_theirs())}


KINDS: dict[str, type[Fault]] = _found()
"""By the word for each, family by family."""

if TYPE_CHECKING:
    AnyFault = Fault
else:
    AnyFault = Annotated[Union[tuple(KINDS.values())], Field(discriminator="kind")]  # noqa: UP007 -- known at run time
