"""Kafka node in a pod of its own, with operations on its process: the counterpart of `node.KafkaNode`.

Process 1 of a node's container is a shell script of ours, the supervisor. It runs the image's own start script, and
when that ends, for whatever reason, it writes down the exit status and waits for the harness before it starts the node
again. So a node stays down as long as a fault wants, and meanwhile its pod and address stay, as when the kubelet
restarts a container. A kubelet would start it at once, and after a few crashes only minutes later (CrashLoopBackOff).

Signals are sent to the JVM by a shell in the container. The state comes from the exit status that the kernel told the
supervisor (wait(2)), and from the kernel's state of the process, which is stopped or not (proc(5)).
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from aftershock.errors import AftershockError, ClusterError
from aftershock.faults.targets.values import BrokerState, Outcome
from aftershock.harness.cluster.engine import version_in
from aftershock.harness.cluster.kubernetes.api import Api, Executed, RefusedError
from aftershock.harness.cluster.kubernetes.manifests import KAFKA, SERVED, SUPERVISOR_DIR, Place, next_pod
from aftershock.harness.cluster.node import METRICS_SCRIPT, ContainerUsage, parse_metrics
from aftershock.harness.cluster.topology import Node
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety.ownership import NODE, RUN

Pod = Mapping[str, Any]

SHUT_DOWN_S = 30
_START_S = 60.0
_END_S = 10.0
_ASKED_EVERY_S = 1.0
_REPORTED_S = 4.0  # the kubelet looks for ended containers each second, and reports them within the next
_KILLED = 128 + 9
_LOG_LINES = 15
_NO_JVM = 3
_STOPPED = ("T", "t")
# the JVM with the lowest process id, as Kafka's tools are JVMs that start later; shell built-ins only, because a
# process of the script could be mistaken for another script's
_FIND_JVM = """jvm=
for folder in /proc/[0-9]*; do
  read -r name 2>/dev/null <"$folder/comm" && [ "$name" = java ] || continue
  pid=${folder#/proc/}
  [ -n "$jvm" ] && [ "$jvm" -lt "$pid" ] || jvm=$pid
done
[ -n "$jvm" ] || exit 3
"""
_DOWN = f"{SUPERVISOR_DIR}/down"
_SIGNAL = _FIND_JVM + 'kill -s "$0" "$jvm"'
_STATE = f"""if read -r status 2>/dev/null <{_DOWN}; then echo "exited $status"; exit; fi
{_FIND_JVM}read -r _ _ state _ <"/proc/$jvm/stat" && echo "$state"
"""
_START = f"rm -f {_DOWN}"
_WAITING_FOR_GOOD = (
    *("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
)


_UNITS = {"m": 1e-3, "": 1.0} | {unit: 10.0 ** (3 * n) for n, unit in enumerate("kMGTP", 1)}
_UNITS |= {f"{unit}i": 1024.0**n for n, unit in enumerate("KMGTP", 1)}


def quantity(text: str) -> float:
    """Parse a quantity of Kubernetes, such as ``500m`` or ``1Gi``; raise ValueError for another text."""
    digits = text.rstrip("".join({*"mkMGTPKi"}))
    return float(digits) * _UNITS[text[len(digits) :]]


def container_status(pod: Pod, container: str = KAFKA) -> Mapping[str, Any]:
    """Return what the kubelet reports of a container; empty before its first report."""
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return next((status for status in statuses if status["name"] == container), {})


def hindrance(pod: Pod, container: str = KAFKA) -> tuple[str, bool]:
    """Return why a pod's container does not run, and True if that does not pass by itself; "" if it runs or ran."""
    state = container_status(pod, container).get("state", {})
    name = pod["metadata"]["name"]
    if "running" in state or "terminated" in state:
        return "", False
    waiting = state.get("waiting", {})
    if reason := waiting.get("reason"):
        said = " ".join(str(waiting.get("message", "")).split())
        words = f"{reason}: {said}" if said else reason
        return f"the pod {name} waits for its container: {words}", reason in _WAITING_FOR_GOOD
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"no node takes the pod {name}: {condition.get('message', condition.get('reason'))}", False
    return f"the pod {name} is {pod.get('status', {}).get('phase', 'unknown')}", False


def has_ended(pod: Pod) -> bool:
    """Return True if no process of a pod runs any more."""
    return pod["status"].get("phase") in ("Succeeded", "Failed") or "terminated" in container_status(pod).get(
        "state", {}
    )


class PodNode:
    """A Kafka node of a launched cluster; its current pod is the newest of those with the node's label."""

    def __init__(self, node: Node, place: Place, api: Api) -> None:
        self.node = node
        self._place = place
        self._api = api
        self._asked_s = 0.0

    # --- what the API server says --------------------------------------------------------------------------------

    def pods(self) -> list[dict[str, Any]]:
        """Return all pods that the node has had and that were not deleted, oldest first."""
        selector = f"{RUN}={self._place.run_id},{NODE}={self.node.id}"
        pods = self._api.objects("Pod", self._place.namespace, selector)
        return sorted(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], len(pod["metadata"]["name"])))

    def pod(self) -> Pod | None:
        return next(iter(self.pods()[-1:]), None)

    @property
    def name(self) -> str:
        """Name of the node's current pod; of its first one if all were deleted."""
        pod = self.pod()
        return pod["metadata"]["name"] if pod else self._place.node(self.node)

    def state(self) -> BrokerState:
        status = self._status()
        if status is None or status.startswith("exited"):
            return "exited"
        # without a JVM, the scripts around it have yet to start it
        return "paused" if status in _STOPPED else "running"

    def _status(self) -> str | None:
        """Return ``exited`` with the exit status, or the letter of the JVM's state; None if the container has ended."""
        pod = self.pod()
        if pod is None or "running" not in container_status(pod).get("state", {}):
            return None
        try:
            return self._execute(pod, ["sh", "-c", _STATE]).output.strip()
        except RefusedError:  # the container has just ended, or the kubelet does not answer
            if still_lacking(lambda: "" if self._pod_ended() else "running", _REPORTED_S):
                raise
            return None

    def exit_of(self) -> str:
        what = f"the Kafka node {self.node.name} (rack {self.node.rack})"
        pod = self.pod()
        if pod is None:
            return f"{what} has no pod, because it was deleted"
        if status := self._status():
            return f"{what} exited with code {status.rpartition(' ')[2]}"
        ended = container_status(pod).get("state", {}).get("terminated")
        if ended is None:
            reason, _ = hindrance(pod)
            return f"{what} does not run: {reason or pod['status'].get('message') or pod['status']['phase']}"
        memory = "; it needed more memory than the limit of its container" if ended.get("reason") == "OOMKilled" else ""
        return f"{what} exited with code {ended['exitCode']}{memory}"

    def exited(self) -> bool:
        """Return True if the node's process has ended; for polling, as a running container is asked once a second."""
        if self._pod_ended():
            return True
        now_s = time.monotonic()
        if now_s - self._asked_s < _ASKED_EVERY_S:
            return False
        self._asked_s = now_s
        return self.state() == "exited"

    def _pod_ended(self) -> bool:
        pod = self.pod()
        return pod is None or has_ended(pod)

    def version(self) -> str:
        """Return the Kafka version in the tag of the node's image, or the image's name for a tag without version."""
        pod = self.pod()
        return version_in(str(pod["spec"]["containers"][0]["image"])) if pod else ""

    def usage(self) -> ContainerUsage | None:
        return None  # the kubelet's figures are ten seconds old, and need a permission on nodes

    def request_cpu_us(self) -> int | None:
        return None  # the process may run on another host

    def log(self, since: str = "") -> str:
        """Return the output of all of the node's pods, in order; ``since`` is a time in RFC 3339."""
        namespace = self._place.namespace
        return "".join(self._api.log(namespace, pod["metadata"]["name"], KAFKA, since=since) for pod in self.pods())

    def last_log_lines(self) -> str:
        lines = [line for line in self.log().splitlines() if not line.startswith("\tat ")]
        return "\n".join(lines[-_LOG_LINES:])

    # --- processes in the container ------------------------------------------------------------------------------

    def run(self, script: str) -> str:
        """Run a shell script in the node's container; raise ClusterError if it failed, or the node does not run."""
        pod = self._running_pod("run a script in")
        answer = self._execute(pod, ["sh", "-c", script])
        if answer.code:
            raise ClusterError(f"`{script}` ended in {self.name} with status {answer.code}: {answer.output.strip()}")
        return answer.output

    def metrics(self) -> dict[str, float]:
        """Return the numbers of the node's MBeans, by ``name:attribute``; empty if the node is not running."""
        with suppress(ClusterError):
            return parse_metrics(self.run(METRICS_SCRIPT))
        return {}

    def kill(self) -> None:
        """Kill the node's process with SIGKILL; its pod and its address stay."""
        self._signal("KILL")

    crash = kill

    def shut_down(self) -> None:
        """Send SIGTERM and wait for the process to end; raise ClusterError if it did not end by itself."""
        if self.state() == "exited":
            return
        self._signal("TERM")
        if still_lacking(lambda: "" if self.state() == "exited" else "running", SHUT_DOWN_S):
            raise ClusterError(f"the node {self.name} did not shut down within {SHUT_DOWN_S} s")
        if self._status() == f"exited {_KILLED}":
            raise ClusterError(f"the node {self.name} was killed while it shut down")

    def pause(self) -> None:
        """Stop all threads of the node's JVM (SIGSTOP); the kernel keeps its connections."""
        self._signal("STOP")

    def resume(self) -> None:
        if self.state() == "paused":
            self._signal("CONT")

    def restart(self) -> None:
        """Start the node unless it runs: in its pod, or in a further pod on its volume if its pod was deleted or ended.

        Raises ClusterError if the last pod does not end, or the new one does not start in time.
        """
        pods = self.pods()
        if pods and not has_ended(pods[-1]) and "deletionTimestamp" not in pods[-1]["metadata"]:
            self._await_start()
            self.run(_START)
            return
        # a deleted pod is listed until its processes have ended: two brokers must not share a volume
        if left := still_lacking(self._not_ended, SHUT_DOWN_S + _END_S):
            raise ClusterError(f"the node {self.node.name} can't start: {left}")
        root = self._api.get("ConfigMap", self._place.namespace, self._place.root)
        template = json.loads(root["data"][self.node.name])
        existing = [pod["metadata"]["name"] for pod in self.pods()]
        try:
            self._api.create(next_pod(template, existing))
        except RefusedError as error:
            if not self.pods() or "already exists" not in str(error):  # another process that heals was faster
                raise
        self._await_start()

    def delete_pod(self, grace_s: int | None, *, evict: bool = False) -> int:
        """Delete the node's pod by the API, by default with the pod's grace period; return that period in seconds.

        Its services forget it before. They would lead to its address for a moment after its end, and a connection that
        begins then is neither accepted nor refused. Toxiproxy, which dials a node before it accepts the next client,
        would stand still for two minutes. Connections from before are not affected.
        """
        if pod := self.pod():
            name = pod["metadata"]["name"]
            served = {"metadata": {"labels": {SERVED: pod["metadata"]["labels"].get(SERVED)}}}
            self._api.patch("Pod", self._place.namespace, name, {"metadata": {"labels": {SERVED: None}}})
            try:
                self._api.delete_pod(self._place.namespace, name, grace_s, evict=evict)
            except AftershockError:
                self._api.patch("Pod", self._place.namespace, name, served)
                raise
        return SHUT_DOWN_S if grace_s is None else grace_s

    def vanish(self) -> None:
        raise ClusterError(f"the node {self.node.name} can't lose its network and keep its process")

    def dial(self) -> Outcome:
        """Open a connection to the node's port from inside its pod; ``closed`` means that the pod's kernel refused."""
        pod = self.pod()
        if pod is None or "running" not in container_status(pod).get("state", {}):
            return "silent"
        connect = f": </dev/tcp/{self.node.name}/{self.node.inner_port}"
        answer = self._execute(pod, ["timeout", "1", "bash", "-c", connect])
        return "answered" if answer.code == 0 else "closed" if "refused" in answer.output else "silent"

    def _not_ended(self) -> str:
        alive = [pod["metadata"]["name"] for pod in self.pods() if not has_ended(pod)]
        return f"its earlier pod {alive[0]} has not ended" if alive else ""

    def _await_start(self) -> None:
        began_s, problem = time.monotonic(), ""
        while time.monotonic() - began_s < _START_S:
            pod = self.pod()
            problem, for_good = hindrance(pod) if pod else (f"the node {self.node.name} has no pod", False)
            if not problem:
                return
            if for_good:
                break
            time.sleep(0.1)
        raise ClusterError(f"the node {self.node.name} does not start: {problem}")

    def _running_pod(self, action: str) -> Pod:
        pod = self.pod()
        if pod is None or "running" not in container_status(pod).get("state", {}):
            raise ClusterError(f"can't {action} the node {self.node.name}: {self.exit_of()}")
        return pod

    def _signal(self, signal: str) -> None:
        pod = self._running_pod(f"send SIG{signal} to")
        answer = self._execute(pod, ["sh", "-c", _SIGNAL, signal])
        if answer.code == _NO_JVM:
            raise ClusterError(f"can't send SIG{signal} to the node {self.node.name}: its container has no JVM")
        if answer.code not in (0, _KILLED):
            raise ClusterError(f"can't send SIG{signal} to the node {self.node.name}: {answer.output.strip()}")

    def _execute(self, pod: Pod, command: list[str]) -> Executed:
        return self._api.execute(self._place.namespace, pod["metadata"]["name"], KAFKA, command)
