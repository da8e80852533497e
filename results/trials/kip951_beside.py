"""What is told beside the trial of KIP-951 and never decides it: consumers, other clients, other ways to move leaders.

Each is the statistic of ``kip951.py``, the worst latency of a window, paired by move, under Metadata that is 300 ms
late. Clients that we did not write have no connection of their own for Metadata, so a late answer may hold up records
behind it, hints or not (``shared-300`` of ``kip951.py``). What consumers read is shown by the new leader only when its
followers have it, which may take as long as an answer that is 300 ms late: hence a part in which it is 1 s.

Restarts are judged by what was due from SIGTERM to exit, and have no bound: the KIP's tables of them are of 70 minutes
on fifteen machines, with 108 partitions and 9000.
"""

from functools import partial
from itertools import product

from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.kip951 import BOTH, NEITHER, WORST, WORST_ALONE, medians, middles
from aftershock.results.trials.part import ratio
from aftershock.results.trials.spans import struck, worst_in
from aftershock.results.trials.statement import Judged
from aftershock.results.trials.words import below, reported

CONSUMED = "consume.latency max in fault/move"
ELECTED = "produce.latency max in fault/back"
CONSUMERS = {
    "consume": "A consumer that takes hints by one that asks for metadata: the latest record of a move",
    "consume-1s": "The same while Metadata is a second late, longer than replication takes",
}
FOREIGN = {"librdkafka": "librdkafka", "java": "Kafka's Java producer"}
"""Clients that we did not write, each a part with its name."""
ABLATIONS = {"stripped": "with the hints stripped from its answers", "capped": "at brokers that know no hints"}
RESTARTS = {
    "restart": (12, {"all": "p99 374 ms with, 391 ms without", "one": "p99 2.95 ms with, 3.25 ms without"}),
    "restart-many": (120, {"all": "p99 152 ms with, 156 ms without", "one": "p99 83.3 ms with, 84.7 ms without"}),
}
"""Partitions, and by workload (its acks) what the KIP's tables say of few and of many."""
_CONFIDENCE = 0.95


def _below_one(part: str, ours: str, theirs: str, measure: str, parts: Parts) -> Judged:
    found = below(parts[part].ratio(ours, theirs, measure), 1.0)
    return Judged(found.ours, found.word, f"{found.why}; {medians(parts[part], ours, theirs, measure)}")


def _unknown(parts: Parts) -> Judged:
    """Only where it was so: the client that ignores endpoints counts hints to brokers that nobody had named to it."""
    found = _below_one("unknown", "moves/merged", "moves/ignored", ELECTED, parts)
    refused = parts["unknown"].counters("moves/ignored", "produce").get("hints_refused_unknown_leader", 0)
    word = found.word if refused else "inconclusive"
    return Judged(found.ours, word, f"{found.why}; {refused} hints to a broker that was not known")


def _restarted(name: str, workload: str, parts: Parts) -> Judged:
    part = parts[name]
    spans = struck(part, "ended")
    both, neither = (worst_in(part, f"{workload}/{arm}", spans) for arm in ("both", "neither"))
    found = ratio(both, neither, _CONFIDENCE, part.run.run_id)
    return reported(found, f"{middles(both, neither)}, of {len(spans)} shutdowns from SIGTERM to exit")


def _report(name: str, part: str, claim: str, ours: str, theirs: str, measure: str = WORST) -> Claim:
    judge = partial(_below_one, part, ours, theirs, measure)
    return Claim(name, claim, "", "below 1", "report", (part,), judge)


def _foreign(client: str, ablation: str) -> Claim:
    claim = f"{FOREIGN[client]} as it is, by itself {ABLATIONS[ablation]}"
    return _report(f"{client}-{ablation}", client, claim, "moves/whole", f"moves/{ablation}")


def _restart(part: str, workload: str) -> Claim:
    partitions, published = RESTARTS[part]
    claim = f"Brokers shut down, {partitions} partitions, acks={workload}: with the KIP by without"
    judge = partial(_restarted, part, workload)
    return Claim(f"{part}-{workload}", claim, published[workload], "", "report", (part,), judge)


BESIDE: tuple[Claim, ...] = (
    _report(
        "acks-1",
        "acks-1",
        "Leaders move and nothing is late, acks=1: what is left of the wait where no follower is waited for",
        BOTH,
        NEITHER,
        WORST_ALONE,
    ),
    *(_report(part, part, claim, "readers/told", "readers/asks", CONSUMED) for part, claim in CONSUMERS.items()),
    *(_foreign(client, ablation) for client, ablation in product(FOREIGN, ABLATIONS)),
    _report(
        "leaves",
        "leaves",
        "The old leader leaves the replica list, two replicas on three nodes: with the KIP by without",
        BOTH,
        NEITHER,
    ),
    Claim(
        "unknown",
        "A broker that clients have forgotten becomes leader: endpoints merged by ignored",
        "",
        "below 1",
        "report",
        ("unknown",),
        _unknown,
    ),
    *(_restart(part, workload) for part, (_, published) in RESTARTS.items() for workload in published),
)
