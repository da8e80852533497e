"""Defects of replicas, which the harness reads after the log."""

from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.world import Run

BROKERS = (1, 2, 3)


def _replicas(run: Run, *short: tuple[int, int]) -> None:
    """Add replicas that hold what the log holds; those of ``short`` (partition, broker) lack the last seven records."""
    rows = []
    for number, last in run.frames["log"].groupby("partition")["offset"].max().items():
        for broker in BROKERS:
            records = int(last) + 1 - (7 if (number, broker) in short else 0)
            place = {"topic": "orders", "topic_id": "t1", "partition": number, "broker_id": broker, "start_offset": 0}
            rows.append(place | {"end_offset": int(last) + 1, "records": records, "fingerprint": 77 * records})
    run.add("replicas", *rows)


def _set(run: Run, partition: int, *brokers: int, **values: object) -> None:
    rows = run.frames["replicas"]
    run.set("replicas", rows.index[(rows["partition"] == partition) & rows["broker_id"].isin(brokers)], **values)


@defect("three replicas that hold what the log holds: no alarm")
def replicas_whole(run: Run) -> None:
    _replicas(run)


@defect("partitions of one replica each: nothing to compare, no alarm")
def single_replicas(run: Run) -> None:
    _replicas(run)
    rows = run.frames["replicas"]
    run.drop("replicas", rows.index[rows["broker_id"] > 1])
    run.documents["timeline"]["topics"][0]["replication"] = 1


@defect("a replica without a row", unsure=("integrity/replica",), says="has no row of a replica of orders/5")
def replica_without_rows(run: Run) -> None:
    _replicas(run)
    rows = run.frames["replicas"]
    run.drop("replicas", rows.index[(rows["partition"] == 5) & (rows["broker_id"] == 3)])


@defect("a replica that differs after the heal", fails=("integrity/replica",), says="orders/5 on k3")
def replica_differs(run: Run) -> None:
    _replicas(run)
    _set(run, 5, 3, fingerprint=12)


@defect(
    "a replica that could not be read",
    unsure=("integrity/replica",),
    says="1 replicas could not be read: orders/5 on k3",
)
def replica_unread(run: Run) -> None:
    _replicas(run)
    _set(run, 5, 3, fingerprint=None, records=None, error="k3 was read to offset 7 of 500 in time")


@defect(
    "three equal replicas of a partition that all end before the log",
    fails=("integrity/replica",),
    says="orders/4 on k1, orders/4 on k2, orders/4 on k3",
)
def replicas_short(run: Run) -> None:
    _replicas(run, (4, 1), (4, 2), (4, 3))


@defect(
    "two replicas that end before the log, beside a whole one",
    fails=("integrity/replica",),
    says="2 of 18 replicas; orders/4 on k1, orders/4 on k3",
)
def replicas_short_but_one(run: Run) -> None:
    _replicas(run, (4, 1), (4, 3))


@defect(
    "three equal replicas that all begin after the log's first record, of a topic without a short retention",
    fails=("integrity/replica",),
    says="3 of 18 replicas",
)
def replicas_beheaded(run: Run) -> None:
    _replicas(run)
    _set(run, 4, *BROKERS, start_offset=20, records=int(run.frames["replicas"]["records"].iloc[-1]) - 20)


@defect("the same of a topic whose retention may have deleted these records since the log was read: no alarm")
def replicas_expired(run: Run) -> None:
    run.documents["timeline"]["topics"][0]["config"] = {"retention.ms": "5000"}
    replicas_beheaded(run)


@defect(
    "three equal replicas that all hold more than was read of the log: the log is not whole",
    unsure=("integrity/replica",),
    says="log/ ends before all replicas of orders/4",
)
def replicas_longer(run: Run) -> None:
    _replicas(run)
    end = int(run.frames["replicas"]["end_offset"].iloc[-1]) + 9
    _set(run, 4, *BROKERS, end_offset=end, records=end)
