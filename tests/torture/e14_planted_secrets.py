"""Hypothesis: a secret that Aftershock has read is in nothing that it writes or prints, in whatever spelling it comes.

Method: a seed makes a password of letters and of characters that JSON, YAML, URLs and HTML write otherwise. The text
around it comes in twelve spellings: as it is, within JSON, JSON in JSON, a Python literal, YAML, JAAS, a URL, a
percent-encoded one, HTML, a bearer token, and Base64 in both alphabets, at any offset. Each text is given to 38 places
that write files of a run, print errors, progress and results, copy the logs of brokers and of client programs, send
traces and annotations, or pack a run. Afterwards the secret is looked for in all files, in all output and in all that
was sent, in all spellings, also across line ends. Eight more secrets are in forms that are recognised although
Aftershock never read them: in an option of the command line, in addresses of the engine, a collector and Grafana, in
headers for a collector, and in the log of a client program.
"""

import io
import json
import logging
import os
import random
import re
import shlex
import string
import sys
import xml.etree.ElementTree as ET
import zipfile
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from typer.exceptions import TyperException

from aftershock import redaction
from aftershock.errors import AftershockError, BrokerError, ClusterError, PlanError, WorkloadError
from aftershock.faults.runtime.record import Entry, Targets, Undo, Witness
from aftershock.harness.cli import __main__ as cli
from aftershock.harness.cli import adhoc
from aftershock.harness.cluster import cluster, engine
from aftershock.harness.lifecycle import heal, watchdog
from aftershock.harness.pytest.summary import ChecksOfTest, add_checks
from aftershock.harness.run import drive
from aftershock.harness.run.drive import record_outcome
from aftershock.harness.run.progress import Progress, annotate_github
from aftershock.harness.run.session import PROPERTY
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import Journal
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.manifest import NAME as MANIFEST
from aftershock.results.evidence.manifest import manifest_of
from aftershock.results.evidence.pack import pack
from aftershock.results.model.check import Check, Status, Verdict
from aftershock.results.report import trace, verdict_formats
from aftershock.tests.torture.runner import Experiment, Outcome
from aftershock.workloads.adapters.exec_child import Child
from aftershock.workloads.load.events import Events

SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "plain": lambda secret: f"login with {secret} failed",
    "JSON": lambda secret: json.dumps({"said": secret}),
    "JSON in JSON": lambda secret: json.dumps({"said": json.dumps({"said": secret})}),
    "Python": lambda secret: f"settings { ({'said': secret})!r}",
    "YAML": lambda secret: f"user: me\nsecret: {secret}\n",
    "JAAS": lambda secret: f'PlainLoginModule required username="me" password="{secret}";',
    "URL": lambda secret: f"no answer from https://me:{quote(secret, safe='')}@broker.example/",
    "percent-encoded": lambda secret: f"GET /x?q={quote(secret)}&y=1",
    "HTML": lambda secret: f"<td>{escape(secret)}</td>",
    "bearer": lambda secret: f"Authorization: Bearer {secret}",
    "Base64": lambda secret: f"sent {b64encode(f'me:{secret}'.encode()).decode()}",
    "Base64 of URLs": lambda secret: f"sent {urlsafe_b64encode(f'{secret}:me'.encode()).decode()}",
}


def _of_cli(raised: Callable[[str], BaseException]) -> Callable[[str, Path], None]:
    """Return a place that lets a command of the CLI fail."""

    def place(text: str, _: Path) -> None:
        def fail(**_: object) -> None:
            raise raised(text)

        app, cli.app = cli.app, cast("Any", fail)
        try:
            with suppress(SystemExit):
                cli.main()
        finally:
            cli.app = app

    return place


def _noted(text: str) -> AftershockError:
    error = ClusterError("the cluster failed")
    error.add_note(text)
    return error


def _of_outcome(raised: Callable[[str], Exception]) -> Callable[[str, Path], None]:
    def place(text: str, home: Path) -> None:
        with suppress(Exception), record_outcome(RunDir.create(home, "p", 0, "c"), Progress(Console(file=sys.stderr))):
            raise raised(text)

    return place


def _of_journal(entry: Callable[[Journal, str], None]) -> Callable[[str, Path], None]:
    def place(text: str, home: Path) -> None:
        journal = Journal(home / "journal.jsonl", RunClock.starting_now())
        entry(journal, text)
        journal.close()

    return place


def _witnessed(journal: Journal, text: str) -> None:
    witness = Witness(text, 1, 1, "settings", 1, True)
    journal.record(Entry("f", "config", "intended", Targets(), Undo("nothing", {}), witness))


def _emit(text: str, home: Path) -> None:
    named = dict.fromkeys(("arm", "workload", "worker", "side"), "x")
    Events(cast("Any", SimpleNamespace(events=home / "events.jsonl", **named)), lambda: 1).emit("died", why=text)


def _log(text: str, home: Path) -> None:
    record = logging.LogRecord("n", logging.INFO, "", 1, "died of %s", (text,), None)
    (home / "worker.log").write_text(redaction.RedactingFormatter("%(message)s").format(record))


def _packed(name: str) -> Callable[[str, Path], None]:
    """Return a place in an evidence file of a run, written by an older version, that is then packed."""

    def place(text: str, scratch: Path) -> None:
        hidden = scratch.parent / f"{scratch.name}-unpacked"  # what a pack is made of is not what it has
        home = hidden / "run"
        home.mkdir(parents=True)
        documents = {"run.json": {"schema_version": 1, "run_id": "r", "status": "complete"}, "timeline.json": {}}
        for document, content in documents.items():
            extra = {"why": text} if document == name else {}
            (home / document).write_text(json.dumps({**content, **extra}))
        for lines in ("journal.jsonl", "events.jsonl"):
            (home / lines).write_text(json.dumps({"t_us": 1, "why": text}) + "\n" if lines == name else "")
        (home / "phases.json").write_text("[]")
        (home / "plan.yaml").write_text(text if name == "plan.yaml" else "")
        (home / "outcomes").mkdir()
        error = text if name == "outcomes" else "TIMED_OUT"
        pq.write_table(pa.table({"error": [error]}), home / "outcomes" / "part-0.parquet", compression="none")
        (home / MANIFEST).write_text(json.dumps(manifest_of(home)))
        pack(home, hidden / "x.pack.zip")
        with zipfile.ZipFile(hidden / "x.pack.zip") as archive:
            archive.extractall(scratch / f"pack-{name}")

    return place


def _check(text: str) -> Verdict:
    check = Check("slo/x", "slo", "arm=a", Status.FAIL, 1, 1, "records", text, next=text, finding=text)
    return Verdict("r", "p", 1, ("a",), (check,))


def _judged(text: str, home: Path) -> Path:
    """Return a run directory beside ``home``, with a verdict as an older version wrote it."""
    run_dir = home.parent / f"{home.name}-judged"
    run_dir.mkdir()
    (run_dir / "run.json").write_text(
        json.dumps({"schema_version": 1, "run_id": "r", "plan": "p", "status": "complete"})
    )
    (run_dir / "verdict.json").write_text(_check(text).text())
    return run_dir


def _annotated(text: str, home: Path) -> None:
    annotate_github([_judged(text, home)], {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(home / "summary.md")})


def _junit(text: str, home: Path) -> None:
    verdict_formats.write(_judged(text, home), _check(text))
    (home.parent / f"{home.name}-judged" / "junit.xml").rename(home / "junit.xml")


def _junit_of_pytest(text: str, home: Path) -> None:
    case = ET.Element("testcase", {"classname": "c", "name": "n"})
    ET.SubElement(ET.SubElement(case, "properties"), "property", {"name": PROPERTY, "value": "r"})
    root = ET.Element("testsuites")
    ET.SubElement(root, "testsuite").append(case)
    (home / "junit.xml").write_bytes(ET.tostring(root))
    add_checks(home / "junit.xml", [ChecksOfTest({"r": _check(text)}, None)])


def _stored_plan(text: str, home: Path) -> None:
    async def load(*_: object, **__: object) -> None: ...

    timeline = SimpleNamespace(to_json=lambda: json.dumps({"why": text}).encode(), workloads=())
    job = SimpleNamespace(
        checked=SimpleNamespace(text=text),
        timeline=timeline,
        has_java_clients=False,
        programs=lambda _: {},
        service_images=lambda _: {},
        file=None,
        rehearse=False,
    )
    spool = SimpleNamespace(path=home, salvage=lambda: None)
    with patch.object(drive, "_run_load", load), patch.object(drive, "spool_for", lambda *_: spool):
        drive.drive_on(cast("Any", job), cast("Any", None), RunDir.create(home, "p", 0, "c"), {}, Progress())


def _node_logs(text: str, home: Path) -> None:
    container = SimpleNamespace(labels={ownership.NODE: "1"}, attrs={"Created": ""})
    with (
        patch.object(cluster, "_labelled_containers", lambda *_: [container]),
        patch.object(cluster, "output", lambda *_: f"INFO {text}\n"),
    ):
        cluster.collect_logs(cast("Any", None), "r", home / "logs")


def _program(text: str, home: Path) -> None:
    """Let a client program write a text to standard error in two pieces, and end."""
    path = home.parent / f"{home.name}.text"
    path.write_text(text)
    script = (
        "import pathlib, sys, time; text = pathlib.Path(sys.argv[1]).read_text(); half = len(text) // 2;"
        "sys.stderr.write(text[:half]); sys.stderr.flush(); time.sleep(0.1); sys.stderr.write(text[half:])"
    )
    child = Child([sys.executable, "-c", script, str(path)])
    try:
        while True:
            child.hear(5.0)
    except WorkloadError as error:
        print(error)


def _watchdog_log(text: str, home: Path) -> None:
    def clean_up(_run: str, _home: Path, log: Callable[[str], None]) -> bool:
        log(text)
        return True

    with patch.object(watchdog, "clean_up", clean_up):
        watchdog.guard("2147483647:1", "r", home)


def _heal_actions(text: str, home: Path) -> None:
    with (
        patch.object(engine, "connect", lambda: None),
        patch.object(heal, "heal", lambda *_, **__: heal.Healing([text], [])),
        patch.object(ownership, "list_clusters", lambda _: []),
    ):
        adhoc.heal(None, home)


@cache
def _receiver() -> tuple[str, list[bytes]]:
    """Return the address of an HTTP server of this process, and the list of what it is sent."""
    sent = list[bytes]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}", sent


def _span(text: str) -> trace.Span:
    attributes = {"run_id": text, "plan": text, "seed": 1, "kind": text, "broker": json.dumps([text])}
    fault = trace.Span(f"fault {text}", 1, 2, attributes, (trace.Span("witness", 1, 1, {"observed": text}),), text)
    return trace.Span(f"run {text}", 1, 2, attributes, (fault,), text)


def _sent(send: Callable[[trace.Span, str], object]) -> Callable[[str, Path], None]:
    """Return a place that sends a run to a receiver, whose requests are stored in the folder of the place."""

    def place(text: str, home: Path) -> None:
        url, sent = _receiver()
        sent.clear()
        send(_span(text), url)
        (home / "sent").write_bytes(b"\n".join(sent))

    return place


def _exported(variable: str, address: str, **environment: str) -> None:
    """Export a run to an address that does not answer, and print the reason."""
    settings = {variable: address, **environment}

    def export(**_: object) -> int:
        trace.export_run(Path(), settings, print)
        return 0

    with (
        patch.object(trace, "trace_of", lambda _: _span("x")),
        patch.dict(os.environ, settings),
        patch.object(cli, "app", export),
        suppress(SystemExit),
    ):
        cli.main()


def _engine_at(host: str) -> None:
    with patch.dict(os.environ, {"DOCKER_HOST": host}):
        try:
            engine.connect()
        except AftershockError as error:
            print(error)


UNREAD: Mapping[str, Callable[[str, Path], None]] = {
    "option of the command line": lambda secret, home: (
        RunDir.create(
            home, "p", 0, shlex.join(["aftershock", "run", "p", "--set", f"cluster.attach.security.password={secret}"])
        )
        and None
    ),
    "address of the engine": lambda secret, _: _engine_at(f"tcp://me:{quote(secret, safe='')}@127.0.0.1:9"),
    "address of a collector": lambda secret, _: _exported(
        "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://me:{quote(secret, safe='')}@127.0.0.1:9"
    ),
    "address of Grafana": lambda secret, _: _exported(
        "GRAFANA_URL",
        f"http://me:{quote(secret, safe='')}@127.0.0.1:9",
        GRAFANA_TOKEN="t",  # noqa: S106
    ),
    "headers for a collector": lambda secret, _: _exported(
        "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9", OTEL_EXPORTER_OTLP_HEADERS=f"Authorization Bearer {secret}"
    ),
    "header with a line end for a collector": lambda secret, _: _exported(
        "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9", OTEL_EXPORTER_OTLP_HEADERS=f"authorization={secret}%0A"
    ),
    "login in the log of a program": lambda secret, home: _program(
        f"PlainLoginModule required username=me password={json.dumps(secret, ensure_ascii=False)};", home
    ),
    "token in the log of a program": lambda secret, home: _program(
        f"> POST / HTTP/1.1\n> Authorization: Bearer {secret.encode().hex()}{secret}", home
    ),
}
"""Places of secrets that Aftershock did not read, and recognises by their form."""

PLACES: Mapping[str, Callable[[str, Path], None]] = {
    "command of run.json": lambda text, home: RunDir.create(home, "p", 0, text) and None,
    "event of the harness": lambda text, home: RunDir.create(home, "p", 0, "c").event(1, "note", text=text),
    "nested event": lambda text, home: RunDir.create(home, "p", 0, "c").event(1, "note", of={"list": [text]}),
    "fact of run.json": lambda text, home: RunDir.create(home, "p", 0, "c").update(why=text),
    "event of a client": _emit,
    "log of a worker": _log,
    "reason in the journal": _of_journal(
        lambda journal, text: journal.append({"fault": "f", "state": "failed", "targets": {}, "why": text})
    ),
    "witness in the journal": _of_journal(_witnessed),
    "JSON document": lambda text, home: write_whole(home / "verdict.json", json.dumps({"why": text})) and None,
    "HTML page": lambda text, home: write_whole(home / "report.html", f"<p>{text}</p>") and None,
    "Markdown page": lambda text, home: write_whole(home / "page.md", f"* {text}\n") and None,
    "progress": lambda text, _: Progress(Console(file=sys.stderr, width=10_000)).log(text),
    "bug during a run": _of_outcome(ValueError),
    "error of a cluster": _of_outcome(ClusterError),
    "error of a client": _of_outcome(lambda text: BrokerError(text, 3)),
    "printed error": _of_cli(WorkloadError),
    "printed problem of a plan": _of_cli(lambda text: PlanError([f"plan.yaml:1:1: {text}"])),
    "printed note": _of_cli(_noted),
    "printed traceback": _of_cli(RuntimeError),
    "usage error": _of_cli(TyperException),
    "printed verdict": lambda text, home: cli._print_verdict(home, _check(text), as_json=False) and None,
    "printed verdict as JSON": lambda text, home: cli._print_verdict(home, _check(text), as_json=True) and None,
    "annotations and summary of GitHub": _annotated,
    "junit.xml of a run": _junit,
    "JUnit file of pytest": _junit_of_pytest,
    "plan and timeline of a run": _stored_plan,
    "log of a broker": _node_logs,
    "standard error and end of a program": _program,
    "log of a watchdog": _watchdog_log,
    "printed actions of heal": _heal_actions,
    "address of the engine": lambda text, _: _engine_at(text),
    "trace for a collector": _sent(trace.export_trace),
    "annotations for Grafana": _sent(lambda span, url: trace.annotate_grafana(span, url, "t")),
    **{
        f"pack: {name}": _packed(name)
        for name in ("run.json", "journal.jsonl", "events.jsonl", "plan.yaml", "outcomes")
    },
}


def leaks(secret: str, outputs: Mapping[str, str]) -> Iterator[str]:
    """Yield where a spelling of the secret is found."""
    spelled = {name: spell(secret) for name, spell in SPELLINGS.items()}
    cores = {
        "plain": secret,
        "JSON": json.dumps(secret)[1:-1],
        "JSON in JSON": json.dumps(json.dumps(secret)[1:-1])[1:-1],
        "JSON in JSON in JSON": json.dumps(json.dumps(json.dumps(secret)[1:-1])[1:-1])[1:-1],
        "Python": repr(secret)[1:-1],
        "URL": quote(secret, safe=""),
        "percent-encoded": quote(secret),
        "HTML": escape(secret),
        # without the ends, whose characters depend on what is beside the secret
        "Base64": spelled["Base64"].split()[1][6:-4],
        "Base64 of URLs": spelled["Base64 of URLs"].split()[1][:-8],
    }
    for where, text in outputs.items():
        joined = re.sub(r"\s", "", text)  # a line may end within a secret
        for spelling, core in cores.items():
            if core in text or re.sub(r"\s", "", core) in joined:
                yield f"{spelling} in {where}"
                break


def planted(plant: Callable[[str, Path], None], text: str, secret: str, home: Path) -> list[str]:
    """Give a text to a place, and return where it writes the secret, or that it writes nothing."""
    home.mkdir()
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        plant(text, home)
    files = {str(path.relative_to(home)): path for path in home.rglob("*") if path.is_file()}
    texts = {name: path.read_bytes().decode("utf-8", "replace") for name, path in files.items()}
    if not any(texts.values()) and not output.getvalue():
        return ["nothing was written"]
    return [*leaks(secret, {**texts, "output": output.getvalue()})]


def trial(seed: int, scratch: Path) -> Outcome:
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    alphabet = string.ascii_letters + string.digits + "\"'\\/&<>%$ +=:;äß"
    secret = "x" + "".join(source.choices(alphabet, k=source.choice((8, 16, 40)))) + "y"
    redaction._known.clear()
    redaction.remember(secret)
    bad = list[str]()
    for spelling, spell in SPELLINGS.items():
        for number, (place, plant) in enumerate(PLACES.items()):
            home = scratch / f"{spelling.replace(' ', '-')}-{number}"
            bad += [f"{place}, {spelling}: {found}" for found in planted(plant, spell(secret), secret, home)]
    unread = "z" + "".join(source.choices(string.ascii_letters + string.digits + "%+=-_~", k=20)) + "9"
    for number, (place, plant) in enumerate(UNREAD.items()):
        bad += [f"{place}, not read: {found}" for found in planted(plant, unread, unread, scratch / f"unread-{number}")]
    return Outcome(bad, len(SPELLINGS) * len(PLACES) + len(UNREAD))


EXPERIMENT = Experiment(
    name="e14_planted_secrets",
    title="Secrets in 38 places and 12 spellings, looked for in all that is written, printed or sent",
    figure="places where a spelling of the secret was found",
    aim="0",
    trials=50,
    trial=trial,
    batch=5,
    wall_s=600.0,
    cpu_s=300.0,
)
