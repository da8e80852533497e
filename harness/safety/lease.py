"""Locks on files, let go of by the kernel when their holder dies, also in folders that strangers write to.

Rules:

* Nothing blocks: a lock is tried, and who must have it tries again, so that Ctrl-C works while waiting.
* A file is opened anew for each try: a lock file that somebody swept away is one nobody holds.
* No link is followed, neither to the folder nor to the file, and only a plain file with one name is written to.
* What a lock file says is what its last holder wrote: true of a lock that is held, stale in one that isn't.

The host's lease: who may put load on this machine now. One measures time alone; those who count records share.

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

import fcntl
import json
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
from aftershock.results.slo import Count, parse

_NOTE_BYTES_MAX = 400
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Lock:
    """The lock file at ``path``, made when it isn't there, with ``mode`` whatever the umask says.

    Raises:
        LeaseError: the folder or the file can't be used; says why, and what to do.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self.path = path
        self._mode = mode
        self._file: int | None = None

    def take(self, holder: str, *, shared: bool = False) -> bool:
        """Try once to get the lock, alone or ``shared`` with others who share it; ``holder`` is shown to who waits."""
        file = _opened(self.path, self._mode)
        if not _locked(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            os.close(file)
            return False
        self._file = file
        if not shared:
            os.ftruncate(file, 0)
            os.pwrite(file, _note(holder), 0)
        return True

    def release(self) -> None:
        """Let go of it; one that isn't held stays as it is."""
        if self._file is not None:
            # said to the lock itself: a forked child may hold a copy of the descriptor
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = None

    def held_by(self) -> str:
        """Who holds it alone: "NAME (pid N) since 13:05:12"; "" if nobody does."""
        file = _opened(self.path, self._mode)
        try:
            return "" if _locked(file, fcntl.LOCK_SH) else _shown(os.pread(file, _NOTE_BYTES_MAX, 0))
        finally:
            os.close(file)


def _locked(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _note(holder: str) -> bytes:
    return json.dumps({"holder": holder[:200], "pid": os.getpid(), "since_s": int(time.time())}).encode()


def _shown(note: bytes) -> str:
    """A holder's note as one line: a stranger may have written it, so nothing in it is trusted or printed raw."""
    with suppress(ValueError, KeyError, TypeError, OverflowError, OSError):
        said = json.loads(note)
        name = "".join(letter if letter.isprintable() else "?" for letter in str(said["holder"]))
        return f"{name} (pid {int(said['pid'])}) since {time.strftime('%H:%M:%S', time.localtime(said['since_s']))}"
    return "a process that left no note"


def _opened(path: Path, mode: int) -> int:
    """The lock file, open, its mode set by whoever owns it."""
    with _sentences(path), _folder(path.parent) as folder:
        while True:
            # two steps: the kernel refuses O_CREAT on another user's file in a sticky folder (fs.protected_regular)
            with suppress(FileNotFoundError):
                return _checked(os.open(path.name, _FLAGS, dir_fd=folder), mode)
            with suppress(FileExistsError):
                return _checked(os.open(path.name, _FLAGS | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder), mode)


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def _checked(file: int, mode: int) -> int:
    """The same file, if it is a plain one with a single name."""
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise OSError("not a plain file")  # noqa: TRY301  # joins the refusals of the system, worded in one place
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(file, mode)
    except OSError:
        os.close(file)
        raise
    return file


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LeaseError(
            f"can't use the lock file {path}: {error.strerror or error}; remove it or have its owner do so"
        ) from error


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
