"""The base image: the smallest Debian with a headless Java 17, from Debian's own packages.

All versions of Kafka share it. debootstrap mounts `/proc` and more inside the tree it makes; it runs in a mount and
process namespace of its own, so that these are gone with it, whatever way it ends, and removing the tree is safe.

Trains the class archives (AppCDS) that cut a third to a half off a broker's boot, the most where cores are few.

The training node runs in a container of the very image it trains for, because an archive is valid only for the same
JVM, the same class path string and the same jars. Only the archives are taken out of that container: a formatted log
directory in the image would make the next boot fail with `Invalid cluster.id`.

Builds a Kafka image that can take the place of the official one, from Maven Central and Debian.

The contract it honours is asserted by ``tests/contract/test_kafka_image.py`` on whichever image is there.

Builds the image of ``client: java``: a Kafka image and the classes that put its client behind ``docs/EXEC.md``.

The classes are compiled in a container of that very Kafka image, against its own libraries; all that is downloaded is
the compiler, one jar that runs on a JRE. What the image must do is asserted by ``tests/contract/test_java_client.py``.

Builds a Toxiproxy image that can take the place of the official one, through Go's module proxy.
"""

import os
import re
import shutil
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import docker
from docker.errors import ImageNotFound

from aftershock.errors import ImageError
from aftershock.harness.cluster.images.builder import (
    FOLDER,
    Say,
    StepError,
    Workshop,
    build_untagged,
    cache_folder,
    may_install,
    need,
    output_of,
    tag,
    workshop,
)
from aftershock.harness.cluster.ownership import labels_of

SUITE = "bookworm"
PACKAGES = ("openjdk-17-jre-headless", "ca-certificates")
TRIMMED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")
BASE_NAME = tag("base", f"{SUITE}-jre17", [], [*PACKAGES, *TRIMMED])


def base_image(client: docker.DockerClient, say: Say, cancelled: threading.Event) -> str:
    """The base image's name, once it is there.

    Raises:
        ImageError: it could not be built.
    """
    if is_here(client, BASE_NAME):
        return BASE_NAME
    with workshop(client, f"base {SUITE}", say, cancelled) as bench:
        if not is_here(client, BASE_NAME):
            _build_base(bench)
    return BASE_NAME


def is_here(client: docker.DockerClient, name: str) -> bool:
    """Whether the engine has an image of that name."""
    try:
        client.api.inspect_image(name)
    except ImageNotFound:
        return False
    return True


def _build_base(bench: Workshop) -> None:
    tree, archive = bench.folder / "rootfs", bench.folder / "rootfs.tar"
    with bench.step("Debian with Java (debootstrap)", about_s=45):
        if os.geteuid() != 0:
            raise StepError("debootstrap must be run as root; run this once as root, or load the image from elsewhere")
        need(bench, "debootstrap", "debootstrap", "debian-archive-keyring")
        unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
        include = f"--include={','.join(PACKAGES)}"
        bench.run([*unshare, "debootstrap", "--variant=minbase", include, SUITE, tree])
    with bench.step("importing the base image", about_s=5):
        for path in TRIMMED:
            shutil.rmtree(tree / path)
        bench.run(["tar", "--create", "--file", archive, "--directory", tree, "."])
        repository, version = BASE_NAME.rsplit(":", 1)
        bench.note(bench.client.api.import_image(str(archive), repository=repository, tag=version))
        if not is_here(bench.client, BASE_NAME):
            raise StepError("the engine did not import the base image")


ARCHIVES = ("storage.jsa", "kafka.jsa")
TRAINING_LIMIT_S = 240.0
POLL_S = 0.5


def train(bench: Workshop, image_id: str, script: str) -> Path:
    """Run ``script`` in a container of the image and return a folder that holds the `ARCHIVES` it made.

    Raises:
        StepError: the script failed, or took too long; its output is in the log.
    """
    # labelled like a run's containers: if this process is killed outright, the next sweep finds it
    labels = labels_of("build", bench.log_path.parent, keep=False)
    container = bench.client.containers.create(
        image_id,
        ["/bin/sh", "-c", script],
        network_mode="none",
        hostname="localhost",  # without a network no other name resolves, and Kafka asks for its own
        labels=labels,
    )
    bench.on_exit(lambda: container.remove(force=True, v=True))
    container.start()
    try:
        status = _wait(bench, container)
    finally:
        bench.note(container.logs().decode(errors="replace"))
    if status:
        raise StepError(f"the training node's script ended with status {status}")
    folder = bench.folder / "archives"
    folder.mkdir()
    for name in ARCHIVES:
        _take(bench, container.id, f"/tmp/train/{name}", folder)  # noqa: S108 (a path in the container)
    return folder


def _wait(bench: Workshop, container: Any) -> int:
    """The container's exit status. Polled, so that cancelling a build need not wait for it."""
    deadline = time.monotonic() + TRAINING_LIMIT_S
    while True:
        container.reload()
        if container.status == "exited":
            return int(container.attrs["State"]["ExitCode"])
        if time.monotonic() > deadline:
            raise StepError(f"the training node did not end within {TRAINING_LIMIT_S:.0f} s")
        bench.check_cancelled()
        bench.cancelled.wait(POLL_S)


def _take(bench: Workshop, container_id: str, path: str, folder: Path) -> None:
    chunks, _ = bench.client.api.get_archive(container_id, path)
    archive = folder / "archive.tar"
    with archive.open("wb") as file:
        file.writelines(chunks)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


POM = FOLDER / "pom.xml"
KAFKA_CONTENTS = FOLDER / "kafka"
OLDEST_MAJOR = 4
"""Before 4.0 the distribution logs with another library and still knows ZooKeeper: the recipe does not fit."""


def kafka_name(version: str) -> str:
    """The full name of our image of that version."""
    return tag("kafka", version, [POM, KAFKA_CONTENTS], [BASE_NAME])


def build_kafka(client: docker.DockerClient, version: str, say: Say, cancelled: threading.Event) -> str:
    """Build our image of that version, unless another process just has, and return its name.

    Raises:
        ImageError: the version is not one we can build, or a step failed.
    """
    if int(version.split(".", maxsplit=1)[0]) < OLDEST_MAJOR:
        raise ImageError(f"can't build Kafka {version}: the recipe is for {OLDEST_MAJOR}.0.0 and later")
    with workshop(client, f"Kafka {version}", say, cancelled) as bench:
        if not is_here(client, kafka_name(version)):
            _build_kafka(bench, version, base_image(client, say, bench.cancelled))
    return kafka_name(version)


def _build_kafka(bench: Workshop, version: str, base_name: str) -> None:
    context = bench.folder / "context"
    shutil.copytree(KAFKA_CONTENTS, context)
    with bench.step("jars (Maven)", about_s=15):
        need(bench, "mvn", "maven")
        _download(bench, version, context / "libs")
    with bench.step("image", about_s=10):
        untrained = build_untagged(bench, context, {"BASE": base_name})
    with bench.step("class archive (AppCDS training)", about_s=30):
        archives = train(bench, untrained, (KAFKA_CONTENTS / "train").read_text())
    with bench.step("image with its class archive", about_s=5):
        shutil.copy(KAFKA_CONTENTS / "Dockerfile.cds", archives / "Dockerfile")
        trained = build_untagged(bench, archives, {"TRAINED": untrained})
        repository, version_tag = kafka_name(version).rsplit(":", 1)
        bench.client.api.tag(trained, repository, version_tag)


def _download(bench: Workshop, version: str, libs: Path) -> None:
    maven = ("mvn", "--batch-mode", "--no-transfer-progress", "--file", POM, f"-Dkafka.version={version}")
    bench.run([*maven, "dependency:copy-dependencies", f"-DoutputDirectory={libs}"])


JAVA_CLIENT_CONTENTS = FOLDER / "java_client"
JAVA_CLIENT_NAME = "java-client"


def java_client_name(kafka: str) -> str:
    """The full name of the image made from the Kafka image ``kafka`` (``repository:version``)."""
    version = kafka.rsplit(":", 1)[1].partition("-")[0]
    return tag(JAVA_CLIENT_NAME, version, [JAVA_CLIENT_CONTENTS], [kafka])


def build_java_client(client: docker.DockerClient, kafka: str, say: Say, cancelled: threading.Event) -> str:
    """Build the image from the Kafka image ``kafka``, unless it is here, and return its name.

    Raises:
        ImageError: a step failed.
    """
    if is_here(client, java_client_name(kafka)):
        return java_client_name(kafka)
    with workshop(client, f"Java client of {kafka.replace('/', '-').replace(':', '-')}", say, cancelled) as bench:
        if not is_here(client, java_client_name(kafka)):
            _build_java_client(bench, kafka)
    return java_client_name(kafka)


def _build_java_client(bench: Workshop, kafka: str) -> None:
    context = bench.folder / "context"
    shutil.copytree(JAVA_CLIENT_CONTENTS, context)
    with bench.step("compiler (Maven)", about_s=5):
        need(bench, "mvn", "maven")
        _download_compiler(bench, context / "compiler")
    with bench.step("classes", about_s=5):
        compiled = build_untagged(bench, context, {"KAFKA": kafka}, "Dockerfile.compile")
    with bench.step("image", about_s=2):
        image = build_untagged(bench, context, {"KAFKA": kafka, "COMPILED": compiled})
        repository, version = java_client_name(kafka).rsplit(":", 1)
        bench.client.api.tag(image, repository, version)


def _download_compiler(bench: Workshop, folder: Path) -> None:
    maven = ("mvn", "--batch-mode", "--no-transfer-progress", "--file", JAVA_CLIENT_CONTENTS / "pom.xml")
    bench.run([*maven, "dependency:copy-dependencies", f"-DoutputDirectory={folder}"])


VERSION = "2.12.0"
MODULE = "github.com/Shopify/toxiproxy/v2"
GO_MIN = (1, 21)
"""The first Go that fetches the newer toolchain a module asks for (2.12.0 asks for 1.23)."""
TOXIPROXY_CONTENTS = FOLDER / "toxiproxy"


def toxiproxy_name() -> str:
    """The full name of our image."""
    return tag("toxiproxy", VERSION, [TOXIPROXY_CONTENTS], [MODULE])


def build_toxiproxy(client: docker.DockerClient, say: Say, cancelled: threading.Event) -> str:
    """Build our image, unless another process just has, and return its name.

    Raises:
        ImageError: a step failed.
    """
    with workshop(client, f"Toxiproxy {VERSION}", say, cancelled) as bench:
        if not is_here(client, toxiproxy_name()):
            _build_toxiproxy(bench)
    return toxiproxy_name()


def _build_toxiproxy(bench: Workshop) -> None:
    with bench.step("server (go install)", about_s=30):
        _need_go(bench)
        context = bench.folder / "context"
        _compile(bench, context)
    with bench.step("image", about_s=2):
        (context / "Dockerfile").write_text((TOXIPROXY_CONTENTS / "Dockerfile").read_text())
        repository, version = toxiproxy_name().rsplit(":", 1)
        bench.client.api.tag(build_untagged(bench, context), repository, version)


def _compile(bench: Workshop, context: Path) -> None:
    cache = cache_folder() / "go"
    bench.run(
        # without the -X the server calls itself "git"; without the @version Go takes 2.5.0 for the latest
        ["go", "install", "-ldflags", f"-s -w -X {MODULE}.Version={VERSION}", f"{MODULE}/cmd/server@v{VERSION}"],
        env={
            "CGO_ENABLED": "0",
            "GOBIN": str(context),
            "GOPATH": str(cache),
            "GOCACHE": str(cache / "build"),
            "GOFLAGS": "-modcacherw",
            "GOTOOLCHAIN": "auto",
        },
    )
    (context / "server").rename(context / "toxiproxy")


def _need_go(bench: Workshop) -> None:
    if not output_of("go", "version") and may_install():
        candidate = _go_version(output_of("apt-cache", "show", "--no-all-versions", "golang-go"))
        if candidate >= GO_MIN:
            need(bench, "go", "golang-go")
    if _go_version(output_of("go", "env", "GOVERSION")) < GO_MIN:
        wanted = ".".join(map(str, GO_MIN))
        raise StepError(f"Go {wanted} or later is needed and this system's packages don't have it; put one on the PATH")


def _go_version(text: str) -> tuple[int, int]:
    """The first ``major.minor`` in what Go or apt-cache print; (0, 0) where there is none."""
    found = re.search(r"(?:^go|^Version: \d+:)(\d+)\.(\d+)", text, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else (0, 0)
