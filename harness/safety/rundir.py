"""Run directory, the folder with all evidence of a run, readable during the run and after a failure."""

import asyncio
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aftershock.errors import EvidenceError
from aftershock.harness.safety.ownership import owner
from aftershock.redaction import redact_data
from aftershock.results.evidence import manifest
from aftershock.results.evidence.evidence import RECOVERY_DEFINITION
from aftershock.results.evidence.files import read_json, write_whole
from aftershock.workloads.load.events import run_clock


@dataclass(frozen=True)
class RunClock:
    """Clock of a run, in microseconds since the run's start, by the host's monotonic clock, which all processes share.

    ``origin_ns`` is the value of ``time.monotonic_ns()`` at the run's start.
    """

    origin_ns: int

    @classmethod
    def starting_now(cls) -> "RunClock":
        return cls(time.monotonic_ns())

    def now_us(self) -> int:
        return run_clock(self.origin_ns)()

    async def sleep_until_us(self, t_us: int) -> None:
        await asyncio.sleep(max(0, t_us - self.now_us()) / 1e6)


def command_line() -> str:
    """Return the ``aftershock`` command that this process executes."""
    return shlex.join(["aftershock", *sys.argv[1:]])


class RunDir:
    """Run directory; ``facts`` is the content of ``run.json``."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path = path
        self.facts: dict[str, Any] = dict(facts)

    @classmethod
    def create(cls, parent: Path, plan: str, seed: int, command: str | None = None) -> "RunDir":
        """Create a run directory under ``parent``, named after the time and the plan.

        ``command`` is the command that started the run, by default that of this process.
        Raises EvidenceError if the run directory can't be written.
        """
        now = datetime.now(UTC)
        name = re.sub(r"[^a-z0-9]+", "-", plan.lower()).strip("-")[:32] or "plan"
        run_id = f"{now:%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"
        path = parent / run_id
        try:
            for folder in ("logs", *manifest.TABLES):
                (path / folder).mkdir(parents=True)
            for file in ("journal.jsonl", "events.jsonl"):
                (path / file).touch()
        except OSError as error:
            raise EvidenceError(f"can't write evidence to {path}: {error.strerror}; choose another --out") from error
        # the revision of the harness's checkout, with "+" if it has changes; None outside a checkout
        describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"]
        try:
            answer = subprocess.run(describe, capture_output=True, text=True, timeout=5, check=False)
            revision = answer.stdout.strip() or None
        except OSError:
            revision = None
        system = os.uname()
        packages = ("aftershock", "confluent-kafka", "pyspark")
        facts = {
            "schema_version": 1,
            "run_id": run_id,
            "plan": plan,
            "seed": seed,
            "started_at": now.isoformat(timespec="seconds"),
            "status": "running",
            "why": None,
            "rehearse": False,
            "recovery_definition": RECOVERY_DEFINITION,
            "versions": {"python": sys.version.split()[0], **{package: version(package) for package in packages}},
            "git": revision,
            "host": {
                "cores": os.cpu_count(),
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                "kernel": f"{system.sysname} {system.release}",
                "hostname": system.nodename,
            },
            "owner": owner(),
            "faults": [],
            "command": command_line() if command is None else command,
        }
        home = cls(path, {})
        home.update(**facts)
        return home

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        return cls(path, read_json(path / "run.json"))

    @property
    def run_id(self) -> str:
        return self.path.name

    def update(self, **facts: Any) -> None:
        """Add facts to ``run.json``; the file is replaced atomically."""
        self.facts |= redact_data(facts)
        self.write_json("run.json", self.facts)

    def write_json(self, name: str, document: Any) -> None:
        write_whole(self.path / name, json.dumps(document, indent=1) + "\n")

    def event(self, t_us: int, name: str, **fields: Any) -> None:
        """Append an event of the harness itself, not of a client, to ``events.jsonl``."""
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"t_us": t_us, "arm": None, "event": name, **redact_data(fields)}) + "\n")

    def seal(self) -> None:
        """Write ``manifest.json``, the evidence files with their digests, as the mark of a complete run."""
        self.write_json(manifest.NAME, manifest.manifest_of(self.path))

    def reseal(self, *names: str) -> None:
        """Update the digests of files to which a command on a kept cluster appended; does nothing without manifest."""
        if (self.path / manifest.NAME).exists():
            document = read_json(self.path / manifest.NAME)
            digests = manifest.manifest_of(self.path)["digests"]
            document["digests"] = document.get("digests", {}) | {
                name: digests[name] for name in names if name in digests
            }
            self.write_json(manifest.NAME, document)
