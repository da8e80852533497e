"""How kinds on racks and groups of nodes are shown: cut off, killed, swizzled."""

from aftershock.tests.chaos.kinds.case import Case, Seen
from aftershock.tests.chaos.kinds.process_cases import balanced, waited


def silent(seen: Seen) -> None:
    """Nothing that was sent into the cut was acknowledged before it was over."""
    assert seen.longest_gap_ms("during") > 2_000


def unheard(seen: Seen) -> None:
    """Replicas across the cut could not follow, so what needs them all waited until they were out of the ISR."""
    assert seen.slowest_ms("during") > 1_500


CASES = {
    "cut": [
        Case('{kind: cut, link: "client(a) -> broker", for: 3s}', silent),
        Case("{kind: cut, rack: b, for: 5s}", unheard, before=balanced),
        Case("{kind: cut, rack: b, ways: in, for: 5s}", unheard, before=balanced),
        Case('{kind: cut, link: "rack(a) -> rack(b)", for: 5s}', unheard, before=balanced),
        Case("{kind: cut, between: [[1, 2], [3]], for: 6s}", unheard, before=balanced),
        Case("{kind: cut, between: [[a], [b, c]], for: 6s}", unheard, on="isolated", before=balanced),
        Case("{kind: cut, shape: minority, for: 6s}", unheard, before=balanced),
        Case("{kind: cut, shape: ring, for: 6s}", unheard, before=balanced),
    ],
    "lose_rack": [
        Case("{kind: lose_rack, rack: b, for: 5s}", waited, before=balanced),
        Case("{kind: lose_rack, rack: b, for: 5s}", waited, on="isolated", before=balanced),
    ],
    "swizzle": [Case("{kind: swizzle, for: 8s, period: 1s}", unheard, before=balanced)],
}
