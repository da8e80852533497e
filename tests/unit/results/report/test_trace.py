"""Runs as traces and annotations: the journal's times, sent to receivers that answer, refuse, or are away."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from aftershock.errors import AftershockError, EvidenceError
from aftershock.results.evidence.files import read_lines
from aftershock.results.report.trace import Span, annotate_grafana, export_run, export_trace, trace_of

EVIDENCE = Path(__file__).parents[3] / "data" / "evidence" / "demo"
ORIGIN_US = 1_790_000_000_123_456
AWAY = "http://127.0.0.1:9"  # nothing listens at the discard port


@dataclass
class Receiver:
    """HTTP server that stores requests, and answers with ``status``."""

    url: str = ""
    status: int = 200
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    result = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            result.requests.append((self.path, headers, body))
            self.send_response(result.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 -- the name in the base class

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    result.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield result
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A stored run, with a wall clock."""
    run = tmp_path / "run"
    shutil.copytree(EVIDENCE, run, ignore=shutil.ignore_patterns("expected", "outcomes", "metrics"))
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"origin_unix_us": ORIGIN_US}))
    (run / "verdict.json").write_text('{"status": "PASS"}')
    return run


def spans_of(span: Span) -> Iterator[Span]:
    yield span
    for child in span.children:
        yield from spans_of(child)


def test_each_line_of_the_journal_is_in_the_trace(home: Path) -> None:
    """Faults last from intention to heal; injection, witnesses and heal are below them, at the journal's times."""
    root = trace_of(home)
    assert ("run demo", ORIGIN_US, "PASS") == (root.name, root.start_us, root.attributes["verdict"])
    assert {"phase warmup", "phase steady", "phase recovery"} <= {span.name for span in root.children}
    journal = list(read_lines(home / "journal.jsonl"))
    faults = {span.name.removeprefix("fault "): span for span in root.children if span.name.startswith("fault ")}
    assert faults.keys() == {line["fault"] for line in journal}
    for line in journal:
        span, at_us = faults[line["fault"]], ORIGIN_US + line["t_us"]
        parts = [(child.name, child.start_us, child.end_us) for child in span.children]
        match line["state"]:
            case "intended":
                assert span.start_us == at_us
            case "injected":
                assert ("inject", span.start_us, at_us) in parts
            case "witnessed":
                assert ("witness", at_us, at_us) in parts
            case "healed":
                assert span.end_us == at_us
    assert all(root.start_us <= span.start_us <= span.end_us <= root.end_us for span in spans_of(root))


def test_a_failed_fault_and_an_unproven_one_are_errors(home: Path) -> None:
    journal = [json.loads(line) for line in (home / "journal.jsonl").read_text().splitlines()]
    witness = next(line for line in journal if line.get("witness"))
    witness["witness"]["ok"] = False
    journal.append({"t_us": 9, "fault": "late", "kind": "kill", "state": "failed", "why": "no leader", "targets": {}})
    (home / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in journal))
    (home / "verdict.json").write_text('{"status": "INCONCLUSIVE"}')
    errors = {span.name: span.error for span in spans_of(trace_of(home)) if span.error}
    assert errors == {
        "run demo": "the verdict is INCONCLUSIVE",
        "witness": "the fault did not take effect",
        "fault late": "no leader",
    }


def test_a_collector_gets_the_trace(home: Path, receiver: Receiver) -> None:
    """One trace; each span has its parent, its times in nanoseconds, and no secret."""
    root = trace_of(home)
    root.children[0].attributes["note"] = "password=hunter2"  # type: ignore[index]
    export_trace(root, receiver.url + "/")
    ((path, headers, body),) = receiver.requests
    assert (path, headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    assert b"hunter2" not in body
    message = ExportTraceServiceRequest.FromString(body)
    spans = [span for row in message.resource_spans for scope in row.scope_spans for span in scope.spans]
    assert 1 == len({span.trace_id for span in spans})
    times = sorted((span.name, span.start_time_unix_nano, span.end_time_unix_nano) for span in spans)
    assert times == sorted((span.name, span.start_us * 1000, span.end_us * 1000) for span in spans_of(root))
    names = {span.span_id: span.name for span in spans}
    parents = {(span.name, names.get(span.parent_span_id)) for span in spans}
    assert {("run demo", None), ("phase steady", "run demo")} <= parents
    below = {parent for name, parent in parents if name in ("inject", "witness", "heal")}
    assert below
    assert all(parent and parent.startswith("fault ") for parent in below)


def test_grafana_gets_annotations(home: Path, receiver: Receiver) -> None:
    """A region for each fault, within a millisecond of the journal."""
    root = trace_of(home)
    count = annotate_grafana(root, receiver.url, "glsa_1")
    bodies = [json.loads(body) for _, _, body in receiver.requests]
    assert count == len(bodies) > 0
    assert {("/api/annotations", "Bearer glsa_1")} == {
        (path, head["authorization"]) for path, head, _ in receiver.requests
    }
    injected = {
        line["fault"]: line["t_us"] for line in read_lines(home / "journal.jsonl") if line["state"] == "injected"
    }
    for body in bodies:
        fault = body["text"].partition(":")[0]
        assert 0 <= (ORIGIN_US + injected[fault]) / 1000 - body["time"] < 1
        assert body["timeEnd"] >= body["time"]
        assert ["aftershock", "demo"] == body["tags"][:2]


@pytest.mark.parametrize("status", [307, 401, 500])
def test_a_refusal_is_an_error(home: Path, receiver: Receiver, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aftershock.results.report.trace.TIMEOUT_S", 0.2)
    receiver.status = status
    root = trace_of(home)
    with pytest.raises(AftershockError, match=r"did not take the trace|could not be sent"):
        export_trace(root, receiver.url)
    with pytest.raises(AftershockError, match="did not take an annotation"):
        annotate_grafana(root, receiver.url, "")


def test_a_token_is_cleaned_or_refused_and_never_shown(home: Path, receiver: Receiver) -> None:
    """A trailing newline, as of `cat token`, is no part of it; other characters that no header carries are refused."""
    root = trace_of(home)
    annotate_grafana(root, receiver.url, "glsa_5f3a91\n")
    assert {"Bearer glsa_5f3a91"} == {head["authorization"] for _, head, _ in receiver.requests}
    for token in ("glsa_5f3a92\nx", "glsa_5f3a93→"):
        with pytest.raises(AftershockError, match="GRAFANA_TOKEN has characters") as refusal:
            annotate_grafana(root, receiver.url, token)
        assert "glsa_" not in str(refusal.value)


def test_an_absent_receiver_does_not_affect_a_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged; without an address in the environment, nothing is read."""
    monkeypatch.setattr("aftershock.results.report.trace.TIMEOUT_S", 0.2)
    lines: list[str] = []
    export_run(home, {"OTEL_EXPORTER_OTLP_ENDPOINT": AWAY}, lines.append)
    export_run(home, {"GRAFANA_URL": AWAY}, lines.append)
    export_run(home / "nowhere", {}, lines.append)
    export_run(home, {"GRAFANA_URL": "http://[", "GRAFANA_TOKEN": "x"}, lines.append)
    (home / "run.json").write_text('{"origin_unix_us": "a day"}')
    export_run(home, {"GRAFANA_URL": AWAY}, lines.append)
    assert ["the run was not exported"] * 4 == [line.partition(":")[0] for line in lines]


def test_a_run_without_wall_clock_is_refused(tmp_path: Path) -> None:
    facts: dict[str, Any] = json.loads((EVIDENCE / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(facts))
    with pytest.raises(EvidenceError, match="no times on the wall clock"):
        trace_of(tmp_path)
