"""Builds a Kafka image that can take the place of the official one, from Maven Central and Debian.

The contract it honours is asserted by ``tests/contract/test_kafka_image.py`` on whichever image is there.
"""

import shutil
import threading
from pathlib import Path

import docker

from aftershock.errors import ImageError
from aftershock.harness.images import base, cds
from aftershock.harness.images.layers import build_untagged
from aftershock.harness.images.recipe import FOLDER, tag
from aftershock.harness.images.tools import need
from aftershock.harness.images.workshop import Say, Workshop, workshop

POM = FOLDER / "pom.xml"
CONTENTS = FOLDER / "kafka"
OLDEST_MAJOR = 4
"""Before 4.0 the distribution logs with another library and still knows ZooKeeper: the recipe does not fit."""


def name(version: str) -> str:
    """The full name of our image of that version."""
    return tag("kafka", version, [POM, CONTENTS], [base.NAME])


def build(client: docker.DockerClient, version: str, say: Say, cancelled: threading.Event) -> str:
    """Build our image of that version, unless another process just has, and return its name.

    Raises:
        ImageError: the version is not one we can build, or a step failed.
    """
    if int(version.split(".", maxsplit=1)[0]) < OLDEST_MAJOR:
        raise ImageError(f"can't build Kafka {version}: the recipe is for {OLDEST_MAJOR}.0.0 and later")
    with workshop(client, f"Kafka {version}", say, cancelled) as bench:
        if not base.is_here(client, name(version)):
            _build(bench, version, base.base_image(client, say, bench.cancelled))
    return name(version)


def _build(bench: Workshop, version: str, base_name: str) -> None:
    context = bench.folder / "context"
    shutil.copytree(CONTENTS, context)
    with bench.step("jars (Maven)", about_s=15):
        need(bench, "mvn", "maven")
        _download(bench, version, context / "libs")
    with bench.step("image", about_s=10):
        untrained = build_untagged(bench, context, {"BASE": base_name})
    with bench.step("class archive (AppCDS training)", about_s=30):
        archives = cds.train(bench, untrained, (CONTENTS / "train").read_text())
    with bench.step("image with its class archive", about_s=5):
        shutil.copy(CONTENTS / "Dockerfile.cds", archives / "Dockerfile")
        trained = build_untagged(bench, archives, {"TRAINED": untrained})
        repository, version_tag = name(version).rsplit(":", 1)
        bench.client.api.tag(trained, repository, version_tag)


def _download(bench: Workshop, version: str, libs: Path) -> None:
    maven = ("mvn", "--batch-mode", "--no-transfer-progress", "--file", POM, f"-Dkafka.version={version}")
    bench.run([*maven, "dependency:copy-dependencies", f"-DoutputDirectory={libs}"])
