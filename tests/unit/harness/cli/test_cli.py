"""The command line as a process: exit codes, streams, and no start after bad input."""

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest

GOOD = """
name: good
topics: [{name: orders, partitions: 3, replication: 3}]
workloads: [{name: orders, produce: {topic: orders, rate: 100/s}, consume: {topic: orders}}]
faults: [{at: 0s, for: 5s, kind: kill, broker: leader of orders/0}]
slo: ["lost == 0"]
"""
SIGNALLED = """
import os, signal, time
from aftershock.harness.cli import __main__ as cli
def app(**_):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
cli.app = app
cli.main()
"""
BAD = GOOD.replace("replication: 3", "replication: 5").replace("kind: kill", "kind: kil").replace("lost", "lots")


def aftershock(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aftershock.harness.cli", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=cwd, env=env)


def test_all_problems_of_a_plan_are_printed(tmp_path: Path) -> None:
    """Three mistakes give three messages with line and column, exit 3, and no output on stdout."""
    (tmp_path / "bad.yaml").write_text(BAD)
    ended = aftershock("plan", "check", "bad.yaml", cwd=tmp_path)
    assert (3, "") == (ended.returncode, ended.stdout)
    assert ["bad.yaml:3", "bad.yaml:5", "bad.yaml:6"] == [line[:10] for line in ended.stderr.splitlines()]


def test_a_bad_plan_starts_nothing(tmp_path: Path) -> None:
    """`run` of an invalid plan prints the same messages, exits with 3 and creates no run directory."""
    (tmp_path / "bad.yaml").write_text(BAD)
    ended = aftershock("run", "bad.yaml", cwd=tmp_path)
    assert 3 == ended.returncode
    assert 3 == len(ended.stderr.splitlines())
    assert not (tmp_path / "runs").exists()


def test_a_missing_engine_is_a_clear_error(tmp_path: Path) -> None:
    """No engine at DOCKER_HOST: the error names the address; exit 3, no run directory."""
    (tmp_path / "good.yaml").write_text(GOOD)
    ended = aftershock("run", "good.yaml", cwd=tmp_path, DOCKER_HOST="unix:///nowhere.sock")
    assert 3 == ended.returncode
    assert "nowhere.sock" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "runs").exists()


class DyingEngine(BaseHTTPRequestHandler):
    """An engine that answers the greeting of its client, and then closes each connection."""

    def do_GET(self) -> None:
        if self.path.endswith(("/version", "/_ping")):
            content = json.dumps({"ApiVersion": "1.44", "MinAPIVersion": "1.24"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


def test_an_engine_that_dies_during_a_command_is_a_clear_error(tmp_path: Path) -> None:
    """One line instead of the traceback of a bug."""
    with ThreadingHTTPServer(("127.0.0.1", 0), DyingEngine) as server:
        threading.Thread(target=server.serve_forever).start()
        host = f"tcp://127.0.0.1:{server.server_port}"
        ended = aftershock("cluster", "status", cwd=tmp_path, DOCKER_HOST=host)
        server.shutdown()
    assert (3, "") == (ended.returncode, ended.stdout)
    assert ended.stderr.startswith("the Docker engine stopped answering")
    assert 1 == len(ended.stderr.splitlines())


@pytest.mark.parametrize("disposition", [signal.SIG_IGN, signal.SIG_DFL])
def test_sigterm_ends_a_command_that_ignores_ctrl_c(disposition: signal.Handlers) -> None:
    """A shell starts the background jobs of a script with SIGINT ignored; SIGTERM must end them all the same."""
    command = [sys.executable, "-c", SIGNALLED]
    ended = subprocess.run(
        command, check=False, timeout=60, preexec_fn=lambda: signal.signal(signal.SIGINT, disposition)
    )
    assert 130 == ended.returncode


def test_a_wrong_option_exits_3(tmp_path: Path) -> None:
    """Exit code 2 means INCONCLUSIVE."""
    ended = aftershock("run", "--sed", "7", "demo", cwd=tmp_path)
    assert 3 == ended.returncode
    assert "--sed" in ended.stderr


@pytest.mark.parametrize("command", [["heal", "--run", "x"], ["runs"], ["verdict", "x"]])
def test_a_path_that_can_not_be_used_is_a_clear_error(tmp_path: Path, command: list[str]) -> None:
    ended = aftershock(*command, "--out", "x" * 256, cwd=tmp_path, DOCKER_HOST="unix:///nowhere.sock")
    assert 3 == ended.returncode
    assert ended.stderr.startswith("can't use xxx")
    assert ended.stderr.endswith(": File name too long; name another path\n")


def test_version_and_help(tmp_path: Path) -> None:
    """The version ends with code 0; a command without arguments prints the help, and ends with code 3."""
    version = aftershock("--version", cwd=tmp_path)
    assert (version.returncode, version.stdout) == (0, f"aftershock {metadata.version('aftershock')}\n")
    empty = aftershock(cwd=tmp_path)
    assert (empty.returncode, empty.stderr) == (3, "")
    assert "Commands" in empty.stdout


def test_an_unknown_plan_or_run_is_an_error_with_advice(tmp_path: Path) -> None:
    commands = ("plan", "check", "dmeo"), ("images", "--for", "dmeo"), ("verdict", "nope")
    plan, images, run = (aftershock(*command, cwd=tmp_path) for command in commands)
    assert [3, 3, 3] == [plan.returncode, images.returncode, run.returncode]
    assert "did you mean `demo`" in plan.stderr
    assert plan.stderr == images.stderr
    assert "nope" in run.stderr


def test_checking_an_image_excludes_other_options(tmp_path: Path) -> None:
    done = aftershock("images", "--check", "ours/kafka:1", "--ensure", cwd=tmp_path)
    assert (3, "") == (done.returncode, done.stdout)
    assert "--check tests one image: leave out --ensure" in done.stderr


def test_changes_are_checked_like_the_plan(tmp_path: Path) -> None:
    """--set changes the plan, and an invalid change is a problem of the plan."""
    (tmp_path / "good.yaml").write_text(GOOD)
    good = aftershock("plan", "show", "good.yaml", "--set", "timing.steady=3s", cwd=tmp_path)
    bad = aftershock("plan", "check", "good.yaml", "--set", "workloads.0.produce.rate=0/s", cwd=tmp_path)
    assert [0, 3] == [good.returncode, bad.returncode]
    assert "rate" in bad.stderr
    assert all(len(line) <= 80 for line in good.stdout.splitlines())


def test_the_schema_is_json_schema(tmp_path: Path) -> None:
    """`plan schema` prints a JSON Schema for editors."""
    ended = aftershock("plan", "schema", cwd=tmp_path)
    assert 0 == ended.returncode
    assert {"name", "topics", "workloads", "faults", "slo"} <= set(json.loads(ended.stdout)["properties"])


def test_the_check_of_a_plan_warns_of_obligations_that_do_not_bind(tmp_path: Path) -> None:
    """The plan stays valid; the warning names the client, the share and what would raise it."""
    text = GOOD.replace("kind: kill", "host: silent, kind: kill") + "timing: {steady: 5s, recovery: 5s}\n"
    (tmp_path / "brief.yaml").write_text(text)
    ended = aftershock("plan", "check", "brief.yaml", cwd=tmp_path)
    assert (0, "brief.yaml: good is a valid plan: ") == (ended.returncode, ended.stdout[:34])
    assert "progress is required of `orders/baseline` (produce) during" in ended.stderr
    assert "lower the arm's `socket.timeout.ms`, or lengthen timing.steady" in ended.stderr


def test_folders_of_plans(tmp_path: Path) -> None:
    """All plans of a folder are checked, other files are named, and --strict and --json are for machines."""
    (tmp_path / "chaos" / ".git").mkdir(parents=True)
    (tmp_path / "chaos" / "good.yaml").write_text(GOOD + "timing: {steady: 60s, recovery: 60s}\n")
    (tmp_path / "chaos" / "brief.yml").write_text(GOOD.replace("for: 5s", "for: 2s"))
    (tmp_path / "chaos" / "compose.yaml").write_text("services: {}\n")
    (tmp_path / "chaos" / ".git" / "hidden.yaml").write_text(BAD)
    folder = aftershock("plan", "check", "chaos", cwd=tmp_path)
    assert 0 == folder.returncode
    valid = folder.stdout.splitlines()
    assert ["chaos/brief.yml: good is a valid plan", "chaos/good.yaml: good is a valid plan"] == [
        line[: line.index(" plan") + 5] for line in valid[:2]
    ]
    assert "valid plans: 2 of 2; other files: 1" == valid[2]
    assert "chaos/compose.yaml: skipped" in folder.stderr
    assert "chaos/brief.yml:5:24: warning: a kill of 2s is a grey failure" in folder.stderr
    assert 1 == aftershock("plan", "check", "--strict", "chaos", cwd=tmp_path).returncode
    assert 0 == aftershock("plan", "check", "--strict", "chaos/good.yaml", cwd=tmp_path).returncode
    (tmp_path / "bad.yaml").write_text(BAD)
    both = aftershock("plan", "check", "--json", "--strict", "bad.yaml", "chaos/brief.yml", "nope", cwd=tmp_path)
    findings = json.loads(both.stdout)
    assert 3 == both.returncode
    assert {"file", "line", "column", "severity", "message"} == set(findings[0])
    assert [("bad.yaml", 3, "error")] == [(row["file"], row["line"], row["severity"]) for row in findings[:1]]
    assert ("chaos/brief.yml", "warning") in {(row["file"], row["severity"]) for row in findings}
    assert findings[-1]["message"].startswith("nope: there is no such file")
    assert 3 == aftershock("plan", "check", "chaos/.git/..", "chaos/.git/nothing", cwd=tmp_path).returncode


def test_a_missing_argument_ends_in_one_sentence(tmp_path: Path) -> None:
    ended = aftershock("compare", cwd=tmp_path)
    assert (3, "") == (ended.returncode, ended.stdout)
    assert "'; `aftershock --help` lists the commands" in ended.stderr
    assert ".;" not in ended.stderr


def test_a_provisional_verdict_is_not_strict(tmp_path: Path) -> None:
    ended = aftershock("verdict", "--so-far", "--strict", "nowhere", cwd=tmp_path)
    assert 3 == ended.returncode
    assert "leave out --evidence, --trust and --strict" in ended.stderr


def test_a_locale_without_the_characters_of_a_card_prints_it(tmp_path: Path) -> None:
    posix = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    cards = Path(__file__).parents[4] / "docs" / "evidence" / "gallery"
    ended = aftershock("audit", "--from", str(cards / "kafka-3.9"), cwd=tmp_path, **posix)
    assert ("", 1) == (ended.stderr, ended.returncode)
    assert "\\u2713 java" in ended.stdout


def test_output_that_can_not_be_written_is_a_clear_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aftershock.harness.cli", "plan", "faults"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert "the output can't be written: No space left on device; redirect it elsewhere\n" == ended.stderr
    assert 3 == ended.returncode
