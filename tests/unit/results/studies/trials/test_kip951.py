"""Statements of KIP-951 from given runs: the effect, no effect, the opposite effect, and an invalid control."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aftershock.results.compare import statistics
from aftershock.results.studies.part import Part
from aftershock.results.studies.statement import Word
from aftershock.results.studies.trials.claim import Parts, state_claims, verdict
from aftershock.results.studies.trials.kip951 import KAFKA_40, REGISTRATION, UNDELAYED, of_moving_partition, plots
from aftershock.tests.unit.results.studies.trials import on_disk
from aftershock.tests.unit.results.studies.trials.made import judge, measure, part
from aftershock.tests.unit.results.studies.trials.rows import part_of, produced
from aftershock.workloads.load.outcomes import SCHEMA


@pytest.fixture(autouse=True)
def _few_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the sign-flip test short: no word depends on its p-value."""
    monkeypatch.setattr(statistics, "FLIPS", 1_000)


NOISE = (1.0, 1.1, 0.95, 1.05, 0.9, 1.0, 1.08, 0.97)
DRIFT = (1.0, 1.02, 1 / 1.02, 1.01, 1 / 1.01, 1.03, 1 / 1.03)
DECIDING = [claim for claim in REGISTRATION.claims if claim.id in ("shared-300", "delay-300", "delay-0", "kill")]


def moves(name: str, both: float, neither: float, window: str = "fault/move", blocks: int = 24) -> Parts:
    """Return a part: the arm with the KIP and the arm without have these latencies in ms; the rejected arm is
    as slow as the latter.
    """
    arms = {"both": both, "hints": both, "retry": neither, "neither": neither}
    drawn = {
        f"moves/{arm}": [ms * NOISE[n % 8] * (DRIFT[n % 7] if arm == "both" else 1.0) for n in range(blocks)]
        for arm, ms in arms.items()
    }
    return {name: part(name, drawn, window=window)}


def run(delayed: tuple[float, float], quick: tuple[float, float], killed: tuple[float, float]) -> Parts:
    parts = {**moves("shared", *delayed), **moves("delay-300", *delayed)}
    for name in UNDELAYED:
        parts |= moves(name, *quick, window="fault", blocks=63)
    return {**parts, **moves("kill", *killed, window="fault/dead", blocks=8)}


ALIKE = (3500.0, 3500.0)


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        (run((100, 700), (90, 180), ALIKE), "confirmed"),
        (run((100, 150), (90, 180), ALIKE), "undecided"),
        (run((300, 150), (90, 180), ALIKE), "contradicted"),
        (run((100, 700), (100, 100), ALIKE), "excluded"),
        (run((100, 700), (90, 180), (2000, 3500)), "undecided"),
        (run((100, 700), (180, 90), ALIKE), "contradicted"),
        (moves("delay-300", 100, 700), "undecided"),
    ],
)
def test_verdict(parts: Parts, word: Word) -> None:
    """Cases are the claim, half of it, the opposite, no delay at all, a biased control, and parts that were not run."""
    assert word == verdict(state_claims(DECIDING, parts, {})).word


def test_moves_of_four_runs_are_one_sample() -> None:
    """The undelayed claim has 252 moves, more than one plan may repeat."""
    statements = {entry.id: entry for entry in state_claims(DECIDING, run((100, 700), (90, 180), ALIKE), {})}
    assert (252, "confirmed") == (statements["delay-0"].ours.n, statements["delay-0"].word)
    fewer = {**run((100, 700), (90, 180), ALIKE), **moves(UNDELAYED[0], 90, 180, "fault", blocks=29)}
    (short,) = [entry for entry in state_claims(DECIDING, fewer, {}) if entry.id == "delay-0"]
    assert ("undecided", True) == (short.word, "218 moves of 252 registered are too few" in short.why)


@pytest.mark.parametrize("claim", ["shared-300", "delay-300", "delay-0"])
def test_a_client_without_the_kip_confirms_nothing(claim: str) -> None:
    """Sabotage: both arms are clients without the KIP, so no effect appears."""
    parts = run((700, 700), (180, 180), ALIKE)
    (entry,) = [entry for entry in state_claims(DECIDING, parts, {}) if entry.id == claim]
    assert "excluded" == entry.word


def test_p999_needs_enough_records() -> None:
    """With too few records the quantile is not shown, and the text has the number of records."""
    result = {
        state_claim.id: state_claim
        for state_claim in state_claims(REGISTRATION.claims, moves("delay-300", 100, 700), {})
    }["classic-300"]
    assert result.ours.value is None
    assert "10000 records" in result.why


def test_the_plot() -> None:
    """The plot has a panel per claim and the arms' medians over its runs; without parts there is no plot."""
    parts = run((100, 700), (90, 180), ALIKE)
    for name in UNDELAYED[1:]:
        parts |= moves(name, 90, 800, window="fault")
    (plot,) = plots(parts)
    assert "delay-0, neither: median 720 ms" in plot.svg
    assert all(words in plot.svg for words in ("of the records", "no response is late", "own"))
    assert () == plots({})


def rounds(home: Path, both_ms: float, neither_ms: float, blocks: int = 13) -> Part:
    """Return a run in which partition 0 moves twice a block, 10 s apart.

    A record to it that is due right after a move takes as long as given, one in between 5 ms, one after the last move
    or to another partition 9 s.
    """
    journal, rows = [], []
    for block in range(1, blocks + 1):
        states = ((0, "intended"), (300, "witnessed"), (10_300, "witnessed"))
        journal += [
            {"fault": f"move-{block}-1", "state": state, "t_us": (20_000 * block + at_ms) * 1000}
            for at_ms, state in states
        ]
        for offset_s in (0, 10):
            for arm, slow_ms in (("both", both_ms), ("neither", neither_ms)):
                waited_ms = slow_ms * (NOISE[block % 8] if arm == "both" else 1)
                moving = (20 * block + offset_s) + 0.1
                for from_s, partition, ms in (
                    (moving, 0, waited_ms),
                    (moving, 1, 9000),
                    (moving + 2, 0, 9000 if offset_s else 5),
                ):
                    rows += produced(arm, [partition], workload="moves", from_s=from_s, latency_ms=ms)
    made = part_of(home, rows, {"move": (0, 300)}, journal=journal)
    steps = [{"id": f"move-{block}-1", "entry": "move", "block": block} for block in range(1, blocks + 1)]
    return Part("backoff-100", replace(made.run, timeline={**made.run.timeline, "steps": steps}))


def test_one_partition(tmp_path: Path) -> None:
    """Each move counts, records to other partitions and those due after the last move don't; blocks are the units."""
    run = rounds(tmp_path, 100, 400)
    ours = of_moving_partition(run, "moves/neither")
    assert dict.fromkeys(range(1, 14), (400_000, 2)) == {block: (v.value_us, v.n) for block, v in ours.items()}
    result = judge(REGISTRATION, "backoff-100", {"backoff-100": run})
    assert ("confirmed", 13, pytest.approx(0.25, rel=0.05)) == (result.word, result.ours.n, result.ours.value)
    assert result.why.endswith("26 moves")
    (plot,) = plots({"busy-300": run})
    assert ("(headline)" in plot.svg, "busy-300, neither: median 400 ms" in plot.svg) == (True, True)
    alike = {"backoff-100": rounds(tmp_path / "alike", 100, 100)}
    assert "undecided" == judge(REGISTRATION, "backoff-100", alike).word


def test_a_failed_record_leaves_its_block_without_a_value(tmp_path: Path) -> None:
    """A failed record is slower than any other."""
    run = rounds(tmp_path, 100, 400, blocks=6)
    table = pq.read_table(run.home / "outcomes" / "part-0.parquet").to_pylist()
    table[0]["status"] = "failed"
    pq.write_table(pa.Table.from_pylist(table, SCHEMA), run.home / "outcomes" / "part-0.parquet")
    blocks = of_moving_partition(run, "moves/both")
    assert [None] + [True] * 5 == [block.value_us and block.value_us > 0 for block in blocks.values()]


def undelayed(
    home: Path, retried: Mapping[str, Sequence[tuple[int, bool, str]]], both_ms: float, neither_ms: float
) -> Part:
    """Return 36 undelayed moves, 10 s apart; ``retried`` has each arm's retries of a batch in the first half of them.

    A retry is its leader epoch, whether it was immediate, and the error before it.
    """
    events = [
        {"event": "batch_retried", "t_us": (10 * move + 1) * 1_000_000 + number, "worker": arm, "workload": "moves"}
        | {"arm": arm, "partition": 0, "token": move, "records": 1, "attempts": number + 1}
        | {"epoch": epoch + move, "immediate": immediate, "reason": reason}
        for arm, attempts in retried.items()
        for move in range(1, 19)
        for number, (epoch, immediate, reason) in enumerate(attempts)
    ]
    made = on_disk.part(home, faults={"move": [10_000_000 * move for move in range(1, 37)]}, events=events)
    values = moves("", both_ms, neither_ms, "fault", 36)[""].run
    return Part(home.name, replace(made.run, analysis=values.analysis, timeline=values.timeline))


REFUSED = "NOT_LEADER_OR_FOLLOWER"


@pytest.mark.parametrize(
    ("retries", "percent"),
    [
        ([(2, True, REFUSED), (2, False, REFUSED)], 50),  # the new leader had not applied its epoch
        ([(2, True, REFUSED)], 0),
        ([(2, True, REFUSED), (3, True, REFUSED)], 0),  # another move, with a newer epoch
        ([(2, True, REFUSED), (2, False, "REQUEST_TIMED_OUT")], 0),
        ([(2, False, REFUSED), (2, False, REFUSED)], 0),  # Metadata was stale
    ],
)
def test_retries_that_are_refused_again(
    tmp_path: Path, retries: Sequence[tuple[int, bool, str]], percent: float
) -> None:
    """Half of the moves have such retries; what arm ``both`` loses in these moves is shown."""
    runs = {name: undelayed(tmp_path / name, {"both": retries}, 100, 100) for name in UNDELAYED}
    result = measure(REGISTRATION, "early-0", runs)
    assert (percent, 144) == (result.ours.value, result.ours.n)
    assert (f"both {72 if percent else 0} / " in result.why, "in the others: " in result.why) == (True, True)


def test_stale_metadata_of_older_brokers(tmp_path: Path) -> None:
    """A client without the KIP asks the old leader again; brokers of 4.0 let it do so in half of the moves."""
    stale = {"neither": [(1, False, REFUSED), (1, False, REFUSED)]}
    runs = {KAFKA_40: undelayed(tmp_path / "old", stale, 100, 300)}
    runs |= {name: undelayed(tmp_path / name, {}, 95, 100) for name in UNDELAYED}
    assert [50, 0] == [measure(REGISTRATION, claim, runs).ours.value for claim in ("stale-old", "stale-0")]
    assert "confirmed" == judge(REGISTRATION, "delay-0-old", runs).word
    newer = measure(REGISTRATION, "newer-brokers", runs)
    assert (36, pytest.approx(0.351, abs=0.005)) == (newer.ours.n, newer.ours.value)
    assert newer.ours.high is not None
    assert newer.ours.high < 1
    alike = {name: undelayed(tmp_path / f"alike-{name}", {}, 100, 100) for name in runs}
    assert "undecided" == judge(REGISTRATION, "delay-0-old", alike).word
