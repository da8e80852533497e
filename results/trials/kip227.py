"""KIP-227 on trial: incremental fetch requests.

Published (KIP-227): a fetch costs what changed and no longer all partitions that are followed; the KIP gives no figures
of its own. Named in full, a partition is about 70 bytes of a request and its response (Fetch 15 and later: 33 and 37).

The slice of time is n: in each, a line through the four sizes says what one more partition costs.
"""

from functools import partial

import numpy as np

from aftershock.results.trials import kip227_brokers
from aftershock.results.trials import kip227_sessions as sessions
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.fetches import FULL, INCREMENTAL, bytes_a_fetch, fetches
from aftershock.results.trials.kept import kept
from aftershock.results.trials.part import Part
from aftershock.results.trials.slices import mean
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.steady import steady
from aftershock.results.trials.words import below, reported, within

SIZES = (50, 200, 500, 1000)
BYTES, CONTROL, SESSIONS, EVICTED = "bytes", "control", "sessions", "evicted"
FULL_SLOPE = (60.0, 80.0)
INCREMENTAL_SLOPE = 1.0
SHARE = 0.03
GAIN = 1.25
_ARMS = {FULL: "full", INCREMENTAL: "session"}


def costs(part: Part, kind: str) -> dict[int, list[float]]:
    """Partitions → bytes a fetch, slice by slice."""
    spans = steady(part)
    return {size: bytes_a_fetch(part, f"p{size}/{_ARMS[kind]}", kind, spans) for size in SIZES}


def slope(found: dict[int, list[float]], confidence: float) -> Estimate:
    """Bytes that one more partition adds: a line through the sizes in each slice, and the mean of their slopes."""
    sizes, rows = np.array(SIZES, float), np.array([found[size] for size in SIZES], float)
    off = sizes - sizes.mean()
    return _mean([float(off @ row / (off @ off)) for row in rows.T], "B", confidence)


def full_slope(parts: Parts) -> Judged:
    """Without sessions."""
    return within(slope(costs(parts[BYTES], FULL), 0.9), *FULL_SLOPE)


def incremental_slope(parts: Parts) -> Judged:
    """With sessions; contrary is what costs as much as without."""
    return below(slope(costs(parts[BYTES], INCREMENTAL), 0.95), INCREMENTAL_SLOPE, no_effect=FULL_SLOPE[0])


def share(parts: Parts) -> Judged:
    """An incremental fetch by a full one, of a thousand partitions."""
    ours, theirs = (costs(parts[BYTES], kind)[SIZES[-1]] for kind in (INCREMENTAL, FULL))
    return below(_ratio(ours, theirs, 0.95), SHARE)


def no_gain(parts: Parts) -> Judged:
    """The control: with records for every partition, a session has nothing to leave out."""
    part = parts[CONTROL]
    spans = steady(part)
    ours, theirs = (bytes_a_fetch(part, f"busy/{_ARMS[kind]}", kind, spans) for kind in (INCREMENTAL, FULL))
    return within(_ratio(ours, theirs, 0.9), 1 / GAIN, GAIN)


def largest(parts: Parts, kind: str) -> Judged:
    """What a fetch of a thousand partitions costs."""
    part = parts[BYTES]
    count = sum(fetches(part, f"p{SIZES[-1]}/{_ARMS[kind]}", kind, steady(part)))
    return reported(_mean(costs(part, kind)[SIZES[-1]], "B", 0.95), f"{count:.0f} fetches, records not counted")


def _nothing_lost(parts: Parts, name: str) -> Judged:
    return kept(parts[name], ("lost", "duplicate", "skipped"))


def _none_left(parts: Parts, name: str) -> Judged:
    return sessions.none_left(parts[name])


def _ratio(ours: list[float], theirs: list[float], confidence: float) -> Estimate:
    return _mean([one / other for one, other in zip(ours, theirs, strict=True)], "times", confidence)


def _mean(values: list[float], unit: str, confidence: float) -> Estimate:
    """Over slices; no figure where one of them had no fetch."""
    if not np.isfinite(values).all():
        return Estimate(None, None, None, len(values), unit, confidence)
    return mean(values, unit, confidence)


CLAIMS = (
    Claim(
        "full-slope",
        "without sessions a fetch grows with every partition",
        "O(all)",
        "60 to 80 B a partition",
        "claim",
        (BYTES,),
        full_slope,
    ),
    Claim(
        "incremental-slope",
        "with sessions it doesn't, 1 % being active",
        "O(changed)",
        "below 1 B a partition",
        "claim",
        (BYTES,),
        incremental_slope,
    ),
    Claim("share", "of 1000 partitions: incremental by full", "-", "below 3 %", "claim", (BYTES,), share),
    Claim(
        "closed-by-stranger",
        "session closed by a stranger: the next fetch is full, and is answered",
        "-",
        "each at once",
        "claim",
        (SESSIONS,),
        lambda parts: sessions.regained(parts[SESSIONS], sessions.STRANGER),
    ),
    Claim(
        "restarted",
        "broker restarted: one full fetch opens the next session",
        "-",
        "each at once",
        "claim",
        (SESSIONS,),
        lambda parts: sessions.reopened(parts[SESSIONS], sessions.RESTART),
    ),
    Claim(
        "evicted",
        "session evicted for a follower's: the next fetch is full, and is answered",
        "-",
        "each at once",
        "claim",
        (EVICTED,),
        lambda parts: sessions.regained(parts[EVICTED], sessions.BACK),
    ),
    *(
        Claim(
            f"nothing-lost-{name}",
            f"{name}: nothing is lost or read twice",
            "-",
            "none",
            "claim",
            (name,),
            partial(_nothing_lost, name=name),
        )
        for name in (SESSIONS, EVICTED)
    ),
    *(
        Claim(
            f"left-{name}",
            f"{name}: no session is left when the clients have closed",
            "-",
            "none",
            "claim",
            (name,),
            partial(_none_left, name=name),
        )
        for name in (SESSIONS, EVICTED)
    ),
    Claim("no-gain", "every partition active: incremental by full", "-", "0.8 to 1.25", "control", (CONTROL,), no_gain),
    *(
        Claim(
            f"bytes-{kind}",
            f"a fetch of 1000 partitions, {kind}",
            "-",
            "",
            "report",
            (BYTES,),
            partial(largest, kind=kind),
        )
        for kind in (FULL, INCREMENTAL)
    ),
    *kip227_brokers.CLAIMS,
)
