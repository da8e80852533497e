"""How the Java client is named and started. No engine is needed."""

import shutil

import pytest

from aftershock.errors import EngineError
from aftershock.harness.cluster.images import build
from aftershock.harness.run.assignments import java_command, label_worker


def test_an_image_is_named_for_the_kafka_image_it_is_made_from() -> None:
    """Kafka's version is in the name; another image of that version, official or ours, makes another name."""
    official, ours, older = (
        build.java_client(kafka).name
        for kafka in ("apache/kafka:4.3.1", "aftershock/kafka:4.3.1-0123456789", "k:4.1.2")
    )
    assert official.startswith("aftershock/java-client:4.3.1-")
    assert ours.startswith("aftershock/java-client:4.3.1-")
    assert official != ours
    assert older.startswith("aftershock/java-client:4.1.2-")


def test_the_command_carries_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that is left is found by its run; it is removed when it ends, and its output is not logged."""
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/docker")
    words = java_command("i:1", {"aftershock.run": "r 1", "aftershock.keep": "false"})
    assert words[:3] == ("docker", "run", "--interactive")
    assert {"--rm", "host", "none", "never"} <= set(words)
    marks = ("--label", "aftershock.run=r 1", "--label", "aftershock.keep=false")
    assert words[-6:] == (*marks, "i:1", "/opt/aftershock/client")
    assert label_worker(words, "w")[-4:] == ("--label", "aftershock.worker=w", "i:1", "/opt/aftershock/client")


def test_without_the_docker_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing command, and what needs it."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EngineError, match=r"client: java.*not on the PATH"):
        java_command("i:1", {})
