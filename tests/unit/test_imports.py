"""The import directions of the project: no module imports upwards."""

import ast
import re
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: folder → what it may import. The first entry that is a prefix of the module's own name applies.
ALLOWED = {
    "aftershock.redaction": (),
    "aftershock.names": (),
    "aftershock.errors": ("aftershock.redaction",),
    # the reference clients, from bottom to top: bytes, rules, input and output
    "aftershock.workloads.kafka.wire": ("aftershock.errors", "aftershock.workloads.kafka.wire"),
    "aftershock.workloads.kafka.rules": (
        "aftershock.errors",
        "aftershock.workloads.kafka.rules",
        "aftershock.workloads.kafka.wire.codes",
    ),
    "aftershock.workloads.kafka": ("aftershock.errors", "aftershock.workloads.kafka"),
    "aftershock.workloads": ("aftershock.errors", "aftershock.names", "aftershock.workloads"),
    # the SLO language and the rules that it names are pure leaves: `plan check` and the judge read the same language
    "aftershock.results.model.rules": (),
    "aftershock.results.slo": ("aftershock.errors", "aftershock.results.model.rules", "aftershock.results.slo"),
    "aftershock.results": ("aftershock.errors", "aftershock.names", "aftershock.results"),
    # the wire proxy reads Kafka's frames with the codec of the reference clients, and knows no plan
    "aftershock.faults.wire_proxy": (
        "aftershock.errors",
        "aftershock.faults.wire_proxy",
        "aftershock.workloads.kafka.wire",
    ),
    "aftershock.faults": ("aftershock.errors", "aftershock.names", "aftershock.faults", "aftershock.results.slo"),
    "aftershock.harness": ("aftershock",),
}
#: modules of `faults` that know neither the executor nor what acts on a cluster
PURE = ("faults/plan/model.py", "faults/timeline/compile.py", "faults/timeline/timeline.py")
BASES = sorted((ROOT / "faults" / "kinds").glob("*/base.py"))


def modules() -> Iterator[tuple[str, Path]]:
    for part in ("faults", "harness", "results", "workloads"):
        for path in sorted((ROOT / part).rglob("*.py")):
            name = ".".join(("aftershock", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
            yield name, path
    yield "aftershock.errors", ROOT / "errors.py"
    yield "aftershock.redaction", ROOT / "redaction.py"


def imports_of(source: str, *, top: bool = False) -> set[str]:
    """Return the project's modules that ``source`` imports; `from a import b` counts as a and a.b. ``top``:
    only imports of the module's top level.
    """
    result = set()
    tree = ast.parse(source)
    for node in tree.body if top else ast.walk(tree):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            result |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in result if name.startswith("aftershock.")}


def within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def forbidden(module: str, source: str) -> set[str]:
    allowed = next(may for part, may in ALLOWED.items() if within(module, part))
    parents = {"aftershock.results"} if "aftershock.results.slo" in allowed else set()
    imported = imports_of(source) - parents
    allowed = (*allowed, *ALLOWED["aftershock.errors"]) if "aftershock.errors" in allowed else allowed
    return {name for name in imported if not any(within(name, part) for part in allowed)}


@pytest.mark.parametrize(("module", "path"), list(modules()))
def test_no_module_imports_upwards(module: str, path: Path) -> None:
    """Each part imports only what lies below it, so that the judging half never needs the live half."""
    assert set() == forbidden(module, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PURE)
def test_the_plan_and_the_compiler_do_not_import_the_executor(path: str) -> None:
    """The functional core of `faults` does not depend on the code that runs it."""
    imported = imports_of((ROOT / path).read_text(encoding="utf-8"))
    assert "aftershock.faults.timeline.executor" not in imported


@pytest.mark.parametrize("path", BASES, ids=lambda path: path.parent.name)
def test_the_base_of_a_family_imports_no_kind(path: Path) -> None:
    """Kinds build on the base of their family; a base imports no kind and not the plan that contains the faults."""
    allowed = {f"aftershock.faults.{name}" for name in ("kinds", "kinds.fault", "kinds.probing", "sections")}
    known = {name for name, _ in modules()}
    imported = {name for name in imports_of(path.read_text(encoding="utf-8")) if name in known} - allowed
    assert set() == {name for name in imported if name.startswith("aftershock.faults.kinds.") and name[-5:] != ".base"}
    assert "aftershock.faults.plan.model" not in imported


def test_folders_import_each_other_one_way_only() -> None:
    """The folders can be ordered so that the files of each import only files of folders before it."""
    paths = dict(modules())
    folders = {name: name if path.stem == "__init__" else name.rpartition(".")[0] for name, path in paths.items()}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        imported = {folders[other] for other in imports_of(path.read_text(encoding="utf-8")) if other in paths}
        graph.setdefault(folders[name], set()).update(imported - {folders[name]})
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the folders


def documented_folders() -> list[str]:
    """Return the folders that docs/DESIGN.md lists, from bottom to top within each part."""
    page = (ROOT / "docs" / "DESIGN.md").read_text(encoding="utf-8")
    folders, part = [], ""
    for line in page.partition("```\n")[2].partition("```")[0].splitlines():
        for word in line[:39].split():
            if line.startswith(word):
                part = word.rstrip("/")
            elif "/" in word:
                below = re.split(r"[<{]", word)[0].strip("/").replace("/", ".")
                folders.append(f"aftershock.{part}.{below}")
    return folders


def test_the_page_lists_the_folders_from_bottom_to_top() -> None:
    """A folder imports from its own part only what the page lists before it."""
    paths, folders = dict(modules()), documented_folders()

    def rank(module: str) -> tuple[str, int]:
        fitting = [number for number, folder in enumerate(folders) if within(module, folder)]
        top = max(fitting, key=lambda number: len(folders[number]), default=len(folders))
        return module.split(".")[1], top

    for name, path in paths.items():
        part, height = rank(name)
        imported = {other: rank(other) for other in imports_of(path.read_text(encoding="utf-8")) if other in paths}
        higher = {other for other, (of, place) in imported.items() if of == part and place > height}
        assert set() == higher, name


def test_no_imports_form_a_cycle() -> None:
    """The files of the project can be ordered so that each imports only files before it."""
    paths = dict(modules())
    graph = {
        name: {other for other in imports_of(path.read_text(encoding="utf-8"), top=True) if other in paths}
        for name, path in paths.items()
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the files


def test_the_rule_catches_an_upward_import() -> None:
    """A planted import of the harness from a workload is found, however it is written."""
    assert {"aftershock.harness", "aftershock.harness.run"} <= forbidden(
        "aftershock.workloads.load.worker", "from aftershock.harness import run"
    )
    assert {"aftershock.harness.run.run"} <= forbidden(
        "aftershock.workloads.load.worker", "import aftershock.harness.run.run"
    )


def test_every_folder_is_packaged() -> None:
    """pip refuses a listed folder that does not exist, and leaves out a folder that is not listed."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    parts = ("faults", "harness", "results", "workloads")
    data = ROOT / "harness" / "clients" / "programs"  # package data, which runs in environments of its own
    modules = [path for part in parts for path in (ROOT / part).rglob("*.py") if data not in path.parents]
    folders = {folder for path in modules for folder in path.relative_to(ROOT).parents}
    assert {".".join(("aftershock", *folder.parts)) for folder in folders} == set(listed)
