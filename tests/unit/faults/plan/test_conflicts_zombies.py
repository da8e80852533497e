"""A zombie beside other changes of its group needs two sessions, because a rebalance begins its session again."""

import pytest

from aftershock.faults.plan.check import load_plan

PLAN = """
name: undead
topics: [{{name: orders, partitions: 12, replication: 3}}]
workloads:
  - name: orders
    produce: {{topic: orders, rate: 40/s}}
    consume: {{topic: orders, group: readers, members: 4}}
    arms: {{ours: {{client: confluent}}, theirs: {{client: java}}}}
faults:
  - {{id: dead, at: 0s, for: 18s, kind: kill_client, client: {dead}}}
  - {{id: undead, at: {at}, for: {lasts}, kind: zombie, client: ours member 3}}
"""


def warnings(dead: str = "ours member 2", at: str = "10s", lasts: str = "48s") -> list[str]:
    found = load_plan(PLAN.format(dead=dead, at=at, lasts=lasts)).warnings
    return [warning for warning in found if "begins when the rebalance ends" in warning]


def test_a_zombie_within_another_change_of_its_group_is_warned_about() -> None:
    """48 s are enough for the session of 45 s alone. The warning names the other fault and the time for both."""
    (warning,) = warnings()
    assert "`dead` changes the same group" in warning
    assert "lengthen `for` to 93s, or let 45s pass between the faults" in warning


@pytest.mark.parametrize("changed", [{"lasts": "93s"}, {"at": "80s"}, {"dead": "theirs member 2"}])
def test_a_zombie_with_time_for_both_or_alone_is_not_warned_about(changed: dict[str, str]) -> None:
    """It lasts long enough, begins after the other change, or is in another group."""
    assert warnings(**changed) == []
