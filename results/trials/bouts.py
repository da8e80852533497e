"""Commits that were dealt coordinator by coordinator, cut into bouts: what a busy coordinator does while it is alone.

Rules. A bout is one round's commits to one coordinator, neighbours in the order of sending. Only rounds that lie wholly
in the steady part count. The first and the last commits of a bout, as many as a closed loop has in flight, share the
host with the coordinator before or after and are left out. A commit that failed is slower than any.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aftershock.results.trials import commits
from aftershock.results.trials.part import Part
from aftershock.results.trials.slices import Floats, quantile
from aftershock.results.trials.steady import steady

US_PER_S = 1_000_000


class Bout(NamedTuple):
    """How many commits a second were sent, and how long they took."""

    per_s: float
    p50_ms: float
    p99_ms: float


def bouts(part: Part) -> dict[str, list[Bout]]:
    """By the coordinator's setting, round by round."""
    commit, spans = part.run.timeline["workloads"][0]["commit"], steady(part)
    rows = part.outcomes(("seq", *commits.COLUMNS), pc.field("op") == "commit").sort_by("seq")
    intended = rows["intended_us"].to_numpy()
    rows = rows.filter(pa.array((intended >= spans[0].start_us) & (intended < spans[-1].end_us)))
    rounds, told = rows["seq"].to_numpy() // commit["groups"], commits.settings_of(part, rows)
    numbers, counts = np.unique(rounds, return_counts=True)
    whole = numbers[counts == commit["groups"]]
    edge = commit.get("in_flight", 0)
    found: dict[str, list[Bout]] = {}
    for setting in sorted(set(commits.lingers(part).values())):
        places = [np.flatnonzero((rounds == each) & (told == setting)) for each in whole]
        found[setting] = [_bout(rows.take(pa.array(of[edge : len(of) - edge]))) for of in places]
    return found


def _bout(rows: pa.Table) -> Bout:
    intended, took = rows["intended_us"].to_numpy(), commits.took_ms(rows)
    return Bout(_per_s(intended.astype(float)), quantile(took, 0.5), quantile(took, 0.99))


def _per_s(intended_us: Floats) -> float:
    return float((len(intended_us) - 1) * US_PER_S / np.ptp(intended_us)) if len(intended_us) > 1 else np.nan
