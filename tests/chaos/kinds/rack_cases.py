"""Cases of faults on racks and groups of nodes: cut off, killed, swizzled."""

from aftershock.tests.chaos.kinds.case import Case, Observation
from aftershock.tests.chaos.kinds.process_cases import balanced, requests_waited_for_fencing


def silent(seen: Observation) -> None:
    """Assert that no record sent into the cut was acknowledged before its end."""
    assert seen.longest_gap_ms("during") > 2_000


def replicas_left_the_isr(seen: Observation) -> None:
    """Assert that acks=all waited until the replicas across the cut were out of the ISR."""
    assert seen.slowest_ms("during") > 1_500


CASES = {
    "cut": [
        Case('{kind: cut, link: "client(a) -> broker", for: 3s}', silent),
        Case("{kind: cut, rack: b, for: 5s}", replicas_left_the_isr, before=balanced),
        Case("{kind: cut, rack: b, ways: in, for: 5s}", replicas_left_the_isr, before=balanced),
        Case('{kind: cut, link: "rack(a) -> rack(b)", for: 5s}', replicas_left_the_isr, before=balanced),
        Case("{kind: cut, between: [[1, 2], [3]], for: 6s}", replicas_left_the_isr, before=balanced),
        Case("{kind: cut, between: [[a], [b, c]], for: 6s}", replicas_left_the_isr, on="isolated", before=balanced),
        Case("{kind: cut, shape: minority, for: 6s}", replicas_left_the_isr, before=balanced),
        Case("{kind: cut, shape: ring, for: 6s}", replicas_left_the_isr, before=balanced),
    ],
    "lose_rack": [
        Case("{kind: lose_rack, rack: b, for: 5s}", requests_waited_for_fencing, before=balanced),
        Case("{kind: lose_rack, rack: b, for: 5s}", requests_waited_for_fencing, on="isolated", before=balanced),
    ],
    "swizzle": [Case("{kind: swizzle, for: 8s, period: 1s}", replicas_left_the_isr, before=balanced)],
}
