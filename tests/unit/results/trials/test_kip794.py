"""Statements of KIP-794 about records with a known distribution."""

import random
from pathlib import Path

import pytest

from aftershock.results.checks.check import Check
from aftershock.results.trials import kip794
from aftershock.results.trials.claim import state_claims
from aftershock.results.trials.kip794 import ARMS, REGISTRATION, plots
from aftershock.results.trials.kip794_placement import placed
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Word
from aftershock.tests.unit.results.trials.made import decide, doubted
from aftershock.tests.unit.results.trials.rows import Row, counter, part_of, produced

SLOW, EQUAL = {"series1": (0, 80), "series2": (0, 80)}, {"equal": (0, 80)}
MOSTLY_SLOW, EVENLY, SELDOM = [0, 0, 0, 1, 2], [0, 1, 2], [0, 1, 2, 1, 2]


def turns(pattern: list[int], records: int = 800, length: int = 1) -> list[int]:
    """Return turns of this number of records each."""
    return [pattern[n // length % len(pattern)] for n in range(records)]


def one_series(home: Path, placed_at: dict[str, list[Row]], checks: tuple[Check, ...] = ()) -> dict[str, Part]:
    rows = [row for each in placed_at.values() for row in each]
    result = part_of(home, rows, SLOW, checks=checks)
    return {"slow": result}


def test_distribution_of_bytes(tmp_path: Path) -> None:
    """60 % on the slow broker is a runaway, a third is even, a fifth is ordered by speed and less than a third."""
    made = {
        arm: produced(arm, turns(pattern))
        for arm, pattern in zip(ARMS, (MOSTLY_SLOW, EVENLY, SELDOM, SELDOM), strict=True)
    }
    parts = one_series(tmp_path, made)
    assert ("confirmed", pytest.approx(60, abs=1)) == (
        decide(REGISTRATION, "sticky-runs-away", kip794.runaway(parts["slow"])).word,
        kip794.runaway(parts["slow"]).ours.value,
    )
    assert "confirmed" == decide(REGISTRATION, "uniform-bytes", kip794.even(parts["slow"])).word
    result = decide(REGISTRATION, "adaptive-order-series1", kip794.ordered(parts["slow"], kip794.SERIES1))
    assert ("confirmed", pytest.approx(-20, abs=1)) == (result.word, result.ours.value)
    assert (
        "confirmed"
        == decide(
            REGISTRATION, "adaptive-less", kip794.less_than(parts["slow"], "adaptive", "uniform", kip794.SERIES1)
        ).word
    )
    assert (
        "contradicted"
        == decide(
            REGISTRATION, "adaptive-less", kip794.less_than(parts["slow"], "uniform", "adaptive", kip794.SERIES1)
        ).word
    )


def test_longer_turns_are_reported(tmp_path: Path) -> None:
    """Draws may be even and bytes uneven: the reason names turns of double length on a slow broker."""
    made = {"uniform": produced("uniform", turns([0, 0, 1, 2])), "sticky": produced("sticky", turns(MOSTLY_SLOW))}
    result = decide(REGISTRATION, "uniform-bytes", kip794.even(one_series(tmp_path, made)["slow"]))
    assert ("contradicted", pytest.approx(50 / 3, abs=1)) == (result.word, result.ours.value)
    assert "33.3 % were the slow broker" in result.why
    assert "a choice lasted for 2.0 records on the slow broker and 1.0 on the other brokers" in result.why


@pytest.mark.parametrize(("favoured", "fair"), [(0.5, True), (0.75, False)])
def test_draws(tmp_path: Path, favoured: float, fair: bool) -> None:
    """Fair draws pass the chi-square test; draws that prefer one of two partitions in three of four cases do not."""
    draw, where, at = random.Random(1), [], 0  # noqa: S311 - repeatable on purpose
    for _ in range(800):
        one, other = [partition for partition in range(3) if partition != at]
        at = one if draw.random() < favoured else other
        where.append(at)
    part = one_series(tmp_path, {"uniform": produced("uniform", where)})["slow"]
    p = kip794.draws(part, "uniform", kip794.SERIES1).ours.p
    assert p is not None
    assert fair == (p >= 0.01)


def test_few_draws_are_inconclusive(tmp_path: Path) -> None:
    """A hundred draws are too few to show fairness."""
    result = kip794.draws(
        one_series(tmp_path, {"uniform": produced("uniform", turns(EVENLY, length=8))})["slow"],
        "uniform",
        kip794.SERIES1,
    )
    assert "at least 200 are needed" in result.why


def test_p99(tmp_path: Path) -> None:
    """The ratio uses all records of the fault; the slope of latency shows a growing queue."""
    slow = [row | {"done_us": row["intended_us"] * 2 + 1000} for row in produced("sticky", turns(MOSTLY_SLOW))]
    parts = one_series(tmp_path, {"sticky": slow, "adaptive": produced("adaptive", turns(SELDOM), latency_ms=100)})
    assert "confirmed" == decide(REGISTRATION, "p99", kip794.p99_ratio(parts["slow"], "adaptive")).word
    assert "confirmed" == decide(REGISTRATION, "sticky-rises", kip794.rising(parts["slow"])).word
    quick = {
        "sticky": produced("sticky", turns(EVENLY)),
        "adaptive": produced("adaptive", turns(EVENLY), latency_ms=900),
    }
    result = kip794.p99_ratio(one_series(tmp_path / "quick", quick)["slow"], "adaptive")
    assert "contradicted" == decide(REGISTRATION, "p99", result).word


def test_an_exhausted_buffer(tmp_path: Path) -> None:
    """A record that failed without a partition found no buffer space; a client without such records bore the load."""
    rows = {
        "uniform": produced("uniform", [0, 1, 2] * 200 + [None] * 200),
        "adaptive": produced("adaptive", turns(EVENLY)),
    }
    parts = one_series(tmp_path, rows)
    assert 0 == kip794.exhausted(parts["slow"], "uniform", expected=True).violations
    assert 0 == kip794.exhausted(parts["slow"], "adaptive", expected=False).violations
    assert 1 == kip794.exhausted(parts["slow"], "adaptive", expected=True).violations


def test_after_the_heal(tmp_path: Path) -> None:
    """The backlog counts where records were acknowledged, not where they were sent."""
    backlog = produced("sticky", [0] * 600, from_s=40, per_s=20, latency_ms=40_000)
    new = produced("sticky", [1, 2] * 50, from_s=80)
    result = kip794.after_heal(one_series(tmp_path, {"sticky": [*backlog, *new]})["slow"])
    assert (0, 1) == (result.violations, result.ours.n)
    assert result.why.endswith("in that time the broker got 0.0 %")


def test_an_unwitnessed_delay_leaves_its_claims_inconclusive(tmp_path: Path) -> None:
    made = {arm: produced(arm, turns(EVENLY)) for arm in ARMS}
    parts = one_series(tmp_path, made, (doubted("witness/series1", "witness"),))
    result = state_claims(REGISTRATION.claims, parts, {"rack": "budget"})
    words = {each.id: (each.word, each.why) for each in result}
    assert ("undecided", "series1: the host was starved") == words["sticky-runs-away"]
    assert ("undecided", "equal was never injected") == words["batches"]
    assert "confirmed" == words["adaptive-bears"][0]


def test_equal_brokers(tmp_path: Path) -> None:
    """A third is even within the margin, four in ten are not; batches are compared by their bytes on the wire."""
    names = [f"client.sent_bytes/client_a-k{broker}/orders-{{}}-produce" for broker in (1, 2, 3)]
    samples = [
        row
        for arm, per_s in (("uniform", 2000), ("sticky", 3000))
        for broker, name in enumerate(names, 1)
        for row in counter(name.format(arm), broker, per_s, 90)
    ]
    rows = [*produced("uniform", turns(EVENLY)), *produced("sticky", turns([0, 0, 0, 1, 2]))]
    parts = {"slow": part_of(tmp_path, rows, EQUAL, samples=samples)}
    assert "confirmed" == decide(REGISTRATION, "equal-bytes-uniform", kip794.equal_bytes(parts["slow"], "uniform")).word
    assert (
        "contradicted" == decide(REGISTRATION, "equal-bytes-uniform", kip794.equal_bytes(parts["slow"], "sticky")).word
    )
    result = decide(REGISTRATION, "batches", kip794.batches(parts["slow"]))
    assert ("confirmed", pytest.approx(2 / 3)) == (result.word, result.ours.value)
    assert "600 bytes per record with uniform, 900 with sticky" in result.why


@pytest.mark.parametrize(("elsewhere", "word"), [((), "confirmed"), ((5,), "contradicted")])
def test_keys(tmp_path: Path, elsewhere: tuple[int, ...], word: Word) -> None:
    """One record in another partition in one arm contradicts the claim."""
    rows = [row for arm in ARMS for row in produced(arm, turns(EVENLY, 30), workload="keyed")]
    odd = [0 if n in elsewhere else n % 3 for n in range(30)]
    rows += produced("librdkafka", odd, workload="keyed")
    result = decide(REGISTRATION, "keyed", kip794.keyed(part_of(tmp_path, rows, EQUAL)))
    assert (word, 30) == (result.word, result.ours.n)


@pytest.mark.parametrize("strays", [0, 1])
def test_rack(tmp_path: Path, strays: int) -> None:
    """Records sent while the rack leads stay in the rack; the times of the kill and of the election back are
    excluded.
    """
    windows = {"steady": (0, 20), "gone": (20, 35), "recovery": (35, 80), "home": (50, 55)}
    near = [0] * 200 + [1, 2] * 175 + [1] * strays + [0] * 250
    topic = {"name": "orders", "assignment": {"0": [1, 2, 3], "1": [2, 3, 1], "2": [3, 1, 2]}}
    journal = [{"fault": "gone", "state": "healing", "t_us": 32_000_000}]
    rows = [*produced("near", near), *produced("anywhere", turns(EVENLY))]
    parts = {"rack": part_of(tmp_path, rows, windows, journal=journal, topics=[topic])}
    assert (strays, 2) == (kip794.near(parts["rack"]).violations, kip794.near(parts["rack"]).ours.n)
    assert 0 == kip794.away(parts["rack"]).violations


def test_cut_turns_are_excluded(tmp_path: Path) -> None:
    """The first and the last turn may be cut, so neither is counted."""
    result = placed(part_of(tmp_path, produced("sticky", [0, 1, 1, 2, 2, 2, 0]), SLOW), "orders/sticky").turns()
    assert ([1, 2], [2, 3]) == tuple(each.tolist() for each in result)


def test_plots(tmp_path: Path) -> None:
    """Each series that was run has a plot, with its figures as text."""
    made = {arm: produced(arm, turns(EVENLY)) for arm in ARMS}
    result = plots(one_series(tmp_path, made))
    assert 2 == len(result)
    assert "sticky 33 %" in result[0].reading
