"""Which batches a consumer drops, compared with an oracle that knows the outcome of each transaction."""

import random

from aftershock.workloads.kafka.rules.isolation import AbortedTransactions


def test_batches_until_the_abort_marker_are_dropped() -> None:
    """Of the aborted producer only: neither those of another producer nor those without a transaction."""
    aborted = AbortedTransactions([(7, 10)])
    assert not aborted.drops(7, 9, transactional=True, abort_marker=False), "before the transaction"
    assert aborted.drops(7, 12, transactional=True, abort_marker=False)
    assert not aborted.drops(8, 13, transactional=True, abort_marker=False), "another producer"
    assert not aborted.drops(7, 14, transactional=False, abort_marker=False), "outside a transaction"
    assert not aborted.drops(-1, 15, transactional=False, abort_marker=False)
    assert not aborted.drops(7, 16, transactional=True, abort_marker=True)
    assert not aborted.drops(7, 17, transactional=True, abort_marker=False), "the next transaction"


def test_random_logs() -> None:
    """A log of interleaved transactions, fetched from any offset: what is delivered is what was not aborted."""
    draw = random.Random(52)  # noqa: S311  # a reproducible test
    for _ in range(300):
        log: list[tuple[int, bool, bool]] = []  # producer id, is a marker, aborted
        open_since: dict[int, int] = {}
        aborted: list[tuple[int, int, int]] = []  # producer id, first offset, offset of the marker
        for offset in range(60):
            producer_id = draw.randrange(4)
            if producer_id in open_since and draw.random() < 0.3:
                first, aborts = open_since.pop(producer_id), draw.random() < 0.5
                log = [
                    (pid, is_marker, aborts if pid == producer_id and at >= first else old)
                    for at, (pid, is_marker, old) in enumerate(log)
                ]
                log.append((producer_id, True, aborts))
                aborted += [(producer_id, first, offset)] if aborts else []
            else:
                open_since.setdefault(producer_id, offset)
                log.append((producer_id, False, False))
        stable = min([len(log), *open_since.values()])
        start = draw.randrange(stable) if stable else 0
        # a broker returns the aborted transactions that end at the fetched offset or later
        rule = AbortedTransactions((pid, first) for pid, first, marker in aborted if marker >= start)
        for offset in range(start, stable):
            producer_id, is_marker, is_aborted = log[offset]
            drops = rule.drops(producer_id, offset, transactional=True, abort_marker=is_marker and is_aborted)
            assert is_marker or drops == is_aborted, (offset, log)
