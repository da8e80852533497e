"""What a recreated topic explains, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aftershock.results.checks.explanations.model import Anomaly
from aftershock.results.checks.explanations.rewrites import of_rewrites

S = 1_000_000


def evidence(kind: str = "recreate_topic", **roles: Any) -> Any:
    """Return a run in which a topic was away between 20 and 26 s."""
    run = {"topics": [{"name": "orders", "topic_id": "old"}]}
    targets = {"topics": ["orders"], "roles": {"permits": ["lost", "duplicate", "order"], "topic_id": "old", **roles}}
    states = {"intended": 20, "injected": 21, "healing": 25, "healed": 26}
    journal = [
        {"t_us": at * S, "fault": "gone", "kind": kind, "state": state, "targets": targets}
        for state, at in states.items()
    ]
    return cast("Any", SimpleNamespace(journal=journal, run=run, phases=[], leaders=()))


READ = Anomaly("w/base", topic="orders", partition=0, offset=7, from_us=10 * S, until_us=10 * S)
"""Offset 7 of the topic, at 10 s."""
RESUMED = replace(READ, until_us=30 * S)
"""A commit at 10 s, behind which the group resumed at 30 s."""


def explained(rule: str, anomaly: Anomaly, side: str = "consume") -> bool:
    return any(one.explains(anomaly) for one in of_rewrites(evidence()) if (one.rule, one.side) == (rule, side))


@pytest.mark.parametrize(
    ("rule", "anomaly", "expected"),
    [
        ("collision", READ, True),  # the new topic has another record there
        ("collision", replace(READ, from_us=30 * S, until_us=30 * S), False),  # of the new topic itself
        ("collision", replace(READ, topic="old"), True),  # rows of deliveries have the topic's id
        ("collision", replace(READ, topic="other"), False),
        ("commit_behind", RESUMED, True),
        ("commit_behind", replace(RESUMED, until_us=15 * S), False),  # before the topic was deleted
        ("commit_behind", replace(RESUMED, from_us=28 * S), False),  # a commit about the new topic
        ("duplicate", replace(READ, from_us=22 * S, until_us=22 * S), True),
        ("duplicate", READ, False),
    ],
)
def test_a_topic_that_was_away(rule: str, anomaly: Anomaly, expected: bool) -> None:
    assert expected == explained(rule, anomaly)
