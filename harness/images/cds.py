"""Trains the class archives (AppCDS) that cut a third to a half off a broker's boot, the most where cores are few.

The training node runs in a container of the very image it trains for, because an archive is valid only for the same
JVM, the same class path string and the same jars. Only the archives are taken out of that container: a formatted log
directory in the image would make the next boot fail with `Invalid cluster.id`.
"""

import tarfile
import time
from pathlib import Path
from typing import Any

from aftershock.harness.images.workshop import StepError, Workshop
from aftershock.harness.labels import labels_of

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
