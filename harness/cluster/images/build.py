"""Build of the Docker images that can't be pulled, with a recipe for each image.

The Dockerfiles of these images need no network, because tools of the host (debootstrap, Maven, Go) download the files
that a Dockerfile copies. If Aftershock runs as root on Debian or Ubuntu, missing tools are installed. The Docker
engine's classic builder builds the images, without BuildKit. Only one process at a time builds an image; other
processes wait for the image.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import metadata
from pathlib import Path

import docker
import requests
from docker.errors import DockerException, ImageNotFound
from urllib3.exceptions import HTTPError

from aftershock.errors import AftershockError, ImageError, Log
from aftershock.harness.safety.lease import Lock, cache_folder, hold

REPOSITORY = "aftershock"
"""Built images are ``aftershock/<image>:<version>-<hash>``."""

TOXIPROXY_VERSION = "2.12.0"

SERVICES = ("streams", "mirror-maker")
"""Images of services under test that are shipped; a plan names them ``aftershock/streams``, without a version."""

_FOLDER = Path(__file__).parent
_LOG_LINES_SHOWN = 12
_TERM_GRACE_S = 5.0
_SILENCE_S = 240  # limit of the time in which a build has no output
_SUITE = "bookworm"
_PACKAGES = ("openjdk-17-jre-headless", "ca-certificates", "iptables", "ethtool")
_PYTHON, _PYTHON_VERSION = ("python3-minimal", "python3", "ca-certificates"), "3.11"  # that of the suite
_CLIENT_PACKAGES = ("confluent-kafka", "crc32c", "google-re2", "kio", "numpy", "pyarrow", "pydantic")
"""Packages that client processes import, at the versions that are installed here."""
_SOURCE = Path(__file__).parents[3]
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_TRIMMED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")
_KAFKA_MIN = (
    3,
    7,
)  # older versions have no KafkaDockerWrapper, which writes a node's properties and formats its storage
_LOG4J_2_SINCE = (4, 0)
# binding of SLF4J to Log4j 1, with which older versions log; that of Log4j 2 is in the pom.xml
_LOG4J_1_BINDING = ("org.slf4j", "slf4j-reload4j", "1.7.36")
_TOXIPROXY_MODULE = "github.com/Shopify/toxiproxy/v2"
_GO_MIN = (1, 21)  # the first version that downloads a newer toolchain when a module requires it


class StepError(Exception):
    """Failure of a step of an image build; `Build.step` turns it into an `ImageError`."""


@dataclass(frozen=True)
class Recipe:
    """Recipe of a Docker image that Aftershock builds.

    ``image`` is the name of the image and of the folder with its Dockerfile, ``version`` the version of the software in
    the image. The function ``download`` downloads the files that the Dockerfile copies into the build context, and
    ``pinned`` has the versions and addresses of these files. ``download_step`` has the name of the download step and
    its usual duration, ``build_s`` the usual duration of the Dockerfile's build, in seconds with two cores and a fast
    connection. ``base`` is the name of the parent image (the Dockerfile's argument BASE), ``parent`` the recipe of a
    parent image that Aftershock builds.
    """

    image: str
    version: str
    download: Callable[["Build"], None] = field(compare=False)
    download_step: tuple[str, int]
    build_s: int
    pinned: Sequence[str] = ()
    base: str = ""
    parent: "Recipe | None" = None

    @property
    def folder(self) -> Path:
        return _FOLDER / self.image.replace("-", "_")

    @property
    def name(self) -> str:
        """Full name of the image, with a hash of the recipe, so that a changed recipe needs a new image."""
        digest = hashlib.sha256()
        for part in (self.version, self.base, *self.pinned):
            digest.update(part.encode() + b"\0")
        for file in sorted(self.folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                content = file.read_bytes()
                digest.update(f"{file.relative_to(self.folder).as_posix()}\0{len(content)}\0".encode() + content)
        return f"{REPOSITORY}/{self.image}:{self.version}-{digest.hexdigest()[:10]}"


def base() -> Recipe:
    step = ("Debian with Java (debootstrap)", 45)
    download = partial(Build.debian, packages=_PACKAGES)
    return Recipe("base", f"{_SUITE}-jre17", download, step, build_s=10, pinned=(*_PACKAGES, *_TRIMMED))


def worker() -> Recipe:
    """Return the recipe of the image of pods in which clients run: Python, and this version of their code."""

    def download(build: "Build") -> None:
        build.debian(_PYTHON)
        package = build.context / "lib" / "aftershock"
        for file in _client_code():
            copy = package / file.relative_to(_SOURCE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        build.pip_install(*(f"{name}=={metadata.version(name)}" for name in _CLIENT_PACKAGES))

    packages = (f"{name} {metadata.version(name)}" for name in _CLIENT_PACKAGES)
    pinned = (*_PYTHON, *packages, _digest(_client_code()))
    step = ("Debian with Python, and packages (debootstrap, pip)", 60)
    return Recipe("worker", metadata.version("aftershock"), download, step, build_s=15, pinned=pinned)


def runner() -> Recipe:
    """Return the recipe of the image of a pod in which `aftershock` itself runs: Python, Java, and this version."""

    def download(build: "Build") -> None:
        if not (_SOURCE / "pyproject.toml").is_file():
            raise StepError(
                "the image of a runner is built from the source of Aftershock: call this from its repository"
            )
        build.debian((*_PYTHON, *_PACKAGES[:2]))
        wheels, pins = build.scratch / "wheels", build.scratch / "pins.txt"
        # Spark has a source distribution only
        spark = f"pyspark=={metadata.version('pyspark')}"
        build.run([*_PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, spark, _SOURCE])
        here = {one.name.lower(): one.version for one in metadata.distributions()}
        pins.write_text("".join(f"{name}=={number}\n" for name, number in here.items() if name != "aftershock"))
        (own,) = wheels.glob("aftershock-*.whl")
        (spark_wheel,) = wheels.glob("pyspark-*.whl")
        build.pip_install("--constraint", pins, f"{own}[kubernetes,prometheus]", spark_wheel)

    excluded = {"tests", ".venv", "build"}
    code = (file for file in sorted(_SOURCE.rglob("*.py")) if not excluded & {*file.relative_to(_SOURCE).parts})
    step = ("Debian with Python and Java, and packages (debootstrap, pip)", 180)
    pinned = (*_PYTHON, *_PACKAGES, metadata.version("pyspark"), _digest(code))
    return Recipe("runner", metadata.version("aftershock"), download, step, build_s=60, pinned=pinned)


def _digest(files: Iterable[Path]) -> str:
    """Return a checksum of the names and the contents of files of this package."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(_SOURCE).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _client_code() -> list[Path]:
    """Return the files of this package that client processes import."""
    tree = [path for path in (_SOURCE / "workloads").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted([*tree, *(_SOURCE / name for name in ("__init__.py", "errors.py", "names.py", "redaction.py"))])


def kafka(version: str) -> Recipe:
    def download(build: "Build") -> None:
        if (major, minor) < _KAFKA_MIN:
            oldest = ".".join(map(str, _KAFKA_MIN))
            raise StepError(f"the build of a Kafka image supports Kafka {oldest}.0 and later, not {version}")
        properties = zip(("group", "artifact", "version"), binding, strict=False)
        build.maven(f"-Dkafka.version={version}", *(f"-Dbinding.{name}={value}" for name, value in properties))

    major, minor, _ = map(int, version.split("."))
    binding = _LOG4J_1_BINDING if (major, minor) < _LOG4J_2_SINCE else ()
    parent, step = base(), ("jars (Maven)", 15)
    return Recipe("kafka", version, download, step, build_s=40, pinned=binding, base=parent.name, parent=parent)


def java_client(kafka_name: str) -> Recipe:
    """Return the recipe of the Java client's image, on top of the Kafka image ``kafka_name`` (repository:version)."""
    version = kafka_name.rsplit(":", 1)[1].partition("-")[0]
    return Recipe("java-client", version, Build.maven, ("compiler (Maven)", 5), build_s=17, base=kafka_name)


def service(image: str, kafka_name: str) -> Recipe:
    """Return the recipe of a shipped service on the JRE of the Kafka image ``kafka_name``: a name in ``SERVICES``."""
    version = kafka_name.rsplit(":", 1)[1].partition("-")[0]

    def download(build: "Build") -> None:
        build.maven(f"-Dkafka.version={version}")

    return Recipe(image, version, download, ("jars (Maven)", 20), build_s=20, base=kafka_name)


def tools() -> Recipe:
    def download(build: "Build") -> None:
        build.require_command("gcc", "gcc", "libc6-dev")
        # without a C library at link time, so that it loads into images with another one
        flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-nostdlib", "-fno-builtin")
        for library in ("clock", "gc"):
            build.run(["gcc", *flags, "-o", build.context / f"{library}.so", build.context / f"{library}.c"])
        for program in ("slowfs", "packets"):
            output = build.context / f"{program}.bin"
            build.go("build", "-C", build.context / program, "-ldflags", "-s -w", "-o", output, ".")

    parent = base()
    return Recipe("tools", "1", download, ("tools (gcc, go)", 15), build_s=1, base=parent.name, parent=parent)


def toxiproxy() -> Recipe:
    def download(build: "Build") -> None:
        # without -X the server reports version "git"; without @version Go resolves 2.5.0 as the latest
        flags = f"-s -w -X {_TOXIPROXY_MODULE}.Version={TOXIPROXY_VERSION}"
        build.go("install", "-ldflags", flags, f"{_TOXIPROXY_MODULE}/cmd/server@v{TOXIPROXY_VERSION}")
        (build.context / "server").rename(build.context / "toxiproxy")

    step = ("server (go install)", 30)
    return Recipe("toxiproxy", TOXIPROXY_VERSION, download, step, build_s=2, pinned=(_TOXIPROXY_MODULE,))


def _go_version(*argv: str) -> tuple[int, int]:
    """Return the first version (major, minor) in the output of a command; (0, 0) without command or version."""
    if shutil.which(argv[0]) is None:
        return (0, 0)
    text = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout
    match = re.search(r"(?:^go|^Version: \d+:)(\d+)\.(\d+)", text, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def has_image(client: docker.DockerClient, name: str) -> bool:
    try:
        client.api.inspect_image(name)
    except ImageNotFound:
        return False
    return True


def build_image(client: docker.DockerClient, recipe: Recipe, log: Log) -> str:
    """Build an image and its parent image, if the Docker engine lacks them; return the image's name.

    Raises ImageError if a build step failed, or if the cache folder can't be written.
    """
    name, subject = recipe.name, f"{recipe.image} {recipe.version}"
    if has_image(client, name):
        return name
    builds = cache_folder() / "builds"
    try:
        builds.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ImageError(f"can't write the logs of builds to {builds}: {error}; make the folder writable") from error
    waiting = cache(partial(log, f"building {subject}: waiting for another process that builds it"))
    slug = subject.replace(" ", "-")
    with hold(Lock(builds / f"{slug}.lock"), subject, waiting):
        if has_image(client, name):
            return name
        with tempfile.TemporaryDirectory(prefix="aftershock-build-", ignore_cleanup_errors=True) as scratch:
            build = Build(subject, log, builds / f"{slug}.log", Path(scratch))
            shutil.copytree(recipe.folder, build.context)
            with build.step(*recipe.download_step):
                recipe.download(build)
            if recipe.parent:
                build_image(client, recipe.parent, log)
            with build.step("image (docker build)", recipe.build_s):
                build.image(client, name, recipe.base)
    return name


class Build:
    """A running image build; ``scratch`` is a temporary folder, ``context`` its subfolder with the Dockerfile.

    A failed step raises ``error``.
    """

    error: type[AftershockError] = ImageError

    def __init__(self, subject: str, log: Log, log_path: Path, scratch: Path) -> None:
        self.subject, self.log, self.log_path = subject, log, log_path
        self.scratch, self.context = scratch, scratch / "context"
        log_path.write_text("")

    @contextmanager
    def step(self, name: str, about_s: int) -> Iterator[None]:
        """Log a step of a build; raise ``error`` with the log's last lines if the ``with`` block failed."""
        self.log(f"building {self.subject}: {name}, about {about_s} s")
        self.note(f"=== {name}")
        try:
            yield
        except (StepError, OSError, DockerException, requests.RequestException, HTTPError) as error:
            lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
            tail = "\n".join(f"  | {line}" for line in lines)
            raise self.error(
                f"building {self.subject} failed in step “{name}”: {error}\nlog: {self.log_path}, ending with\n{tail}"
            ) from error

    def note(self, text: str) -> None:
        with self.log_path.open("a") as log_file:
            log_file.write(text.rstrip("\n") + "\n")

    def run(self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Run a command, with its output in the log; raise StepError if the exit status is not 0."""
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
            status = process.wait()
        except BaseException:
            # end all processes of the session, because they write to folders that are about to be removed
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_TERM_GRACE_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if status:
            raise StepError(f"{command[0]} ended with status {status}")

    def debian(self, packages: Sequence[str]) -> None:
        """Make ``rootfs.tar`` in the build context, the smallest Debian with these packages."""
        if os.geteuid() != 0:
            raise StepError(
                f"the build of the {self.subject} image needs root for debootstrap; run this command once as root, or "
                "load the image from another host with: docker load"
            )
        self.require_command("debootstrap", "debootstrap", "debian-archive-keyring")
        tree = self.scratch / "rootfs"
        # debootstrap mounts /proc and more inside the tree; in separate namespaces, the mounts disappear with the
        # process, so that the tree can be removed safely
        unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
        self.run([*unshare, "debootstrap", "--variant=minbase", f"--include={','.join(packages)}", _SUITE, tree])
        for path in _TRIMMED:
            shutil.rmtree(tree / path)
        self.run(["tar", "--create", "--file", self.context / "rootfs.tar", "--directory", tree, "."])

    def pip_install(self, *words: str | Path) -> None:
        """Install packages for the Python of the suite into the folder ``lib`` of the build context."""
        wheels = ("--only-binary=:all:", "--python-version", _PYTHON_VERSION, "--implementation", "cp")
        platforms = [f"--platform=manylinux{libc}_{platform.machine()}" for libc in ("_2_28", "_2_17", "2014")]
        target = ("--target", self.context / "lib")
        self.run([*_PIP, "install", "--quiet", "--no-compile", *wheels, *platforms, *target, *words])

    def require_command(self, command: str, *packages: str) -> None:
        """Install ``packages`` with apt-get if ``command`` is missing; raise StepError if that fails."""
        if shutil.which(command):
            return
        if not _may_install():
            raise StepError(
                f"the command {command} is not on the PATH; install {' '.join(packages)} (names on Debian and Ubuntu)"
            )
        # one installation at a time, because concurrent builds would fail on apt's own lock
        with hold(Lock(self.log_path.with_name("apt-packages.lock")), self.subject):
            if not shutil.which(command):
                self.log(f"building {self.subject}: installing {' '.join(packages)} with apt-get")
                self.run(["apt-get", "update", "-qq"])
                install = shlex.split("apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120")
                self.run([*install, *packages], env={"DEBIAN_FRONTEND": "noninteractive"})
        if not shutil.which(command):
            raise StepError(f"the command {command} is not on the PATH after installing {' '.join(packages)}")

    def maven(self, *properties: str) -> None:
        """Download the dependencies in the Docker build context's pom.xml to the folder ``libs`` with Maven."""
        self.require_command("mvn", "maven")
        maven = ("mvn", "--batch-mode", "--no-transfer-progress", "--file", str(self.context / "pom.xml"))
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={self.context / 'libs'}")
        self.run([*maven, *properties, *goal])

    def go(self, *arguments: str | Path) -> None:
        """Run the command ``go``, which installs into the build context; raise StepError without a new enough Go."""
        package = ("apt-cache", "show", "--no-all-versions", "golang-go")
        if shutil.which("go") is None and _may_install() and _go_version(*package) >= _GO_MIN:
            self.require_command("go", "golang-go")
        if _go_version("go", "env", "GOVERSION") < _GO_MIN:
            required = ".".join(map(str, _GO_MIN))
            raise StepError(
                f"the build of {self.subject} needs Go {required} or later, which the system's packages lack; put a "
                "newer Go on the PATH"
            )
        cache = cache_folder() / "go"
        environment = {
            "CGO_ENABLED": "0",
            "GOBIN": str(self.context),
            "GOPATH": str(cache),
            "GOCACHE": str(cache / "build"),
            "GOFLAGS": "-modcacherw",
            "GOTOOLCHAIN": "auto",
        }
        self.run(["go", *arguments], env=environment)

    def image(self, client: docker.DockerClient, name: str, base: str) -> None:
        """Build the image ``name`` from the Dockerfile; raise StepError if an instruction of the Dockerfile failed."""
        try:
            for event in client.api.build(
                path=str(self.context),
                tag=name,
                buildargs={"BASE": base, "NAME": name},
                rm=True,
                forcerm=True,
                decode=True,
                timeout=_SILENCE_S,
            ):
                self.note(event.get("stream", ""))
                if "error" in event:
                    raise StepError(event["error"].strip())
        finally:
            # images of the Dockerfile's other stages, or of a failed build
            with suppress(DockerException, requests.RequestException):
                client.api.prune_images({"dangling": True, "label": f"aftershock.build={name}"})


def _may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None
