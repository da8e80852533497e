"""Recipes of the images that Aftershock builds when a registry has none: base, Kafka, Java client, Toxiproxy.

* Base: the smallest Debian with a headless Java 17, from Debian's own packages. All versions of Kafka share it.
  debootstrap mounts `/proc` and more inside the tree that it creates. It runs in its own mount and process namespace,
  so these mounts disappear with it, however it ends, and removing the tree is safe.
* Kafka: replaces the official image; built from Maven Central. Trained class archives (AppCDS) cut a third to a half
  off a broker's boot, most on few cores. An archive is valid only for the same JVM, class path string and jars, so the
  training node runs in a container of the same image. Only the archives are copied out: a formatted log directory in
  the image would make the next boot fail with `Invalid cluster.id`.
* Java client, for ``client: java``: a Kafka image plus the classes that connect its client to the protocol of
  ``docs/EXEC.md``. They are compiled in a container of that Kafka image, against its own libraries; the only download
  is the compiler, one jar that runs on a JRE.
* Toxiproxy: replaces the official image; built from Go's module proxy.

``tests/contract/test_kafka_image.py`` asserts the Kafka image's contract on every image that is present, and
``tests/contract/test_java_client.py`` that of the Java client's image.
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
    ImageBuilder,
    Log,
    StepError,
    build_untagged,
    cache_folder,
    image_builder,
    may_install,
    output_of,
    require_command,
    tag,
)
from aftershock.harness.cluster.ownership import labels_of

SUITE = "bookworm"
PACKAGES = ("openjdk-17-jre-headless", "ca-certificates")
TRIMMED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")
BASE_NAME = tag("base", f"{SUITE}-jre17", [], [*PACKAGES, *TRIMMED])


def base_image(client: docker.DockerClient, log: Log, cancelled: threading.Event) -> str:
    """Build the base image if it is missing, and return its name.

    Raises:
        ImageError: it could not be built.
    """
    if is_here(client, BASE_NAME):
        return BASE_NAME
    with image_builder(client, f"base {SUITE}", log, cancelled) as builder:
        if not is_here(client, BASE_NAME):
            _build_base(builder)
    return BASE_NAME


def is_here(client: docker.DockerClient, name: str) -> bool:
    """True if the engine has an image of that name."""
    try:
        client.api.inspect_image(name)
    except ImageNotFound:
        return False
    return True


def _build_base(builder: ImageBuilder) -> None:
    tree, archive = builder.folder / "rootfs", builder.folder / "rootfs.tar"
    with builder.step("Debian with Java (debootstrap)", about_s=45):
        if os.geteuid() != 0:
            raise StepError("debootstrap needs root; run this once as root, or load the image from another host")
        require_command(builder, "debootstrap", "debootstrap", "debian-archive-keyring")
        unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
        include = f"--include={','.join(PACKAGES)}"
        builder.run([*unshare, "debootstrap", "--variant=minbase", include, SUITE, tree])
    with builder.step("importing the base image", about_s=5):
        for path in TRIMMED:
            shutil.rmtree(tree / path)
        builder.run(["tar", "--create", "--file", archive, "--directory", tree, "."])
        repository, version = BASE_NAME.rsplit(":", 1)
        builder.note(builder.client.api.import_image(str(archive), repository=repository, tag=version))
        if not is_here(builder.client, BASE_NAME):
            raise StepError("the engine did not import the base image")


ARCHIVES = ("storage.jsa", "kafka.jsa")
TRAINING_LIMIT_S = 240.0
POLL_S = 0.5


def train(builder: ImageBuilder, image_id: str, script: str) -> Path:
    """Run ``script`` in a container of the image and return a folder with the `ARCHIVES` that it wrote.

    Raises:
        StepError: the script failed, or exceeded its time limit; its output is in the log.
    """
    # labelled like a run's containers: if this process is killed, the next sweep finds it
    labels = labels_of("build", builder.log_path.parent, keep=False)
    container = builder.client.containers.create(
        image_id,
        ["/bin/sh", "-c", script],
        network_mode="none",
        hostname="localhost",  # without a network only this name resolves, and Kafka resolves its own host name
        labels=labels,
    )
    builder.on_exit(lambda: container.remove(force=True, v=True))
    container.start()
    try:
        status = _wait_for_exit(builder, container)
    finally:
        builder.note(container.logs().decode(errors="replace"))
    if status:
        raise StepError(f"the training node's script ended with status {status}")
    folder = builder.folder / "archives"
    folder.mkdir()
    for name in ARCHIVES:
        _copy_archive(builder, container.id, f"/tmp/train/{name}", folder)  # noqa: S108 (a path in the container)
    return folder


def _wait_for_exit(builder: ImageBuilder, container: Any) -> int:
    """Return the container's exit status. Polled, so that cancelling a build takes effect at once."""
    deadline = time.monotonic() + TRAINING_LIMIT_S
    while True:
        container.reload()
        if container.status == "exited":
            return int(container.attrs["State"]["ExitCode"])
        if time.monotonic() > deadline:
            raise StepError(f"the training node did not end within {TRAINING_LIMIT_S:.0f} s")
        builder.check_cancelled()
        builder.cancelled.wait(POLL_S)


def _copy_archive(builder: ImageBuilder, container_id: str, path: str, folder: Path) -> None:
    chunks, _ = builder.client.api.get_archive(container_id, path)
    archive = folder / "archive.tar"
    with archive.open("wb") as file:
        file.writelines(chunks)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


POM = FOLDER / "pom.xml"
KAFKA_CONTENTS = FOLDER / "kafka"
OLDEST_MAJOR = 4
"""Kafka before 4.0 uses another logging library and still has ZooKeeper, so the recipe does not fit."""


def kafka_name(version: str) -> str:
    """Return the full name of our image of that version."""
    return tag("kafka", version, [POM, KAFKA_CONTENTS], [BASE_NAME])


def build_kafka(client: docker.DockerClient, version: str, log: Log, cancelled: threading.Event) -> str:
    """Build our image of that version, unless another process just did, and return its name.

    Raises:
        ImageError: the recipe does not fit the version, or a step failed.
    """
    if int(version.split(".", maxsplit=1)[0]) < OLDEST_MAJOR:
        raise ImageError(f"can't build Kafka {version}: the recipe supports {OLDEST_MAJOR}.0.0 and later")
    with image_builder(client, f"Kafka {version}", log, cancelled) as builder:
        if not is_here(client, kafka_name(version)):
            _build_kafka(builder, version, base_image(client, log, builder.cancelled))
    return kafka_name(version)


def _build_kafka(builder: ImageBuilder, version: str, base_name: str) -> None:
    context = builder.folder / "context"
    shutil.copytree(KAFKA_CONTENTS, context)
    with builder.step("jars (Maven)", about_s=15):
        require_command(builder, "mvn", "maven")
        maven = ("mvn", "--batch-mode", "--no-transfer-progress", "--file", POM, f"-Dkafka.version={version}")
        builder.run([*maven, "dependency:copy-dependencies", f"-DoutputDirectory={context / 'libs'}"])
    with builder.step("image", about_s=10):
        untrained = build_untagged(builder, context, {"BASE": base_name})
    with builder.step("class archive (AppCDS training)", about_s=30):
        archives = train(builder, untrained, (KAFKA_CONTENTS / "train").read_text())
    with builder.step("image with its class archive", about_s=5):
        shutil.copy(KAFKA_CONTENTS / "Dockerfile.cds", archives / "Dockerfile")
        trained = build_untagged(builder, archives, {"TRAINED": untrained})
        repository, version_tag = kafka_name(version).rsplit(":", 1)
        builder.client.api.tag(trained, repository, version_tag)


JAVA_CLIENT_CONTENTS = FOLDER / "java_client"
JAVA_CLIENT_NAME = "java-client"


def java_client_name(kafka: str) -> str:
    """Return the full name of the image built from the Kafka image ``kafka`` (``repository:version``)."""
    version = kafka.rsplit(":", 1)[1].partition("-")[0]
    return tag(JAVA_CLIENT_NAME, version, [JAVA_CLIENT_CONTENTS], [kafka])


def build_java_client(client: docker.DockerClient, kafka: str, log: Log, cancelled: threading.Event) -> str:
    """Build the image from the Kafka image ``kafka``, unless the engine has it, and return its name.

    Raises:
        ImageError: a step failed.
    """
    if is_here(client, java_client_name(kafka)):
        return java_client_name(kafka)
    with image_builder(
        client, f"Java client of {kafka.replace('/', '-').replace(':', '-')}", log, cancelled
    ) as builder:
        if not is_here(client, java_client_name(kafka)):
            _build_java_client(builder, kafka)
    return java_client_name(kafka)


def _build_java_client(builder: ImageBuilder, kafka: str) -> None:
    context = builder.folder / "context"
    shutil.copytree(JAVA_CLIENT_CONTENTS, context)
    with builder.step("compiler (Maven)", about_s=5):
        require_command(builder, "mvn", "maven")
        maven = ("mvn", "--batch-mode", "--no-transfer-progress", "--file", JAVA_CLIENT_CONTENTS / "pom.xml")
        builder.run([*maven, "dependency:copy-dependencies", f"-DoutputDirectory={context / 'compiler'}"])
    with builder.step("classes", about_s=5):
        compiled = build_untagged(builder, context, {"KAFKA": kafka}, "Dockerfile.compile")
    with builder.step("image", about_s=2):
        image = build_untagged(builder, context, {"KAFKA": kafka, "COMPILED": compiled})
        repository, version = java_client_name(kafka).rsplit(":", 1)
        builder.client.api.tag(image, repository, version)


VERSION = "2.12.0"
MODULE = "github.com/Shopify/toxiproxy/v2"
GO_MIN = (1, 21)
"""The first Go version that downloads a newer toolchain when a module requires it (2.12.0 requires 1.23)."""
TOXIPROXY_CONTENTS = FOLDER / "toxiproxy"


def toxiproxy_name() -> str:
    """Return the full name of our image."""
    return tag("toxiproxy", VERSION, [TOXIPROXY_CONTENTS], [MODULE])


def build_toxiproxy(client: docker.DockerClient, log: Log, cancelled: threading.Event) -> str:
    """Build our image, unless another process just did, and return its name.

    Raises:
        ImageError: a step failed.
    """
    with image_builder(client, f"Toxiproxy {VERSION}", log, cancelled) as builder:
        if not is_here(client, toxiproxy_name()):
            _build_toxiproxy(builder)
    return toxiproxy_name()


def _build_toxiproxy(builder: ImageBuilder) -> None:
    with builder.step("server (go install)", about_s=30):
        _need_go(builder)
        context = builder.folder / "context"
        _compile(builder, context)
    with builder.step("image", about_s=2):
        (context / "Dockerfile").write_text((TOXIPROXY_CONTENTS / "Dockerfile").read_text())
        repository, version = toxiproxy_name().rsplit(":", 1)
        builder.client.api.tag(build_untagged(builder, context), repository, version)


def _compile(builder: ImageBuilder, context: Path) -> None:
    cache = cache_folder() / "go"
    builder.run(
        # without -X the server reports version "git"; without @version Go resolves 2.5.0 as the latest
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


def _need_go(builder: ImageBuilder) -> None:
    if not output_of("go", "version") and may_install():
        candidate = _go_version(output_of("apt-cache", "show", "--no-all-versions", "golang-go"))
        if candidate >= GO_MIN:
            require_command(builder, "go", "golang-go")
    if _go_version(output_of("go", "env", "GOVERSION")) < GO_MIN:
        required = ".".join(map(str, GO_MIN))
        raise StepError(f"Go {required} or later is required, and the system's packages lack it; put one on the PATH")


def _go_version(text: str) -> tuple[int, int]:
    """Return the first ``major.minor`` in the output of Go or apt-cache; (0, 0) if it has none."""
    match = re.search(r"(?:^go|^Version: \d+:)(\d+)\.(\d+)", text, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else (0, 0)
