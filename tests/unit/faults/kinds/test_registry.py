"""Fault kinds of other packages: valid kinds are used, and a broken kind gives an error only in plans that use it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar, Literal

import pytest

from aftershock.errors import EngineError, PlanError
from aftershock.faults.kinds import registry
from aftershock.faults.kinds.process.kill import Kill
from aftershock.faults.kinds.registry import BUILT_IN, ExternalKinds, load_external_kinds
from aftershock.faults.plan import parsing
from aftershock.faults.plan.check import load_plan
from aftershock.harness.cli.machine import doctor
from aftershock.harness.cluster import engine
from aftershock.tests.unit.faults.conftest import FRAME

if TYPE_CHECKING:
    from aftershock.faults.kinds.fault import Band


class Smite(Kill):
    """Kill, louder."""

    kind: Literal["smite"] = "smite"  # type: ignore[assignment]


class Nameless(Kill):
    kind: Literal["nameless"] = "nameless"  # type: ignore[assignment]
    __doc__ = None


class Abstract(Kill):
    """A kind without `resolve_targets`."""

    kind: Literal["abstract"] = "abstract"  # type: ignore[assignment]
    band: ClassVar[Band] = "red"  # type: ignore[assignment]


@dataclass(frozen=True)
class Entry:
    """Stand-in for an importlib entry point; ``what`` is loaded, or raised."""

    name: str
    what: object
    package: str = "theirs"

    @property
    def value(self) -> str:
        return f"{self.package}:{self.name.title()}"

    @property
    def dist(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.package, version="1.2")

    def load(self) -> object:
        if isinstance(self.what, Exception):
            raise self.what
        return self.what


def test_a_valid_kind_is_used() -> None:
    """The kind has its name and its package."""
    result = load_external_kinds([Entry("smite", Smite)], BUILT_IN)  # type: ignore[list-item]
    assert ({"smite": Smite}, {"smite": "theirs 1.2"}, {}) == (result.kinds, result.packages, result.refused)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (Entry("smite", ImportError("no module named x")), "can't be loaded (ImportError: no module named x)"),
        (Entry("smite", SyntaxError("bad")), "can't be loaded (SyntaxError: bad)"),
        (Entry("smite", print), "is no subclass of aftershock.faults.kinds.fault.Fault"),
        (Entry("smote", Smite), 'needs the field `kind: Literal["smote"] = "smote"`'),
        (Entry("abstract", Abstract), "needs a `family` (one of link,"),
        (Entry("nameless", Nameless), "needs a docstring"),
    ],
)
def test_a_broken_kind_is_refused(entry: Entry, why: str) -> None:
    """The refusal names the package, the defect, and a remedy."""
    result = load_external_kinds([entry, Entry("zap", type("Zap", (Smite,), {"__doc__": "x"}))], BUILT_IN)  # type: ignore[list-item]
    assert {entry.name, "zap"} == set(result.refused)
    sentence = result.refused[entry.name]
    assert sentence.startswith(f"the package theirs 1.2 has a kind `{entry.name}` that can't be used: ")
    assert why in sentence
    assert sentence.endswith("; fix or uninstall it")


def test_a_built_in_name_is_refused() -> None:
    """A package with a kind `kill` is refused, and the built-in kind stays."""
    result = load_external_kinds([Entry("kill", Smite)], BUILT_IN)  # type: ignore[list-item]
    assert {} == result.kinds
    assert (
        "Aftershock itself has a kind of the same name, so one of the two needs another name"
        in result.refused["kill of theirs 1.2"]
    )


def test_two_packages_of_one_name() -> None:
    """The first package in alphabetical order provides the kind; the refusal of the other names it."""
    entries = [Entry("smite", Smite, "bbb"), Entry("smite", Smite, "aaa")]
    result = load_external_kinds(entries, BUILT_IN)  # type: ignore[arg-type]
    assert {"smite": "aaa 1.2"} == result.packages
    assert "the package aaa 1.2 has a kind of the same name" in result.refused["smite of bbb 1.2"]


def no_engine() -> None:
    raise EngineError("no Docker engine")


def test_a_plan_that_uses_a_broken_kind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """That plan is refused at the kind, other plans are not affected, and `doctor` reports the kind."""
    broken = load_external_kinds([Entry("smite", ImportError("no x"))], BUILT_IN)  # type: ignore[list-item]
    monkeypatch.setattr(parsing, "EXTERNAL", broken)
    monkeypatch.setattr(registry, "EXTERNAL", broken)
    monkeypatch.setattr(engine, "connect", no_engine)
    load_plan(FRAME + "  - {for: 4s, kind: kill, broker: 1}\n")
    with pytest.raises(PlanError, match=r"^plan.yaml:10:21: the package theirs 1.2 has a kind `smite`"):
        load_plan(FRAME + "  - {for: 4s, kind: smite, broker: 1}\n")
    assert 3 == doctor()
    kinds = [line for line in capsys.readouterr().out.splitlines() if "fault kind" in line]
    assert [f"MISSING fault kind: {broken.refused['smite']}"] == kinds


def test_no_external_kinds() -> None:
    """Without entry points there is nothing to load or to refuse."""
    assert ExternalKinds() == load_external_kinds([], BUILT_IN)
