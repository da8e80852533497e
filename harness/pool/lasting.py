"""What a run has done to its cluster that no restore undoes.

A kind without an inverse says what it ``leaves``. What it leaves on the run's own topics goes with them; what it did to
Kafka's own topics, or to nodes, stays, and the next lessee must not find it.
"""

from pathlib import Path

from aftershock.faults.kinds import KINDS
from aftershock.harness.journal import read_journal

_KAFKAS_OWN = "__"


def lasting(run: Path) -> str:
    """A sentence about the first such fault of a run, "" if there was none."""
    for line in read_journal(run / "journal.jsonl"):
        kind = KINDS.get(line["kind"])
        done = line["state"] == "injected" and "why" not in line  # a rehearsal's lines say why nothing was done
        if done and kind is not None and kind.leaves is not None:
            topics = line["targets"]["topics"]
            if not topics or any(topic.startswith(_KAFKAS_OWN) for topic in topics):
                return f"{line['fault']} leaves {kind.leaves}"
    return ""
