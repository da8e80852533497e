"""Exposures of KIP-890's trial: requests that arrived in a later transaction, and what became of that transaction.

An *exposure* is a held request that a broker answered while a later transaction of the same producer was open, as the
wire proxy has seen it (event ``held_request_delivered``, ``faults/wire_proxy/holds.py``). The transaction is the one of
the producer's own rows that was under way at that time.

A transaction is violated as the verdict's checks say, counted again here from the rows and from the markers in the
log: *unaborted* (it was aborted, or never committed, and one of its records is committed), *torn* (one record is
committed, and another one aborted or missing though acknowledged), *lost_commit* (its commit was acknowledged, and one
of its records is aborted or missing). ``recount`` compares both counts, and a run in which they differ decides nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aftershock.results.studies.part import Part

RULES = ("unaborted", "torn", "lost_commit")
ABORTED_READ = "aborted_read"
DELIVERED = "held_request_delivered"


@dataclass(frozen=True)
class Exposure:
    """One held request of a producer that was answered by a broker at ``t_us``; ``epoch`` is that of the request.

    ``begun_us`` is when the transaction began that it met, None if there was none. ``violated`` has the rules that this
    transaction violates.
    """

    block: int
    t_us: int
    producer_id: int
    epoch: int
    answer: str
    begun_us: int | None
    violated: frozenset[str]


@dataclass(frozen=True)
class Exposures:
    """Exposures of a client by one entry of the plan.

    ``elsewhere`` are the violated transactions that no exposure met. ``doubt`` is a reason why the run decides nothing.
    """

    found: Sequence[Exposure]
    elsewhere: int
    doubt: str = ""

    @property
    def hits(self) -> int:
        return sum(bool(exposure.violated) for exposure in self.found)

    def summary(self) -> str:
        """Return the answers of the brokers and the violations, by their names."""
        answers, rules = dict[str, int](), dict[str, int]()
        for exposure in self.found:
            answers[exposure.answer] = answers.get(exposure.answer, 0) + 1
            for rule in sorted(exposure.violated):
                rules[rule] = rules.get(rule, 0) + 1
        texts = [f"answers of the brokers: {_counts(answers)}", f"transactions violated: {_counts(rules)}"]
        return "; ".join([*texts, *([f"{self.elsewhere} violated without an exposure"] if self.elsewhere else [])])


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def exposures(part: Part, client: str, topic: str, entry: str, met: Sequence[str] = ("open",)) -> Exposures:
    """Return the exposures of a client to the faults of ``entry``, in the states of the producer in ``met``."""
    rows = part.transactions(client)
    violated = violations(part, client, topic, rows)
    blocks = {step["id"]: step["block"] for step in part.run.timeline["steps"] if step.get("entry") == entry}
    found, doubts = list[Exposure](), list[str]()
    for event in part.events(DELIVERED):
        if event["fault"] not in blocks or event["met"] not in met:
            continue
        own = [row for row in rows if row["transactional_id"] == event["transactional_id"]]
        at = next((row for row in own if _lasts(row, event["t_us"])), None)
        if at is None and event["met"] == "open":
            doubts.append(f"no transaction of {event['transactional_id']} was open at {event['t_us']} us")
        begun_us = at["begin_us"] if at else None
        rules = violated.get(begun_us, frozenset()) if begun_us is not None else frozenset()
        answer = event["answer"] or "unknown"
        sender = event["producer_id"], event["epoch"]
        found.append(Exposure(blocks[event["fault"]], event["t_us"], *sender, answer, begun_us, rules))
    elsewhere = len(violated.keys() - {exposure.begun_us for exposure in found})
    doubts += recount(part, client, violated)
    return Exposures(found, elsewhere, "; ".join(doubts[:1]))


def _lasts(row: Mapping[str, Any], t_us: int) -> bool:
    return bool(row["begin_us"] <= t_us and (row["done_us"] is None or t_us <= row["done_us"]))


def violations(part: Part, client: str, topic: str, rows: Sequence[Mapping[str, Any]]) -> dict[int, frozenset[str]]:
    """Return the rules that a client's transactions violate, by the time of their begin."""
    fates = _fates(part.batches(topic))
    outcomes = part.outcomes("produce", ("producer_id", "seq", "status"), client).to_pylist()
    acknowledged = {(row["producer_id"], row["seq"]) for row in outcomes if row["status"] == "ok"}
    logged: dict[tuple[int, int], set[str | None]] = {}
    for row in part.log(topic, ("producer_id", "seq", "partition", "offset")).to_pylist():
        fate = fates.get((row["partition"], row["offset"]))
        logged.setdefault((row["producer_id"], row["seq"]), set()).add(fate)
    violated = {}
    for row in rows:
        records = [(row["producer_id"], seq) for seq in range(row["first_seq"], row["last_seq"] + 1)]
        ends = [logged.get(record, set()) for record in records]
        if any(None in of_record for of_record in ends):
            continue  # a record whose transaction has not ended decides nothing
        committed, aborted = (any(end in of_record for of_record in ends) for end in ("commit", "abort"))
        missing = any(record in acknowledged and record not in logged for record in records)
        permitted = row["commit_asked"] and (row["version"] or 1) == 1
        rules = {
            "unaborted": row["outcome"] in ("aborted", "failed") and committed and not permitted,
            "torn": committed and (aborted or missing),
            "lost_commit": row["outcome"] == "committed" and (aborted or missing),
        }
        if broken := frozenset(rule for rule, is_broken in rules.items() if is_broken):
            violated[row["begin_us"]] = broken
    return violated


def _fates(batches: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], str | None]:
    """Return how the transaction of each record ended, by partition and offset: the producer's next marker."""
    fates: dict[tuple[int, int], str | None] = {}
    ends: dict[tuple[int, int], str] = {}
    for batch in reversed(batches):
        key = batch["partition"], batch["kafka_producer_id"]
        if batch["marker"] is not None:
            ends[key] = batch["marker"]
        elif batch["transactional"]:
            for offset in range(batch["first_offset"], batch["last_offset"] + 1):
                fates[batch["partition"], offset] = ends.get(key)
    return fates


def is_stray(batches: Sequence[Mapping[str, Any]], exposure: Exposure) -> bool:
    """Return True if the log has a batch of the exposure's epoch behind the last marker of this epoch.

    The epoch must have ended: after a failed batch, version 1 goes on with the next one (KIP-360).
    """
    last: dict[int, int] = {}
    own = [batch for batch in batches if batch["kafka_producer_id"] == exposure.producer_id]
    of_epoch = [batch for batch in own if batch["kafka_epoch"] == exposure.epoch]
    for batch in of_epoch:
        if batch["marker"] is not None:
            last[batch["partition"]] = batch["first_offset"]
    data = [batch for batch in of_epoch if batch["marker"] is None]
    return any(batch["first_offset"] > last.get(batch["partition"], batch["first_offset"]) for batch in data)


def recount(part: Part, client: str, violated: Mapping[int, frozenset[str]]) -> list[str]:
    """Return a sentence for each check of the verdict that counts other transactions than ``violated`` has."""
    differences = []
    for rule in RULES:
        ours = sum(rule in rules for rules in violated.values())
        (theirs,) = observed(part, client, rule) or [None]
        if theirs != ours:
            differences.append(f"integrity/{rule} of {client} counts {theirs} transactions, the trial {ours}")
    return differences


def observed(part: Part, client: str, rule: str) -> list[float | None]:
    """Return what the verdict's check of an integrity rule has counted of a client; the run has one workload."""
    arm = client.split("/")[1]
    checks = part.run.verdict.checks
    return [check.observed for check in checks if (check.id, check.arm) == (f"integrity/{rule}", arm)]
