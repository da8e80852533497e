"""Descriptor that a run writes for its healer: it holds all that healing needs, by absolute paths, and no secret."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aftershock.errors import EvidenceError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.timeline.compile import compile_plan
from aftershock.harness.attach.attached import AttachedCluster, AttachmentDescriptor, is_attached, read_descriptor

TOPIC_ID = "A" * 22
PLAN = """
name: attached
cluster:
  attach:
    bootstrap: kafka:9093
    containers: {1: kafka-1}
    security: {protocol: SASL_SSL, mechanism: PLAIN, user: alice, password: "${PASSWORD}", ca: ca.pem}
topics: [{name: orders, partitions: 1, replication: 1}]
workloads: [{name: orders, produce: {topic: orders, rate: 1/s}, consume: {topic: orders, group: g}}]
"""


def test_a_descriptor_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are absolute, created topics are listed, the secret's environment variable is named and not read."""
    monkeypatch.setenv("PASSWORD", "hunter2")
    monkeypatch.chdir(tmp_path)
    checked = load_plan(PLAN)
    attach = checked.plan.cluster.attach
    assert attach is not None
    descriptor = AttachmentDescriptor.of(
        "run", attach, compile_plan(checked.plan, 0, checked.source, checked.slo_positions)
    )
    assert not is_attached(tmp_path)
    cluster = AttachedCluster(descriptor, tmp_path)
    cluster.created("fresh", "id-1")
    cluster.created("fresh", TOPIC_ID)
    assert is_attached(tmp_path)
    again = read_descriptor(tmp_path)
    assert cluster.descriptor == again
    assert again.attach.containers == {1: "kafka-1"}
    assert (("orders",), ("orders-baseline-produce", "orders-baseline-consume"), {"fresh": TOPIC_ID}) == (
        again.topics,
        again.clients,
        again.created,
    )
    assert str(tmp_path.resolve() / "ca.pem") == again.attach.security.ca
    assert "hunter2" not in (tmp_path / "attached.json").read_text()
    assert ("g-baseline",) == again.groups
    cluster.descriptor = replace(
        cluster.descriptor, groups=(), attach=again.attach.model_copy(update={"containers": {}})
    )
    cluster.created("gone", "B" * 21 + "A")  # the user has deleted this topic

    def delete(request: Any) -> Any:
        codes = (ErrorCode.none, ErrorCode.unknown_topic_id)
        states = zip(request.topics, codes, strict=True)
        results = [
            SimpleNamespace(topic_id=state.topic_id, error_code=code, error_message="") for state, code in states
        ]
        return SimpleNamespace(responses=results)

    vars(cluster)["admin"] = SimpleNamespace(ask_controller=delete)
    assert ("fresh",) == cluster.clear()
    assert ({}, True) == (read_descriptor(tmp_path).created, read_descriptor(tmp_path).over)


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"run_id": 1, "attach": {}, "topics": [], "clients": []}'])
def test_a_broken_descriptor_is_an_error_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "attached.json").write_text(text)
    with pytest.raises(EvidenceError, match=r"attached\.json"):
        read_descriptor(tmp_path)
