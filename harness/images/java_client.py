"""Builds the image of ``client: java``: a Kafka image and the classes that put its client behind ``docs/EXEC.md``.

The classes are compiled in a container of that very Kafka image, against its own libraries; all that is downloaded is
the compiler, one jar that runs on a JRE. What the image must do is asserted by ``tests/contract/test_java_client.py``.
"""

import shutil
import threading
from pathlib import Path

import docker

from aftershock.harness.images.base import is_here
from aftershock.harness.images.layers import build_untagged
from aftershock.harness.images.recipe import FOLDER, tag
from aftershock.harness.images.tools import need
from aftershock.harness.images.workshop import Say, Workshop, workshop

CONTENTS = FOLDER / "java_client"
NAME = "java-client"


def name(kafka: str) -> str:
    """The full name of the image made from the Kafka image ``kafka`` (``repository:version``)."""
    version = kafka.rsplit(":", 1)[1].partition("-")[0]
    return tag(NAME, version, [CONTENTS], [kafka])


def build(client: docker.DockerClient, kafka: str, say: Say, cancelled: threading.Event) -> str:
    """Build the image from the Kafka image ``kafka``, unless it is here, and return its name.

    Raises:
        ImageError: a step failed.
    """
    if is_here(client, name(kafka)):
        return name(kafka)
    with workshop(client, f"Java client of {kafka.replace('/', '-').replace(':', '-')}", say, cancelled) as bench:
        if not is_here(client, name(kafka)):
            _build(bench, kafka)
    return name(kafka)


def _build(bench: Workshop, kafka: str) -> None:
    context = bench.folder / "context"
    shutil.copytree(CONTENTS, context)
    with bench.step("compiler (Maven)", about_s=5):
        need(bench, "mvn", "maven")
        _download_compiler(bench, context / "compiler")
    with bench.step("classes", about_s=5):
        compiled = build_untagged(bench, context, {"KAFKA": kafka}, "Dockerfile.compile")
    with bench.step("image", about_s=2):
        image = build_untagged(bench, context, {"KAFKA": kafka, "COMPILED": compiled})
        repository, version = name(kafka).rsplit(":", 1)
        bench.client.api.tag(image, repository, version)


def _download_compiler(bench: Workshop, folder: Path) -> None:
    maven = ("mvn", "--batch-mode", "--no-transfer-progress", "--file", CONTENTS / "pom.xml")
    bench.run([*maven, "dependency:copy-dependencies", f"-DoutputDirectory={folder}"])
