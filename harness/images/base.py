"""The base image: the smallest Debian with a headless Java 17, from Debian's own packages.

All versions of Kafka share it. debootstrap mounts `/proc` and more inside the tree it makes; it runs in a mount and
process namespace of its own, so that these are gone with it, whatever way it ends, and removing the tree is safe.
"""

import os
import shutil
import threading

import docker
from docker.errors import ImageNotFound

from aftershock.harness.images.recipe import tag
from aftershock.harness.images.tools import need
from aftershock.harness.images.workshop import Say, StepError, Workshop, workshop

SUITE = "bookworm"
PACKAGES = ("openjdk-17-jre-headless", "ca-certificates")
TRIMMED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")
NAME = tag("base", f"{SUITE}-jre17", [], [*PACKAGES, *TRIMMED])


def base_image(client: docker.DockerClient, say: Say, cancelled: threading.Event) -> str:
    """The base image's name, once it is there.

    Raises:
        ImageError: it could not be built.
    """
    if is_here(client, NAME):
        return NAME
    with workshop(client, f"base {SUITE}", say, cancelled) as bench:
        if not is_here(client, NAME):
            _build(bench)
    return NAME


def is_here(client: docker.DockerClient, name: str) -> bool:
    """Whether the engine has an image of that name."""
    try:
        client.api.inspect_image(name)
    except ImageNotFound:
        return False
    return True


def _build(bench: Workshop) -> None:
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
        repository, version = NAME.rsplit(":", 1)
        bench.note(bench.client.api.import_image(str(archive), repository=repository, tag=version))
        if not is_here(bench.client, NAME):
            raise StepError("the engine did not import the base image")
