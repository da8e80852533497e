"""Rules that drop, delay, duplicate or corrupt packets below TCP, in the network namespace of a cluster's Toxiproxy.

All links cross that namespace, and each ends at a port of its own there, so a rule needs only the container's address
and that port. A helper container shares the namespace and may change its firewall (capability NET_ADMIN); rules of the
host are never touched. A fault has a chain of its own, so its counters are its own. The kernel drops packets by itself;
for other changes it queues packets for a program of ours (``images/tools/packets``), and lets them pass if that program
has died.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import docker
from docker.errors import NotFound
from docker.models.containers import Container

from aftershock.errors import ClusterError, EngineError
from aftershock.faults.targets.values import PacketChange, PacketCounts
from aftershock.harness.cluster.engine import docker_errors

TCP_COUNTERS = ("RetransSegs", "InCsumErrors", "TCPDSACKRecv", "TCPOFOQueue")
_TABLES = "iptables-legacy -w"
_COUNTS = re.compile(r"\[(\d+):\d+\] -A (\S+) .*-j (\S+)")
_MARK = 7  # of duplicates, which the program sends itself
_READY_S = 2
_REMOVE = """\
for parent in INPUT OUTPUT; do
  {tables} -S $parent | grep -- '-j {chain}$' | while read -r _ rule; do {tables} -D $rule; done
done
{tables} -F {chain} 2>/dev/null && {tables} -X {chain}
[ ! -e /run/packets-{queue}.pid ] || kill $(cat /run/packets-{queue}.pid) 2>/dev/null
rm -f /run/packets-{queue}.*
echo removed
"""


class Leg(NamedTuple):
    """Packets that enter a network namespace (``inward``) or leave it, through a port of it if ``port`` is given.

    ``address`` is that of the namespace, in a launched cluster Toxiproxy's in the rack of the link's source, and
    ``peer`` that of the other end; None stands for every address. Without port and peer, a leg has all packets except
    those that stay in the namespace.
    """

    address: str | None
    port: int | None
    inward: bool
    peer: str | None = None

    def match(self) -> str:
        """Return the leg as a chain of iptables and the options that match its packets."""
        own, far, device = ("d", "s", "i") if self.inward else ("s", "d", "o")
        options = [f"-{own} {self.address}"] if self.address else []
        options += [f"-{far} {self.peer}"] if self.peer else []
        options += ["-p tcp", f"--{own}port {self.port}"] if self.port else []
        return " ".join(["INPUT" if self.inward else "OUTPUT", *(options or [f"! -{device} lo"])])


def helper_name(prefix: str) -> str:
    return f"{prefix}-packets"


def start_helper(
    client: docker.DockerClient,
    prefix: str,
    joined: Container,
    labels: Mapping[str, str],
    tools: str,
    *,
    offload: bool = False,
) -> None:
    """Start the helper in a container's network namespace, Toxiproxy's; raise EngineError if the engine refuses.

    Segmentation offload is switched off, because a rule would otherwise change many segments as one packet. In a
    container of the user's, ``offload`` leaves it on, as nothing but the rules may change there.
    """
    script = "exec sleep infinity"
    if not offload:
        script = (
            "for device in /sys/class/net/eth*; do "
            f"ethtool -K ${{device##*/}} tso off gso off gro off >/dev/null 2>&1; done; {script}"
        )
    with docker_errors(EngineError, "start a container that changes packets"):
        client.containers.run(
            tools,
            ["-c", script],
            entrypoint="sh",
            name=helper_name(prefix),
            labels=dict(labels),
            network_mode=f"container:{joined.id}",
            user="0",
            cap_add=["NET_ADMIN", "NET_RAW"],
            detach=True,
        )


class Packets:
    """Firewall rules of a cluster, through its helper container."""

    def __init__(self, client: docker.DockerClient, prefix: str) -> None:
        self._client, self._name = client, helper_name(prefix)

    def change(self, fault: str, legs: Sequence[Leg], change: PacketChange) -> None:
        """Change a random share of the packets on these legs."""
        chain, queue = _chain(fault), _queue(fault)
        lines = [f"{_TABLES} -N {chain}"]
        if change.action == "drop":
            some = "" if change.share == 1 else f"-m statistic --mode random --probability {change.share:.6f} "
            lines.append(f"{_TABLES} -A {chain} {some}-j DROP")
        else:
            options = {"action": change.action, "share": change.share}
            options |= {"delay_us": change.delay_ms * 1000, "jitter_us": change.jitter_ms * 1000}
            name = f"/run/packets-{queue}"
            ready = f"timeout {_READY_S} sh -c 'until [ -e {name}.json ]; do sleep 0.02; done'"
            lines += [
                f"packets {queue} '{json.dumps(options)}' >/dev/null 2>{name}.log &",
                f"{ready} || {{ cat {name}.log; exit 1; }}",
                f"{_TABLES} -A {chain} -m mark ! --mark {_MARK} -j NFQUEUE --queue-num {queue} --queue-bypass",
            ]
        for leg in legs:
            lines.append(f"{_TABLES} -A {leg.match()} -j {chain}")
        self._run("set -e\n" + "\n".join([*lines, "echo added"]))

    def remove(self, fault: str) -> None:
        """Remove the rules of a fault, also if only some were added; packets that are held pass at once."""
        self._run(_REMOVE.format(tables=_TABLES, chain=_chain(fault), queue=_queue(fault)))

    def rules(self) -> str:
        """Return all chains and rules, without counters."""
        return self._run(f"{_TABLES} -S")

    def present(self, fault: str) -> bool:
        return _chain(fault) in self.rules()

    def counts(self, fault: str) -> PacketCounts:
        """Return what was counted for a fault's rules, and by TCP in Toxiproxy's namespace; zeros without rules."""
        chain, program = _chain(fault), f"/run/packets-{_queue(fault)}.json"
        read = f"cat /proc/net/snmp /proc/net/netstat; cat {program} 2>/dev/null || true"
        text = self._run(f"iptables-legacy-save -c; {read}")
        rows = [(int(count), place, target) for count, place, target in _COUNTS.findall(text)]
        seen = sum(count for count, place, target in rows if target == chain and place in ("INPUT", "OUTPUT"))
        changed = sum(count for count, place, target in rows if (place, target) == (chain, "DROP"))
        if text.rstrip().endswith("}"):
            of_program = json.loads(text.rstrip().splitlines()[-1])
            seen, changed = of_program["seen"], of_program["changed"]
        return PacketCounts(seen, changed, tcp_counters(text))

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
        text = str(output.decode(errors="replace"))
        if code != 0:
            raise ClusterError(f"the packets can't be changed in {self._name}: {text.strip()}")
        return text


def tcp_counters(text: str) -> dict[str, int]:
    """Return the counters of TCP in the text of ``/proc/net/snmp`` and ``/proc/net/netstat``: names above values."""
    lines = [line.split() for line in text.splitlines() if line.startswith(("Tcp:", "TcpExt:"))]
    found: dict[str, str] = {}
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        found |= zip(names, values, strict=True)
    return {name: int(found.get(name, 0)) for name in TCP_COUNTERS}


def _chain(fault: str) -> str:
    """Return the name of a fault's chain, which may have 28 characters."""
    return f"aftershock-{hashlib.sha256(fault.encode()).hexdigest()[:12]}"


def _queue(fault: str) -> int:
    """Return the number of a fault's queue, from 1 to 65535."""
    return int(hashlib.sha256(fault.encode()).hexdigest()[:8], 16) % 65_535 + 1
