"""KIP-1224 on trial: the group coordinator's adaptive append linger.

Published (KIP-1224): since 4.0 a coordinator waits 5 ms for more to write, so a commit takes those 5 ms where nobody
else commits; with the adaptive linger it takes less than 1 ms there, and no more than before under load.

Three runs are a Latin square: each broker is set to each linger once, so that the mean over the runs at the same slice
of time holds none of what brokers differ in. The slice is n.
"""

import math
from collections.abc import Sequence

from aftershock.results.trials import commits, kip1224_busy
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.commits import ADAPTIVE, FIXED, NONE
from aftershock.results.trials.kip1224_failover import survived
from aftershock.results.trials.kip1224_full import FULL, flushed
from aftershock.results.trials.part import Part
from aftershock.results.trials.slices import mean
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.steady import steady
from aftershock.results.trials.words import above, reported, within

IDLE = ("idle-1", "idle-2", "idle-3")
SHARE = ("share-1", "share-2", "share-3")
USER, OLD, FAILOVER = "user", "old", "failover"
PLAIN, TRANSACTIONAL, ACKNOWLEDGING = "commits/plain", "transactions/transactional", "shares/acknowledging"
SAVED_MS = 4.0
SAME_MS = 1.0
NO_LINGER_MS = 2.0
"""A transaction takes several requests, so its times are wider; a linger would show as 5 ms of them."""


def _differences(part: Part, client: str, slower: str, faster: str) -> list[float]:
    """How much later the median commit was answered, slice by slice."""
    found = commits.medians_ms(part, client, steady(part))
    return [one - other for one, other in zip(found.get(slower, ()), found.get(faster, ()), strict=False)]


def later_ms(runs: Sequence[Part], client: str, slower: str, faster: str, confidence: float = 0.95) -> Estimate:
    """The mean over slices of the mean over runs; no figure where in one nothing was answered."""
    differences = zip(*(_differences(run, client, slower, faster) for run in runs), strict=False)
    values = [math.fsum(each) / len(runs) for each in differences]
    if not all(map(math.isfinite, values)):
        return Estimate(None, None, None, len(values), "ms", confidence)
    return mean(values, "ms", confidence)


def _square(parts: Parts, names: Sequence[str] = IDLE) -> list[Part]:
    return [parts[name] for name in names]


def saved(parts: Parts) -> Judged:
    """The fixed linger against the adaptive one, plain commits."""
    return above(later_ms(_square(parts), PLAIN, FIXED, ADAPTIVE), SAVED_MS)


def as_none(parts: Parts) -> Judged:
    """The adaptive linger against none at all."""
    return within(later_ms(_square(parts), PLAIN, ADAPTIVE, NONE, 0.9), -SAME_MS, SAME_MS)


def transactions(parts: Parts) -> Judged:
    """The control: a transaction's commit is written at once, whatever the linger."""
    return within(later_ms(_square(parts), TRANSACTIONAL, FIXED, ADAPTIVE, 0.9), -NO_LINGER_MS, NO_LINGER_MS)


def idle_ms(parts: Parts) -> Judged:
    """How long a commit takes where nothing else is written: with everything between client and coordinator."""
    runs = [commits.medians_ms(run, PLAIN, steady(run))[ADAPTIVE] for run in _square(parts)]
    found = mean([math.fsum(each) / len(runs) for each in zip(*runs, strict=False)], "ms")
    return reported(found, "from the intended time, through a Python client and a proxy: the broker's part is smaller")


def user_saved(parts: Parts) -> Judged:
    """The same with the offsets topic on three brokers; one run, so brokers are not turned round."""
    return reported(later_ms([parts[USER]], PLAIN, FIXED, ADAPTIVE), "one run: what brokers differ in is in it")


def shared_saved(parts: Parts) -> Judged:
    """The share coordinator's linger, which is the same code, as Kafka's own share consumer sees it."""
    return above(later_ms(_square(parts, SHARE), ACKNOWLEDGING, FIXED, ADAPTIVE), SAVED_MS)


def old_default(parts: Parts) -> Judged:
    """What a coordinator of 4.1 does when nobody says anything, against no linger."""
    return reported(later_ms([parts[OLD]], PLAIN, commits.DEFAULT, NONE), "one run: what brokers differ in is in it")


def batched(parts: Parts) -> Judged:
    """Commits a flush, fixed by adaptive linger: at a low rate there is nothing to put together."""
    return commits.batching(_square(parts), FIXED, ADAPTIVE, 3)


CLAIMS = (
    Claim(
        "idle-saved",
        "idle: adaptive saves the fixed linger, p50",
        "5 ms to under 1 ms",
        "at least 4 ms saved",
        "claim",
        IDLE,
        saved,
    ),
    Claim(
        "idle-as-none",
        "idle: adaptive waits no longer than no linger, p50",
        "-",
        "within ±1 ms",
        "claim",
        IDLE,
        as_none,
    ),
    Claim(
        "killed-kept",
        "coordinator killed with batches under way: what was acknowledged stays",
        "-",
        "none lost",
        "claim",
        (FAILOVER,),
        lambda parts: survived(parts[FAILOVER], "lost"),
    ),
    Claim(
        "killed-monotonic",
        "and no group's position goes back",
        "-",
        "none goes back",
        "claim",
        (FAILOVER,),
        lambda parts: survived(parts[FAILOVER], "backward"),
    ),
    *kip1224_busy.CLAIMS,
    Claim(
        "full",
        "commits that fill a batch leave none without its flush: slowest",
        "-",
        "all answered within 2.5 s",
        "claim",
        (FULL,),
        lambda parts: flushed(parts[FULL]),
    ),
    Claim(
        "transactions",
        "transactional commits, which never linger: fixed against adaptive, p50",
        "-",
        "within ±2 ms",
        "control",
        IDLE,
        transactions,
    ),
    Claim("idle", "idle: p50 of a commit, adaptive", "under 1 ms", "", "report", IDLE, idle_ms),
    Claim("user", "offsets topic on three brokers: saved, p50", "-", "", "report", (USER,), user_saved),
    Claim(
        "share",
        "idle share groups, an acknowledgement: adaptive saves the fixed linger, p50",
        "5 ms to under 1 ms",
        "at least 4 ms saved",
        "report",
        SHARE,
        shared_saved,
    ),
    Claim("old", "Kafka 4.1.2 as it comes: later than without linger, p50", "5 ms", "", "report", (OLD,), old_default),
    Claim("batched", "idle: commits a flush, fixed by adaptive", "-", "", "report", IDLE, batched),
)
