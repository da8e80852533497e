"""Lease of the host, by file locks that decide which runs may load this machine at the same time.

The lock files `turnstile`, `timing` and `core-<n>` are in one folder, for all users of the host; if another user made
that folder unusable, they are in a folder of each user. A run judged on latency locks `timing` exclusively. A run
judged on counts of records locks `timing` shared, and one `core-<n>` exclusively.

A process holds the lock file `turnstile` while it waits for the lock `timing` or the lock of a CPU core, so that later
processes can't overtake a run judged on latency. The kernel releases the host's lease when its holder dies.
"""

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Literal, TypeVar

from aftershock.errors import LeaseError, Log
from aftershock.results.slo import Count, parse

Kind = Literal["latency", "integrity"]
T = TypeVar("T")

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_MODE = 0o1777  # as /tmp: every user can add files, but not remove other users' files
_OWN_FOLDER_MODE = 0o700
_FILE_MODE = 0o666


def cache_folder() -> Path:
    """Return the folder for what a user's runs may reuse: builds, contracts of images, and the host's calibration."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aftershock"


class Lock:
    """A file that is used as a lock between processes; created if missing, with ``mode`` regardless of the umask.

    * Each attempt to lock opens the lock file again, because another process may have deleted the lock file, and a lock
      on a deleted file protects nothing.
    * Because any user can write to the folder, symbolic links are not followed, and only a regular file without further
      hard links is written to.
    * The content of the lock file describes the last process that held the lock.

    Raises LeaseError if the lock file or its folder can't be used.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self.path = path
        self._mode = mode
        self._file: int | None = None

    def take(self, holder: str, *, shared: bool = False) -> bool:
        """Return True if the lock was free, without waiting; ``holder`` is shown to users of waiting processes."""
        file = self._open()
        if not _try_lock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            os.close(file)
            return False
        self._file = file
        if not shared:
            note = {"holder": holder[:200], "pid": os.getpid(), "since_s": int(time.time())}
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(note).encode(), 0)
        return True

    def release(self) -> None:
        if self._file is not None:
            # unlocked explicitly: a forked child may hold a copy of the descriptor
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = None

    def held_by(self) -> str:
        """Return the exclusive holder of the lock as "NAME (pid N) since 13:05:12"; "" without a holder."""
        file = self._open()
        try:
            if _try_lock(file, fcntl.LOCK_SH):
                return ""
            note = os.pread(file, 400, 0)
        finally:
            os.close(file)
        # another user may have written the note: don't trust it, and don't print it unescaped
        with suppress(ValueError, KeyError, TypeError, OverflowError, OSError):
            fields = json.loads(note)
            name = "".join(letter if letter.isprintable() else "?" for letter in str(fields["holder"]))
            since = time.strftime("%H:%M:%S", time.localtime(fields["since_s"]))
            return f"{name} (pid {int(fields['pid'])}) since {since}"
        return "an unknown process"

    def _open(self) -> int:
        try:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                while True:
                    # two steps: in a sticky folder the kernel (fs.protected_regular) refuses O_CREAT on a file of
                    # another user
                    with suppress(FileNotFoundError):
                        return _checked(os.open(self.path.name, _FLAGS, dir_fd=folder), self._mode)
                    flags = _FLAGS | os.O_CREAT | os.O_EXCL
                    with suppress(FileExistsError):
                        return _checked(os.open(self.path.name, flags, self._mode, dir_fd=folder), self._mode)
            finally:
                os.close(folder)
        except OSError as error:
            reason = error.strerror or error
            raise LeaseError(
                f"can't use the lock file {self.path}: {reason}; remove the file, or ask its owner to remove it"
            ) from error


def _checked(file: int, mode: int) -> int:
    """Return ``file`` if it is a regular file without further hard links; else close the file and raise OSError."""
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise OSError("not a plain file")  # noqa: TRY301  # reported like the errors of the system
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
            os.fchmod(file, mode)
    except OSError:
        os.close(file)
        raise
    return file


def _try_lock(file: int, operation: int) -> bool:
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for(attempt: Callable[[], T | None], on_wait: Callable[[], None] = lambda: None) -> T:
    """Call ``attempt`` fifty times a second until its result is true; return the result.

    ``on_wait`` is called after the second and each later failed attempt, because most locks are held only for a moment.
    """
    if not (result := attempt()):
        time.sleep(0.02)
        while not (result := attempt()):
            on_wait()
            time.sleep(0.02)
    return result


@contextmanager
def hold(lock: Lock, holder: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Wait for a lock without a time limit, and hold it during the ``with`` block; calls ``on_wait`` as `wait_for`."""
    wait_for(lambda: lock.take(holder), on_wait)
    try:
        yield
    finally:
        lock.release()


def lease_kind(slos: Sequence[str]) -> Kind:
    """Return the kind of host lease that a run needs, "integrity" if all its SLOs count records, else "latency"."""
    return "integrity" if slos and all(isinstance(parse(text), Count) for text in slos) else "latency"


@dataclass(frozen=True)
class _Locks:
    turnstile: Lock
    timing: Lock
    cores: Sequence[Lock]


def _locks_in(folder: Path, mode: int) -> _Locks:
    """Return the locks in a folder, which is created with ``mode``; raise LeaseError if any of them can't be used."""
    try:
        with suppress(FileExistsError):
            folder.mkdir()
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(0, "it is not a folder")
        if mode == _OWN_FOLDER_MODE and status.st_uid != os.geteuid():
            raise PermissionError(0, "it belongs to another user")
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
            folder.chmod(mode)
    except OSError as error:
        raise LeaseError(
            f"can't use {folder} for the lock files of this host: {error.strerror}; remove that file, or ask its owner "
            "to remove it"
        ) from error
    cores = [Lock(folder / f"core-{number}", _FILE_MODE) for number in range(os.cpu_count() or 1)]
    locks = _Locks(Lock(folder / "turnstile", _FILE_MODE), Lock(folder / "timing", _FILE_MODE), cores)
    for lock in (locks.turnstile, locks.timing, *cores):
        lock.held_by()
    return locks


@contextmanager
def host_lease(kind: Kind, holder: str, log: Log, folder: Path | None = None) -> Iterator[None]:
    """Wait for the host's lease without a time limit, and hold it during the ``with`` block.

    A run judged on latency is alone on the host, because another run would disturb it like an unplanned fault; runs
    judged only on counts of records share the host, each with one core. ``holder``, for example a run id, is shown to
    users whose processes wait for the host. If the folder with the lock files can't be used, the reason is logged, and
    only runs of the same user wait for each other. Raises LeaseError if the user's own folder can't be used either.
    """
    folder = folder or Path(gettempdir()) / "aftershock-host"
    try:
        locks = _locks_in(folder, _FOLDER_MODE)
    except LeaseError as error:
        log(f"{error}; until then, runs of other users may disturb this one")
        locks = _locks_in(folder.with_name(f"{folder.name}-{os.geteuid()}"), _OWN_FOLDER_MODE)
    timing, cores = locks.timing, locks.cores
    wait_logged = False

    def log_holders() -> None:
        nonlocal wait_logged
        holders = [name for lock in (timing, *cores) if (name := lock.held_by())]
        if holders and not wait_logged:
            wait_logged = True
            log(f"waiting until other runs no longer use this host: {', '.join(holders)}")

    with ExitStack() as held:
        with hold(locks.turnstile, holder, log_holders):
            shared = kind == "integrity"
            wait_for(lambda: timing.take(holder, shared=shared), log_holders)
            held.callback(timing.release)
            if shared:
                core = wait_for(lambda: next((core for core in cores if core.take(holder)), None), log_holders)
                held.callback(core.release)
        yield
