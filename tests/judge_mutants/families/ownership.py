"""Defects of ownership: two members own and read one partition, although nothing kept either from its coordinator."""

from random import Random

from aftershock.tests.judge_mutants import edits
from aftershock.tests.judge_mutants.anatomy import Anatomy, Fault, S, Tenure
from aftershock.tests.judge_mutants.draft import Draft
from aftershock.tests.judge_mutants.families.deliveries import deliver_again
from aftershock.tests.judge_mutants.kinds import Plant, kind

_HARMLESS_TO_MEMBERS = ("elect", "reassign", "config", "add_partitions", "latency", "delay_response", "delay_request")
"""Kinds that keep no member from its coordinator for a session: they move leaders, or delay by much less."""
_SESSION_US = 45 * S
"""Kafka's default of ``session.timeout.ms``; a heartbeat of 3 s later a coordinator has excluded a silent member."""


def _two_owners(run: Anatomy, draft: Draft, dice: Random, spans: list[tuple[int, int]], why: str) -> Plant | None:
    """Assign a partition to a second member for five seconds within a span; both deliver its records."""
    choices: list[tuple[Tenure, str, int]] = []
    for tenure in run.tenures:
        client = run.client_of(tenure.workload, tenure.arm)
        others = (
            [name for name in client.workers("consume") if name != tenure.worker]
            if client and client.members > 1
            else []
        )
        alive = {each.worker for each in run.tenures if each.start_us < tenure.end_us and each.end_us > tenure.start_us}
        for start, end in spans:
            first, last = max(start, tenure.start_us + S), min(end, tenure.end_us - S, run.load_end_us) - 5 * S
            if last > first:
                choices += [(tenure, other, dice.randrange(first, last)) for other in others if other in alive]
    for tenure, other, at_us in dice.sample(choices, len(choices)):
        mine = [
            lane.rows[(lane.rows["done_us"] >= at_us) & (lane.rows["done_us"] < at_us + 5 * S)]
            for lane in run.lanes
            if (lane.worker, lane.topic, lane.partition) == (tenure.worker, tenure.topic, tenure.partition)
        ]
        own = [
            each
            for each in run.tenures
            if (each.worker, each.topic, each.partition) == (other, tenure.topic, tenure.partition)
        ]
        if any(each.start_us < at_us + 6 * S and each.end_us > at_us - S for each in own):
            continue
        if not mine or len(mine[0]) < 4:
            continue
        event = {
            "arm": tenure.arm,
            "workload": tenure.workload,
            "op": "consume",
            "worker": other,
            "partitions": [[tenure.topic, tenure.partition]],
        }
        edits.write_event(draft, {"t_us": at_us, "event": "assigned", **event})
        edits.write_event(draft, {"t_us": at_us + 5 * S, "event": "revoked", **event})
        deliver_again(draft, mine[0], at_us + 1000, at_us + 5 * S - 1000, other)
        place = f"{tenure.topic}/{tenure.partition}: {tenure.worker} and {other} from {at_us / S:.1f} s, {why}"
        return Plant(place, ("integrity/co_owned",), tenure.arm, "consume", touched=frozenset({tenure.arm}))
    return None


def _cuts_off(fault: Fault) -> bool:
    return fault.kind not in _HARMLESS_TO_MEMBERS


@kind("ownership", "two members own and read a partition for five seconds before any fault")
def two_owners_without_a_fault(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    return _two_owners(run, draft, dice, [(run.load_start_us, run.quiet_until_us)], "before the first fault")


@kind("ownership", "two members own and read a partition during a fault that keeps no member from its coordinator")
def two_owners_beside_an_unrelated_fault(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    """Plant during a fault of another kind of effect, with no other fault active or healed within a session."""
    spans = []
    for fault in run.faults:
        severe = [each for each in run.faults if _cuts_off(each) and each.start_us < fault.end_us]
        since = max((each.end_us + _SESSION_US + 3 * S for each in severe), default=0)
        if not _cuts_off(fault) and max(since, fault.start_us) < fault.end_us + 6 * S:
            spans.append((max(since, fault.start_us), fault.end_us + 6 * S))
    return _two_owners(run, draft, dice, spans, "beside an unrelated fault")


@kind("ownership", "two members own and read a partition long after the last fault could have kept one away")
def two_owners_long_after_a_fault(run: Anatomy, draft: Draft, dice: Random) -> Plant | None:
    calm = run.calm(_SESSION_US + 5 * S, 8 * S)
    late = [(start, end) for start, end in calm if start > run.quiet_until_us]
    return _two_owners(run, draft, dice, late, "long after a fault")
