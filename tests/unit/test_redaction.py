"""Secrets are in nothing that is stored or printed."""

import json
import logging
import os
import pickle
import types
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from aftershock import redaction
from aftershock.errors import AdminError, BrokerError, PlanError, WorkloadError
from aftershock.faults.runtime.record import Entry, Targets, Undo, Witness
from aftershock.harness.run.drive import record_outcome
from aftershock.harness.run.progress import Progress
from aftershock.harness.safety.journal import Journal
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.redaction import PLACE, RedactingFormatter, anonymise, redact, redact_data, remember
from aftershock.results.evidence.files import write_whole
from aftershock.workloads.load.events import Events
from aftershock.workloads.load.security import SecuritySettings

SECRET = 'pa"ss/w\\ord 4711'  # noqa: S105


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    """A secret that this process has read as a plan's password."""
    monkeypatch.setattr(redaction, "_known", {})
    settings = SecuritySettings(protocol="SASL_PLAINTEXT", mechanism="PLAIN", user="alice", password="${THEIRS}")  # noqa: S106
    assert SECRET == settings.resolved({"THEIRS": SECRET}).password
    return SECRET


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("--spark 'sc://h:15002/;token=abc.def;user_id=me'", "--spark 'sc://h:15002/;token=***;user_id=me'"),
        ("sc://h/;x_token=abc", "sc://h/;x_token=***"),
        ("https://me:hunter2@host/x s3a://key:s3cr3t@bucket", "https://me:***@host/x s3a://key:***@bucket"),
        (
            'LoginModule required user="a" password="b c";',
            'LoginModule required user="a" password=***;',
        ),
        ("sasl.password=x,ssl.key.password='y z'", "sasl.password=***,ssl.key.password=***"),
        (
            "spark.fs.s3a.secret.key=x&fs.s3a.access.key=y",
            "spark.fs.s3a.secret.key=***&fs.s3a.access.key=***",
        ),
        ("Password=hunter2|", "Password=***|"),
        ('jaas="PlainLoginModule password=\\"hunter2\\";"', 'jaas="PlainLoginModule password=***;"'),
        ('{"user": "a", "password": "hun\\"ter2", "n": 1}', '{"user": "a", "password": "***", "n": 1}'),
        ('{"tokens": 5, "token": true}', '{"tokens": 5, "token": true}'),
        ('said: {\\"api_key\\": \\"hunter2\\"}', 'said: {\\"api_key\\": \\"***\\"}'),
        ("sasl:\n  - password: hunter2\n    user: a", "sasl:\n  - password: ***\n    user: a"),
        ("pwd: 'hunter 2'", "pwd: '***'"),
        ("api_key=hunter2&pwd=x", "api_key=***&pwd=***"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("Authorization: Basic YTpodW50ZXIy", "Authorization: Basic ***"),
        ("git+https://ghp_4711hunter2@example.org/x", "git+https://***@example.org/x"),
        ("a -----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY----- b", "a -----PRIVATE KEY ***----- b"),
        ('"-----BEGIN RSA PRIVATE KEY-----\\nMIIE', '"-----RSA PRIVATE KEY ***-----'),
        # no secrets
        ("password: ${KAFKA_PASSWORD} password=${X}", "password: ${KAFKA_PASSWORD} password=${X}"),
        ("aftershock run --secret=KAFKA_PASSWORD", "aftershock run --secret=KAFKA_PASSWORD"),
        ("a plan must not contain a secret: put it", "a plan must not contain a secret: put it"),
        ("basic authentication, a bearer credential", "basic authentication, a bearer credential"),
        ("add `password`: a basic setting of a token: it", "add `password`: a basic setting of a token: it"),
        ("{user: a, password: ${P}}", "{user: a, password: ${P}}"),
        ("abfs://container@account.example/ key=orders", "abfs://container@account.example/ key=orders"),
    ],
)
def test_what_looks_like_a_secret_is_removed(text: str, clean: str) -> None:
    assert clean == redact(text)
    assert clean == redact(clean)


def test_a_long_text_is_searched_in_linear_time() -> None:
    """Text of a stranger can't make the search slow: this would take hours otherwise."""
    for word in ("token", "password-", "a.", "x-x-", "x://", "secret=", "{", ",token", '\\"', "basic ", "-----BEGIN "):
        assert redact(word * 20_000 + " =@:")
        assert anonymise(word * 20_000 + " =@:", ["host"])


@pytest.mark.parametrize("before", ["", "a", "me"])
def test_a_known_secret_in_base64(secret: str, before: str) -> None:
    """As in a header of basic authentication, after a user's name of any length."""
    for encode in (b64encode, urlsafe_b64encode):
        text = encode(f"{before}:{secret}".encode()).decode()
        clean = redact(text)
        assert "***" in clean
        assert len(clean) <= len(text) - len(secret)  # at most a character of the secret is left on either side


def test_short_values_and_scalars_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", {})
    remember("abc")
    assert {"abc": [1, None, True, "abc", ["x=1"]]} == redact_data({"abc": [1, None, True, "abc", ("x=1",)]})


@pytest.mark.parametrize("kind", [WorkloadError, lambda text: AdminError(text, "X"), lambda text: BrokerError(text, 3)])
def test_errors(secret: str, kind: Any) -> None:
    """Also after pickling; the error's code stays."""
    error = kind(f"login with {secret} failed at sc://h/;token=abc")
    assert "login with *** failed at sc://h/;token=***" == error.args[0]
    if isinstance(error, WorkloadError) and not isinstance(error, BrokerError):
        assert str(error) == str(pickle.loads(pickle.dumps(error)))  # noqa: S301 -- our own bytes


def test_problems_of_a_plan(secret: str) -> None:
    assert ("plan.yaml:1:1: ***",) == PlanError([f"plan.yaml:1:1: {secret}"]).problems


def test_no_stored_byte_of_a_run_contains_a_secret(secret: str, tmp_path: Path) -> None:
    """run.json, journal, events of harness and clients, documents, worker's log and progress."""
    command = f"aftershock run demo --spark 'sc://h/;token={secret}' --password=other-secret"
    home = RunDir.create(tmp_path, "demo", 0, command)
    home.event(1, "note", text=f"said {secret}", nested={"list": [secret]})
    undo = Undo("restore_settings", {"of": "topic", "name": "orders", "settings": {"token": "kept=as-it-is"}})
    journal = Journal(home.path / "journal.jsonl", RunClock.starting_now())
    witness = Witness(f"answer {secret}", 1, 1, "settings", 1, True)
    journal.record(Entry("f", "config", "intended", Targets(topics=("orders",)), undo, witness))
    journal.append({"fault": "f", "state": "failed", "targets": {}, "undo": undo.as_json(), "why": f"no: {secret}"})
    journal.close()
    named = dict.fromkeys(("arm", "workload", "worker", "side"), "x")
    assignment = cast("Any", types.SimpleNamespace(events=home.path / "events.jsonl", **named))
    Events(assignment, lambda: 1).emit("died", why=f"password was {secret}", n=3)
    write_whole(home.path / "verdict.json", json.dumps({"why": secret}))
    write_whole(home.path / "report.html", f"<p>{secret}</p>")
    with (home.path / "logs" / "progress.log").open("w") as file:
        progress = Progress(Console(file=file, width=1000))
        progress.log(f"dialling with {secret}")
        with pytest.raises(ValueError, match="a bug"), record_outcome(home, progress):
            raise ValueError(f"a bug with {secret}")
    record = logging.LogRecord("n", logging.INFO, "", 1, "died of %s", (secret,), None)
    (home.path / "logs" / "worker.log").write_text(RedactingFormatter("%(message)s").format(record))
    spellings = [secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], "other-secret"]
    for folder, _, names in os.walk(tmp_path):
        for name in names:
            text = Path(folder, name).read_text()
            assert not [spelling for spelling in spellings if spelling in text], name
            assert text, name
    assert "kept=as-it-is" in (home.path / "journal.jsonl").read_text()
    assert json.loads((home.path / "verdict.json").read_text()) == {"why": "***"}
    facts = json.loads((home.path / "run.json").read_text())
    assert "token=***" in facts["command"]
    assert "a bug with ***" in facts["why"]


@pytest.mark.parametrize("text", ["in '/root/x'", "/var/log/x", "mirror.example.com:5000"])
def test_places_of_a_machine_are_found(text: str) -> None:
    assert PLACE.search(text)


@pytest.mark.parametrize("text", ["/var/lib/kafka/disk1", "and/or", "1/s", "k1:9092"])
def test_other_text_is_no_place(text: str) -> None:
    """Paths of nodes are the same on each machine."""
    assert not PLACE.search(text)
