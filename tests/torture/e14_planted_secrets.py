"""Hypothesis: a secret that Aftershock has read is in nothing that it writes or prints, in whatever spelling it comes.

Method: a seed makes a password of letters and of characters that JSON, YAML, URLs and HTML write otherwise. The text
around it comes in twelve spellings: as it is, within JSON, JSON in JSON, a Python literal, YAML, JAAS, a URL, a
percent-encoded one, HTML, a bearer token, and Base64 in both alphabets, at any offset. Each text is given to 24 places
that write files of a run, print errors and progress, or pack a run. Afterwards the secret is looked for in all files
and all output, in all spellings.
"""

import io
import json
import logging
import random
import string
import sys
import types
import zipfile
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from html import escape
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from aftershock import redaction
from aftershock.errors import AftershockError, BrokerError, ClusterError, PlanError, WorkloadError
from aftershock.faults.runtime.record import Entry, Targets, Undo, Witness
from aftershock.harness.cli import __main__ as cli
from aftershock.harness.run.drive import record_outcome
from aftershock.harness.run.progress import Progress
from aftershock.harness.safety.journal import Journal
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.results.evidence.files import write_whole
from aftershock.results.evidence.manifest import NAME as MANIFEST
from aftershock.results.evidence.manifest import manifest_of
from aftershock.results.evidence.pack import pack
from aftershock.tests.torture.runner import Experiment, Outcome
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.worker import _Formatter

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
    named = dict.fromkeys(("arm", "workload", "worker", "op"), "x")
    Events(cast("Any", types.SimpleNamespace(events=home / "events.jsonl", **named)), lambda: 1).emit("died", why=text)


def _log(text: str, home: Path) -> None:
    record = logging.LogRecord("n", logging.INFO, "", 1, "died of %s", (text,), None)
    (home / "worker.log").write_text(_Formatter("%(message)s").format(record))


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
        for spelling, core in cores.items():
            if core in text:
                yield f"{spelling} in {where}"
                break


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
            home.mkdir()
            output = io.StringIO()
            with redirect_stdout(output), redirect_stderr(output):
                plant(spell(secret), home)
            files = {str(path.relative_to(home)): path for path in home.rglob("*") if path.is_file()}
            texts = {name: path.read_bytes().decode("utf-8", "replace") for name, path in files.items()}
            if not texts and not output.getvalue():
                bad.append(f"{place}, {spelling}: nothing was written")
            bad += [f"{place}, {spelling}: {found}" for found in leaks(secret, {**texts, "output": output.getvalue()})]
    return Outcome(bad, len(SPELLINGS) * len(PLACES))


EXPERIMENT = Experiment(
    name="e14_planted_secrets",
    title="Secrets in 24 places and 12 spellings, looked for in all that is written or printed",
    figure="places where a spelling of the secret was found",
    aim="0",
    trials=50,
    trial=trial,
    batch=10,
    wall_s=120.0,
    cpu_s=120.0,
)
