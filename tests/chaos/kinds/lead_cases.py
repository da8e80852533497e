"""How kinds on links are shown."""

from aftershock.tests.chaos.kinds.case import Case, Seen


def slower(seen: Seen) -> None:
    assert seen.median_ms("during") > seen.median_ms("before") + 25


CASES = {"latency": [Case('{kind: latency, link: "client(a) -> broker", delay: 60ms, for: 3s}', slower)]}
