"""Locks on files, let go of by the kernel when their holder dies, also in folders that strangers write to.

Rules:

* Nothing blocks: a lock is tried, and who must have it tries again, so that Ctrl-C works while waiting.
* A file is opened anew for each try: a lock file that somebody swept away is one nobody holds.
* No link is followed, neither to the folder nor to the file, and only a plain file with one name is written to.
* What a lock file says is what its last holder wrote: true of a lock that is held, stale in one that isn't.
"""

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aftershock.errors import LeaseError

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
