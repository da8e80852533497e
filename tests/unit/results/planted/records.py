"""Defects of records and of the log."""

from aftershock.tests.unit.results.evidence_factory import S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.world import Run
from aftershock.tests.unit.results.planted.worlds import edge_run

LOST = ("integrity/lost", "slo/lost")


@defect("one record in the log, not delivered to one of two readers", fails=LOST)
def one_not_delivered(run: Run) -> None:
    run.lose(0, 617, read_by="baseline")


@defect("one acknowledged record not in the log, though readers had it", fails=LOST, says="1 of them were delivered")
def one_not_in_the_log(run: Run) -> None:
    run.lose(1, 388, logged=False, read_by="baseline patient")


@defect("one acknowledged record nowhere at all", fails=LOST)
def one_nowhere(run: Run) -> None:
    run.lose(1, 389, logged=False)


@defect("the last record of a block of the fingerprint gate (seq 2047) lost", fails=("integrity/lost",), base=edge_run)
def lost_at_a_blocks_end(run: Run) -> None:
    run.lose(0, 2_047, read_by="patient")


@defect("the first record of the next block (seq 2048) lost", fails=("integrity/lost",), base=edge_run)
def lost_at_a_blocks_start(run: Run) -> None:
    run.lose(0, 2_048, read_by="patient")


@defect(
    "a record lost while a fault of the plan deletes those of another topic, of which there are none",
    fails=("integrity/lost",),
    unsure=("exposure/reassign-1",),
)
def deleted_elsewhere(run: Run) -> None:
    run.slos()
    run.lose(1, 389, logged=False)
    targets = {"brokers": [], "links": [], "topics": ["others"], "roles": {"permits": ["lost"]}}
    line = {"fault": "reassign-1", "kind": "delete_records", "state": "injected", "targets": targets, "t_us": 40 * S}
    run.documents["journal"].append(line | {"undo": {"verb": "nothing", "args": {}}})


@defect("a record of warm-up that a reader from the end never got: permitted")
def missed_in_warm_up(run: Run) -> None:
    run.documents["timeline"]["workloads"][0]["consume"]["from"] = "latest"
    run.lose(0, 5, read_by="patient")


@defect("a record of steady that a reader from the end never got", fails=("integrity/lost", "slo/lost"))
def missed_from_the_end(run: Run) -> None:
    run.documents["timeline"]["workloads"][0]["consume"]["from"] = "latest"
    run.lose(0, 500, read_by="patient")


@defect("one record twice in the log of an idempotent producer", fails=("integrity/duplicate",))
def twice_in_the_log(run: Run) -> None:
    run.add("log", run.get("log", run.at("log", 0, 9)) | {"offset": 100_000})


@defect("one offset delivered twice to one reader", fails=("integrity/duplicate",))
def delivered_twice(run: Run) -> None:
    row = run.get("consume", run.at("consume", 1, 500, "baseline"))
    run.add("consume", row | {"done_us": row["done_us"] + 1})


@defect("two records of one producer that changed places in the log", fails=("integrity/order",))
def swapped_in_the_log(run: Run) -> None:
    for table in ("produce", "log", "consume"):
        rows = run.frames[table]
        both = (rows["producer_id"] == 0) & rows["seq"].isin([60, 66])
        run.set(table, rows.index[both], seq=126 - rows.loc[both, "seq"])


@defect("a foreign record in the log", fails=("integrity/phantom",))
def foreign_in_the_log(run: Run) -> None:
    run.add("log", run.get("log", 0) | {"offset": 100_000, "producer_id": None, "seq": None})


@defect("a record delivered that nobody ever sent", fails=("integrity/phantom",))
def phantom_delivered(run: Run) -> None:
    row = run.get("consume", run.at("consume", 0, 1494, "baseline"))
    run.add("consume", row | {"offset": 90_000, "high_watermark": 90_001, "seq": 999_999, "done_us": 59 * S})


@defect(
    "a record in doubt that is in the log after all: no loss, no phantom",
    says="of 1 records in doubt (no result), 1 are in the log",
)
def in_doubt_and_found(run: Run) -> None:
    run.lose(0, 500, status="in_doubt", read_by="baseline patient")


@defect(
    "a record that its producer gave up for good, and that is in the log",
    fails=("integrity/phantom",),
    says="the producer reported these records as failed",
)
def given_up_and_written(run: Run) -> None:
    run.lose(0, 500, status="failed", read_by="baseline patient")


@defect("a record that failed and is nowhere: no phantom")
def given_up_and_nowhere(run: Run) -> None:
    run.lose(0, 500, status="failed", logged=False)


@defect("a record in doubt that is nowhere: no loss", says="of 1 records in doubt (no result), 0 are in the log")
def in_doubt_and_gone(run: Run) -> None:
    run.lose(0, 500, status="in_doubt", logged=False)


@defect("a record in doubt that readers had, and that is in no log", fails=LOST)
def in_doubt_read_and_gone(run: Run) -> None:
    run.lose(0, 500, status="in_doubt", logged=False, read_by="baseline patient")


@defect("the same of a record that its producer gave up for good", fails=LOST)
def failed_read_and_gone(run: Run) -> None:
    run.lose(0, 500, status="failed", logged=False, read_by="baseline patient")


@defect("an acknowledgement with an offset at which the record is not", fails=("integrity/misplaced",))
def acknowledged_elsewhere(run: Run) -> None:
    run.set("produce", run.at("produce", 0, 1499), offset=1_000_000)


@defect("two records at one offset of the log, of which readers got one", fails=("integrity/collision", *LOST))
def two_at_one_offset(run: Run) -> None:
    run.lose(0, 500, status="in_doubt")
    index = run.at("log", 0, 500)
    run.set("log", index, offset=int(run.get("log", index)["offset"]) + 1)


@defect(
    "a reader that got two records with each other's ids",
    fails=("integrity/collision", "integrity/duplicate"),
)
def ids_exchanged(run: Run) -> None:
    one, other = (run.at("consume", producer, 300, "patient") for producer in (0, 1))
    first, second = run.get("consume", one), run.get("consume", other)
    run.set("consume", one, producer_id=second["producer_id"])
    run.set("consume", other, producer_id=first["producer_id"])


@defect("a delivered value that is not what was sent", fails=("integrity/corrupt",))
def corrupt_delivery(run: Run) -> None:
    run.set("consume", run.at("consume", 0, 40, "patient"), error="VALUE_CORRUPT")


@defect("a value in the log that is not what was sent", fails=("integrity/corrupt",))
def corrupt_in_the_log(run: Run) -> None:
    run.set("log", run.at("log", 1, 41), error="VALUE_CORRUPT")


@defect("an acknowledgement by an older leader epoch, at a later offset", fails=("integrity/backward",))
def acknowledged_by_an_old_leader(run: Run) -> None:
    run.set("produce", run.at("produce", 0, 1450), leader_epoch=1)


@defect("the same by the second attempt of its record", fails=("integrity/backward",))
def acknowledged_late_by_an_old_leader(run: Run) -> None:
    run.set("produce", run.at("produce", 0, 1450), leader_epoch=1, attempts=2)


@defect("a second attempt acknowledged by a newer leader epoch than that of later offsets: no alarm")
def acknowledged_again_by_a_new_leader(run: Run) -> None:
    """The first attempt has written the record; the new leader acknowledges the second attempt as a duplicate."""
    run.set("produce", run.at("produce", 0, 1450), leader_epoch=9, attempts=2)


@defect("a record of the log with an older leader epoch than the record before it", fails=("integrity/backward",))
def written_in_an_old_epoch(run: Run) -> None:
    run.set("log", run.at("log", 0, 1450), leader_epoch=1)


@defect("records of the log from some offset on with a newer leader epoch: no alarm")
def written_in_a_new_epoch(run: Run) -> None:
    for seq in range(1450, 1500):
        run.set("log", run.at("log", 0, seq), leader_epoch=9)


@defect("a batch retried twice without back-off in one leader epoch", fails=("integrity/immediate",))
def two_immediate_retries(run: Run) -> None:
    line = {"event": "batch_retried", "arm": "patient", "workload": "orders", "worker": "orders-patient-produce"}
    line |= {"op": "produce", "topic": "orders", "partition": 0, "node_id": 2, "epoch": 4, "token": 780, "records": 3}
    line |= {"reason": "NOT_LEADER_OR_FOLLOWER", "immediate": True}
    run.documents["events"] += [line | {"t_us": 27 * S + n, "attempts": n} for n in (1, 2)]


@defect(
    "acknowledgements without an offset, as of duplicates: not compared, and told",
    says="13 acknowledged records have no offset to compare",
)
def some_without_offsets(run: Run) -> None:
    rows = run.frames["produce"]
    some = rows.index[(rows["producer_id"] == 0) & rows["seq"].isin(range(700, 713))]
    run.set("produce", some, offset=None)
