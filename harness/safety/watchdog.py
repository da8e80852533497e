"""Watchdog: a process that waits until the owner of a cluster or run ends, and then heals the owner's faults.

The watchdog has its own session, so that a Ctrl-C of the run does not reach the watchdog. After the owner's end, other
processes have ``GRACE_S`` seconds to heal the faults before the watchdog does.
"""

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

from aftershock.harness.cluster.ownership import is_alive

GRACE_S = 3.0
LOG = "watchdog.log"


def watch(owner: str, run_id: str, home: Path) -> None:
    """Start the watchdog process of one cluster or run; ``owner`` has the format of `ownership.owner`."""
    log = home / "logs" / LOG
    log.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-m", "aftershock.harness.safety.watchdog", owner, run_id, str(home.resolve())]
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
    # imported late: the process waits for hours, and should use little memory meanwhile
    from aftershock.harness.cluster import engine  # noqa: PLC0415
    from aftershock.harness.cluster.attached import is_attached  # noqa: PLC0415
    from aftershock.harness.safety.heal import close_run, has_remains, heal  # noqa: PLC0415

    client = None if is_attached(home) else engine.connect()
    if has_remains(client, run_id):
        time.sleep(GRACE_S)
        heal(client, run_id, lambda line: print(line, flush=True), explicit=False)  # noqa: T201 -- stdout is its log
    close_run(home)


if __name__ == "__main__":
    guard(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
