"""Names of built images: a tag ends with a hash of everything that went into its recipe.

So a changed recipe is a new image, an unchanged one is found again by any checkout, and no tag ever has to be trusted
to mean what it meant last week.

Where an image is built: a temporary folder, a log that outlives it, and the processes and layers started in it.

Rules it keeps:

1. Every step says what it will do and about how long that takes, before it does it.
2. A step that fails raises `ImageError` naming the step and the log, with the log's last lines.
3. Whatever way a build ends, its processes are dead, its folder is gone, and no image of it is left without a tag.
4. Two builds of one image on a host never meet: the second waits, and then finds what the first has made.

What building needs on the host: debootstrap, Maven, Go. As root on Debian or Ubuntu it is installed, and said so.

Building an image without a tag from a folder, by the engine's classic builder: no BuildKit is asked for.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import docker
import requests
from docker.errors import DockerException

from aftershock.errors import ImageError

FOLDER = Path(__file__).parent
"""Where the recipes' files are."""

REPOSITORY = "aftershock"
"""Built images are ``aftershock/<name>:<version>-<hash>``."""


def tag(name: str, version: str, paths: Iterable[Path], facts: Iterable[str] = ()) -> str:
    """The full name of an image built from the files below ``paths`` and the pinned ``facts`` (coordinates, flags)."""
    return f"{REPOSITORY}/{name}:{version}-{digest(paths, (version, *facts))}"


def digest(paths: Iterable[Path], facts: Iterable[str] = ()) -> str:
    """Ten hexadecimal digits that change with a file's name or content, and with each fact."""
    sum_ = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                _feed(sum_, file.relative_to(path.parent).as_posix().encode())
                _feed(sum_, file.read_bytes())
    for fact in facts:
        _feed(sum_, fact.encode())
    return sum_.hexdigest()[:10]


def _feed(sum_: "hashlib._Hash", part: bytes) -> None:
    # with its length in front, moving a byte from one part to the next changes the sum
    sum_.update(len(part).to_bytes(8, "big"))
    sum_.update(part)


Say = Callable[[str], None]
"""Takes a line of progress for the user."""

LOG_LINES_SHOWN = 12
TERM_GRACE_S = 5.0
POLL_S = 0.1


class StepError(Exception):
    """A step went wrong; the text says how. `Workshop.step` turns it into an `ImageError`."""


class Workshop:
    """The means of one build. Made by `workshop`."""

    def __init__(
        self,
        client: docker.DockerClient,
        subject: str,
        *,
        say: Say,
        cancelled: threading.Event,
        log: Path,
        folder: Path,
    ) -> None:
        self.client = client
        self.subject = subject
        self.say = say
        self.cancelled = cancelled
        self.log_path = log
        self.folder = folder
        self._cleanup = ExitStack()

    @contextmanager
    def step(self, name: str, about_s: int) -> Iterator[None]:
        """One named part of the build.

        Args:
            name: what it does, e.g. ``base system (debootstrap)``.
            about_s: how long it takes on two cores and a good line, for the user's patience.

        Raises:
            ImageError: the step failed, or the build was cancelled.
        """
        self.say(f"building {self.subject}: {name}, about {about_s} s")
        self.note(f"=== {name}")
        try:
            self.check_cancelled()
            yield
        except (StepError, OSError, DockerException, requests.RequestException) as error:
            raise ImageError(self._failure(name, error)) from error

    def run(self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Run a command to its end, its output going to the log.

        Raises:
            StepError: it ended with another status than 0, or the build was cancelled meanwhile.
        """
        command = [str(word) for word in argv]
        self.note("$ " + " ".join(command))
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
            try:
                status = self._wait(process)
            finally:
                _end(process)
        if status:
            raise StepError(f"{command[0]} ended with status {status}")

    def keep_or_remove(self, image_id: str) -> None:
        """Remove this untagged image when the build ends, unless a tagged one was built on top of it."""
        self._cleanup.callback(self._remove_unless_tagged, image_id)

    def on_exit(self, undo: Callable[[], object]) -> None:
        """Call ``undo`` when the build ends, well or badly; what the engine says against it is not an error."""

        def quietly() -> None:
            with suppress(DockerException, requests.RequestException):
                undo()

        self._cleanup.callback(quietly)

    def note(self, text: str) -> None:
        """Append a line to the log."""
        with self.log_path.open("a") as log:
            log.write(text.rstrip("\n") + "\n")

    def check_cancelled(self) -> None:
        """Raise StepError if the build was cancelled."""
        if self.cancelled.is_set():
            raise StepError("interrupted")

    def close(self) -> None:
        """Undo what was started, the latest first."""
        self._cleanup.close()

    def _wait(self, process: "subprocess.Popen[bytes]") -> int:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=POLL_S)
            self.check_cancelled()

    def _remove_unless_tagged(self, image_id: str) -> None:
        with suppress(DockerException, requests.RequestException):
            # refused by the engine, rightly, while another image rests on it
            if not self.client.api.inspect_image(image_id)["RepoTags"]:
                self.client.api.remove_image(image_id)

    def _failure(self, step: str, error: Exception) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        shown = "\n".join(f"  | {line}" for line in lines)
        return (
            f"building {self.subject} failed at the step “{step}”: {error}\nlog: {self.log_path}, ending with\n{shown}"
        )


@contextmanager
def workshop(
    client: docker.DockerClient, subject: str, say: Say, cancelled: threading.Event | None = None
) -> Iterator[Workshop]:
    """A workshop for ``subject`` (``Kafka 4.3.1``), with the host's lock on that subject held.

    The lock is waited for; so look again, inside, whether the image has come to be. Setting ``cancelled`` from another
    thread ends the build within a moment.

    Raises:
        ImageError: cancelled while waiting, or the cache folder can't be written.
    """
    stop = cancelled or threading.Event()
    slug = subject.lower().replace(" ", "-")
    try:
        folder = builds_folder()
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"{slug}.lock").open("w")
    except OSError as error:
        raise ImageError(f"can't keep a build's log and lock in {builds_folder()}: {error}") from error
    with lock, tempfile.TemporaryDirectory(prefix="aftershock-build-", ignore_cleanup_errors=True) as scratch:
        _acquire(lock, subject, say, stop)
        log = folder / f"{slug}.log"
        log.write_text("")
        bench = Workshop(client, subject, say=say, cancelled=stop, log=log, folder=Path(scratch))
        try:
            yield bench
        finally:
            bench.close()


def cache_folder() -> Path:
    """Aftershock's own folder in the user's cache (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aftershock"


def builds_folder() -> Path:
    """Where the logs of builds are kept, one for each subject, of the latest build."""
    return cache_folder() / "builds"


def _acquire(lock: IO[Any], subject: str, say: Say, cancelled: threading.Event) -> None:
    told = False
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not told:
            say(f"building {subject}: another process is at it, waiting for it to finish")
            told = True
        if cancelled.wait(POLL_S):
            raise ImageError(f"building {subject} was interrupted while another process was building it")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Make sure that ``process`` and all it started are gone."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=TERM_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


APT_LOCK_WAIT_S = 120


def need(bench: Workshop, command: str, *packages: str) -> None:
    """Make sure that ``command`` is on the PATH, installing ``packages`` with apt-get where we may.

    Raises:
        StepError: it is missing and we may not, or could not, install it.
    """
    if shutil.which(command):
        return
    if not may_install():
        raise StepError(f"{command} is not on the PATH; install it ({' '.join(packages)} on Debian and Ubuntu)")
    # one at a time: two builds in one process would fail on apt's own lock
    with workshop(bench.client, "apt packages", bench.say, bench.cancelled):
        if not shutil.which(command):
            bench.say(f"building {bench.subject}: installing {' '.join(packages)} with apt-get")
            bench.run(["apt-get", "update", "-qq"])
            install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")
            lock_wait = ("-o", f"DPkg::Lock::Timeout={APT_LOCK_WAIT_S}")
            bench.run([*install, *lock_wait, *packages], env={"DEBIAN_FRONTEND": "noninteractive"})
    if not shutil.which(command):
        raise StepError(f"{command} is still not on the PATH after installing {' '.join(packages)}")


def may_install() -> bool:
    """Whether we are root on a system with apt-get."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def output_of(*argv: str) -> str:
    """What a quick command prints on standard output; nothing if it fails or is not there."""
    if shutil.which(argv[0]) is None:
        return ""
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout.strip()


def build_untagged(
    bench: Workshop, folder: Path, arguments: dict[str, str] | None = None, dockerfile: str = "Dockerfile"
) -> str:
    """The id of an image built from ``folder``; removed at the end of the build unless tagged or built upon.

    Raises:
        StepError: a line of the Dockerfile failed; the engine's words are in the log as well.
    """
    image_id = None
    for event in bench.client.api.build(
        path=str(folder),
        dockerfile=dockerfile,
        buildargs=arguments or {},
        rm=True,
        forcerm=True,
        decode=True,
    ):
        bench.check_cancelled()
        bench.note(event.get("stream", ""))
        if "error" in event:
            raise StepError(event["error"].strip())
        image_id = event.get("aux", {}).get("ID", image_id)
    if image_id is None:
        raise StepError("the engine named no image at the end of the build")
    bench.keep_or_remove(image_id)
    return str(image_id)
