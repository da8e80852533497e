"""Losses and rewritten offsets that faults of the plan explain: deletions, recreated topics, power cuts, damaged files.

A fault says with ``roles.permits`` in its journal lines that it may delete or rewrite records of its topics. It
explains an anomaly only on those topics (and partitions, if ``roles.before``, ``.exposed`` or ``.leaderless`` names
them), and only of records that were acknowledged before it ended.

================================  ==================================================================================
fault                             explains
================================  ==================================================================================
``delete_records``                losses below the offset that it asked for (``roles.before``), by partition
``recreate_topic``                losses before its end; readers meet the offsets of the new topic again after it, and
                                  groups have no committed offset there
a clock ahead of the retention    losses below the first offset that the partition still has
power cut, damaged segment,       losses at or above the start of the first leader epoch that began after the fault
unclean election                  did (`leadership.py`); without a leader history the evidence can't tell
any other kind                    what its ``permits`` lists, of records that were acknowledged before its end
================================  ==================================================================================
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from aftershock.results.checks.explanations.leadership import (
    READ_AGAIN,
    REWRITTEN,
    TRUNCATED,
    changes,
    truncation,
    unheard_us,
)
from aftershock.results.checks.explanations.model import Explanation, for_rules
from aftershock.results.checks.explanations.written import logged_offsets
from aftershock.results.checks.obligations.reach import harms_of
from aftershock.results.evidence.evidence import Evidence
from aftershock.results.evidence.manifest import LEADERS

CLOCKS = "restore_clock"
"""Undo verb of the faults that move a broker's clock."""
_WORDS = {
    "lost": (*TRUNCATED, ("lost", "consume"), ("skipped", "consume")),
    "duplicate": (("duplicate", "produce"), ("duplicate", "consume"), ("collision", "consume")),
    "order": (("order", "produce"), ("order", "consume"), ("backward", "consume"), ("beyond", "consume")),
}
"""Rules (rule, side) that a word of ``roles.permits`` stands for."""


def of_rewrites(evidence: Evidence) -> Iterator[Explanation]:
    """Yield what each injected fault explains that deletes or rewrites records."""
    until_us = max((phase.end_us for phase in evidence.phases), default=0)
    for line in evidence.journal:
        targets = line.get("targets") or {}
        roles = targets.get("roles") or {}
        if line["state"] == "injected" and "why" not in line and roles.get("permits"):
            ends = [later["t_us"] for later in evidence.journal if later["fault"] == line["fault"]]
            # a fault without an end in the journal lasts to the end of the run
            over_us = max(ends) if len(ends) > 1 else max(until_us, *ends)
            for topic in targets.get("topics", ()):
                yield from _of_topic(evidence, line, str(topic), roles, over_us)


def _of_topic(
    evidence: Evidence, line: Mapping[str, Any], topic: str, roles: Mapping[str, Any], over_us: int
) -> Iterator[Explanation]:
    fault, kind = str(line["fault"]), str(line.get("kind"))
    begun_us = min(entry["t_us"] for entry in evidence.journal if entry["fault"] == fault)
    plain = Explanation("", "", f"{fault} ({kind}) of {topic}", "journal.jsonl", topic=topic, until_us=over_us)
    # rows of clients have the id that the topic had when the run began
    ids = {entry["name"]: entry.get("topic_id") for entry in evidence.run.get("topics", ())}
    plain = replace(plain, topic_id=ids.get(topic) or None)
    places = [place for word in roles["permits"] for place in _WORDS.get(word, ())]
    if isinstance(roles.get("before"), Mapping):
        for number, offset in roles["before"].items():
            cause = f"{plain.cause}/{number} below offset {offset}"
            below = replace(plain, cause=cause, partition=int(number), until_offset=int(offset))
            yield from for_rules(below, *TRUNCATED)
    elif (line.get("undo") or {}).get("verb") == CLOCKS:
        yield from _expired(evidence, plain)
    elif {"duplicate", "order"} <= {*roles["permits"]} and "topic_id" not in roles:
        yield from _truncated(evidence, plain, roles, begun_us)
    else:
        # readers meet the new topic's records after the fault, at offsets that they know
        gone = [place for place in places if place in TRUNCATED]
        again = [place for place in places if place not in TRUNCATED]
        yield from for_rules(plain, *gone)
        yield from for_rules(replace(plain, from_us=begun_us), *again)
        if "topic_id" in roles:
            # a record of which another one has the offset now may have been read long before
            yield from for_rules(plain, ("collision", "consume"))
            # the coordinator has deleted what groups had committed of the topic
            yield from for_rules(replace(plain, from_us=begun_us), ("commit_behind", "consume"))


def _truncated(
    evidence: Evidence, plain: Explanation, roles: Mapping[str, Any], begun_us: int
) -> Iterator[Explanation]:
    """Yield the truncations at the epochs that began during a fault that loses the end of a log."""
    if evidence.leaders is None:
        missing = replace(plain, evidence=f"{LEADERS} is missing", certain=False)
        yield from for_rules(missing, *TRUNCATED)
        yield from for_rules(replace(missing, from_us=begun_us, until_us=None), *REWRITTEN, *READ_AGAIN)
        return
    harms = harms_of(evidence, plain.until_us or 0)
    partitions = (roles.get("exposed") or {}).get(plain.topic, roles.get("leaderless"))
    for leadership in changes(evidence.leaders):
        own = leadership.topic == plain.topic and (partitions is None or leadership.partition in partitions)
        elected_us = (leadership.after_us or 0, leadership.by_us or 0)
        if own and elected_us[1] >= begun_us and elected_us[0] <= (plain.until_us or 0):
            cause = f"{plain.cause}, after which epoch {leadership.epoch} of partition {leadership.partition} began"
            if leadership.start_offset is not None:
                cause += f" at offset {leadership.start_offset}"
            yield from truncation(leadership, harms, cause, unheard_us(evidence, leadership, harms))


def _expired(evidence: Evidence, plain: Explanation) -> Iterator[Explanation]:
    """Yield losses below the first offset that each partition still has, because retention deletes whole segments."""
    kept = logged_offsets(evidence, str(plain.topic))
    if kept is None:
        yield from for_rules(replace(plain, evidence="the log is not on this host", certain=False), *TRUNCATED)
        return
    planned = next((row["partitions"] for row in evidence.timeline["topics"] if row["name"] == plain.topic), 0)
    for number in range(planned):
        # a partition without any record left has lost them all
        start = kept[number][0] if number in kept else None
        yield from for_rules(replace(plain, partition=number, until_offset=start), *TRUNCATED)
