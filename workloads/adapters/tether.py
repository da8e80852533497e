"""Start a program that the kernel kills when the parent process dies (``python tether.py <parent id> command``).

PR_SET_PDEATHSIG (prctl(2)) remains set across ``exec``. The tether is a separate program because in a process with
threads no Python code may safely run between ``fork`` and ``exec``.
"""

import ctypes
import os
import signal
import sys

ORPHANED = 4
NOT_STARTED = 127
_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> int:
    """Replace this process by ``command``; return an exit status if ``command`` can't be started."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the request took effect
        return ORPHANED
    try:
        os.execvp(command[0], command)  # noqa: S606  # no shell, on purpose
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]!r}: {error.strerror}\n")
        return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
