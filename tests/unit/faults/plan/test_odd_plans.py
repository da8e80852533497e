"""Plans that hardly mean what they say: each gets an error or a warning, and its harmless twin gets neither."""

from __future__ import annotations

import pytest

from aftershock.errors import PlanError
from aftershock.faults.kinds.registry import BUILT_IN
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plan.parsing import OTHER_WORDS

# ruff: noqa: E501 -- a row of a table, and a sentence that is expected, are kept whole

PLAN = """\
name: odd
topics:
  - {name: orders, partitions: 6, replication: 3, config: {min.insync.replicas: 2}}
  - {name: billed, partitions: 6, replication: 3}
workloads:
  - name: orders
    produce: {topic: orders, rate: 60/s, record_size: 1kB, acks: all, rack: a, deadline: 5s}
    consume: {topic: orders, group: readers, rack: b}
    arms: {today: {settings: {retry.backoff.ms: 100}}}
timing: {warmup: {min: 5s, max: 60s}, steady: 10s, fault: 5s, recovery: 10s}
faults:
  - {at: 0s, for: 8s, kind: latency, link: "client(a) <-> broker", delay: 50ms}
  - {at: 12s, for: 10s, kind: kill, broker: leader of orders/0}
slo:
  - "lost == 0"
"""
LATENCY = 'kind: latency, link: "client(a) <-> broker", delay: 50ms'
KILL = "  - {at: 12s, for: 10s, kind: kill, broker: leader of orders/0}\n"


def answer(old: str, new: str, slo: str = "lost == 0") -> str:
    """Return the errors of the changed plan, or its warnings, each line with its severity."""
    text = PLAN.replace('"lost == 0"', f'"{slo}"')
    assert old in text
    try:
        return "\n".join(f"warning: {warning}" for warning in load_plan(text.replace(old, new, 1)).warnings)
    except PlanError as error:
        return "\n".join(f"error: {problem}" for problem in error.problems)


def slo(line: str, kind: str = LATENCY) -> tuple[str, str, str]:
    """Return the change to a plan with another SLO, and another fault in the place of the latency."""
    return LATENCY, kind, line


CUT = 'kind: cut, link: "client(a) <-> broker"'
TWO_KILLS = "  - {at: 12s, for: 10s, kind: kill, broker: 1}\n  - {at: 15s, for: 10s, kind: pause, broker: 2}\n"
ISR_3 = ("min.insync.replicas: 2", "min.insync.replicas: 3")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # SLOs that contradict themselves, or the load
        (slo("duplicate < 0"), "error: plan.yaml:15:5: this SLO can't pass: no count is below 0: write == 0"),
        (slo("rebalance.count < 0"), "no count is below 0: write <= 0"),
        (slo("consume.lag max < 0"), "no count is below 0"),
        (slo("produce.success > 100%"), "this SLO can't pass: no share exceeds 100%: write >= 100%"),
        (slo("lost == 3"), "warning: plan.yaml:15:5: this SLO passes only if exactly 3 records are lost: write <= 3"),
        (slo("produce.gap < 10ms"), "can't pass: `today` at 60/s has 16.7 ms between two records"),
        (
            slo("produce.gap < 50ms for each partition"),
            "`today` at 60/s among 6 partitions has 100 ms between two records",
        ),
        (slo("produce.throughput >= 100/s"), "can't pass: `today` at 60/s offers less than 100 records/s"),
        (
            slo("produce.throughput >= 60/s in fault/latency-1"),
            "`today` offers 60/s, so that a single late record fails this SLO",
        ),
        (
            slo("produce.throughput >= 5/s in every 2s of fault/cut-1", CUT),
            "stops every request of `today` for whole slots",
        ),
        (slo("produce.latency p0.5 < 50ms"), "p0.5 is a value that 0.5% of all stay below; did you mean p50?"),
        (slo("produce.latency p0.999 < 50ms"), "did you mean p99.9?"),
        (slo("produce.latency p5 < 250ms"), "warning: plan.yaml:15:5: p5 limits only the fastest 5% of the records"),
        (slo("consume.gap max < 5s"), "consume.gap is a single value, which has no max; remove 'max'"),
        # SLOs that a fault of their window rules out
        (
            slo("recovery < 5s after cut-1", CUT),
            "error: plan.yaml:15:5: this SLO can't pass: `cut-1` lets no record of `today` succeed for 8s",
        ),
        (
            slo("produce.gap < 3s in fault/stall-1", CUT.replace("cut", "stall", 1)),
            "`stall-1` stops every request of `today` for 7s of fault/stall-1",
        ),
        (
            slo("produce.latency p95 < 2s in fault/blackhole-1", CUT.replace("cut", "blackhole", 1) + ", timeout: 1s"),
            "`blackhole-1` stops every request",
        ),
        (slo("consume.latency p95 < 1s in fault/cut-1", CUT.replace("(a)", "(b)")), "`cut-1` stops every request"),
        (
            slo("produce.unavailable < 2s", CUT),
            "`cut-1` stops every request of `today` for 7s of the time after warm-up",
        ),
        (
            slo(
                "produce.latency p50 < 50ms in fault/packet_delay-1",
                'kind: packet_delay, link: "client(*) -> broker", delay: 100ms',
            ),
            "`packet_delay-1` adds 100 ms to every request",
        ),
        (slo("produce.latency max < 20ms"), "write a limit above 100ms, or another window"),
        (slo("produce.latency mean < 10ms in fault/latency-1"), "`latency-1` adds 100 ms"),
        (slo("produce.latency p80 < 20ms in every 2s of fault/latency-1"), "`latency-1` adds 100 ms"),
        ((*ISR_3, "recovery < 4s after kill-1"), "`kill-1` lets no record of `today` succeed for 10s"),
        (
            slo("produce.success >= 99% in fault/cut-1", CUT),
            "`cut-1` stops every request of `today` for 7s of fault/cut-1, longer than the deadline",
        ),
        (
            slo("recovery < 1s after kill-1"),
            "warning: plan.yaml:15:5: the controller moves the leaders of a silent broker only after 3s",
        ),
        (slo("recovery < 50ms after latency-1"), "a recovery is measured in steps of 100ms"),
        (slo("recovery < 3s after latency-1"), "which this SLO can pass only if p95 in steady is above 50 ms"),
        # settings of brokers and topics
        (
            ("timing:", "cluster: {config: {log.retention.ms: 7d}}\ntiming:"),
            "error: plan.yaml:10:38: `log.retention.ms` must be an integer of milliseconds, got `7d`: write digits only",
        ),
        (
            ("{min.insync.replicas: 2}", "{retention.bytes: 1GB}"),
            "`retention.bytes` must be an integer of bytes, got `1GB`",
        ),
        (
            ("timing:", "cluster: {config: {auto.leader.rebalance.enable: sometimes}}\ntiming:"),
            "must be true or false, got `sometimes`",
        ),
        (
            ("{min.insync.replicas: 2}", "{cleanup.policy: delte}"),
            "`cleanup.policy` does not take `delte`; did you mean `delete`?",
        ),
        (
            ("timing:", "cluster: {brokers: {1: {num.network.threads: 2.5}}}\ntiming:"),
            "`num.network.threads` must be an integer, got `2.5`",
        ),
        (("{min.insync.replicas: 2}", "{min.cleanable.dirty.ratio: 2}"), "must be at most 1, got `2`"),
        (
            ("timing:", "cluster: {config: {num.io.threads: 0}}\ntiming:"),
            "`num.io.threads` must be at least 1, got `0`",
        ),
        (
            (LATENCY, "kind: config, topic: orders, set: {retention.ms: soon}"),
            "`retention.ms` must be an integer of milliseconds",
        ),
        # keys without a value
        (("rack: b", "rack: "), "error: plan.yaml:8:51: `rack` is empty: give it a value, or remove the key"),
        (("settings: {retry.backoff.ms: 100}", "settings: "), "`settings` is empty"),
        (("timing:", "cluster: {heap: }\ntiming:"), "`heap` is empty"),
        (("for: 8s", "for: "), "`for` is empty"),
        # too few nodes
        (
            (KILL, TWO_KILLS),
            "2 of 3 controllers are down during `kill-1` and `pause-1`, so the metadata quorum is lost",
        ),
        (
            (
                "faults:\n",
                "cluster: {controllers: 3}\nfaults:\n  - {at: 30s, for: 5s, kind: kill, broker: 11}\n  - {at: 31s, for: 5s, kind: kill_controller}\n",
            ),
            "2 of 3 controllers are down",
        ),
        (
            (
                "faults:\n",
                "cluster: {racks: {a: 2, b: 1}}\nfaults:\n  - {at: 40s, for: 5s, kind: lose_rack, rack: a}\n",
            ),
            "2 of 3 controllers are down during `lose_rack-1`",
        ),
        (
            (*ISR_3, "lost == 0"),
            "during `kill-1`, the partitions of `orders` keep 2 of 3 replicas, fewer than min.insync.replicas 3",
        ),
        (("replication: 3", "replication: 2"), "partitions with replicas there of `orders` keep 1 of 2 replicas"),
        (
            (KILL, "  - {at: 12s, for: 9s, kind: kill, broker: 1}\n  - {at: 14s, kind: restart, broker: controller}\n"),
            "2 of 3 controllers are down during `kill-1` and `restart-1`",
        ),
        # times
        (("min: 5s, max: 60s", "min: 2h, max: 3h"), "`warmup` takes 2 h, and the plan lasts 3 h"),
        (("recovery: 10s", "recovery: 3h"), "warning: plan.yaml:10:73: `recovery` takes 3 h, and the plan lasts 3 h"),
        (("at: 12s, for: 10s", "at: 12s, for: 5h"), "`kill-1` lasts 5 h, and the plan lasts 5 h 1 min"),
        (
            ("at: 12s, for", "at: 2h, for"),
            "nothing happens for 1 h 59 min before `kill-1`, and the plan lasts 2 h 1 min",
        ),
        (
            ("deadline: 5s", "deadline: 150ms"),
            "a deadline of 150ms leaves no time for a retry: linger, retry.backoff.ms and two round trips take 205ms",
        ),
        (("deadline: 5s", "deadline: 2s"), "so records to such a broker are given up during `kill-1`"),
        (
            ("retry.backoff.ms: 100", "socket.timeout.ms: 80"),
            "`latency-1` adds 100 ms to each request, so with socket.timeout.ms 80 each request times out",
        ),
        # names and units
        (
            ("topic: orders, group", "topic: billed, group"),
            "warning: plan.yaml:8:22: no workload produces to `billed`, so no record is due there",
        ),
        (
            ("topic: orders, group", "topic: billed, group", "consume.latency p95 < 9s"),
            "because no workload produces to the topics that the arm `today` consumes",
        ),
        (
            ("timing:", 'cluster: {kafka: "4"}\ntiming:'),
            "`kafka`: `4` is not a version of Kafka: write all its three numbers, such as 4.3.1",
        ),
        (("timing:", "cluster: {kafka: v3.9.1}\ntiming:"), "`v3.9.1` is not a version of Kafka"),
        (("kind: kill", "kind: freeze"), "there is no fault of kind `freeze`; did you mean `pause`?"),
        (("kind: kill", "kind: network-partition"), "did you mean `cut`?"),
        (("record_size: 1kB", "record_size: 2MB"), "`record_size` must be at most 1MiB, got `2MB`"),
        (("timing:", "cluster: {heap: 8GiB}\ntiming:"), "`heap` must be at most 4GiB, got `8GiB`"),
        (
            ("today: {", "today: {image: 'acme/nope:1', "),
            "`today`: `image` belongs to a service: write `client: service`, or remove it",
        ),
    ],
)
def test_an_odd_plan_is_named(change: tuple[str, ...], words: str) -> None:
    """Each odd plan gets its error or warning."""
    assert words in answer(*change)


@pytest.mark.parametrize(
    "change",
    [
        slo("lost <= 0"),
        slo("rebalance.count <= 0"),
        slo("produce.success >= 100%"),
        slo("produce.gap < 20ms in steady"),
        slo("produce.throughput >= 50/s"),
        slo("produce.throughput >= 5/s in fault/cut-1", CUT),
        slo("consume.throughput >= 0.9 * consume.throughput in steady"),
        slo("produce.gap < 200ms for each partition"),
        slo("recovery < 8s after latency-1"),
        slo("recovery < 9s after cut-1", CUT),
        slo("recovery < 2s after cut-1", CUT.replace("broker", "broker(leader of orders/0)", 1)),
        slo("produce.gap < 9s in fault/cut-1", CUT),
        slo("produce.latency p95 < 150ms in fault/latency-1"),
        slo("produce.latency p95 < 20ms in steady"),
        slo("produce.latency p50 < 20ms"),
        slo("produce.latency p95 < 20ms in fault/latency-1", LATENCY.replace("(a)", "(b)")),
        slo("produce.latency p95 < 20ms in fault/latency-1", LATENCY.replace("broker", "broker(leader of orders/0)")),
        slo("consume.latency p95 < 1s in fault/cut-1", CUT),
        slo("produce.latency p95 < 60ms in fault/latency-1", LATENCY.replace("<->", "->")),
        (KILL, TWO_KILLS.replace("at: 15s", "at: 32s")),
        (
            KILL,
            "  - {at: 12s, for: 10s, kind: kill, broker: 1}\n  - {at: 15s, for: 10s, kind: pause, broker: 11}\ncluster: {controllers: 3}\n",
        ),
        (KILL, "  - {at: 12s, for: 10s, kind: power_loss, everywhere: true}\n"),
        ("replication: 3, config: {min.insync.replicas: 2}", "replication: 3, config: {min.insync.replicas: 1}"),
        ("deadline: 5s", "deadline: 30s"),
        (
            "{min.insync.replicas: 2}",
            "{retention.ms: -1, cleanup.policy: 'compact,delete', min.cleanable.dirty.ratio: 0.5}",
        ),
        (
            "timing:",
            "cluster: {config: {log.retention.ms: 604800000, num.io.threads: '', auto.leader.rebalance.enable: True}}\ntiming:",
        ),
        ("at: 12s, for", "at: 50m, for"),
        ("steady: 10s", "steady: 6h}\nwhy: a soak of six hours\n#"),
        ("retry.backoff.ms: 100", "socket.timeout.ms: 5000"),
        ("timing:", "cluster: {kafka: 4.1.2}\ntiming:"),
        ("record_size: 1kB", "record_size: 1MiB"),
    ],
)
def test_a_harmless_twin_gives_no_warning(change: tuple[str, ...]) -> None:
    """Each plan is near an odd one, and means what it says."""
    assert "" == answer(*change)


def test_other_words_lead_to_kinds() -> None:
    """Each word that other tools use leads to a kind that exists, and none of them is a kind itself."""
    assert set() == set(OTHER_WORDS.values()) - BUILT_IN.keys()
    assert set() == OTHER_WORDS.keys() & BUILT_IN.keys()
