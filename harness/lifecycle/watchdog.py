"""Watchdog, a process that waits until the owner of a cluster or run ends, and then heals the owner's faults.

The watchdog has its own session, so that a Ctrl-C of the run does not reach the watchdog. After the owner's end, other
processes have ``GRACE_S`` seconds to heal the faults before the watchdog does. The watchdog repeats failed attempts,
because the engine or the brokers may have died together with the owner and come back hours later.
"""

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from aftershock.errors import Log
from aftershock.harness.safety.ownership import is_alive
from aftershock.redaction import redact

GRACE_S = 3.0
LIMIT_S = 12 * 3600.0
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 60.0
LOG = "watchdog.log"


def watch(owner: str, run_id: str, home: Path) -> None:
    """Start the watchdog process of one cluster or run; ``owner`` has the format of `ownership.owner`."""
    log = home / "logs" / LOG
    log.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-m", "aftershock.harness.lifecycle.watchdog", owner, run_id, str(home.resolve())]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True)


def guard(owner: str, run_id: str, home: Path) -> None:
    """Wait until the owner of a cluster or run has ended, and heal its faults."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(int(owner.partition(":")[0]))
        try:
            if is_alive(owner):  # the kernel may have reused the process id before the pidfd was opened
                select.select([descriptor], [], [])
        finally:
            os.close(descriptor)
    written = set[str]()

    def log(line: str) -> None:
        if line not in written:  # attempts fail for the same reason
            written.add(line)
            with suppress(OSError):  # a full disk must not end the watchdog
                print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {redact(line)}", flush=True)  # noqa: T201 -- stdout is its log

    retry(lambda: clean_up(run_id, home, log), log)


def clean_up(run_id: str, home: Path, log: Log) -> bool:
    """Heal the faults of a dead run once; return True if nothing is left of the run."""
    # imported late: the process waits for hours, and should use little memory meanwhile
    from aftershock.harness.attach.attached import is_attached  # noqa: PLC0415
    from aftershock.harness.cluster import engine  # noqa: PLC0415
    from aftershock.harness.cluster.kubernetes.cluster import api_of, list_runs, read_place  # noqa: PLC0415
    from aftershock.harness.lifecycle.heal import close_run, has_remains, heal, heal_kubernetes  # noqa: PLC0415

    if place := read_place(home):
        api = api_of(place)
        time.sleep(GRACE_S)
        namespace = None if place.own_namespace else place.namespace
        heal_kubernetes(api, run_id, log, namespace=namespace, explicit=False)
        if any(remains.place.run_id == run_id for remains in list_runs(api, namespace)):
            return False
        close_run(home)
        return True
    client = None if is_attached(home) else engine.connect()
    try:
        if has_remains(client, run_id, home):
            time.sleep(GRACE_S)
            if heal(client, run_id, log, explicit=False, home=home).problems:
                return False
            if has_remains(client, run_id, home):
                return False
    finally:
        if client:
            client.close()
    close_run(home)
    return True


def retry(
    attempt: Callable[[], bool],
    log: Log,
    *,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Repeat ``attempt`` until it returns True, with pauses of 1 s to 60 s; log and return False after ``LIMIT_S``."""
    give_up_s, pause_s = now_s() + LIMIT_S, PAUSE_MIN_S
    while True:
        try:
            if attempt():
                return True
        except Exception as error:  # noqa: BLE001 -- whatever the reason: the next attempt may succeed
            log(f"the attempt failed, and is repeated: {error or repr(error)}")
        if now_s() >= give_up_s:
            log(f"giving up after {LIMIT_S / 3600:g} hours; heal what is left with: aftershock heal")
            return False
        sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


if __name__ == "__main__":
    guard(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
