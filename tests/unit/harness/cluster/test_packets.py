"""Counters and rules of packet faults, as text of the kernel's tools."""

import pytest

from aftershock.faults.targets.values import PacketChange, PacketCounts
from aftershock.harness.cluster import packets
from aftershock.harness.cluster.packets import Leg, Packets

NETWORK = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RtoMin RetransSegs InErrs InCsumErrors
Tcp: 1 200 57 0 3
TcpExt: SyncookiesSent TCPDSACKRecv TCPOFOQueue
TcpExt: 0 5 11
"""
TCP = {"RetransSegs": 57, "InCsumErrors": 3, "TCPDSACKRecv": 5, "TCPOFOQueue": 11}
LOSS = PacketChange("drop", 0.05)
LEGS = (Leg(None, 20101, inward=True), Leg("172.20.0.2", 9202, inward=False))


class Scripts(Packets):
    """Packets whose helper answers with a text instead of running a script."""

    def __init__(self, answer: str = "") -> None:
        self.answer, self.scripts = answer, list[str]()

    def _run(self, script: str) -> str:
        self.scripts.append(script)
        return self.answer


def chain_of(rules: Scripts) -> str:
    rules.change("loss", LEGS, LOSS)
    return rules.scripts[-1].split("-N ")[1].split()[0]


def test_rules_name_ports_and_addresses_of_one_direction_each() -> None:
    rules = Scripts()
    chain = chain_of(rules)
    assert len(chain) <= 28
    assert [
        f"iptables-legacy -w -A {chain} -m statistic --mode random --probability 0.050000 -j DROP",
        f"iptables-legacy -w -A INPUT -p tcp --dport 20101 -j {chain}",
        f"iptables-legacy -w -A OUTPUT -s 172.20.0.2 -p tcp --sport 9202 -j {chain}",
    ] == rules.scripts[-1].splitlines()[2:-1]


def test_counts_are_those_of_the_faults_own_chain() -> None:
    chain = chain_of(Scripts())
    saved = f"""\
[900:1] -A INPUT -p tcp -m tcp --dport 20101 -j {chain}
[100:1] -A OUTPUT -s 172.20.0.2/32 -p tcp -m tcp --sport 9202 -j {chain}
[500:1] -A INPUT -p tcp -m tcp --dport 20102 -j aftershock-0123456789ab
[47:1] -A {chain} -m statistic --mode random --probability 0.05000000028 -j DROP
[400:1] -A aftershock-0123456789ab -m statistic --mode random --probability 0.5 -j DROP
{NETWORK}"""
    assert PacketCounts(1000, 47, TCP) == Scripts(saved).counts("loss")
    assert PacketCounts(0, 0, TCP) == Scripts(saved).counts("another")


def test_a_queue_is_bound_before_packets_go_there_and_lets_them_pass_without_its_program() -> None:
    rules = Scripts()
    rules.change("late", LEGS, PacketChange("delay", 1.0, 20, 5))
    lines = rules.scripts[-1].splitlines()
    (program,) = [number for number, line in enumerate(lines) if line.startswith("packets ")]
    (rule,) = [number for number, line in enumerate(lines) if "NFQUEUE" in line]
    assert program < rule
    assert '{"action": "delay", "share": 1.0, "delay_us": 20000, "jitter_us": 5000}' in lines[program]
    assert lines[rule].endswith("--queue-bypass")
    assert lines[program].split()[1] == lines[rule].split("--queue-num ")[1].split()[0]


def test_counts_of_queued_packets_are_those_of_the_program() -> None:
    assert PacketCounts(900, 45, TCP) == Scripts(f'{NETWORK}{{"changed": 45, "seen": 900}}').counts("late")


def test_counters_of_tcp_are_found_by_their_names() -> None:
    assert TCP == packets.tcp_counters(NETWORK)
    assert dict.fromkeys(TCP, 0) == packets.tcp_counters("")


@pytest.mark.parametrize(("fault", "expected"), [("loss", True), ("another", False)])
def test_present(fault: str, *, expected: bool) -> None:
    assert expected == Scripts(f":{chain_of(Scripts())} - [0:0]\n").present(fault)
