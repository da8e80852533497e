"""The ad-hoc commands as processes without an engine: messages, exit codes, streams."""

import json
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import AftershockError
from aftershock.harness.cli import adhoc
from aftershock.tests.unit.harness.cli.test_cli import aftershock

NO_ENGINE = "unix:///nowhere.sock"


def test_plan_faults_prints_every_kind(tmp_path: Path) -> None:
    ended = aftershock("plan", "faults", cwd=tmp_path)
    assert (0, "") == (ended.returncode, ended.stderr)
    assert {"latency:", "pause:", "elect:"} <= {line.split()[0] for line in ended.stdout.splitlines() if line}


@pytest.mark.parametrize(
    "command",
    [
        ["cluster", "up"],
        ["cluster", "status"],
        ["cluster", "status", "--json"],
        ["cluster", "down"],
        ["inject", "pause", "broker=1", "--for", "5s"],
        ["heal"],
        ["runs", "prune", "--keep", "1"],
    ],
    ids=" ".join,
)
def test_a_missing_engine_is_a_clear_error(tmp_path: Path, command: list[str]) -> None:
    """The error names DOCKER_HOST on stderr; exit 3, no output on stdout, no run directory."""
    ended = aftershock(*command, cwd=tmp_path, DOCKER_HOST=NO_ENGINE)
    assert (3, "") == (ended.returncode, ended.stdout)
    assert "nowhere.sock" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"command": []}, "name one program to check: its command after --, or --client CLIENT@VERSION"),
        ({"operation": ["produse"]}, "--op produse is no operation; write one of produce, consume, commit"),
        ({"settings": ["linger.ms"]}, "--settings linger.ms is not KEY=VALUE; write for example acks=all"),
        ({"bootstrap": "kafka:9092"}, "--bootstrap kafka:9092: .* add --allow-attach kafka:9092 to allow that"),
        ({"bootstrap": "a:1,b:2", "allow_attach": ["a:1"]}, "--bootstrap b:2: "),
    ],
)
def test_a_conformance_run_that_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    """The error has the remedy, and comes before a program or a cluster is started."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AftershockError, match=message):
        adhoc.conformance(**({"command": ["no-such-program"]} | options))


def test_the_schema_of_the_exec_protocol_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == adhoc.conformance(as_schema=True)
    assert {"Order", "Report"} <= json.loads(capsys.readouterr().out)["$defs"].keys()


def test_a_bad_spec_starts_nothing(tmp_path: Path) -> None:
    """`cluster up` of an invalid file: each mistake with line and column, exit 3, before the engine is contacted."""
    (tmp_path / "spec.yaml").write_text(
        "cluster: {rakcs: {a: 1}}\ntopics: [{name: t, partitions: 0, replication: 9}]\n"
    )
    ended = aftershock("cluster", "up", "spec.yaml", cwd=tmp_path, DOCKER_HOST=NO_ENGINE)
    assert 3 == ended.returncode
    assert ["spec.yaml:1:11", "spec.yaml:2:32"] == [":".join(line.split(":")[:3]) for line in ended.stderr.splitlines()]
    assert not (tmp_path / "runs").exists()


def test_prune_needs_a_criterion(tmp_path: Path) -> None:
    """`runs prune` without criteria removes nothing and names the options."""
    ended = aftershock("runs", "prune", cwd=tmp_path)
    assert 3 == ended.returncode
    assert "--keep N" in ended.stderr
    bad = aftershock("runs", "prune", "--older-than", "monday", cwd=tmp_path)
    assert 3 == bad.returncode
    assert "monday is not an age" in bad.stderr


def test_runs_are_listed_without_an_engine(tmp_path: Path) -> None:
    """The list shows which clusters stand if there is an engine, and works without an engine."""
    assert "no runs in runs\n" == aftershock("runs", cwd=tmp_path, DOCKER_HOST=NO_ENGINE).stdout
    path = tmp_path / "runs" / "r1"
    path.mkdir(parents=True)
    facts = {"run_id": "r1", "plan": "demo", "status": "complete", "started_at": "2026-01-31T12:00:00+00:00"}
    (path / "run.json").write_text(json.dumps(facts))
    shown = aftershock("runs", cwd=tmp_path, DOCKER_HOST=NO_ENGINE)
    assert (0, "r1") == (shown.returncode, shown.stdout.splitlines()[1].split()[0])
    (told,) = json.loads(aftershock("runs", "--json", cwd=tmp_path).stdout)
    assert ("r1", "complete", str(Path("runs") / "r1")) == (told["run_id"], told["status"], told["path"])


def test_plan_from_a_run_without_injections_is_an_error(tmp_path: Path) -> None:
    """A run without injections, and an unknown run: an error, exit 3, no plan on stdout."""
    path = tmp_path / "runs" / "r1"
    path.mkdir(parents=True)
    (path / "run.json").write_text('{"run_id": "r1", "status": "kept"}')
    (path / "journal.jsonl").touch()
    (path / "plan.yaml").write_text("cluster: {}\n")
    nothing, nowhere = aftershock("plan", "from", "r1", cwd=tmp_path), aftershock("plan", "from", "r2", cwd=tmp_path)
    assert [(3, ""), (3, "")] == [(ended.returncode, ended.stdout) for ended in (nothing, nowhere)]
    assert "run r1 has no manual injections" in nothing.stderr
    assert "no run at r2" in nowhere.stderr


def test_a_cluster_of_a_strangers_image_needs_permission(tmp_path: Path) -> None:
    """`cluster up` refuses the image as `run` does, before it asks the engine for anything."""
    (tmp_path / "spec.yaml").write_text("cluster: {racks: {a: 1}, image: theirs/kafka:1}\n")
    ended = aftershock("cluster", "up", "spec.yaml", cwd=tmp_path, DOCKER_HOST=NO_ENGINE)
    assert (3, "") == (ended.returncode, ended.stdout)
    assert (
        "`cluster.image`: the plan would start containers of the image theirs/kafka:1; add --allow-exec" in ended.stderr
    )
    ended = aftershock("cluster", "up", "spec.yaml", "--allow-exec", cwd=tmp_path, DOCKER_HOST=NO_ENGINE)
    assert "nowhere.sock" in ended.stderr
