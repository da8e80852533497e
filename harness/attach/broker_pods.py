"""Pods of a user's brokers on a Kubernetes cluster, and the agents beside them, which can stop their processes.

A plan names the pods, or selects them by their labels. The broker of a pod is known from its container's environment,
else from the number at the end of its name, which is the broker's id in clusters of Strimzi, Confluent for Kubernetes
and most stateful sets. A run refuses ids that the attached cluster does not have; that the pods are of this cluster,
and not of another with the same ids, is the user's word.

From inside a container, SIGKILL and SIGSTOP do nothing to process 1. An **agent** is a privileged pod on the same
Kubernetes node that sees all its processes. It has no permission on the API. The kubelet starts a killed container
again at once; so a broker stays down because its agent stops (SIGSTOP) each further JVM of its pod before it opens a
port. An agent that hears nothing of the run for 25 s lets all processes go on, and ends.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

from aftershock.errors import AftershockError, ClusterError
from aftershock.faults.sections.cluster import AttachKubernetes
from aftershock.faults.targets.values import BrokerId, BrokerState
from aftershock.harness.attach.broker_containers import id_in_environment
from aftershock.harness.cluster.kubernetes import cordons
from aftershock.harness.cluster.kubernetes.api import Api, RefusedError
from aftershock.harness.cluster.kubernetes.cluster import BEAT_S, BEATS_MISSED, Heartbeat
from aftershock.harness.cluster.kubernetes.manifests import MANAGED, Place, root_of
from aftershock.harness.cluster.kubernetes.node import Pod, container_status, hindrance
from aftershock.harness.cluster.node import ContainerUsage
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.safety.ownership import RUN

_NUMBER = re.compile(r"-(\d+)$")
_STARTED_S = 60.0
_SHUT_DOWN_S = 60.0
_ENDED_S = 30.0
_BACK_OFF, _BACK_OFF_S = "CrashLoopBackOff", 330.0  # the kubelet waits for five minutes at most
_FOLDER = "/run/aftershock"
_AGENT = "agent"
TICK_S = 0.2
_STOPPED = "T"

# `jvms UID` prints the processes named java in the cgroups of a pod, whose names have its uid with - or _ (kubelet);
# shell built-ins only, because a scan starts no further process
_JVMS = """jvms() {
  for folder in /proc/[0-9]*; do
    read -r name 2>/dev/null <"$folder/comm" && [ "$name" = java ] || continue
    while read -r group; do
      case "$group" in *"$1"*|*"$2"*) echo "${folder#/proc/}"; break;; esac
    done 2>/dev/null <"$folder/cgroup"
  done
}
"""
# `held-UID` names the processes that may go on while they shut down; `paused-UID` is there while they are paused;
# `seen-UID` is there from the first of either on, so that the agent's end lets all go on. A heal removes its file
# first, so a process that the loop stops after that goes on at once.
MAIN = f"""mkdir -p {_FOLDER} && cd {_FOLDER} || exit 1
{_JVMS}
go_on() {{
  rm -f held-* paused-*
  for file in seen-*; do
    uid=${{file#*-}}
    for pid in $(jvms "$uid" "$(echo "$uid" | tr - _)"); do kill -CONT "$pid" 2>/dev/null; done
  done
}}
trap 'go_on; exit 0' TERM INT
silent=0
while [ "$silent" -lt {round(BEAT_S * BEATS_MISSED / TICK_S)} ]; do
  for file in held-* paused-*; do
    [ -e "$file" ] || continue
    read -r spared <"$file" || spared=
    uid=${{file#*-}}
    for pid in $(jvms "$uid" "$(echo "$uid" | tr - _)"); do
      case " $spared " in *" $pid "*) continue;; esac
      [ -e "$file" ] && kill -STOP "$pid" 2>/dev/null
      [ -e "$file" ] || kill -CONT "$pid" 2>/dev/null
    done
  done
  sleep {TICK_S} & wait $!
  silent=$((silent + 1))
  if [ -e beat ]; then rm -f beat; silent=0; fi
done
go_on
"""
_OF_POD = f"""cd {_FOLDER} || exit 1
{_JVMS}
uid=$0
own() {{ jvms "$uid" "$(echo "$uid" | tr - _)"; }}
"""
_NEEDS_JVM = """pids=$(own)
[ -n "$pids" ] || exit 3
: >"seen-$uid"
"""
# prints `T` if a JVM is stopped, the state of another one (proc(5)), `none`, or `down` for a pod that is held: a JVM
# that the agent has yet to stop can't have opened a port
STATE = (
    _OF_POD
    + """word=none
pids=$(own)
if [ -e "held-$uid" ]; then
  word=down
  read -r pids <"held-$uid"
fi
for pid in $pids; do
  read -r _ _ state _ 2>/dev/null <"/proc/$pid/stat" || continue
  [ "$word" = T ] || word=$state
done
echo "$word"
"""
)
KILL = (
    _OF_POD
    + _NEEDS_JVM
    + """echo >"held-$uid"
kill -KILL $pids
for pid in $pids; do
  while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
done
"""
)
TERMINATE = (
    _OF_POD
    + _NEEDS_JVM
    + """echo $pids >"spared-$uid" && mv "spared-$uid" "held-$uid"
kill -TERM $pids 2>/dev/null || true
"""
)
PAUSE = (
    _OF_POD
    + _NEEDS_JVM
    + """: >"paused-$uid"
kill -STOP $pids 2>/dev/null || true
"""
)
GO_ON = (
    _OF_POD
    + """rm -f "held-$uid" "paused-$uid"
for pid in $(own); do kill -CONT "$pid" 2>/dev/null; done
true
"""
)
_BEAT = f": >{_FOLDER}/beat"
_NO_JVM = 3

NEEDS = (
    ("get", "", "pods"),
    *(("list", "", name) for name in ("pods", "configmaps")),
    ("delete", "", "pods"),
    ("create", "", "pods/eviction"),
)
"""What a run does with the pods of an attached cluster: verb, API group and resource."""
AGENT_NEEDS = (
    *(("create", "", name) for name in ("pods", "pods/exec", "configmaps")),
    *(("get", "", name) for name in ("pods/exec", "configmaps")),
    ("delete", "", "configmaps"),
    ("patch", "", "configmaps"),
)
"""What it does in addition with `agent: true`."""


class AgentEndedError(ClusterError):
    """An agent has ended, so that no process is stopped by it any more."""


def find(api: Api, plan: AttachKubernetes) -> dict[int, str]:
    """Return the names of the brokers' pods, by broker id, sorted.

    Raises ClusterError if the selector matches no pod of a broker, or two of one broker, or a named pod is missing.
    """
    if plan.brokers:
        for planned, name in plan.brokers.items():
            pod = api.find("Pod", plan.namespace, name)
            if pod is None:
                raise ClusterError(
                    f"the namespace {plan.namespace} has no pod {name}, which the plan names for broker {planned}; "
                    f"{_there(api, plan)}"
                )
            containers = [item["name"] for item in pod["spec"]["containers"]]
            if plan.container not in containers:
                raise ClusterError(
                    f"the pod {name} has no container {plan.container}; its containers are {', '.join(containers)}: "
                    "name the broker's as `attach.kubernetes.container`"
                )
        return dict(sorted(plan.brokers.items()))
    pods = api.objects("Pod", plan.namespace, plan.pods or "")
    if not pods:
        raise ClusterError(
            f"no pod of the namespace {plan.namespace} matches the selector {plan.pods}; {_there(api, plan)}"
        )
    found: dict[int, str] = {}
    for pod in pods:
        broker, name = broker_of(pod, plan.container), pod["metadata"]["name"]
        if broker is None:
            continue
        if broker in found:
            raise ClusterError(
                f"the pods {found[broker]} and {name} both are broker {broker}: name the pod of each broker under "
                f"`attach.kubernetes.brokers`, as in {{{broker}: {name}}}"
            )
        found[broker] = name
    if not found:
        names = ", ".join(sorted(pod["metadata"]["name"] for pod in pods))
        raise ClusterError(
            f"none of the pods that match {plan.pods} ({names}) is a broker's: a broker has a container "
            f"{plan.container}, and its id in KAFKA_NODE_ID or at the end of its name; set "
            "`attach.kubernetes.container`, or name the pods under `attach.kubernetes.brokers`"
        )
    return dict(sorted(found.items()))


def _there(api: Api, plan: AttachKubernetes) -> str:
    names = sorted(pod["metadata"]["name"] for pod in api.objects("Pod", plan.namespace))
    some = ", ".join(names[:9]) + (", …" if len(names) > 9 else "")  # noqa: PLR2004 -- a line
    return f"its pods are {some}" if names else "it has no pods"


def broker_of(pod: Pod, container: str) -> int | None:
    """Return the id of the broker in a pod; None for another pod, and for an isolated controller."""
    spec = next((item for item in pod["spec"]["containers"] if item["name"] == container), None)
    if spec is None:
        return None
    environment = {item["name"]: item.get("value") or "" for item in spec.get("env") or ()}
    if is_broker := id_in_environment(environment):
        return is_broker[0]
    number = _NUMBER.search(pod["metadata"]["name"])
    return int(number[1]) if number else None


@dataclass(frozen=True)
class Agents:
    """The agents of a run, one on each Kubernetes node that has pods of brokers."""

    api: Api
    place: Place

    def start(self, pods: Sequence[Pod], container: str, labels: Mapping[str, str]) -> None:
        """Create the agents, of the image of the brokers' container; raise RefusedError if they are not permitted.

        ``labels`` are those of `ownership.labels_of`.
        """
        images = {item["image"] for pod in pods for item in pod["spec"]["containers"] if item["name"] == container}
        image = min(images)
        root = self.api.create(root_of(self.place, labels))
        machines = sorted({pod["spec"]["nodeName"] for pod in pods})
        for machine in machines:
            self.api.create(self._manifest(machine, image, root["metadata"]["uid"]))

    def await_start(self) -> None:
        """Wait until all agents run; raise ClusterError, with the kubelet's words, if one does not."""

        def lacks() -> str:
            for agent in self._pods():
                if "running" not in container_status(agent, _AGENT).get("state", {}):
                    ended = container_status(agent, _AGENT).get("state", {}).get("terminated", {})
                    words = f"it ended: {ended.get('reason')} {ended.get('message', '')}".strip() if ended else ""
                    status = agent["status"]
                    return words or hindrance(agent, _AGENT)[0] or str(status.get("message") or status.get("phase"))
            return ""

        if problem := still_lacking(lacks, _STARTED_S):
            raise ClusterError(f"the agent does not start: {problem}")

    def name(self, machine: str) -> str:
        return f"{self.place.root}-agent-{machine}"[:253]

    def _manifest(self, machine: str, image: str, owner: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name(machine),
                "namespace": self.place.namespace,
                "labels": {**MANAGED, RUN: self.place.run_id, "app.kubernetes.io/name": "aftershock-agent"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "name": self.place.root, "uid": owner},
                ],
            },
            "spec": {
                "nodeName": machine,
                "hostPID": True,
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": 5,
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": _AGENT,
                        "image": image,
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["sh", "-c", MAIN],
                        "securityContext": {"privileged": True, "runAsUser": 0},
                        "resources": {"requests": {"cpu": "10m", "memory": str(16 << 20)}},
                        "volumeMounts": [{"name": "own", "mountPath": _FOLDER}],
                    }
                ],
                "volumes": [{"name": "own", "emptyDir": {}}],
            },
        }

    def run(self, pod: Pod, script: str) -> str:
        """Run a script on the machine of a broker's pod, about its processes; raise ClusterError if it failed.

        Raises AgentEndedError if there is no agent any more.
        """
        name, agent = pod["metadata"]["name"], self.name(pod["spec"]["nodeName"])
        try:
            command = ["sh", "-c", script, pod["metadata"]["uid"]]
            answer = self.api.execute(self.place.namespace, agent, _AGENT, command)
        except RefusedError as error:
            found = self.api.find("Pod", self.place.namespace, agent)
            phase = found["status"].get("phase") if found else "Succeeded"  # SIGTERM comes before a deletion
            if phase == "Succeeded":
                raise AgentEndedError(
                    f"no agent {agent} runs beside the pod {name}: it has ended, or the pod is on another machine now"
                ) from error
            remedy = f"its agent was killed: delete the pod {name}, so that no process of it stays stopped"
            raise ClusterError(
                f"the agent {agent} beside the pod {name} can't be used: {error}"
                + (f"; {remedy}" if phase == "Failed" else "")
            ) from error
        if answer.code == _NO_JVM:
            raise ClusterError(f"the pod {name} has no process named java to be stopped")
        if answer.code:
            raise ClusterError(f"the agent {agent} could not do its work: {answer.output.strip()}")
        return answer.output.strip()

    def beat(self) -> None:
        """Tell all agents that the run is alive, each in a thread, because an unreachable kubelet delays its own."""
        for pod in self._pods():
            Thread(target=self._tell, args=(pod["metadata"]["name"],), daemon=True).start()

    def _tell(self, agent: str) -> None:
        with suppress(AftershockError):  # the next beat may reach it
            self.api.execute(self.place.namespace, agent, _AGENT, ["sh", "-c", _BEAT])

    def keep(self, texts: Mapping[str, str | None]) -> None:
        """Keep texts by their names in the run's config map; None removes one."""
        self.api.patch("ConfigMap", self.place.namespace, self.place.root, {"data": texts})

    def remove(self) -> None:
        """Remove the agents, which let all processes go on; raise ClusterError if one stays."""
        for pod in self._pods():
            self.api.delete("Pod", self.place.namespace, pod["metadata"]["name"])
        if still_lacking(lambda: "they end" if self._pods() else "", _ENDED_S):
            raise ClusterError(f"the agents of the run {self.place.run_id} are still there after {_ENDED_S:.0f} s")

    def forget(self) -> None:
        """Remove the run's config map, with what it kept."""
        for root in self.api.objects("ConfigMap", self.place.namespace, f"{RUN}={self.place.run_id}"):
            self.api.delete("ConfigMap", self.place.namespace, root["metadata"]["name"])

    def _pods(self) -> list[dict[str, Any]]:
        return self.api.objects("Pod", self.place.namespace, f"{RUN}={self.place.run_id}")


def agents_of(plan: AttachKubernetes, run_id: str, api: Api) -> Agents:
    """Return the agents of a run, which are in the namespace of the brokers."""
    return Agents(api, Place(run_id, api.context, plan.namespace, own_namespace=False))


class AgentsHeartbeat(Heartbeat):
    """Signs of life of a run, on its config map for other machines, and to its agents."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        super().__init__(agents.api, agents.place)

    def _tell(self, number: int) -> None:
        self._agents.beat()
        super()._tell(number)


class BrokerPod:
    """A broker's pod, with the operations of a node that faults need; its process is stopped by ``agents`` only."""

    def __init__(self, broker: BrokerId, name: str, plan: AttachKubernetes, api: Api, agents: Agents | None) -> None:
        self.broker, self.name = broker, name
        self._plan, self._api, self._agents = plan, api, agents
        self._deleted, self._grace_s = "", 0

    def pod(self) -> Pod | None:
        return self._api.find("Pod", self._plan.namespace, self.name)

    def state(self) -> BrokerState:
        pod = self.pod()
        if pod is None or "running" not in container_status(pod, self._plan.container).get("state", {}):
            return "exited"
        word = ""
        with suppress(AgentEndedError):
            word = self._agents.run(pod, STATE) if self._agents else ""
        return "exited" if word == "down" else "paused" if word == _STOPPED else "running"

    def exit_of(self) -> str:
        pod = self.pod()
        if pod is None:
            return f"broker {self.broker} has no pod {self.name}"
        ended = container_status(pod, self._plan.container).get("state", {}).get("terminated")
        why = f"it exited with code {ended['exitCode']}" if ended else hindrance(pod, self._plan.container)[0]
        return f"the pod {self.name} of broker {self.broker} does not run: {why or 'its process is stopped'}"

    def usage(self) -> ContainerUsage | None:
        return None  # the kubelet's figures are ten seconds old, and need a permission on nodes

    def kill(self) -> None:
        """Kill the broker's process with SIGKILL; its pod and address stay, and the kubelet's next one is held."""
        self._run(KILL)

    def shut_down(self) -> None:
        """Send SIGTERM and wait for the process to end; raise ClusterError if it did not end by itself."""
        self._run(TERMINATE)
        if still_lacking(lambda: "" if self.state() == "exited" else "running", _SHUT_DOWN_S):
            raise ClusterError(f"the broker in the pod {self.name} did not shut down within {_SHUT_DOWN_S:.0f} s")

    def restart(self) -> None:
        """Let the broker go on; wait until its container runs, and after a deletion until its successor's does."""
        pod = self.pod()
        if self._agents is not None and pod is not None and pod["spec"].get("nodeName"):
            with suppress(AgentEndedError):  # the agent has let it go on
                self._run(GO_ON)

        def lacks() -> str:
            pod = self.pod()
            if pod is None or pod["metadata"]["uid"] == self._deleted:
                return f"its controller has not made the pod {self.name} again"
            return hindrance(pod, self._plan.container)[0] or ("" if self.state() == "running" else self.exit_of())

        problem = still_lacking(lacks, _STARTED_S + self._grace_s)
        if _BACK_OFF in problem:
            problem = still_lacking(lacks, _BACK_OFF_S)
        if problem:
            raise ClusterError(f"broker {self.broker} does not start: {problem}")

    def pause(self) -> None:
        self._run(PAUSE)

    def resume(self) -> None:
        with suppress(AgentEndedError):  # the agent has let it go on
            self._run(GO_ON)

    def delete_pod(self, grace_s: int | None, *, evict: bool = False) -> int:
        """Delete the pod by the API, by default with its own grace period; return the grace period in seconds.

        Its controller makes the next pod. Raises ClusterError for a pod that nothing makes again, or whose records are
        in no volume that outlives it.
        """
        pod = self.pod()
        if pod is None:
            raise ClusterError(self.exit_of())
        if reason := _hold_on(pod):
            raise ClusterError(f"the pod {self.name} of broker {self.broker} is not deleted: {reason}")
        self._api.delete_pod(self._plan.namespace, self.name, grace_s, evict=evict)
        self._deleted = pod["metadata"]["uid"]
        self._grace_s = int(pod["spec"].get("terminationGracePeriodSeconds", 30)) if grace_s is None else grace_s
        return self._grace_s

    def _run(self, script: str) -> None:
        pod = self.pod()
        if pod is None:
            raise ClusterError(self.exit_of())
        if self._agents is None:
            raise ClusterError(
                f"the process of broker {self.broker} can't be stopped without an agent: write `agent: true` under "
                "`attach.kubernetes`"
            )
        self._agents.run(pod, script)


def _hold_on(pod: Pod) -> str:
    """Return why a pod must not be deleted, "" for a pod that comes back with its records."""
    owners = pod["metadata"].get("ownerReferences") or ()
    controllers = [owner["kind"] for owner in owners if owner.get("controller")]
    if not controllers or "ReplicaSet" in controllers:
        made = "a ReplicaSet makes one of another name" if controllers else "nothing makes it again"
        return f"{made}; run brokers in a stateful set, or by an operator"
    if not any({"persistentVolumeClaim", "hostPath"} & {*volume} for volume in pod["spec"].get("volumes") or ()):
        return "its records are in no persistent volume, and would be deleted with it"
    return ""


def broker_pods(plan: AttachKubernetes, run_id: str, api: Api) -> dict[BrokerId, BrokerPod]:
    """Return the pods that a plan names under ``brokers``."""
    agents = agents_of(plan, run_id, api) if plan.agent else None
    return {BrokerId(int(b)): BrokerPod(BrokerId(int(b)), name, plan, api, agents) for b, name in plan.brokers.items()}


def check(pods: Sequence[BrokerPod], api: Api, plan: AttachKubernetes) -> None:
    """Raise ClusterError if the user may not do what faults on the pods need, or a pod does not run."""
    refused = api.refused_verbs(plan.namespace, (*NEEDS, *(AGENT_NEEDS if plan.agent else ())))
    refused += api.refused_verbs(None, cordons.NEEDS) if plan.nodes else []
    if refused:
        option = (" --agent" if plan.agent else "") + (" --nodes" if plan.nodes else "")
        raise ClusterError(
            f"the user of the context {api.context} lacks permissions in the namespace {plan.namespace}: "
            f"{', '.join(refused)}; print the role to apply with: aftershock kubernetes rbac --namespace "
            f"{plan.namespace} --attach{option}"
        )
    for pod in pods:
        found = pod.pod()
        if found is None or "running" not in container_status(found, plan.container).get("state", {}):
            raise ClusterError(f"{pod.exit_of()}; start it, and run the plan again")
