"""The host's lease: who may put load on this machine now. One measures time alone; those who count records share.

::

    turnstile ──▶ timing ──▶ core-0 … core-<n-1>      files in one folder of the host
      all          latency alone holds it    integrity only: one each
      pass         integrity shares it

Rules:

* A run judged on latency has the host to itself: its own neighbour would be a fault nobody planned.
* Runs judged on counts of records share it, one core each.
* Everyone who waits for `timing` or a core waits *in* the turnstile, so that a run judged on latency is next when those
  inside have left, however many come after it.
* All users and checkouts of a host share the leases, which lie in its temp directory. A lease dies with its process.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import gettempdir
from typing import Literal

from aftershock.errors import LeaseError
from aftershock.harness.flock import Lock
from aftershock.results.slo import Count, parse

Kind = Literal["latency", "integrity"]
Say = Callable[[str], None]

_PERIOD_S = 0.1
_FOLDER_MODE = 0o1777  # as /tmp: everyone adds files, nobody removes another's
_FILE_MODE = 0o666


def judged_on(slos: Sequence[str]) -> Kind:
    """What the verdict hangs on: "integrity" if there are SLOs and all count records, else "latency".

    Raises:
        SloSyntaxError: one of them is no SLO.
    """
    return "integrity" if slos and all(isinstance(parse(text), Count) for text in slos) else "latency"


@contextmanager
def host_lease(kind: Kind, holder: str, say: Say, folder: Path | None = None) -> Iterator[None]:
    """Hold the host's lease while the block runs; waits as long as it takes.

    Args:
        kind: "latency" to be alone, "integrity" to share.
        holder: what those who wait are told: a run id, say.
        say: gets one line, once, when there is a wait.
        folder: where the leases lie, if not in the host's temp directory.

    Raises:
        LeaseError: the folder can't be used.
    """
    host = _Host(folder or Path(gettempdir()) / "aftershock-host", holder, say)
    with ExitStack() as held:
        with ExitStack() as passing:
            host.wait_for([host.turnstile], passing)
            host.wait_for([host.timing], held, shared=kind == "integrity")
            if kind == "integrity":
                host.wait_for(host.cores, held)
        yield


class _Host:
    """The lease files of a host, and one who wants to get in."""

    def __init__(self, folder: Path, holder: str, say: Say) -> None:
        _share(folder)
        self.turnstile = Lock(folder / "turnstile", _FILE_MODE)
        self.timing = Lock(folder / "timing", _FILE_MODE)
        self.cores = [Lock(folder / f"core-{number}", _FILE_MODE) for number in range(os.cpu_count() or 1)]
        self._holder = holder
        self._say = say
        self._said = False

    def wait_for(self, locks: Sequence[Lock], held: ExitStack, *, shared: bool = False) -> None:
        """Get one of ``locks``, for as long as ``held`` lasts."""
        for attempt in count():
            for lock in locks:
                if lock.take(self._holder, shared=shared):
                    held.callback(lock.release)
                    return
            # that somebody just passed the turnstile is not worth a word
            if attempt:
                self._tell()
            time.sleep(_PERIOD_S)

    def _tell(self) -> None:
        """Say once who is inside."""
        inside = [] if self._said else [name for lock in (self.timing, *self.cores) if (name := lock.held_by())]
        if inside:
            self._said = True
            self._say(f"waiting for the host's timing lease: held by {', '.join(inside)}")


def _share(folder: Path) -> None:
    """Make the folder, open to all users of the host; who owns it also mends its mode."""
    try:
        with suppress(FileExistsError):
            folder.mkdir()
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(0, "it is no folder")
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != _FOLDER_MODE:
            folder.chmod(_FOLDER_MODE)
    except OSError as error:
        raise LeaseError(
            f"can't use {folder} for the leases of this host: {error.strerror}; remove it, or have its owner do so"
        ) from error
