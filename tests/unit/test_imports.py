"""The import directions of the project: no module imports upwards."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: part → what of ours it may import. The first entry that is a prefix of the module's own name applies.
ALLOWED = {
    "aftershock.errors": (),
    "aftershock.workloads.wire": ("aftershock.errors", "aftershock.workloads.wire"),
    # the reference clients, from bottom to top: bytes, rules, shells
    "aftershock.workloads.rules": (
        "aftershock.errors",
        "aftershock.workloads.rules",
        "aftershock.workloads.wire.codes",
    ),
    "aftershock.workloads.reference": (
        "aftershock.errors",
        "aftershock.workloads.reference",
        "aftershock.workloads.rules",
        "aftershock.workloads.wire",
    ),
    "aftershock.workloads": ("aftershock.errors", "aftershock.workloads"),
    "aftershock.results": ("aftershock.errors", "aftershock.results"),
    # the wire proxy reads Kafka's frames with the codec of the reference clients, and knows no plan
    "aftershock.faults.wire_proxy": (
        "aftershock.errors",
        "aftershock.faults.wire_proxy",
        "aftershock.workloads.wire",
    ),
    # the SLO grammar is a pure leaf: `plan check` and the judge must read the same language
    "aftershock.faults": ("aftershock.errors", "aftershock.faults", "aftershock.results.slo"),
    "aftershock.harness": ("aftershock",),
}
#: inside `faults`, from bottom to top: a module may import those before it
FAULTS_ORDER = ("plan", "compile", "executor")
STRIKES = sorted((ROOT / "faults" / "strikes").glob("*.py"))


def modules() -> Iterator[tuple[str, Path]]:
    for part in ("faults", "harness", "results", "workloads"):
        for path in sorted((ROOT / part).rglob("*.py")):
            name = ".".join(("aftershock", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
            yield name, path
    yield "aftershock.errors", ROOT / "errors.py"


def imports_of(source: str) -> set[str]:
    """The modules of ours that ``source`` imports; `from a import b` counts as both a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("aftershock.")}


def within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def forbidden(module: str, source: str) -> set[str]:
    allowed = next(may for part, may in ALLOWED.items() if within(module, part))
    parents = {"aftershock.results"} if "aftershock.results.slo" in allowed else set()
    imported = imports_of(source) - parents
    return {name for name in imported if not any(within(name, part) for part in allowed)}


@pytest.mark.parametrize(("module", "path"), list(modules()))
def test_no_module_imports_upwards(module: str, path: Path) -> None:
    """Each part imports only what lies below it, so that the judging half never needs the live half."""
    assert set() == forbidden(module, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", ["plan", "compile"])
def test_plan_and_compiler_know_nothing_of_what_runs_them(module: str) -> None:
    """The functional core of `faults` does not reach up to the executor."""
    above = FAULTS_ORDER[FAULTS_ORDER.index(module) + 1 :]
    imported = imports_of((ROOT / "faults" / f"{module}.py").read_text(encoding="utf-8"))
    assert set() == {f"aftershock.faults.{name}" for name in above} & imported


@pytest.mark.parametrize("path", STRIKES, ids=lambda path: path.stem)
def test_what_kinds_share_knows_no_kind(path: Path) -> None:
    """Kinds stand on strikes, and nothing in there names one of them, nor the plan that they are said in."""
    imported = imports_of(path.read_text(encoding="utf-8"))
    assert set() == {
        name for name in imported if name.startswith(("aftershock.faults.kinds", "aftershock.faults.plan"))
    }


def test_the_rule_catches_an_upward_import() -> None:
    """A planted import of the harness from a workload is seen, however it is written."""
    assert {"aftershock.harness", "aftershock.harness.run"} <= forbidden(
        "aftershock.workloads.load", "from aftershock.harness import run"
    ) | forbidden("aftershock.workloads.load", "import aftershock.harness.run")
