"""Catalogue of all fault kinds: the built-in kinds, and the kinds of other packages.

The built-in kinds are found in the modules below this folder. Other packages add kinds through the entry point group
``aftershock.faults``, in which an entry has the name of its kind and refers to the class::

    [project.entry-points."aftershock.faults"]
    doze = "example_fault:Doze"

An entry point that can't be loaded or is not a valid fault kind is refused with a sentence that names its package,
which affects only plans that use the kind. An entry point can't take the name of a built-in kind; of two packages with
the same kind name, the first in alphabetical order provides it. ``docs/EXTEND.md`` describes how to write a fault kind.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from aftershock.faults.kinds.fault import FAMILIES, Band, Fault

GROUP = "aftershock.faults"
_REQUIRED = ("band", "proof", "remedy", "exposure_target", "for_rule", "allowance_ms")
_FOR_RULES = ("needed", "optional", "refused")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class ExternalKinds:
    """Fault kinds of other packages; ``packages``: the package of each kind; ``refused``: reasons by entry point."""

    kinds: Mapping[str, type[Fault]] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def load_external_kinds(entries: Iterable[EntryPoint], built_in: Iterable[str]) -> ExternalKinds:
    """Load the fault kinds of these entry points; kinds that can't be used are in ``refused``, with the reason."""
    kinds: dict[str, type[Fault]] = {}
    packages: dict[str, str] = {}
    refused: dict[str, str] = {}
    provider = dict.fromkeys(built_in, "Aftershock itself")

    def package_of(entry: EntryPoint) -> str:
        return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"

    for entry in sorted(entries, key=lambda entry: (entry.name, package_of(entry))):
        package = package_of(entry)
        sentence = f"the package {package} has a kind `{entry.name}` that can't be used: {{}}; fix or uninstall it"
        if entry.name in provider:
            reason = f"`{entry.name}` is a kind of {provider[entry.name]}: it needs another name"
            refused.setdefault(f"{entry.name} of {package}", sentence.format(reason))
            continue
        provider[entry.name] = f"the package {package}"
        defect: str | None
        try:
            kind = entry.load()
        except Exception as error:  # noqa: BLE001 -- an error in another package's module must not stop other plans
            defect = f"{entry.value} can't be loaded ({type(error).__name__}: {error})"
        else:
            defect = _defect(entry, kind)
        if defect:
            refused[entry.name] = sentence.format(defect)
        else:
            kinds[entry.name], packages[entry.name] = kind, package
    return ExternalKinds(kinds, packages, refused)


def _defect(entry: EntryPoint, kind: Any) -> str | None:
    """Return why the object of an entry point is no valid fault kind; None if it is valid."""
    if not (isinstance(kind, type) and issubclass(kind, Fault)):
        return f"the fault class {entry.value} is no subclass of aftershock.faults.kinds.fault.Fault"
    try:
        if kind.model_fields["kind"].default != entry.name:
            return f'{entry.value} must have the field `kind: Literal["{entry.name}"] = "{entry.name}"`, like its entry'
        if missing := [name for name in _REQUIRED if not hasattr(kind, name)]:
            return f"the fault class {entry.value} lacks the class variables {', '.join(missing)}"
        if inspect.isabstract(kind):
            return f"the fault class {entry.value} lacks the methods {', '.join(sorted(kind.__abstractmethods__))}"
        if kind.family not in FAMILIES or kind.for_rule not in _FOR_RULES or not isinstance(kind.band, Band):
            families, rules = ", ".join(FAMILIES), ", ".join(_FOR_RULES)
            return f"{entry.value} needs a family of {families}, a for_rule of {rules}, a Band"
        if not kind.__doc__:
            return (
                f"the fault class {entry.value} needs a docstring, whose first line is the summary in "
                f"the fault catalogue"
            )
        kind.model_json_schema(by_alias=True)
    except Exception as error:  # noqa: BLE001 -- building the schema runs code of the other package, as above
        return f"{entry.value} can't be described ({type(error).__name__}: {error})"
    return None


def kind_of(fault: type[Fault]) -> str | None:
    """Return the name of a fault class as plans write it; None for a base class of faults."""
    name = fault.model_fields["kind"].default
    return name if isinstance(name, str) else None


def _built_in_kinds() -> Iterator[type[Fault]]:
    for path in sorted(_FOLDER.glob("*/*.py")):
        module = f"aftershock.faults.kinds.{path.parent.name}.{path.stem}"
        for name, value in vars(import_module(module)).items():
            local = isinstance(value, type) and issubclass(value, Fault) and value.__module__ == module
            if local and not name.startswith("_") and kind_of(value):
                yield value


def _by_family(kinds: Iterable[type[Fault]]) -> dict[str, type[Fault]]:
    ordered = sorted(kinds, key=lambda kind: (FAMILIES.index(kind.family), str(kind_of(kind))))
    return {str(kind_of(kind)): kind for kind in ordered}


BUILT_IN: dict[str, type[Fault]] = _by_family(_built_in_kinds())
"""Built-in kinds by name, family by family."""
EXTERNAL: ExternalKinds = load_external_kinds(entry_points(group=GROUP), BUILT_IN)
"""Kinds of installed packages, and the refused ones."""
KINDS: dict[str, type[Fault]] = _by_family([*BUILT_IN.values(), *EXTERNAL.kinds.values()])
"""All kinds that a plan may use."""

if TYPE_CHECKING:
    AnyFault = Fault
else:
    AnyFault = Annotated[Union[tuple(KINDS.values())], Field(discriminator="kind")]  # noqa: UP007 -- known at run time
