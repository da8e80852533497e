"""`consume.unowned` of planted group histories, by the judge and by its second reading."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aftershock.tests.readings.compare import Comparison, compare
from aftershock.tests.unit.results.evidence_factory import PARTITIONS, S
from aftershock.tests.unit.results.planted.world import Run
from aftershock.tests.unit.results.planted.worlds import MEMBERS, consumer, group_event, members_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

ARM = "baseline"
GROUP = f"orders/{ARM}"
EVERY = tuple(range(PARTITIONS))
OF_FIRST = tuple(number for number in EVERY if number % MEMBERS == 0)
AT_US = 12 * S


def hold(run: Run, until_us: int, *partitions: int) -> None:
    """Deliver what is due in these partitions from 12 s on at ``until_us``."""
    rows = run.frames["consume"]
    late = (rows["arm"] == ARM) & rows["partition"].isin(partitions) & rows["done_us"].between(AT_US, until_us)
    run.set("consume", rows.index[late], done_us=until_us + rows.loc[late, "offset"])
    run.read_in_order()


def stop(run: Run, undo: str, until_us: int) -> None:
    """Let a fault stop the first member from 12 s on."""
    line = {"fault": "stop-1", "kind": "stop", "undo": {"verb": undo, "args": {}}}
    line |= {"targets": {"clients": [consumer(ARM, 1)], "brokers": [], "links": [], "topics": []}}
    run.documents["journal"] += [
        line | {"t_us": AT_US, "state": "intended"},
        line | {"t_us": until_us, "state": "healed"},
    ]


def rejoin(run: Run, until_us: int) -> None:
    """Let all members give everything up at 12 s and get the same partitions back."""
    for member in range(1, MEMBERS + 1):
        own = [number for number in EVERY if number % MEMBERS == member - 1]
        run.documents["events"] += [
            group_event(AT_US, "revoked", ARM, member, *own),
            group_event(until_us, "assigned", ARM, member, *own),
        ]


def eager_rejoin(run: Run) -> None:
    rejoin(run, 43 * S)
    hold(run, 43 * S, *EVERY)


def paused_owner(run: Run) -> None:
    stop(run, "resume_clients", 37 * S)
    hold(run, 44 * S, *OF_FIRST)


def killed_owner(run: Run) -> None:
    """The second member gets the partitions when the session of the first has ended."""
    stop(run, "start_clients", 20 * S)
    run.documents["events"].append(group_event(34 * S, "assigned", ARM, 2, *OF_FIRST))
    hold(run, 34 * S, *OF_FIRST)
    rows = run.frames["consume"]
    taken = (rows["arm"] == ARM) & rows["partition"].isin(OF_FIRST) & (rows["done_us"] >= 34 * S)
    run.set("consume", rows.index[taken], worker=consumer(ARM, 2))


def never_read_again(run: Run) -> None:
    """The first member gives its partitions up at 12 s, and nobody gets them."""
    run.documents["events"].append(group_event(AT_US, "revoked", ARM, 1, *OF_FIRST))
    rows = run.frames["consume"]
    unread = (rows["arm"] == ARM) & rows["partition"].isin(OF_FIRST) & (rows["done_us"] >= AT_US)
    run.drop("consume", rows.index[unread])


def slow_owner(run: Run) -> None:
    hold(run, 20 * S, *OF_FIRST)


def idle_topic(run: Run) -> None:
    """Nothing is produced while the group rejoins for 31 s."""
    for name in ("produce", "consume", "log"):
        rows = run.frames[name]
        offsets = rows["offset"][rows["intended_us"].between(AT_US - S // 2, 43 * S)] if name != "log" else None
        if offsets is not None:
            gone = rows[rows["intended_us"].between(AT_US - S // 2, 43 * S)]
            records = set(zip(gone["producer_id"], gone["seq"], strict=True))
            run.drop(name, gone.index)
        else:
            both = zip(rows["producer_id"], rows["seq"], strict=True)
            run.drop(name, [index for index, record in zip(rows.index, both, strict=True) if record in records])
    rejoin(run, 43 * S)


PLANTED: dict[Callable[[Run], None], tuple[float, float]] = {
    eager_rejoin: (30.9, 31.1),
    paused_owner: (31.9, 32.1),
    killed_owner: (21.9, 22.1),
    never_read_again: (37.9, 38.1),
    slow_owner: (0, 0),
    idle_topic: (0, 0),
}
"""Least and longest wait in seconds that each history must have."""


def test_waits_without_a_delivering_owner(spark: "SparkSession", tmp_path: Path) -> None:
    """Owners that come back, are stopped or die leave their partitions waiting; slow ones and idle topics do not."""
    homes = {}
    for plant in PLANTED:
        run = members_run().copy(plant.__name__)
        plant(run)
        homes[plant.__name__] = run.write(tmp_path / plant.__name__)
    found = list(compare(spark, homes, ["run"], subjects=False))
    assert [] == [str(one) for one in found if not one.equal]
    for plant, (least_s, most_s) in PLANTED.items():
        assert least_s <= unowned_s(found, plant.__name__) <= most_s, plant.__name__


def unowned_s(found: list[Comparison], run: str) -> float:
    (value,) = (
        one.judged.check.observed
        for one in found
        if (one.run, one.judged.who, one.judged.asked.metric) == (run, GROUP, "consume.unowned")
        and one.judged.asked.by is None
    )
    assert value is not None
    return value
