"""Catalogue of all fault kinds, both the built-in kinds and the kinds of other packages.

The built-in kinds are the classes in the modules below this folder. Other packages add kinds as entry points of the
group ``aftershock.faults`` (``docs/EXTEND.md``). An entry point that can't be loaded or is not a valid fault kind is
refused, which affects only plans that use the kind. An entry point can't take the name of a built-in kind; if two
packages provide a kind of the same name, the first package in alphabetical order is used.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, TypeAlias, Union, get_args

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_plain_validator_function

from aftershock.faults.kinds.fault import FAMILIES, Band, Fault, ForRule

GROUP = "aftershock.faults"
_REQUIRED = ("band", "proof", "remedy", "exposure_target", "for_rule", "allowance_ms")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class ExternalKinds:
    """Fault kinds of other packages; ``refused`` has the reason for each refused kind."""

    kinds: Mapping[str, type[Fault]] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def load_external_kinds(entries: Iterable[EntryPoint], built_in: Iterable[str]) -> ExternalKinds:
    """Load the fault kinds of these entry points; the field ``refused`` of the result has those that can't be used."""
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
            reason = f"{provider[entry.name]} has a kind of the same name, so one of the two needs another name"
            refused.setdefault(f"{entry.name} of {package}", sentence.format(reason))
            continue
        provider[entry.name] = f"the package {package}"
        try:
            kind = entry.load()
            if defect := _defect(entry, kind):
                refused[entry.name] = sentence.format(defect)
            else:
                kinds[entry.name], packages[entry.name] = kind, package
        except Exception as error:  # noqa: BLE001 -- an error in another package must not stop other plans
            reason = f"{entry.value} can't be loaded ({type(error).__name__}: {error})"
            refused[entry.name] = sentence.format(reason)
    return ExternalKinds(kinds, packages, refused)


def _defect(entry: EntryPoint, kind: Any) -> str | None:
    """Return why the object that an entry point loads is no valid fault kind; None if it is a valid fault kind."""
    if not (isinstance(kind, type) and issubclass(kind, Fault)):
        return f"the fault class {entry.value} is no subclass of aftershock.faults.kinds.fault.Fault"
    if kind.model_fields["kind"].default != entry.name:
        return f'the fault class {entry.value} needs the field `kind: Literal["{entry.name}"] = "{entry.name}"`'
    if missing := [name for name in _REQUIRED if not hasattr(kind, name)]:
        return f"the fault class {entry.value} lacks the class variables {', '.join(missing)}"
    if inspect.isabstract(kind):
        return f"the fault class {entry.value} lacks the methods {', '.join(sorted(kind.__abstractmethods__))}"
    if kind.family not in FAMILIES or kind.for_rule not in get_args(ForRule) or not isinstance(kind.band, Band):
        return (
            f"the fault class {entry.value} needs a `family` (one of {', '.join(FAMILIES)}), a `for_rule` (one of "
            f"{', '.join(get_args(ForRule))}) and a `band` of type Band"
        )
    if not kind.__doc__:
        return f"the fault class {entry.value} needs a docstring: its first line is the summary in the fault catalogue"
    kind.model_json_schema(by_alias=True)  # raises an exception for parameters that have no schema
    return None


def kind_of(fault: type[Fault]) -> str | None:
    """Return the value of ``kind`` that selects this fault class in a plan; None for a base class of faults."""
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
"""Built-in fault kinds by name, sorted by family."""
EXTERNAL: ExternalKinds = load_external_kinds(entry_points(group=GROUP), BUILT_IN)
"""Fault kinds of installed packages, and the refused fault kinds."""
KINDS: dict[str, type[Fault]] = _by_family([*BUILT_IN.values(), *EXTERNAL.kinds.values()])
"""All fault kinds that a plan may use, by name."""


class _FaultOfItsKind:
    """Annotation of a fault that is validated by the class of its ``kind``.

    A union of all classes would build the validators of all kinds for every plan, which takes longer than the check of
    a plan. Its schema is only built for editors.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(cls._validate)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        kinds: Any = Union[tuple(KINDS.values())]  # noqa: UP007 -- known at run time
        return handler(TypeAdapter(Annotated[kinds, Field(discriminator="kind")]).core_schema)

    @staticmethod
    def _validate(value: Any) -> Fault:
        if isinstance(value, Fault):
            return value
        kind = value["kind"]
        if not isinstance(kind, str) or kind not in KINDS:
            raise ValueError(f"there is no fault of kind `{kind}`")
        return KINDS[kind].model_validate(value)


AnyFault: TypeAlias = Annotated[Fault, _FaultOfItsKind]
