"""Fault ``delete_pod``, which deletes the pod of a broker by the Kubernetes API.

A deleted pod is shut down, not crashed. The kubelet sends SIGTERM, waits for the grace period, and sends SIGKILL only
then; a broker that shuts down in time hands its leaderships over. This is also so for ``kubectl delete --force
--grace-period=0``, after which brokers log a controlled shutdown: the API server forgets the pod at once, and the
kubelet grants its processes two seconds (``minimumGracePeriodInSeconds`` in Kubernetes' ``kuberuntime``). For a crash,
use ``kill``.

A stateful set or an operator makes a deleted pod again at once. The fault then ends by itself, and what is witnessed is
that the broker was down.

The API server's word is no proof that the broker is down, because it forgets a pod whose processes still run. The
witness asks the broker itself.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from aftershock.errors import FaultError
from aftershock.faults.kinds.fault import Band, InjectionContext, Report
from aftershock.faults.kinds.probing import probe_all
from aftershock.faults.kinds.process.base import NodeFault, NodeInjection
from aftershock.faults.runtime.record import Witness
from aftershock.faults.runtime.waiting import READ_DEADLINE_MS, retry_refused, run_to_completion, wait_until
from aftershock.faults.sections.units import Duration
from aftershock.faults.targets.values import BrokerId, Link, PartitionState

DOWN_DEADLINE_MS = 10_000
"""Time beyond the grace period until a deleted broker must be silent; the kubelet needs one to three seconds."""


class DeletePodInjection(NodeInjection):
    """Deletion of the pod of a node with the grace period ``grace_ms``, by default the pod's own.

    ``silent`` is what was witnessed when the broker was down.
    """

    down = "exited"
    verb = "start"
    grace_ms: int | None = None
    evict = False
    silent: Witness | None = None

    async def inject(self) -> None:
        await self.wait_until_silent(await self.delete())

    async def delete(self) -> int:
        """Delete the pod, and return its grace period in ms; raises ClusterError if that is refused."""
        deletion = self.context.world.delete_pod(self.victim, self.grace_ms, evict=self.evict)
        return await run_to_completion(deletion)

    async def wait_until_silent(self, grace_ms: int) -> None:
        await wait_until(self._answering, self.context.clock, grace_ms + DOWN_DEADLINE_MS)

    async def hold(self, until_us: int | None, report: Report) -> None:
        """Report that the node leads no partition after its end, and each second that it answers no request.

        With a grace period of the plan, a broker may be killed at its end, and then leads until its session is over.
        """
        if self.led and self.grace_ms is None:
            states = await retry_refused(self.context.world.partitions, self.context.clock, READ_DEADLINE_MS)
            still = sum(state.leader == self.victim for state in states)
            what = f"partitions that node {self.victim} still led after its end, of {len(self.led)} that it led before"
            report(Witness(what, asked=0, observed=still, unit="partitions", n=len(self.led), ok=not still))
        if self.context.world.pods_return():
            report(self.silent or await self.read_back())
        else:
            await super().hold(until_us, report)

    async def read_back(self) -> Witness:
        """Ask the broker over each link of clients, as the API server forgets a pod before its end."""
        world = self.context.world
        gone = world.pods_return() or await world.state(self.victim) == self.down  # the next pod may already run
        answered = (await probe_all(self._links(), self.context)).count("answered")
        what = f"requests that node {self.victim}, whose pod is deleted, answered over clients' links"
        return Witness(what, asked=0, observed=answered, unit="answers", n=len(self._links()), ok=gone and not answered)

    async def _answering(self) -> str | None:
        self.silent = await self.read_back()
        return None if self.silent.ok else f"node {self.victim} still answers after the deletion of its pod"

    def _links(self) -> list[Link]:
        links = self.context.world.links()
        return [link for link in links if link.channel == "client" and link.broker == self.victim]


class DeletePod(NodeFault):
    """Delete a broker's pod by the Kubernetes API, and start a further pod on its volume at the end.

    On an attached cluster, the controller of the pod makes the next one at once, and the fault ends when that broker
    is back in service. The broker is shut down, not crashed, also with `grace: 0s`, which is `kubectl delete --force`:
    for a crash, use `kill`. The new pod has another address.
    """

    band = Band("#8c564b", "delete pod")
    unavailable = "nodes"
    proof = (
        "The broker answers no request over the clients' links, and its pod is gone or has ended (read each second). "
        "Without `grace`, it leads no partition after its end. A pod that a controller makes again is not read further."
    )
    remedy = "A further pod is started on the node's volume, and the node is in the ISR of all its partitions again."
    allowance_ms = 45_000  # the grace period of a pod, and the start of another one
    closes_connections = True
    needs = ("kubernetes",)

    kind: Literal["delete_pod"] = "delete_pod"
    grace: Annotated[
        Duration | None,
        Field(
            le=600_000,
            description="grace period in whole seconds, by default that of the pod; `0s` is a forced deletion",
        ),
    ] = None
    evict: Annotated[
        StrictBool,
        Field(description="by the eviction API, as `kubectl drain` does: a disruption budget of the pods may refuse"),
    ] = False

    def create_injection(
        self, context: InjectionContext, victim: BrokerId, roles: dict[str, Any], led: tuple[PartitionState, ...]
    ) -> NodeInjection:
        if not context.world.has_pods():
            raise FaultError("the nodes of this cluster are no pods: launch it with `cluster: {kubernetes: {}}`")
        injection = DeletePodInjection(context, victim, roles, led)
        injection.grace_ms, injection.evict = self.grace, self.evict
        return injection
