"""Hypothesis: on a host that is unusual or hostile, a command works as on any other, or ends with a named error.

Method: a seed chooses one of these, in turn, each without a Docker engine of its own:

* a ``DOCKER_HOST`` that is dead or foreign (no socket, a closed port, a web server, one that answers other JSON or
  nothing that is HTTP, an unknown scheme), for each command that asks an engine: exit code 3 and a message that names
  the address, and no traceback;
* a user without rights (`nobody`, without a home folder), who draws, checks and reads what belongs to another user, and
  writes where that user may not: exit code 0, or 3 with a message that names the path;
* a lock folder of the host in a state that another user left (foreign, private, a link, a file, lock files that are
  links, pipes or folders): leases of two users are never refused, those of one user exclude each other, and a
  folder that can't be shared is logged;
* ``/dev/shm`` of 64 MiB, empty or full, in a mount namespace of the judging process: the verdict is that of any host;
* a wall clock that jumps by up to a day, forwards and backwards, at every look while a journal and events are written
  (the clock that Python reads is replaced): their times never go back, and span no more than the time that passed.
"""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

from aftershock.harness.safety.journal import Journal
from aftershock.harness.safety.lease import host_lease
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.results.evidence.pack import unpack
from aftershock.tests.torture.runner import ROOT, Experiment, Outcome

NOBODY = 65534
COMMAND_S = 400.0
SHM_BYTES = 64 << 20
ENGINE_COMMANDS = (
    *(("run", "demo"), ("images",), ("images", "--for", "demo"), ("cluster", "up"), ("cluster", "down")),
    *(("cluster", "status"), ("inject", "kill", "broker=1"), ("heal",), ("runs", "prune", "--keep", "1"), ("doctor",)),
    *(("explore", "--budget", "60m"), ("conformance", "--", "true")),
)
ANSWERS = {
    "a web server": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<html>hi</html>",
    "a refusal": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
    "other JSON": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n[[]]",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "an end": b"",
}
DEAD = (
    "unix:///nonexistent/docker.sock",
    "tcp://127.0.0.1:9",
    "http://127.0.0.1:9",
    "gopher://h:1",
    "tcp://",
    "h",
    "unix:///etc/passwd",
)


def command(words: Sequence[str], folder: Path, prefix: Sequence[str] = (), **options: Any) -> tuple[int, str, str]:
    """Run a command of `aftershock` as a process; return its exit code and output."""
    environment = {**os.environ, **options.pop("environment", {})}
    argv = [*prefix, sys.executable, "-P", "-m", "aftershock.harness.cli", *words]
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=COMMAND_S, **options
    )
    print(words, done.returncode, done.stdout, done.stderr)
    return done.returncode, done.stdout, done.stderr


def unnamed(what: str, answer: tuple[int, str, str], codes: Sequence[int], name: str = "") -> list[str]:
    """Return what is wrong with the answer of a command; an error must name ``name``."""
    code, stdout, stderr = answer
    if "Traceback" in stderr:
        return [f"{what}: {stderr[-1000:]}"]
    if code not in codes:
        return [f"{what}: exit code {code}: {stderr[-500:]}"]
    return [f"{what}: no error names {name}: {stderr[-500:]}"] if code == 3 and name not in stdout + stderr else []


@contextmanager
def listener(answer: bytes) -> Iterator[str]:
    """Listen on a port, and give an answer to whatever is sent; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # the server is closed
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.recv(65_536)
                        connection.sendall(answer)

        Thread(target=serve, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def foreign_engine(source: random.Random, scratch: Path) -> Outcome:
    words = source.choice(ENGINE_COMMANDS)

    def ask(host: str, what: str) -> Outcome:
        answer = command(words, scratch, environment={"DOCKER_HOST": host})
        name = host if words != ("doctor",) else "Docker engine"
        return Outcome(unnamed(f"{' '.join(words)} at {what}", answer, (3,), name), counts={"engines": 1})

    if source.random() < 0.5:
        host = source.choice(DEAD)
        return ask(host, host)
    name = source.choice([*ANSWERS])
    with listener(ANSWERS[name]) as host:
        return ask(host, name)


def without_rights(source: random.Random, scratch: Path) -> Outcome:
    """Let `nobody` use a run of root, in folders that it may read, and may or may not write."""
    folder = Path(tempfile.mkdtemp(prefix="aftershock-torture-"))
    try:
        folder.chmod(0o755)
        home = folder / "runs" / _stored_run(scratch).name
        shutil.copytree(_stored_run(scratch), home)
        hidden = source.random() < 0.3
        if hidden:
            (home / source.choice(("run.json", "timeline.json", "verdict.json"))).chmod(0o600)
        writable = source.random() < 0.5
        if writable:
            for path in (folder, folder / "runs", home):
                path.chmod(0o777)
        words = source.choice(
            (
                *(["plan", "check", "demo"], ["plan", "show", "demo"], ["plan", "schema"], ["runs"], ["init", "."]),
                *(["report", str(home)], ["explain", str(home)], ["runs", "pack", str(home)], ["doctor", "demo"]),
                *(["runs", "prune", "--keep", "0"], ["run", "demo"], ["heal"]),
            )
        )
        prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        environment = {
            "HOME": "/nonexistent",
            "PYTHONDONTWRITEBYTECODE": "1",
            "DOCKER_HOST": "unix:///var/run/docker.sock",
        }
        answer = command(words, folder, prefix, environment=environment)
        return Outcome(unnamed(f"{' '.join(words[:2])} as nobody", answer, (0, 3)), counts={"users": 1})
    finally:
        shutil.rmtree(folder)


def _lease_as(user: int, folder: Path, log: Any, held_s: float) -> None:
    """Hold the lease of a host as a user, and put what happened and when into a queue."""
    os.setgroups([])
    os.setuid(user)
    lines = list[str]()
    try:
        with host_lease("latency", f"user {user}", lines.append, folder):
            begin = time.monotonic()
            time.sleep(held_s)
            log.put((user, begin, time.monotonic(), lines))
    except BaseException as error:  # noqa: BLE001 -- every error is a finding
        log.put((user, 0.0, 0.0, [repr(error)]))


def _private(path: Path) -> None:
    path.mkdir(mode=0o700)


def _holding(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return a function that makes a shared folder whose lock file ``timing`` is something else."""

    def prepare(path: Path) -> None:
        path.mkdir()
        path.chmod(0o1777)
        make(path / "timing")

    return prepare


def _linked_twice(path: Path) -> None:
    path.touch()
    path.with_name("again").hardlink_to(path)


FOLDERS: Mapping[str, Callable[[Path], object]] = {
    "missing": lambda _: None,
    "shared": _holding(lambda path: path.touch(0o666)),
    "private": _private,
    "a file": lambda path: path.write_text("x"),
    "a link": lambda path: path.symlink_to("/etc"),
    "a link without a target": lambda path: path.symlink_to("/nonexistent"),
    "lock is a link": _holding(lambda path: path.symlink_to("/etc/passwd")),
    "lock is a pipe": _holding(os.mkfifo),
    "lock is a folder": _holding(Path.mkdir),
    "lock is private": _holding(lambda path: path.touch(0o600)),
    "lock is linked twice": _holding(_linked_twice),
}
SHARED = ("missing", "shared")


def two_users(source: random.Random, _: Path) -> Outcome:
    """Let two users lease a host, each from two processes, with a lock folder that root prepared."""
    state = source.choice([*FOLDERS])
    shared = Path(tempfile.mkdtemp(prefix="aftershock-torture-"))
    try:
        shared.chmod(0o1777)
        FOLDERS[state](shared / "host")
        context = get_context("fork")
        queue = context.Queue()
        users = (4001, 4001, 4002, 4002)
        processes = [
            context.Process(target=_lease_as, args=(user, shared / "host", queue, source.uniform(0.05, 0.3)))
            for user in users
        ]
        for process in processes:
            process.start()
        answers = [queue.get(timeout=COMMAND_S) for _ in processes]
        for process in processes:
            process.join()
        return Outcome(lease_problems(state, answers), counts={"lock folders": 1})
    finally:
        shutil.rmtree(shared)


def lease_problems(state: str, answers: Sequence[tuple[int, float, float, Sequence[str]]]) -> list[str]:
    """Return what is wrong with leases (user, begin, end, log) on a host whose lock folder was in a ``state``."""
    bad = [f"{state}: {lines[-1]}" for _, _, end, lines in answers if not end]
    held = sorted((begin, end, user) for user, begin, end, _ in answers if end)
    for index, (_, end, user) in enumerate(held):
        for begin, _, other in held[index + 1 :]:
            if begin < end and (user == other or state in SHARED):
                bad.append(f"{state}: users {user} and {other} held the host at once")
    if state not in SHARED:
        silent = [user for user, _, end, lines in answers if end and not any("runs of other users" in x for x in lines)]
        bad += [f"{state}: user {user} was not told that others may disturb" for user in silent]
    return bad


def _stored_run(scratch: Path) -> Path:
    """Return a run directory that is judged, unpacked once for all trials."""
    folder = scratch.parent / "e15_base"
    folder.mkdir(parents=True, exist_ok=True)
    pack = folder / "demo.pack.zip"
    if not pack.exists():
        shutil.copyfile(ROOT / "docs" / "evidence" / "packs" / "demo.pack.zip", pack)
    return unpack(pack, folder)


def _checks(verdict: str) -> list[tuple[str, str]]:
    return [(check["id"], check["status"]) for check in json.loads(verdict)["checks"]]


def _judged(what: str, answer: tuple[int, str, str], expected: str) -> list[str]:
    """Return what is wrong with a verdict whose checks are to be those of ``expected``."""
    code, stdout, stderr = answer
    if code == 3 or "Traceback" in stderr:
        return [f"{what}: {stderr[-1000:]}"]
    return [] if _checks(stdout) == _checks(expected) else [f"{what}: another verdict, with exit code {code}"]


def small_shared_memory(source: random.Random, scratch: Path) -> Outcome:
    stored = _stored_run(scratch)
    home = scratch / stored.name
    shutil.copytree(stored, home)
    expected = stored.parent / "expected.json"
    if not expected.exists():  # the pack's own verdict is of an earlier version
        shutil.copytree(stored, scratch / "usual" / stored.name)
        expected.write_text(command(["verdict", str(scratch / "usual" / stored.name), "--json"], scratch)[1])
    full = source.random() < 0.5
    fill = "dd if=/dev/zero of=/dev/shm/full bs=1M 2>/dev/null; " if full else ""
    script = f'mount -t tmpfs -o size={SHM_BYTES} tmpfs /dev/shm && {fill}exec "$@"'
    answer = command(["verdict", str(home), "--json"], scratch, ["unshare", "-m", "sh", "-c", script, "sh"])
    what = f"{'full' if full else 'empty'} shared memory of 64 MiB"
    return Outcome(_judged(what, answer, expected.read_text()), counts={"small /dev/shm": 1})


def jumping_clock(source: random.Random, scratch: Path) -> Outcome:
    """Write a journal and events while the wall clock of this process jumps."""
    wall_ns, begin_s = time.time_ns, time.monotonic()

    def jumping_ns() -> int:
        return wall_ns() + source.choice((-86_400, -3600, -30, 0, 30, 3600, 86_400)) * 1_000_000_000

    with patch("time.time_ns", jumping_ns), patch("time.time", lambda: jumping_ns() / 1e9):
        home, clock = RunDir.create(scratch, "jumping clock", 0, ""), RunClock.starting_now()
        journal = Journal(home.path / "journal.jsonl", clock)
        for number in range(source.choice((3, 30))):
            journal.append({"fault": f"{number}", "state": "failed", "targets": {}, "why": "none"})
            home.event(clock.now_us(), "note")
            with host_lease("integrity", "clock", print, scratch / "host"):
                time.sleep(source.uniform(0.0, 0.01))
        journal.close()
    passed_us = (time.monotonic() - begin_s) * 1e6
    bad = list[str]()
    for name in ("journal.jsonl", "events.jsonl"):
        times_us = [json.loads(line)["t_us"] for line in (home.path / name).read_text().splitlines()]
        if times_us != sorted(times_us) or not 0 <= times_us[0] <= times_us[-1] <= passed_us:
            bad.append(f"{name}: the times are {times_us}")
    return Outcome(bad, counts={"jumping clocks": 1})


SCENARIOS = (foreign_engine, two_users, without_rights, foreign_engine, two_users, small_shared_memory, jumping_clock)


def trial(seed: int, scratch: Path) -> Outcome:
    source = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    return SCENARIOS[seed % len(SCENARIOS)](source, scratch)


EXPERIMENT = Experiment(
    name="e15_hostile_hosts",
    title="Foreign engines, users without rights, two users, a small /dev/shm and a jumping clock",
    figure="tracebacks, errors that name no cause, leases held at once, times that go back, and other verdicts",
    aim="0",
    trials=140,
    trial=trial,
    wall_s=COMMAND_S + 60,
    takes_s=60.0,
)
