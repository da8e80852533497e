"""Real programs as services: their words, readiness, restarts and ends."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aftershock.errors import WorkloadError
from aftershock.workloads.adapters import service as module
from aftershock.workloads.adapters.service import ServicePipe
from aftershock.workloads.load.assignment import PipeAssignment, Readiness
from aftershock.workloads.load.events import Events, run_clock
from aftershock.workloads.load.fleet import mark_down

LIMIT_S = 30.0
Start = Callable[..., ServicePipe]


@pytest.fixture
def start(tmp_path: Path) -> Any:
    services: list[ServicePipe] = []

    def service(code: str, **settings: Any) -> ServicePipe:
        own = {"run_id": "r", "origin_ns": time.monotonic_ns(), "worker": "w-a-pipe-1", "workload": "w", "arm": "a"}
        own |= {"client": "service", "topic": "orders", "topic_id": "i", "partitions": 2, "to": "billed", "rack": "a"}
        own |= {"bootstrap": "b:9", "spool": tmp_path, "events": tmp_path / "events.jsonl", "group": "biller"}
        settings = {"command": (sys.executable, "-c", code), "restart_ms": 50} | settings
        assignment = PipeAssignment.model_validate(own | settings)
        clock = run_clock(assignment.origin_ns)
        services.append(ServicePipe(assignment, clock, Events(assignment, clock)))
        return services[-1]

    yield service
    for each in services:
        each.close()


def events(home: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (home / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def step_until(service: ServicePipe, reached: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < until
        service.step(10_000)


TELL = "import os, sys; print(os.environ['WORDS'], sys.argv[1:], flush=True); print('ready 1', flush=True); "
WAIT = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"


def test_words_in_command_environment_and_file(start: Start, capfd: Any) -> None:
    """Words are replaced, other braces stay."""
    words = "{bootstrap} {from} {to} {group} {member} {other}"
    code = TELL + "print(open(sys.argv[1]).read(), flush=True); " + WAIT
    command = (sys.executable, "-c", code, "{file}", "{python}")
    service = start("", command=command, env={"WORDS": words}, file="at={bootstrap}", ready={"log": "at="})
    service.prepare()
    said = capfd.readouterr().err
    assert "b:9 orders billed biller w-a-pipe-1 {other}" in said
    assert sys.executable in said
    assert "at=b:9" in said


def test_a_service_that_ends_before_it_is_ready(start: Start) -> None:
    service = start("import sys; print('no such table'); sys.exit(3)", ready={"log": "ready"})
    with pytest.raises(WorkloadError, match=r"ended with exit status 3 before it was ready; (.|\n)*no such table"):
        service.prepare()


def test_a_program_that_is_not_there(start: Start) -> None:
    service = start("", command=("/no/such/program",))
    with pytest.raises(WorkloadError, match="cannot start '/no/such/program'"):
        service.prepare()


def test_ready_over_http(start: Start, tmp_path: Path) -> None:
    """Refused connections and answers with an error mean that it is not ready yet."""
    code = f"""
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(503 if Handler.asked < 3 else 200); self.end_headers()
        open({str(tmp_path / "asked")!r}, "a").write("x")
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
open({str(tmp_path / "port")!r}, "w").write(str(server.server_port))
server.serve_forever()
"""
    service = start(code)
    service._start()
    until = time.monotonic() + LIMIT_S
    while not (tmp_path / "port").exists() or not (tmp_path / "port").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    url = f"http://127.0.0.1:{(tmp_path / 'port').read_text()}/health"
    object.__setattr__(service._assignment, "ready", Readiness(http=url))
    assert [service._is_ready() for _ in range(3)] == [False, False, True]


def test_a_service_that_ends_by_itself_is_started_again(start: Start, tmp_path: Path) -> None:
    note = f"open({str(tmp_path / 'lives')!r}, 'a').write('x')"
    code = f"import sys, time; {note}; print('bad luck'); time.sleep(0.7); sys.exit(7)"
    service = start(code)
    service.prepare()
    step_until(service, lambda: (tmp_path / "lives").exists() and len((tmp_path / "lives").read_text()) > 2)
    exited = events(tmp_path, "service_exited")
    assert {(line["status"], tuple(line["lines"]), line["op"]) for line in exited} == {(7, ("bad luck",), "pipe")}
    assert service.counters()["exits"] >= 2
    assert events(tmp_path, "service_started")


def test_a_service_that_a_fault_killed_is_not_started_again(start: Start, tmp_path: Path) -> None:
    """The runner starts it, when the fault is over."""
    service = start("import time; time.sleep(600)")
    service.prepare()
    mark_down(tmp_path, "w-a-pipe-1", os.getpid())
    assert service._process
    service._process.kill()
    with pytest.raises(SystemExit, match="a fault has killed"):
        step_until(service, lambda: False)
    assert [] == events(tmp_path, "service_exited") if (tmp_path / "events.jsonl").read_text() else True


def test_it_ends_at_sigterm(start: Start, tmp_path: Path) -> None:
    service = start("import sys; print('up', flush=True); " + WAIT, ready={"log": "up"})
    service.prepare()
    service.close()
    assert service._process
    assert service._process.returncode == 0
    assert not (tmp_path / "events.jsonl").read_text()


def test_one_that_ignores_sigterm_is_killed(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.2)
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    service = start(code, ready={"log": "up"})
    service.prepare()
    service.close()
    assert service._process
    assert service._process.returncode == -9
    assert ["up"] == events(tmp_path, "service_killed")[0]["lines"]


def test_a_service_in_the_background_is_told_and_ends(start: Start, tmp_path: Path) -> None:
    """A daemon is in a session of its own; it is killed with the service that it belongs to."""
    note = tmp_path / "daemon"
    daemon = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = f"""
import subprocess, sys, time, pathlib
subprocess.Popen([sys.executable, "-c", {daemon!r}], start_new_session=True)
while not pathlib.Path({str(note)!r}).exists() or not pathlib.Path({str(note)!r}).read_text(): time.sleep(0.01)
"""
    service = start(code, ready={"log": "never"})
    with pytest.raises(WorkloadError, match="exit status 0 before it was ready and left 1 processes in the background"):
        service.prepare()
    assert not Path(f"/proc/{note.read_text()}").exists()


def test_much_output_is_cut_off(start: Start, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line for which the run waits is found behind it, and the last lines are those of the end."""
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 1 << 20)
    code = (
        "print('\\n'.join(['x' * 99] * 50_000)); print('ready'); print('last words', flush=True); raise SystemExit(3)"
    )
    service = start(code, ready={"log": "ready"})
    service._start()
    step_until(service, lambda: bool(service.counters()["exits"]))
    said = capfd.readouterr().err
    assert service._said_ready.is_set()
    assert len(said) < (1 << 20) + 10_000
    assert "its further output is not kept" in said
    assert service._ending()[-1] == "last words"


def test_secrets_are_in_no_line(start: Start, tmp_path: Path, capfd: Any) -> None:
    code = "import time; print('sasl.password=hunter22', flush=True); time.sleep(0.7)"
    service = start(code)
    service.prepare()
    step_until(service, lambda: bool(events(tmp_path, "service_exited")))
    assert "hunter22" not in capfd.readouterr().err + (tmp_path / "events.jsonl").read_text()
