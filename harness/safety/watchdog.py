"""The process that heals when the runner can't: it waits for the end of a cluster's owner, and cleans up after it.

It is a process of its own in a session of its own, so that neither a kill nor a Ctrl-C of the runner reaches it. Where
the owner has ended and left nothing it ends at once; else it leaves somebody a moment to come and heal, then does it.
"""

import os
import select
import sys
import time
from pathlib import Path

from aftershock.harness.cluster.ownership import lives

GRACE_S = 3.0
LOG = "watchdog.log"


def watch(owner: str, run_id: str, home: Path) -> None:
    """Start the watchdog of one cluster or run; it ends by itself. ``owner`` as in `labels.owner`."""
    log = home / "logs" / LOG
    log.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-m", "aftershock.harness.safety.watchdog", owner, run_id, str(home.resolve())]
    opened = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), opened, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True)


def guard(owner: str, run_id: str, home: Path) -> None:
    """Return when the owner has ended and nothing of the run that it may have left broken is broken any more."""
    await_end(owner)
    from aftershock.harness.cluster import engine  # noqa: PLC0415 -- it waits for hours, and should weigh nothing meanwhile
    from aftershock.harness.cluster.attached import is_attached  # noqa: PLC0415
    from aftershock.harness.safety.heal import (  # noqa: PLC0415
        close_books,
        heal,
        leavings,
    )

    client = None if is_attached(home) else engine.connect()
    if leavings(client, run_id):
        time.sleep(GRACE_S)
        heal(client, run_id, lambda line: print(line, flush=True), asked=False)  # noqa: T201 -- its log
    close_books(home)


def await_end(owner: str) -> None:
    """Return when the process is no more."""
    try:
        descriptor = os.pidfd_open(int(owner.partition(":")[0]))
    except ProcessLookupError:
        return
    try:
        if lives(owner):  # the id may have been used again before it was opened
            select.select([descriptor], [], [])
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    guard(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
