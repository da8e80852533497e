"""Programs of clients with a version: built once into the cache, refused with a reason, and known by what they lack."""

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aftershock.errors import ProgramError
from aftershock.faults.plan.check import load_plan
from aftershock.harness.clients import build, catalogue
from aftershock.harness.clients.arms import needs, programs_of
from aftershock.harness.clients.catalogue import CATALOGUE, Library, parse
from aftershock.harness.clients.recipes import FOLDER, ProgramBuild, Recipe
from aftershock.names import LIBRARIES

PLAN = """\
name: versions
topics: [{name: orders, partitions: 6, replication: 3}]
workloads:
  - name: orders
    produce: {topic: orders, rate: 20/s}
    consume: {topic: orders, group: readers, protocol: consumer}
    arms:
      old: {client: sarama, version: 1.0.0, settings: {producer.retry.max: 5}}
      new: {client: sarama, version: 2.0.0}
faults: [{at: 0s, for: 9s, kind: kill, broker: leader of orders/0}]
slo: ["lost == 0"]
"""


class Registry:
    """Registry of a library, whose versions are described by JSON; a version that it lacks does not build."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "program.py"
        self.source.write_text("import os, sys; print(os.environ.get('TOLD') or open(sys.argv[0] + '.json').read())\n")
        self.versions = {"1.0.0": {"version": "1.0.0", "lacks": {"protocol": "it is too old"}}}
        self.versions["2.0.0"] = {"version": "2.0.0", "lacks": {}}
        self.builds: list[str] = []

    def build(self, running: ProgramBuild, version: str) -> Sequence[str]:
        self.builds.append(version)
        running.copy(self.source.parent, (self.source.name,))
        script = "import sys; print('no such version'); sys.exit(version not in known)"
        known = f"version, known = {version!r}, {[*self.versions]}"
        running.run([sys.executable, "-c", f"{known}\n{script}"])
        (running.context / "program.py.json").write_text(json.dumps(self.versions[version]))
        return (sys.executable, f"{FOLDER}/program.py")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    registry = Registry(tmp_path)
    recipe = Recipe([registry.source], registry.build, 1)
    monkeypatch.setitem(
        catalogue.CATALOGUE, "sarama", Library("sarama", "a registry of this test", recipe, ("1.0.0", "2.0.0"))
    )
    return registry


def quiet(_: str) -> None: ...


def left_behind(tmp_path: Path) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in (tmp_path / "cache" / "aftershock" / "clients").iterdir())


def test_a_program_is_built_once_and_again_when_its_source_changes(registry: Registry, tmp_path: Path) -> None:
    first = build.built("sarama", "1.0.0", quiet)
    assert ("sarama@1.0.0", {"protocol": "it is too old"}) == (first.name, first.lacks)
    assert all(FOLDER not in word for word in first.command)
    assert first == build.built("sarama", "1.0.0", quiet) == build.find("sarama", "1.0.0")
    assert ["1.0.0"] == registry.builds
    registry.source.write_text(registry.source.read_text() + "# changed\n")
    assert build.find("sarama", "1.0.0") is None
    assert first.folder != build.built("sarama", "1.0.0", quiet).folder
    assert ["1.0.0", "1.0.0"] == registry.builds
    assert ["sarama", "sarama"] == left_behind(tmp_path)
    assert {first.folder} < {program.folder for program in build.programs_here()}


def test_two_at_once_build_one_program(registry: Registry) -> None:
    with ThreadPoolExecutor(2) as threads:
        programs = list(threads.map(lambda _: build.built("sarama", "2.0.0", quiet), range(2)))
    assert programs[0] == programs[1]
    assert ["2.0.0"] == registry.builds


@pytest.mark.usefixtures("registry")
def test_a_version_that_does_not_build_is_refused_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(ProgramError) as refused:
        build.built("sarama", "9.9.9", quiet)
    for part in ("building sarama 9.9.9 failed", "no such version", "known to work: 1.0.0, 2.0.0", "this test"):
        assert part in str(refused.value)
    assert [] == left_behind(tmp_path)
    assert build.find("sarama", "9.9.9") is None


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"version": "1.0.1"}, r"1\.0\.0 was asked for, and the library that was built reports version 1\.0\.1"),
        ({"version": ""}, "reports version none"),
        ("nonsense", "ended with status 0; the last lines of its standard error: none"),
    ],
)
def test_a_library_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: object, message: str
) -> None:
    monkeypatch.setenv("TOLD", told if isinstance(told, str) else json.dumps(told))
    with pytest.raises(ProgramError, match=message):
        build.built("sarama", "1.0.0", quiet)
    assert [] == left_behind(tmp_path)


@pytest.mark.usefixtures("registry")
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ProgramError, match="make the folder writable"):
        build.built("sarama", "1.0.0", quiet)


@pytest.mark.usefixtures("registry")
def test_a_plan_is_refused_at_what_a_version_lacks_and_at_every_version_that_is_missing() -> None:
    with pytest.raises(ProgramError) as refused:
        programs_of(load_plan(PLAN.replace("2.0.0", "3.0.0"), ()), quiet)
    text = str(refused.value)
    assert "plan.yaml:6:56: sarama@1.0.0, the client of arm `old`, can't do this: it is too old; " in text
    assert "plan.yaml:9:38: building sarama 3.0.0 failed" in text


def test_a_plan_that_needs_nothing_more_gets_its_programs(registry: Registry) -> None:
    programs = programs_of(load_plan(PLAN.replace(", protocol: consumer", ""), ()), quiet)
    assert [("sarama", "1.0.0"), ("sarama", "2.0.0")] == [*programs]
    registry.versions["1.0.0"]["refused"] = "no such setting"
    registry.source.write_text(registry.source.read_text() + "# changed\n")
    with pytest.raises(ProgramError, match=r"plan\.yaml:8:\d+: sarama@1\.0\.0.*no such setting"):
        programs_of(load_plan(PLAN.replace(", protocol: consumer", ""), ()), quiet)


def test_what_a_workload_needs_of_its_programs() -> None:
    text = PLAN.replace("rate: 20/s", "rate: 20/s, transaction: {records: 5}").replace(
        "protocol: consumer", "protocol: classic, assignor: range, static: true, isolation: read_committed"
    )
    (workload,) = load_plan(text, ()).plan.workloads
    expected = {"produce", "consume", "idempotence", "transactions", "assignor", "static", "isolation"}
    assert expected == {need.word for need in needs(workload)}


@pytest.mark.parametrize("client", CATALOGUE)
def test_each_client_has_sources_and_known_versions(client: str) -> None:
    library = CATALOGUE[client]
    assert all(source.exists() for source in library.recipe.sources)
    assert all(parse(f"{client}@{version}") == (client, version) for version in library.known)


def test_the_plan_knows_the_clients_of_the_catalogue() -> None:
    assert {*CATALOGUE} == {*LIBRARIES, "java"}


@pytest.mark.parametrize("text", ["nope@1.0.0", "sarama", "sarama@latest", "sarama@1.0.0;rm", "@1.0.0"])
def test_wrong_names_are_refused(text: str) -> None:
    with pytest.raises(ProgramError):
        parse(text)
