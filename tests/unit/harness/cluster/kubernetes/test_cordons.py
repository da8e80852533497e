"""Cordons of a run on Kubernetes nodes, beside those of others."""

from typing import Any, cast

import pytest

from aftershock.errors import ClusterError
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.cluster.kubernetes.cordons import cordon, is_cordoned, uncordon


class OneNode:
    """The API server of one Kubernetes node."""

    def __init__(self, *, unschedulable: bool = False) -> None:
        self.node: dict[str, Any] = {"metadata": {"labels": {"zone": "a"}, "resourceVersion": "7"}, "spec": {}}
        if unschedulable:
            self.node["spec"]["unschedulable"] = True

    def get(self, *_: object) -> dict[str, Any]:
        return self.node

    find = get

    def patch(self, _kind: str, _namespace: None, _name: str, change: dict[str, Any]) -> None:
        """Merge as the server does (RFC 7396): null removes a key."""
        assert change["metadata"].get("resourceVersion") in (None, "7")
        metadata = self.node["metadata"]
        for marks in ("labels", "annotations"):
            metadata[marks] = merged(metadata.get(marks) or {}, change["metadata"][marks])
        self.node["spec"] = merged(self.node["spec"], change["spec"])


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in (old | new).items() if value is not None}


def test_a_node_is_as_before_after_a_cordon() -> None:
    node = OneNode()
    cordon(cast("Api", node), "m1", "r-1", "drained")
    assert is_cordoned(cast("Api", node), "m1", "r-1", "drained")
    assert not is_cordoned(cast("Api", node), "m1", "r-2", "drained")
    uncordon(cast("Api", node), "m1", "r-1", "another")
    assert is_cordoned(cast("Api", node), "m1", "r-1", "drained")
    uncordon(cast("Api", node), "m1", "r-1", "drained")
    assert ({"zone": "a"}, {}) == (node.node["metadata"]["labels"], node.node["spec"])


def test_the_cordon_of_somebody_else_stays() -> None:
    node = OneNode(unschedulable=True)
    with pytest.raises(ClusterError, match="m1 is cordoned already, by somebody else: name a broker on another one"):
        cordon(cast("Api", node), "m1", "r-1", "drained")
    uncordon(cast("Api", node), "m1", "r-1")
    assert {"unschedulable": True} == node.node["spec"]
