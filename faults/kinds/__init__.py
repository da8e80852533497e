"""The catalogue: every kind of fault there is.

Ours are found in the modules of this folder, one file a kind; other packages bring theirs (``entry_points.py``).
"""

import pkgutil
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from aftershock.faults.entry_points import GROUP, Brought, brought
from aftershock.faults.fault import FAMILIES, Fault


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


def _by_family(kinds: Iterable[type[Fault]]) -> dict[str, type[Fault]]:
    ordered = sorted(kinds, key=lambda kind: (FAMILIES.index(kind.family), str(kind_of(kind))))
    return {str(kind_of(kind)): kind for kind in ordered}


OURS: dict[str, type[Fault]] = _by_family(_ours())
"""Those of this folder, by the word for each, family by family."""
BROUGHT: Brought = brought(entry_points(group=GROUP), OURS)
"""Those of other packages, and what is wrong with some."""
KINDS: dict[str, type[Fault]] = _by_family([*OURS.values(), *BROUGHT.kinds.values()])
"""All that a plan may use."""

if TYPE_CHECKING:
    AnyFault = Fault
else:
    AnyFault = Annotated[Union[tuple(KINDS.values())], Field(discriminator="kind")]  # noqa: UP007 -- known at run time
