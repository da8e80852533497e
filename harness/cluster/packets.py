"""Rules that drop packets below TCP, in the network namespace of a cluster's Toxiproxy, which all links cross.

Each link ends at a port of its own of the Toxiproxy container, so a rule needs only the container's address and that
port. A helper container shares the namespace and may change its firewall (capability NET_ADMIN); rules of the host are
never touched. A fault has a chain of its own, so its counters are its own, and its removal is one step.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import docker
from docker.errors import NotFound
from docker.models.containers import Container

from aftershock.errors import ClusterError, EngineError
from aftershock.faults.targets.values import PacketCounts
from aftershock.harness.cluster.engine import docker_errors

_TABLES = "iptables-legacy -w"
_COUNTS = re.compile(r"\[(\d+):\d+\] -A (\S+) .*-j (\S+)")
_RETRANSMITTED = "RetransSegs"
_REMOVE = """\
for parent in INPUT OUTPUT; do
  {tables} -S $parent | grep -- '-j {chain}$' | while read -r _ rule; do {tables} -D $rule; done
done
{tables} -F {chain} 2>/dev/null && {tables} -X {chain}
echo removed
"""


class Leg(NamedTuple):
    """One direction of a link at Toxiproxy's end: packets to its port (``inward``) or from it.

    ``address`` is Toxiproxy's in the rack of the link's source, None for a link of clients.
    """

    address: str | None
    port: int
    inward: bool


def helper_name(prefix: str) -> str:
    return f"{prefix}-packets"


def start_helper(
    client: docker.DockerClient, prefix: str, toxiproxy: Container, labels: Mapping[str, str], tools: str
) -> None:
    """Start the helper in Toxiproxy's network namespace; raise EngineError if the engine refuses.

    Segmentation offload is switched off, because a rule would otherwise drop many segments as one packet.
    """
    script = (
        "for device in /sys/class/net/eth*; do "
        "ethtool -K ${device##*/} tso off gso off gro off >/dev/null 2>&1; done; exec sleep infinity"
    )
    with docker_errors(EngineError, "start a container that changes packets"):
        client.containers.run(
            tools,
            ["-c", script],
            entrypoint="sh",
            name=helper_name(prefix),
            labels=dict(labels),
            network_mode=f"container:{toxiproxy.id}",
            user="0",
            cap_add=["NET_ADMIN", "NET_RAW"],
            detach=True,
        )


class Packets:
    """Firewall rules of a cluster, through its helper container."""

    def __init__(self, client: docker.DockerClient, prefix: str) -> None:
        self._client, self._name = client, helper_name(prefix)

    def drop(self, fault: str, legs: Sequence[Leg], share: float) -> None:
        """Drop a random ``share`` (0 to 1) of the packets on these legs."""
        chain = _chain(fault)
        lines = [f"{_TABLES} -N {chain}"]
        lines.append(f"{_TABLES} -A {chain} -m statistic --mode random --probability {share:.6f} -j DROP")
        for leg in legs:
            place, side = ("INPUT", "d") if leg.inward else ("OUTPUT", "s")
            address = f"-{side} {leg.address} " if leg.address else ""
            lines.append(f"{_TABLES} -A {place} {address}-p tcp --{side}port {leg.port} -j {chain}")
        self._run("set -e\n" + "\n".join([*lines, "echo added"]))

    def remove(self, fault: str) -> None:
        """Remove the rules of a fault, also if only some were added."""
        self._run(_REMOVE.format(tables=_TABLES, chain=_chain(fault)))

    def rules(self) -> str:
        """Return all chains and rules, without counters."""
        return self._run(f"{_TABLES} -S")

    def present(self, fault: str) -> bool:
        return _chain(fault) in self.rules()

    def counts(self, fault: str) -> PacketCounts:
        """Return what the kernel counted for a fault; zeros without its rules."""
        chain, text = _chain(fault), self._run("iptables-legacy-save -c; cat /proc/net/snmp")
        rows = [(int(count), place, target) for count, place, target in _COUNTS.findall(text)]
        seen = sum(count for count, place, target in rows if target == chain and place in ("INPUT", "OUTPUT"))
        dropped = sum(count for count, place, target in rows if (place, target) == (chain, "DROP"))
        return PacketCounts(seen, dropped, retransmitted(text))

    def _run(self, script: str) -> str:
        with docker_errors(ClusterError, f"change packets in {self._name}"):
            try:
                helper = self._client.containers.get(self._name)
            except NotFound:
                raise ClusterError(
                    f"the cluster has no container {self._name}, which changes packets: launch it with "
                    "`cluster: {packets: true}`"
                ) from None
            code, output = helper.exec_run(["sh", "-c", script])
        if code != 0:
            raise ClusterError(
                f"the packets can't be changed in {self._name}: {output.decode(errors='replace').strip()}"
            )
        return str(output.decode())


def retransmitted(snmp: str) -> int:
    """Return the counter of TCP segments sent again (RFC 4022, tcpRetransSegs) in the text of ``/proc/net/snmp``."""
    names, values = [line.split() for line in snmp.splitlines() if line.startswith("Tcp:")]
    return int(values[names.index(_RETRANSMITTED)])


def _chain(fault: str) -> str:
    """Return the name of a fault's chain, which may have 28 characters."""
    return f"aftershock-{hashlib.sha256(fault.encode()).hexdigest()[:12]}"
