"""Random faults and a simulated client: a correct client never fails, and a client that never recovers always fails.

This tests the promise that an ordinary cut fails no correct client. The simulator shares no code and no grace period
with the code under test.
"""

import random
from dataclasses import replace

import pytest

from aftershock.results.checks.doubts import NO_DOUBTS
from aftershock.results.checks.obligations.lanes import lanes
from aftershock.results.checks.progress import SHARE_MIN, obligation_checks
from aftershock.results.evidence.leadership import Leadership
from aftershock.results.model.check import Check, Status
from aftershock.results.model.facts import Distribution, Facts, Stall
from aftershock.tests.unit.results.checks.obligations.plays import Fault, Play, S
from aftershock.tests.unit.results.checks.obligations.simulator import Simulation

SEEDS = range(200)
THREE = {1: "a", 2: "b", 3: "c"}
FIVE = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b"}
APART = {1: "a", 2: "b", 3: "c", 11: "a", 12: "b", 13: "c"}


def drawn(source: random.Random) -> Play:
    """Draw one to three faults of any kind, at any time, overlapping or not."""
    racks, isolated = source.choice([(THREE, ()), (FIVE, ()), (APART, (11, 12, 13))])
    brokers = sorted(set(racks) - set(isolated))
    faults = [_fault(source, racks, brokers) for _ in range(source.randint(1, 3))]
    unique = list({fault.id: fault for fault in faults}.values())
    return Play(unique, racks, isolated, source.choice([1, 2]), {0: source.sample(brokers, 3)})


def _fault(source: random.Random, racks: dict[int, str], brokers: list[int]) -> Fault:
    kind = source.choice(["kill", "pause", "restart", "cut", "cut", "refuse", "mystery"])
    start = round(source.uniform(15, 80), 1)
    injected = start + source.uniform(0, 2)
    healing = injected + source.uniform(3, 40)
    times = (kind, start, injected, healing, healing + source.uniform(0, 3))
    if kind in ("kill", "pause", "restart"):
        return Fault(*times, brokers=(source.choice(sorted(racks)),), lasting=kind != "restart")
    if kind == "refuse":
        return Fault(*times, links=(f"client_a-k{source.choice(brokers)}",))
    return Fault(*times, links=_links(source, racks))


def _links(source: random.Random, racks: dict[int, str]) -> tuple[str, ...]:
    """Draw the links of a cut-off rack, of one channel between two racks, or any links."""
    every = [
        f"{c}_{r}-k{n}"
        for c in ("client", "replication", "controller")
        for n, h in racks.items()
        for r in "abc"
        if r != h
    ]
    one, other = source.sample("abc", 2)
    shape = source.choice(["rack", "channel", "some"])
    if shape == "rack":
        return tuple(link for link in every if (f"_{one}-" in link) != (racks[_end(link)] == one))
    if shape == "channel":
        channel = source.choice(["replication", "controller"])
        return tuple(link for link in every if link.startswith(f"{channel}_{one}-") and racks[_end(link)] == other)
    return tuple(source.sample(every, source.randint(1, 4)))


def _end(link: str) -> int:
    return int(link.rpartition("k")[2])


def judged(
    play: Play, stalls: list[tuple[float, float]], acks: str = "all", leaders: tuple[Leadership, ...] | None = None
) -> Check:
    """Return the obligation check of a producer with these stalls on its only partition."""
    seen = tuple(Stall("produce", "w/base", 0, round(start * S), round(end * S)) for start, end in stalls)
    known = {("produce.latency", "w/base", "run"): Distribution(n=1000)}
    facts = Facts(distributions=known, stalls=seen)
    evidence = play.evidence()
    evidence = replace(evidence, clients=tuple(replace(client, acks=acks) for client in evidence.clients))
    evidence = replace(evidence, leaders=leaders)
    (check,) = (each for each in obligation_checks(evidence, facts, NO_DOUBTS) if each.id == "obligation/produce")
    return check


def test_a_producer_without_acknowledgements_can_only_fail() -> None:
    """With acks=0 a send shows no progress; without a long stall the check is undecided, and only reported."""
    acknowledged = judged(Play(), [(40, 42)])
    sent = [judged(Play(), stalls, acks="0") for stalls in ([(40, 42)], [], [(40, 70)])]
    assert (Status.PASS, True) == (acknowledged.status, acknowledged.gate)
    open_, failed = (Status.INCONCLUSIVE, False), (Status.FAIL, True)
    assert [open_, open_, failed] == [(check.status, check.gate) for check in sent]
    assert sent[0].why == f"with acks=0 no record was acknowledged, only sent; measured: {acknowledged.why}"


def progress_is_due(play: Play, since_s: float) -> bool:
    """Return whether a client that stops at ``since_s`` must be reported."""
    spans = [span for span in lanes(play.evidence())[0].of(0) if span.required and span.start_us >= since_s * S]
    return any(min(span.end_us, play.end_s * S) - span.start_us > span.patience_us + S for span in spans)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_client_never_fails(seed: int) -> None:
    """A simulated client passes for any schedule and any speed of recovery within the limits, whether the evidence has
    the leaders or not. If progress was required for too little of the time, the check says so instead.
    """
    source = random.Random(seed)  # noqa: S311 - repeatable on purpose
    play = drawn(source)
    simulation = Simulation(play, source)
    stalls = list(simulation.stalls())

    for leaders in (None, simulation.leaders()):
        check = judged(play, stalls, leaders=leaders)
        assert check.status is (Status.PASS if check.gate else Status.INCONCLUSIVE), (check.why, play.faults, leaders)
        assert check.gate == (check.share is not None and check.share >= SHARE_MIN)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_that_never_comes_back_fails(seed: int) -> None:
    """A client that stops at the first fault fails if progress is due later for longer than its permitted delay."""
    source = random.Random(seed)  # noqa: S311 - repeatable on purpose
    play = drawn(source)
    stuck_s = min(fault.start_s for fault in play.faults)
    check = judged(play, list(Simulation(play, source, stuck_after_s=stuck_s).stalls()))

    assert check.status is Status.FAIL or not progress_is_due(play, stuck_s)


def test_recorded_leaders_let_more_of_the_time_be_judged() -> None:
    """Over all schedules, most of which cut links between nodes, where leaders matter less."""
    shares = []
    for seed in SEEDS:
        source = random.Random(seed)  # noqa: S311 - repeatable on purpose
        play = drawn(source)
        simulation = Simulation(play, source)
        stalls = list(simulation.stalls())
        without, known = judged(play, stalls), judged(play, stalls, leaders=simulation.leaders())
        shares.append((without.share or 0, known.share or 0))
    assert sum(known for _, known in shares) > 1.05 * sum(without for without, _ in shares)


def test_random_schedules_stall_clients_and_owe_progress() -> None:
    """Most schedules stall the client and owe it progress later; many also owe progress while a fault is in force."""
    plays = [(drawn(source), source) for source in map(random.Random, SEEDS)]
    stalled = sum(bool(list(Simulation(play, source).stalls())) for play, source in plays)
    spans = [(play, span) for play, _ in plays for span in lanes(play.evidence())[0].of(0) if span.required]
    during = {id(play) for play, span in spans for fault in play.faults if _within(span.start_us, span.end_us, fault)}
    caught = sum(progress_is_due(play, min(fault.start_s for fault in play.faults)) for play, _ in plays)

    counts = (stalled, len(during), caught)
    assert all(count >= least for count, least in zip(counts, (100, 50, 150), strict=True)), counts


def _within(start_us: int, end_us: int, fault: Fault) -> bool:
    return min(end_us, fault.healing_s * S) - max(start_us, fault.injected_s * S) > S
