"""KIP-227 at the brokers: what fetches cost them, the consumers' and their followers' own.

Rules. What a broker used in the steady part is the kernel's account of its container, whatever it was for; one arm at a
time, therefore. Followers take no setting for their sessions; a cache without slots grants them none.
"""

import numpy as np

from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.fetches import FULL, INCREMENTAL, cpu_us_a_fetch, used
from aftershock.results.trials.part import Part
from aftershock.results.trials.slices import Floats, ratio
from aftershock.results.trials.statement import Estimate, Judged, unknown
from aftershock.results.trials.words import below, reported

CPU_SESSION, CPU_FULL = "cpu-session", "cpu-full"
FOLLOWERS_SESSION, FOLLOWERS_FULL = "followers-session", "followers-full"
_US_PER_S = 1e6
_NODES_MIN = 3
_UNTOLD = "nobody told what brokers used"


def cpu(parts: Parts) -> Judged:
    """A broker's CPU a fetch of a thousand partitions, all else that it does included: with sessions by without."""
    kinds = {CPU_SESSION: INCREMENTAL, CPU_FULL: FULL}
    ours, theirs = (cpu_us_a_fetch(parts[name], "p1000/reader", kind) for name, kind in kinds.items())
    if not ours or not theirs:
        return reported(unknown("times"), _UNTOLD)
    why = f"{ours:,.0f} us a fetch with sessions, {theirs:,.0f} without; one run each, all that a broker does included"
    return reported(Estimate(ours / theirs, None, None, 1, "times"), why)


def followers_bytes(parts: Parts) -> Judged:
    """What brokers send where followers have sessions, by where they have none: the broker is n."""
    if (found := _followers(parts, "sent_bytes")) is None:
        return reported(unknown("times"), _UNTOLD)
    judged = below(ratio(*found), 1.0, least=_NODES_MIN)
    ours, theirs = (side.mean() / 1e3 for side in found)
    why = f"{ours:,.0f} and {theirs:,.0f} kB/s of each broker, records too"
    return Judged(judged.ours, judged.word, f"{judged.why}; {why}")


def followers_cpu(parts: Parts) -> Judged:
    """The same of their CPU."""
    if (found := _followers(parts, "cpu_us")) is None:
        return reported(unknown("times"), _UNTOLD)
    ours, theirs = (side.mean() / 1e4 for side in found)
    return reported(ratio(*found), f"{ours:.1f} % and {theirs:.1f} % of a core a broker; one run each")


def _followers(parts: Parts, name: str) -> tuple[Floats, Floats] | None:
    """Broker by broker, with sessions and without; None where one of the runs didn't tell of all."""
    ours, theirs = (_each_second(parts[part], name) for part in (FOLLOWERS_SESSION, FOLLOWERS_FULL))
    return (ours, theirs) if len(ours) == len(theirs) > 0 else None


def _each_second(part: Part, name: str) -> Floats:
    """By broker."""
    spans, brokers = used(part)
    took_s = sum(span.end_us - span.start_us for span in spans) / _US_PER_S
    return np.array([each[name] / took_s for _, each in sorted(brokers.items())])


CLAIMS = (
    Claim(
        "cpu",
        "broker's CPU a fetch of 1000 partitions: incremental by full",
        "-",
        "",
        "report",
        (CPU_SESSION, CPU_FULL),
        cpu,
    ),
    Claim(
        "followers-bytes",
        "what brokers send, 300 partitions of which 3 are active: followers with sessions by a cache without slots",
        "-",
        "below 1",
        "report",
        (FOLLOWERS_SESSION, FOLLOWERS_FULL),
        followers_bytes,
    ),
    Claim(
        "followers-cpu",
        "the same of their CPU",
        "-",
        "",
        "report",
        (FOLLOWERS_SESSION, FOLLOWERS_FULL),
        followers_cpu,
    ),
)
