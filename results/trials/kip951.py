"""KIP-951, leader discovery: what it claims, and what the moves say of it.

The statistic is the worst latency among the records of one move's window, a number a move and arm, paired by move: at a
low rate the first refresh of metadata heals every partition, so a quantile of all records would see nothing but the
records in between. The window opens when the move is asked for, 0.1 s and more before leaders change, so that what is
in flight then is in it, and closes a second after they have. Beside it stands the classic p99.9 of all records under
the moves, where there are the 10 000 that it takes.

Arms: ``both`` is the KIP (hints, and a retry at once), ``neither`` the client before it, ``retry`` the alternative that
the KIP rejected, ``hints`` the other half. Published: the KIP's micro-benchmark, p99.9 of produce 1675 ms without and
215 ms with it; 1781, 1934 and 5352 ms for a retry at once without hints.

Where Metadata is late, it has a connection of its own, in all arms. On the shared one that Kafka's clients use answers
come in order, so the late one, which every client asks for in the background, holds up the records behind it for as
long: measured so (``shared-300``), the KIP's arm is as slow as the answer is late.

The control compares hints with no hints under one rule of retrying. Not the whole KIP with none of it: Kafka retries at
once after *any* news of a leader, Metadata's too (``docs/KIPS.md``), so that half may help after a kill.
"""

from collections.abc import Mapping
from functools import partial

from aftershock.results.comparing.blocks import Block
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Estimate, Judged, unknown
from aftershock.results.trials.words import below, reported, within

WORST = "produce.latency max in fault/move"
WORST_ALONE = "produce.latency max in fault"  # where moves are the only fault, there is no window of their own
WORST_KILL = "produce.latency max in fault/dead"
BOTH, NEITHER, RETRY, HINTS = (f"moves/{arm}" for arm in ("both", "neither", "retry", "hints"))
P999_RECORDS_MIN = 10_000
MARGIN = 1.25
TOST = 0.90  # the interval whose ends are two one-sided tests at one in twenty
DELAYS_MS: Mapping[str, int] = {"delay-0": 0, "delay-100": 100, "delay-300": 300}
"""The parts with moves, and how late Metadata answers are in each."""


def worst(name: str) -> str:
    """The measure of a part's moves."""
    return WORST_ALONE if DELAYS_MS.get(name) == 0 else WORST


def _pair(part: str, ours: str, theirs: str, parts: Parts) -> Estimate:
    return parts[part].ratio(ours, theirs, worst(part))


def _below(part: str, ours: str, theirs: str, bound: float, parts: Parts) -> Judged:
    found = below(_pair(part, ours, theirs, parts), bound)
    return Judged(found.ours, found.word, f"{found.why}; {medians(parts[part], ours, theirs, worst(part))}")


def _reported(part: str, ours: str, theirs: str, parts: Parts) -> Judged:
    return reported(_pair(part, ours, theirs, parts), medians(parts[part], ours, theirs, worst(part)))


def medians(part: Part, ours: str, theirs: str, measure: str) -> str:
    """The two sides in milliseconds, each in the middle of its moves."""
    return middles(*(part.blocks(client, measure) for client in (ours, theirs)))


def middles(*sides: Mapping[int, Block]) -> str:
    """The same of blocks in hand."""
    found = map(_middle_ms, sides)
    return " by ".join("no value" if ms is None else f"{ms:.0f} ms" for ms in found) + " in the median"


def _middle_ms(blocks: Mapping[int, Block]) -> float | None:
    values = sorted(block.value_us for block in blocks.values() if block.value_us is not None)
    return values[len(values) // 2] / 1e3 if values else None


def _control(parts: Parts) -> Judged:
    found = within(parts["kill"].ratio(BOTH, RETRY, WORST_KILL, confidence=TOST), 1 / MARGIN, MARGIN)
    return Judged(found.ours, found.word, f"{found.why}; {medians(parts['kill'], BOTH, RETRY, WORST_KILL)}")


def _whole_kip_at_a_kill(parts: Parts) -> Judged:
    found = parts["kill"].ratio(BOTH, NEITHER, WORST_KILL)
    return reported(found, medians(parts["kill"], BOTH, NEITHER, WORST_KILL))


def _classic(part: str, parts: Parts) -> Judged:
    """p99.9 of all records under the moves, ours by theirs: one number of all of them, so it has no interval."""
    window = "fault" if DELAYS_MS[part] == 0 else "fault/move"
    sides = [parts[part].quantile_us(client, "produce.latency", window, 0.999) for client in (BOTH, NEITHER)]
    fewest = min(n for _, n in sides)
    if fewest < P999_RECORDS_MIN:
        return reported(unknown("times"), f"p99.9 takes {P999_RECORDS_MIN} records an arm, and there are {fewest}")
    ours_us, theirs_us = (value for value, _ in sides)
    if ours_us is None or not theirs_us:
        return reported(unknown("times"), "a failed record is slower than any: there is no ratio")
    why = f"{ours_us / 1e3:.0f} ms by {theirs_us / 1e3:.0f} ms, of {fewest} records an arm"
    return reported(Estimate(ours_us / theirs_us, None, None, 1, "times"), why)


PUBLISHED = "p99.9 215 ms with, 1675 ms without: 0.13 times"
REJECTED = "p99.9 215 ms with, 1781, 1934 and 5352 ms at once without hints: 0.07 times"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "delay-300",
        "Leaders move while Metadata answers are 300 ms late: the slowest record of a move, with the KIP by without",
        PUBLISHED,
        "below 0.5",
        "claim",
        ("delay-300",),
        partial(_below, "delay-300", BOTH, NEITHER, 0.5),
    ),
    Claim(
        "rejected-300",
        "The same, with the KIP by a retry at once without hints, which the KIP rejected",
        REJECTED,
        "below 1",
        "claim",
        ("delay-300",),
        partial(_below, "delay-300", BOTH, RETRY, 1.0),
    ),
    Claim(
        "delay-0",
        "Leaders move and nothing is late: the slowest record of a move, with the KIP by without",
        PUBLISHED,
        "below 1",
        "claim",
        ("delay-0",),
        partial(_below, "delay-0", BOTH, NEITHER, 1.0),
    ),
    Claim(
        "kill",
        "A leader is killed, so nobody can hint: the slowest record of a kill, hints by no hints",
        "",
        "within 0.8 to 1.25, by TOST",
        "control",
        ("kill",),
        _control,
    ),
    Claim(
        "delay-100",
        "Leaders move while Metadata answers are 100 ms late: with the KIP by without",
        PUBLISHED,
        "below 1",
        "report",
        ("delay-100",),
        partial(_below, "delay-100", BOTH, NEITHER, 1.0),
    ),
    Claim(
        "shared-300",
        "As the first, but Metadata goes over the records' connection and holds them up: with the KIP by without",
        PUBLISHED,
        "below 1",
        "report",
        ("shared",),
        partial(_below, "shared", BOTH, NEITHER, 1.0),
    ),
    Claim(
        "rejected-0",
        "Leaders move and nothing is late: with the KIP by a retry at once without hints",
        REJECTED,
        "",
        "report",
        ("delay-0",),
        partial(_reported, "delay-0", BOTH, RETRY),
    ),
    Claim(
        "hints-300",
        "Leaders move while Metadata answers are 300 ms late: hints alone by neither",
        "",
        "",
        "report",
        ("delay-300",),
        partial(_reported, "delay-300", HINTS, NEITHER),
    ),
    Claim(
        "classic-300",
        "Metadata answers 300 ms late: the classic p99.9 of all records under the moves",
        PUBLISHED,
        "",
        "report",
        ("delay-300",),
        partial(_classic, "delay-300"),
    ),
    Claim(
        "kill-whole",
        "A leader is killed: the whole KIP by none of it, retrying at once on Metadata's news included",
        "",
        "",
        "report",
        ("kill",),
        _whole_kip_at_a_kill,
    ),
)
