"""Builds a Toxiproxy image that can take the place of the official one, through Go's module proxy."""

import re
import threading
from pathlib import Path

import docker

from aftershock.harness.images.base import is_here
from aftershock.harness.images.layers import build_untagged
from aftershock.harness.images.recipe import FOLDER, tag
from aftershock.harness.images.tools import may_install, need, output_of
from aftershock.harness.images.workshop import Say, StepError, Workshop, cache_folder, workshop

VERSION = "2.12.0"
MODULE = "github.com/Shopify/toxiproxy/v2"
GO_MIN = (1, 21)
"""The first Go that fetches the newer toolchain a module asks for (2.12.0 asks for 1.23)."""
CONTENTS = FOLDER / "toxiproxy"


def name() -> str:
    """The full name of our image."""
    return tag("toxiproxy", VERSION, [CONTENTS], [MODULE])


def build(client: docker.DockerClient, say: Say, cancelled: threading.Event) -> str:
    """Build our image, unless another process just has, and return its name.

    Raises:
        ImageError: a step failed.
    """
    with workshop(client, f"Toxiproxy {VERSION}", say, cancelled) as bench:
        if not is_here(client, name()):
            _build(bench)
    return name()


def _build(bench: Workshop) -> None:
    with bench.step("server (go install)", about_s=30):
        _need_go(bench)
        context = bench.folder / "context"
        _compile(bench, context)
    with bench.step("image", about_s=2):
        (context / "Dockerfile").write_text((CONTENTS / "Dockerfile").read_text())
        repository, version = name().rsplit(":", 1)
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
