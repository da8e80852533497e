"""Defects of obligations: a client stands still or fails although nothing keeps it from making progress.

Places are chosen by what docs/OBLIGATIONS.md lets a fault excuse, with generous times after it: 10 s for a delay or
a move of leaders, 20 s for a node that closed its connections, 60 s for a client process, and 30 s for anything else.
"""

from random import Random

from aftershock.results.evidence.evidence import Client
from aftershock.tests.judge_mutants import edits
from aftershock.tests.judge_mutants.anatomy import Anatomy, Fault, S
from aftershock.tests.judge_mutants.draft import Draft, recount
from aftershock.tests.judge_mutants.kinds import Plant, kind

_DELAYS = (
    "latency",
    "slow_rack",
    "bandwidth",
    "slice",
    "packet_delay",
    "packet_reorder",
    "packet_duplicate",
    "slow_disk",
)
_MOVES = ("elect", "reassign", "config", "add_partitions")
_CLOSES = ("kill", "stop", "restart", "kill_controller", "move_controller", "refuse", "reset", "rolling_restart")
_STALL_MIN_US, _STALL_MAX_US = 9 * S, 16 * S


def _settle_us(fault: Fault) -> int:
    if fault.kind in _DELAYS or fault.kind in _MOVES:
        return 10 * S
    if fault.targets.get("clients"):
        return 60 * S
    return 20 * S if fault.kind in _CLOSES else 30 * S


def free(run: Anatomy, least_us: int) -> list[tuple[int, int]]:
    """Return the spans after warm-up in which every client must make progress, of at least ``least_us``."""
    spans, at = [], run.steady_us
    for fault in sorted(run.faults, key=lambda fault: fault.start_us):
        spans.append((at, fault.start_us))
        at = max(at, fault.end_us + _settle_us(fault))
    spans.append((at, run.load_end_us))
    return [(start, end) for start, end in spans if end - start >= least_us]


def _status(run: Anatomy) -> str:
    """Return what must be said of a stall: without the voters (an attached cluster) no obligation is known."""
    return "FAIL" if run.run.documents["run.json"].get("voters") else "INCONCLUSIVE"


def _plant(run: Anatomy, client: Client, op: str, place: str) -> Plant:
    return Plant(place, (f"obligation/{op}",), client.arm, status=_status(run), touched=frozenset({client.arm}))


def _stall(run: Anatomy, draft: Draft, dice: Random, op: str, *, partition: bool = False) -> Plant | None:
    clients = [client for client in run.clients if op in client.topics and not (op == "produce" and client.acks == "0")]
    spans = free(run, _STALL_MIN_US + S)
    if not clients or not spans:
        return None
    client, (start, end) = dice.choice(clients), dice.choice(spans)
    length = dice.randint(_STALL_MIN_US, min(_STALL_MAX_US, end - start - S // 2))
    at_us = dice.randrange(start, end - length)
    rows = run.outcomes[(run.outcomes["arm"] == client.arm) & (run.outcomes["op"] == op)]
    rows = rows[rows["done_us"].between(at_us, at_us + length)]
    if len(rows) < 30:
        return None
    which, name = {}, ""
    if partition:
        topic, number = dice.choice(sorted({*zip(rows["topic"].dropna(), rows["partition"].dropna(), strict=True)}))
        which, name = {"topic": topic, "partition": int(number)}, f" {topic}/{number}"
        if ((rows["topic"] == topic) & (rows["partition"] == number)).sum() < 15:
            return None
    edits.hold(draft, run, client.arm, op, at_us, at_us + length, **which)
    return _plant(run, client, op, f"{client.arm}{name} from {at_us / S:.1f} s for {length / S:.1f} s")


@kind("obligations", "a producer gets no acknowledgement for 9 to 16 s, far from every fault")
def stall_of_a_producer(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _stall(run, draft, dice, "produce")


@kind("obligations", "a reader delivers nothing for 9 to 16 s, far from every fault")
def stall_of_a_reader(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _stall(run, draft, dice, "consume")


@kind("obligations", "a committing client gets no answer for 9 to 16 s, far from every fault")
def stall_of_commits(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _stall(run, draft, dice, "commit")


@kind("obligations", "one partition of a producer is silent for 9 to 16 s while the others go on")
def silence_of_a_partition(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _stall(run, draft, dice, "produce", partition=True)


@kind("obligations", "one partition of a reader is silent for 9 to 16 s while the others go on")
def silence_of_a_partition_at_a_reader(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _stall(run, draft, dice, "consume", partition=True)


@kind("obligations", "a client hangs for 12 to 20 s from a second after a latency was healed")
def hang_after_a_healed_latency(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """A delay loses no request and closes no connection, so nothing is left of it a second after its end."""
    choices = []
    for fault in run.faults:
        start = fault.end_us + S
        others = [
            each
            for each in run.faults
            if each != fault and each.end_us + _settle_us(each) > start and each.start_us < start
        ]
        end = min((each.start_us for each in run.faults if each.start_us >= start), default=run.load_end_us)
        if fault.kind == "latency" and not others and end - start > 12 * S:
            choices.append((start, end))
    clients = [client for client in run.clients if "produce" in client.topics or "consume" in client.topics]
    if not choices or not clients:
        return None
    client, (start, end) = dice.choice(clients), dice.choice(choices)
    op = dice.choice([op for op in ("produce", "consume") if op in client.topics])
    length = dice.randint(12 * S, min(20 * S, end - start))
    if edits.hold(draft, run, client.arm, op, start, start + length) < 30:
        return None
    return _plant(run, client, op, f"{client.arm} from {start / S:.1f} s for {length / S:.1f} s")


def _fail_to_the_end(run: Anatomy, draft: Draft, dice: Random, start_us: int, *, at_once: bool) -> Plant | None:
    clients = [client for client in run.producers if client.acks != "0"]
    if not clients or run.load_end_us - start_us < _STALL_MIN_US:
        return None
    client = dice.choice(clients)
    rows = run.produced[(run.produced["arm"] == client.arm) & (run.produced["workload"] == client.workload)]
    rows = rows[rows["intended_us"] >= start_us]
    records = run.records_of(client)
    records = records[records["row"].isin(rows.index)]
    if len(rows) < 30 or len(records) != len(rows):
        return None
    outcomes = draft.table("outcomes")
    outcomes.loc[rows.index, ["offset", "leader_epoch"]] = outcomes["offset"].dtype.na_value
    outcomes.loc[rows.index, "status"] = "failed" if at_once else "in_doubt"
    outcomes.loc[rows.index, "error"] = "INVALID_RECORD" if at_once else "_MSG_TIMED_OUT"
    outcomes.loc[rows.index, "done_us"] = rows["intended_us"] + (2000 if at_once else 5 * S)
    for (topic, partition), part in records.groupby(["topic", "partition"]):
        offsets = [int(offset) for offset in part["offset"]]
        edits.remove_records(draft, dice, topic, int(partition), offsets, delivered=False, close=True)
    recount(draft)
    place = f"{client.arm} from {start_us / S:.1f} s to the end"
    plant = _plant(run, client, "produce", place)
    return Plant(
        plant.place, plant.checks, plant.arm, status=plant.status, touched=run.touched(str(records["topic"].iloc[0]))
    )


@kind("obligations", "every record of a client times out, from a time far after the last fault to the end")
def fails_to_the_end(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    start = max([run.steady_us, *(fault.end_us + _settle_us(fault) for fault in run.faults)])
    return _fail_to_the_end(run, draft, dice, start, at_once=False)


@kind("obligations", "every record of a client is refused at once by healthy brokers, to the end")
def refused_to_the_end(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    start = max([run.steady_us, *(fault.end_us + _settle_us(fault) for fault in run.faults)])
    return _fail_to_the_end(run, draft, dice, start, at_once=True)


@kind("obligations", "every record of a client fails from two seconds after the last kill was healed, for 20 s or more")
def fails_after_a_healed_kill(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    last = max(run.faults, key=lambda fault: fault.end_us, default=None)
    if last is None or last.kind != "kill" or run.load_end_us - last.end_us < 22 * S:
        return None
    return _fail_to_the_end(run, draft, dice, last.end_us + 2 * S, at_once=False)
