"""Machinery for image builds: content-addressed tags, build steps with a log, and tools from the host.

A tag ends with a hash of everything that goes into the recipe. A changed recipe gives a new image, any checkout finds
the image of an unchanged recipe, and the build does not depend on a tag, which may point to another image next week.

`ImageBuilder` is one build: a temporary folder, a log that stays, and the processes and layers that the build starts.

1. Each step logs its purpose and its approximate duration before it starts.
2. A failed step raises `ImageError` with the step's name, the log's path and its last lines.
3. At the end of a build, successful or not, its processes are killed, its folder is removed, and no untagged image is
   left.
4. Two builds of one image on a host exclude each other: the second waits, and then uses the image of the first.

A build needs debootstrap, Maven or Go on the host. As root on Debian or Ubuntu, missing tools are installed, with a log
line. Images are built by the engine's classic builder, so BuildKit is not required.
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
"""Folder with the files of the recipes."""

REPOSITORY = "aftershock"
"""Built images are ``aftershock/<name>:<version>-<hash>``."""


def tag(name: str, version: str, paths: Iterable[Path], facts: Iterable[str] = ()) -> str:
    """Return an image's full name, from the files below ``paths`` and pinned ``facts`` (coordinates, flags)."""
    return f"{REPOSITORY}/{name}:{version}-{digest(paths, (version, *facts))}"


def digest(paths: Iterable[Path], facts: Iterable[str] = ()) -> str:
    """Return ten hexadecimal digits that change with any file name, file content or fact."""
    digest_ = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                _add_part(digest_, file.relative_to(path.parent).as_posix().encode())
                _add_part(digest_, file.read_bytes())
    for fact in facts:
        _add_part(digest_, fact.encode())
    return digest_.hexdigest()[:10]


def _add_part(digest_: "hashlib._Hash", part: bytes) -> None:
    # the length prefix makes the sum change when a byte moves from one part to the next
    digest_.update(len(part).to_bytes(8, "big"))
    digest_.update(part)


Log = Callable[[str], None]
"""Callback that receives progress lines for the user."""

LOG_LINES_SHOWN = 12
TERM_GRACE_S = 5.0
POLL_S = 0.1


class StepError(Exception):
    """A build step failed. `ImageBuilder.step` turns it into an `ImageError`."""


class ImageBuilder:
    """An image build. Created by `image_builder`."""

    def __init__(
        self,
        client: docker.DockerClient,
        subject: str,
        *,
        log: Log,
        cancelled: threading.Event,
        log_path: Path,
        folder: Path,
    ) -> None:
        self.client = client
        self.subject = subject
        self.log = log
        self.cancelled = cancelled
        self.log_path = log_path
        self.folder = folder
        self._cleanup = ExitStack()

    @contextmanager
    def step(self, name: str, about_s: int) -> Iterator[None]:
        """Run the block as a named step of the build.

        Args:
            name: shown to the user, e.g. ``base system (debootstrap)``.
            about_s: usual duration on two cores with a fast connection, shown to the user.

        Raises:
            ImageError: the step failed, or the build was cancelled.
        """
        self.log(f"building {self.subject}: {name}, about {about_s} s")
        self.note(f"=== {name}")
        try:
            self.check_cancelled()
            yield
        except (StepError, OSError, DockerException, requests.RequestException) as error:
            raise ImageError(self._failure(name, error)) from error

    def run(self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Run a command to its end, with its output in the log.

        Raises:
            StepError: it ended with a status other than 0, or the build was cancelled.
        """
        command = [str(word) for word in argv]
        self.note("$ " + " ".join(command))
        with self.log_path.open("ab") as log_file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
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
        """Call ``undo`` when the build ends, successful or not. Errors of the engine in it are ignored."""

        def quietly() -> None:
            with suppress(DockerException, requests.RequestException):
                undo()

        self._cleanup.callback(quietly)

    def note(self, text: str) -> None:
        """Append a line to the log."""
        with self.log_path.open("a") as log_file:
            log_file.write(text.rstrip("\n") + "\n")

    def check_cancelled(self) -> None:
        """Raise StepError if the build was cancelled."""
        if self.cancelled.is_set():
            raise StepError("interrupted")

    def close(self) -> None:
        """Run the clean-up actions, latest first."""
        self._cleanup.close()

    def _wait(self, process: "subprocess.Popen[bytes]") -> int:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=POLL_S)
            self.check_cancelled()

    def _remove_unless_tagged(self, image_id: str) -> None:
        with suppress(DockerException, requests.RequestException):
            # the engine refuses while another image is based on it
            if not self.client.api.inspect_image(image_id)["RepoTags"]:
                self.client.api.remove_image(image_id)

    def _failure(self, step: str, error: Exception) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        shown = "\n".join(f"  | {line}" for line in lines)
        return f"building {self.subject} failed in step “{step}”: {error}\nlog: {self.log_path}, ending with\n{shown}"


@contextmanager
def image_builder(
    client: docker.DockerClient, subject: str, log: Log, cancelled: threading.Event | None = None
) -> Iterator[ImageBuilder]:
    """Yield a builder for ``subject`` (``Kafka 4.3.1``) with the host's lock on that subject held.

    It waits for the lock, so check inside the block whether another process has built the image meanwhile. Setting
    ``cancelled`` from another thread ends the build promptly.

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
        raise ImageError(
            f"can't write the log and lock of builds in {builds_folder()}: {error}; make the folder writable"
        ) from error
    with lock, tempfile.TemporaryDirectory(prefix="aftershock-build-", ignore_cleanup_errors=True) as scratch:
        _acquire(lock, subject, log, stop)
        log_path = folder / f"{slug}.log"
        log_path.write_text("")
        builder = ImageBuilder(client, subject, log=log, cancelled=stop, log_path=log_path, folder=Path(scratch))
        try:
            yield builder
        finally:
            builder.close()


def cache_folder() -> Path:
    """Return Aftershock's own folder in the user's cache (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aftershock"


def builds_folder() -> Path:
    """Return the folder of build logs: one for each subject, of its latest build."""
    return cache_folder() / "builds"


def _acquire(lock: IO[Any], subject: str, log: Log, cancelled: threading.Event) -> None:
    logged = False
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not logged:
            log(f"building {subject}: waiting for another process that builds it")
            logged = True
        if cancelled.wait(POLL_S):
            raise ImageError(f"building {subject} was interrupted while it waited for another process")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End ``process`` and all processes of its session."""
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


def require_command(builder: ImageBuilder, command: str, *packages: str) -> None:
    """Ensure that ``command`` is on the PATH; install ``packages`` with apt-get if `may_install`.

    Raises:
        StepError: it is missing and could not be installed.
    """
    if shutil.which(command):
        return
    if not may_install():
        raise StepError(f"{command} is not on the PATH; install it ({' '.join(packages)} on Debian and Ubuntu)")
    # one installation at a time: two builds in one process would fail on apt's own lock
    with image_builder(builder.client, "apt packages", builder.log, builder.cancelled):
        if not shutil.which(command):
            builder.log(f"building {builder.subject}: installing {' '.join(packages)} with apt-get")
            builder.run(["apt-get", "update", "-qq"])
            install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")
            lock_wait = ("-o", f"DPkg::Lock::Timeout={APT_LOCK_WAIT_S}")
            builder.run([*install, *lock_wait, *packages], env={"DEBIAN_FRONTEND": "noninteractive"})
    if not shutil.which(command):
        raise StepError(f"{command} is still not on the PATH after installing {' '.join(packages)}")


def may_install() -> bool:
    """True for root on a system with apt-get."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def output_of(*argv: str) -> str:
    """Return a short command's standard output; "" if the command is not on the PATH."""
    if shutil.which(argv[0]) is None:
        return ""
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout.strip()


def build_untagged(
    builder: ImageBuilder, folder: Path, arguments: dict[str, str] | None = None, dockerfile: str = "Dockerfile"
) -> str:
    """Build ``folder`` and return the image's id. The image is removed at the build's end unless tagged or built upon.

    Raises:
        StepError: an instruction of the Dockerfile failed; the engine's message is in the log too.
    """
    image_id = None
    for event in builder.client.api.build(
        path=str(folder),
        dockerfile=dockerfile,
        buildargs=arguments or {},
        rm=True,
        forcerm=True,
        decode=True,
    ):
        builder.check_cancelled()
        builder.note(event.get("stream", ""))
        if "error" in event:
            raise StepError(event["error"].strip())
        image_id = event.get("aux", {}).get("ID", image_id)
    if image_id is None:
        raise StepError("the engine reported no image id at the end of the build")
    builder.keep_or_remove(image_id)
    return str(image_id)
