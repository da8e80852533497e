"""Kinds of faults that other packages bring, through the entry point group ``aftershock.faults``.

An entry is named as its kind and leads to its class::

    [project.entry-points."aftershock.faults"]
    doze = "example_fault:Doze"

Rules: what can't be loaded, or is no kind, is refused with a sentence that names its package, and troubles no plan
that doesn't use it. Nobody may take the name of one of ours, nor two packages the same name. ``docs/EXTEND.md`` says
how to write one.

The catalogue: every kind of fault there is.

Ours are found in the modules of this folder, one file a kind; other packages bring theirs (``entry_points.py``).
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from aftershock.faults.kinds.fault import FAMILIES, Band, Fault

GROUP = "aftershock.faults"
_NEEDED = ("band", "proof", "remedy", "exposure_target", "for_rule", "allowance_ms")
_FOR_RULES = ("needed", "optional", "refused")


@dataclass(frozen=True)
class Brought:
    """``packages``: who brings each kind; ``refused``: why a kind can't be used, by the name of its entry."""

    kinds: Mapping[str, type[Fault]] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def brought(entries: Iterable[EntryPoint], ours: Iterable[str]) -> Brought:
    """What these entries bring beside our own kinds."""
    kinds: dict[str, type[Fault]] = {}
    packages: dict[str, str] = {}
    refused: dict[str, str] = {}
    taken = dict.fromkeys(ours, "Aftershock itself")
    for entry in sorted(entries, key=lambda each: (each.name, _package(each))):
        if entry.name in taken:
            why = f"`{entry.name}` is a kind of {taken[entry.name]}: it needs another name"
            refused.setdefault(f"{entry.name} of {_package(entry)}", _sentence(entry, why))
            continue
        taken[entry.name] = f"the package {_package(entry)}"
        found = _loaded(entry)
        if isinstance(found, str):
            refused[entry.name] = _sentence(entry, found)
        else:
            kinds[entry.name], packages[entry.name] = found, _package(entry)
    return Brought(kinds, packages, refused)


def _loaded(entry: EntryPoint) -> type[Fault] | str:
    """The class, or why it can't be used."""
    try:
        found = entry.load()
    except Exception as error:  # noqa: BLE001 -- whatever a stranger's module raises, our plans go on
        return f"{entry.value} can't be loaded ({type(error).__name__}: {error})"
    if not (isinstance(found, type) and issubclass(found, Fault)):
        return f"{entry.value} is no subclass of aftershock.faults.kinds.fault.Fault"
    try:
        return _flaw(entry, found) or found
    except Exception as error:  # noqa: BLE001 -- as above: its schema is built here
        return f"{entry.value} can't be described ({type(error).__name__}: {error})"


def _flaw(entry: EntryPoint, found: type[Fault]) -> str | None:
    """What a class lacks for a kind; None: nothing."""
    if found.model_fields["kind"].default != entry.name:
        return f'{entry.value} must say `kind: Literal["{entry.name}"] = "{entry.name}"`, as its entry is named'
    missing = [name for name in _NEEDED if not hasattr(found, name)]
    if missing:
        return f"{entry.value} lacks the class variables {', '.join(missing)}"
    if inspect.isabstract(found):
        return f"{entry.value} lacks the methods {', '.join(sorted(found.__abstractmethods__))}"
    if found.family not in FAMILIES or found.for_rule not in _FOR_RULES or not isinstance(found.band, Band):
        return f"{entry.value} needs a family of {', '.join(FAMILIES)}, a for_rule of {', '.join(_FOR_RULES)}, a Band"
    if not found.__doc__:
        return f"{entry.value} needs a docstring: its first line is what the catalogue says of it"
    found.model_json_schema(by_alias=True)
    return None


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"


def _sentence(entry: EntryPoint, why: str) -> str:
    return f"the package {_package(entry)} brings a kind `{entry.name}` that can't be used: {why}; mend or uninstall it"


_HOME = Path(__file__).parent


def kind_of(fault: type[Fault]) -> str | None:
    """The word for this kind of fault; None for a class that only others build on."""
    word = fault.model_fields["kind"].default
    return word if isinstance(word, str) else None


def _ours() -> Iterator[type[Fault]]:
    for path in sorted(_HOME.glob("*/*.py")):
        module = f"aftershock.faults.kinds.{path.parent.name}.{path.stem}"
        for name, value in vars(import_module(module)).items():
            local = isinstance(value, type) and issubclass(value, Fault) and value.__module__ == module
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
