"""A Kubernetes API server in memory with one node's pods, for the logic around requests and nothing else."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aftershock.harness.cluster.kubernetes.api import Executed, RefusedError
from aftershock.harness.safety.ownership import NODE, RUN

RUNNING = {"state": {"running": {"startedAt": "x"}}}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"state": {"terminated": {"exitCode": code, "reason": reason}}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def pod(name: str, status: Mapping[str, Any] | None, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    """Return a pod; without ``status`` the kubelet has not reported its container yet."""
    statuses = [] if status is None else [{"name": "kafka", **status}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "creationTimestamp": f"2026-11-30T00:00:0{name[-1]}Z", **metadata},
        "spec": {"containers": [{"image": "aftershock/kafka:4.3.1-abc"}]},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


class FakeApi:
    """``answers`` has the result of each command, or the error to raise; ``created`` what was created."""

    def __init__(self, pods: Sequence[dict[str, Any]], answers: Sequence[Executed | RefusedError] = ()) -> None:
        self.pods, self.answers = list(pods), list(answers)
        self.commands: list[Sequence[str]] = []
        self.created: list[dict[str, Any]] = []
        self.on_execute: Callable[[], None] = lambda: None
        self.root: dict[str, str] = {}

    def objects(self, kind: str, _namespace: str, selector: str) -> list[dict[str, Any]]:
        assert kind == "Pod"
        assert {RUN, NODE} == {part.partition("=")[0] for part in selector.split(",")}
        return self.pods

    def get(self, _kind: str, _namespace: str, _name: str) -> dict[str, Any]:
        return {"data": self.root}

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.created.append(manifest)
        self.pods.append(pod(manifest["metadata"]["name"], RUNNING))
        return manifest

    def log(self, _namespace: str, name: str, _container: str, *, since: str = "") -> str:
        return f"{name} says\n\tat java\nno more{since}\n"

    def execute(self, _namespace: str, _pod: str, _container: str, command: Sequence[str]) -> Executed:
        self.commands.append(command)
        answer = self.answers.pop(0)
        self.on_execute()
        if isinstance(answer, RefusedError):
            raise answer
        return answer
