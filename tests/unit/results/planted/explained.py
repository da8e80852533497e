"""Anomalies beside a cause that explains them, and beside one of another place, time or kind, which does not."""

import json

from aftershock.tests.unit.results.evidence_factory import S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.records import LOST
from aftershock.tests.unit.results.planted.world import Row, Run, led_run

PRODUCER = "orders-baseline-produce"
LATE = 1398
"""Sequence number of a record of partition 0 that producer 0 sends in the last seconds."""


def _lossy(run: Run, acks: str = "1") -> None:
    run.documents["timeline"]["workloads"][0]["produce"] |= {"acks": acks, "idempotence": False}
    run.slos()


def _nowhere(run: Run, *seqs: int) -> None:
    for seq in seqs:
        run.lose(0, seq, logged=False)


def _offset(run: Run, seq: int) -> int:
    return int(run.get("produce", run.at("produce", 0, seq))["offset"])


def _last_before(run: Run, at_us: int, partition: int = 0) -> int:
    """Return the last record of producer 0 in a partition that was acknowledged before a time."""
    rows = run.frames["produce"]
    own = rows[(rows["producer_id"] == 0) & (rows["partition"] == partition) & (rows["done_us"] < at_us)]
    return int(own["seq"].max())


def _long_after(run: Run) -> int:
    """Return a record that was acknowledged, without a leader epoch, long after the last election."""
    seq = _last_before(run, 49 * S)
    run.set("produce", run.at("produce", 0, seq), leader_epoch=None)
    return seq


def _elected(run: Run, partition: int, epoch: int, **values: object) -> int:
    """Change the line of a leader epoch in leaders.jsonl, and return the offset at which the epoch begins."""
    lines = [json.loads(line) for line in run.files["leaders.jsonl"].splitlines()]
    place = (partition, epoch)
    lines = [line | values if (line["partition"], line["epoch"]) == place else line for line in lines]
    run.files["leaders.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return next(int(line["start_offset"]) for line in lines if (line["partition"], line["epoch"]) == place)


def _overwritten(run: Run, seq: int, offset: int) -> None:
    """Lose a record that was acknowledged at an offset at which the log holds another one."""
    run.set("produce", run.at("produce", 0, seq), offset=offset)
    _nowhere(run, seq)


def _without_offset(run: Run, seq: int) -> None:
    """Lose a record whose producer did not tell the offset."""
    run.set("produce", run.at("produce", 0, seq), offset=None)
    _nowhere(run, seq)


@defect("200 records acknowledged with acks=1 and lost, and no leader changed", fails=("integrity/lost",), base=led_run)
def lost_without_a_change(run: Run) -> None:
    _lossy(run)
    _nowhere(run, *range(300, 500))


@defect(
    "a record acknowledged with acks=1 that the next leader of its partition did not have: explained",
    says="the change of leader of orders/0 to epoch 4 at offset",
    base=led_run,
)
def lost_by_a_change(run: Run) -> None:
    _lossy(run)
    _overwritten(run, _last_before(run, 26 * S), _elected(run, 0, 4))


@defect("the same below the offset at which the next epoch begins", fails=("integrity/lost",), base=led_run)
def lost_below_a_change(run: Run) -> None:
    _lossy(run)
    _overwritten(run, _last_before(run, 26 * S), _elected(run, 0, 4) - 1)


@defect(
    "a record acknowledged with acks=1 without its offset, and lost before a change of leader",
    unsure=("integrity/lost",),
    says="the offset of an acknowledgement is missing",
    base=led_run,
)
def lost_without_an_offset(run: Run) -> None:
    _lossy(run)
    _without_offset(run, _last_before(run, 26 * S))


@defect("the same long after that leader was elected", fails=("integrity/lost",), base=led_run)
def lost_without_an_offset_after_a_change(run: Run) -> None:
    _lossy(run)
    _without_offset(run, _long_after(run))


@defect("the same, and the log has a gap at its offset", fails=("integrity/lost",), base=led_run)
def lost_in_a_gap(run: Run) -> None:
    _lossy(run)
    _elected(run, 0, 4, start_offset=0)
    _nowhere(run, _last_before(run, 26 * S))


@defect("the same, acknowledged long after that leader was elected", fails=("integrity/lost",), base=led_run)
def lost_after_a_change(run: Run) -> None:
    _lossy(run)
    _overwritten(run, _long_after(run), _elected(run, 0, 4))


@defect("the same in a partition of which no leader had changed then", fails=("integrity/lost",), base=led_run)
def lost_beside_a_change(run: Run) -> None:
    _lossy(run)
    _overwritten(run, _last_before(run, 26 * S, partition=1), _elected(run, 0, 4))


@defect(
    "the same, acknowledged long before the records below that offset were sent",
    fails=("integrity/lost",),
    base=led_run,
)
def lost_long_before_a_change(run: Run) -> None:
    _lossy(run)
    _overwritten(run, _last_before(run, 20 * S), _elected(run, 0, 4))


@defect("the same of a producer with acks=all", fails=LOST, base=led_run)
def lost_with_acks_all(run: Run) -> None:
    _overwritten(run, _last_before(run, 26 * S), _elected(run, 0, 4))


@defect(
    "the same of a producer with acks=all, and the election was unclean: explained",
    says="the unclean election of orders/0 to epoch 4",
    base=led_run,
)
def lost_by_an_unclean_election(run: Run) -> None:
    run.slos()
    _overwritten(run, _last_before(run, 26 * S), _elected(run, 0, 4, unclean=True))


@defect("unclean elections are permitted, none was held, and a record is lost", fails=("integrity/lost",), base=led_run)
def lost_without_an_unclean_election(run: Run) -> None:
    run.slos()
    run.documents["timeline"]["topics"][0]["config"] = {"unclean.leader.election.enable": "true"}
    _overwritten(run, _last_before(run, 26 * S), _elected(run, 0, 4))


@defect(
    "a record lost with acks=1, in evidence without leaders: the judge can't tell",
    unsure=("integrity/lost",),
    says="leaders.jsonl is missing",
)
def lost_without_history(run: Run) -> None:
    _lossy(run)
    _nowhere(run, 300)


def _deleting(run: Run, before: Row) -> None:
    run.slos()
    roles = {"permits": ["lost"], "before": before}
    targets = {"brokers": [], "links": [], "topics": ["orders"], "roles": roles}
    line = {"fault": "reassign-1", "kind": "delete_records", "state": "injected", "targets": targets, "t_us": 37 * S}
    run.documents["journal"].append(line | {"undo": {"verb": "nothing", "args": {}}})


@defect(
    "a record below the offset to which a fault deleted its partition: explained",
    says="all explained by reassign-1 (delete_records) of orders/0 below offset ",
)
def deleted_below_its_offset(run: Run) -> None:
    _nowhere(run, 300)
    _deleting(run, {"0": _offset(run, 300) + 1})


@defect("a record lost above the offset to which a fault deleted its partition", fails=("integrity/lost",))
def lost_above_a_deletion(run: Run) -> None:
    _nowhere(run, 300)
    _deleting(run, {"0": _offset(run, 300)})


@defect("a record lost in another partition than the one that a fault deleted", fails=("integrity/lost",))
def lost_beside_a_deletion(run: Run) -> None:
    _nowhere(run, 300)
    _deleting(run, {"1": 1_000_000})


@defect("a record lost that was acknowledged after the deletion", fails=("integrity/lost",))
def lost_after_a_deletion(run: Run) -> None:
    _nowhere(run, LATE)
    _deleting(run, {"0": 1_000_000})


@defect(
    "a record acknowledged below the offset of a deletion, sent long after the record at that offset",
    fails=("integrity/lost",),
)
def lost_later_than_a_deletion(run: Run) -> None:
    run.set("produce", run.at("produce", 0, 900), offset=_offset(run, 300), leader_epoch=None)
    _nowhere(run, 900)
    _deleting(run, {"0": _offset(run, 306)})


@defect("the same without the offset of the acknowledgement", fails=("integrity/lost",))
def lost_later_without_an_offset(run: Run) -> None:
    _without_offset(run, 900)
    _deleting(run, {"0": _offset(run, 306)})


@defect(
    "the same of a record that was sent before the record at the offset of the deletion: the judge can't tell",
    unsure=("integrity/lost",),
    says="the offset of an acknowledgement is missing",
)
def lost_earlier_without_an_offset(run: Run) -> None:
    _without_offset(run, 300)
    _deleting(run, {"0": _offset(run, 306)})


def _twice(run: Run, seq: int, *, attempts: int | None) -> None:
    _lossy(run, "all")
    run.set("produce", run.at("produce", 0, seq), attempts=attempts)
    run.add("log", run.get("log", run.at("log", 0, seq)) | {"offset": 100_000})


def _disconnected(run: Run, at_us: int) -> None:
    place = {"workload": "orders", "arm": "baseline", "op": "produce", "worker": PRODUCER}
    run.documents["events"].append(place | {"event": "node_disconnected", "node_id": 1, "t_us": at_us})


@defect("a record twice in the log of a producer without idempotence that sent it once", fails=("integrity/duplicate",))
def twice_in_one_attempt(run: Run) -> None:
    _twice(run, 300, attempts=1)


@defect("the same of a producer that sent it twice: explained", says="sent the record more than once")
def twice_in_two_attempts(run: Run) -> None:
    _twice(run, 300, attempts=2)


@defect("the same, and the record is there three times", fails=("integrity/duplicate",))
def three_times_in_two_attempts(run: Run) -> None:
    copy = run.get("log", run.at("log", 0, 300)) | {"offset": 100_001}
    _twice(run, 300, attempts=2)
    run.add("log", copy)


@defect("the same, and the second copy is in another partition", fails=("integrity/duplicate", "integrity/order"))
def elsewhere_in_two_attempts(run: Run) -> None:
    _twice(run, 300, attempts=2)
    run.set("log", run.frames["log"].index[-1], partition=(int(run.frames["log"]["partition"].iloc[-1]) + 1) % 6)


@defect("the same of a producer that tells no attempts, and no connection ended", fails=("integrity/duplicate",))
def twice_without_a_cause(run: Run) -> None:
    _twice(run, 300, attempts=None)


@defect("the same, and a connection ended while it was in flight: explained", says="a connection of the producer ended")
def twice_at_a_disconnection(run: Run) -> None:
    _twice(run, 300, attempts=None)
    _disconnected(run, int(run.get("produce", run.at("produce", 0, 300))["sent_us"]) + 1)


@defect("the same, and a connection ended at another time", fails=("integrity/duplicate",))
def twice_beside_a_disconnection(run: Run) -> None:
    _twice(run, 300, attempts=None)
    _disconnected(run, 45 * S)


@defect("the same while 50 ms of latency are in force, which lose no answer", fails=("integrity/duplicate",))
def twice_in_a_delay(run: Run) -> None:
    rows = run.frames["produce"]
    slow = rows[(rows["producer_id"] == 0) & rows["intended_us"].between(17 * S, 23 * S)]
    _twice(run, int(slow["seq"].iloc[0]), attempts=None)


@defect(
    "the same of a client that does not tell when its connections end: the judge can't tell",
    unsure=("integrity/duplicate",),
    says="does not tell when its connections end",
)
def twice_and_not_told(run: Run) -> None:
    run.arms["arms"]["baseline"]["client"] = "confluent"
    _twice(run, 300, attempts=None)


def _swapped(run: Run, first: int, second: int) -> None:
    for table in ("produce", "log", "consume"):
        rows = run.frames[table]
        both = (rows["producer_id"] == 0) & rows["seq"].isin([first, second])
        run.set(table, rows.index[both], seq=first + second - rows.loc[both, "seq"])


def _overtaken(run: Run, after_us: int) -> None:
    """Let record 300 lie behind 306, and be acknowledged in a second attempt so long after 306 was sent."""
    _lossy(run, "all")
    one, other = (run.at("produce", 0, seq) for seq in (300, 306))
    offsets = [run.get("produce", index)["offset"] for index in (one, other)]
    sent_us = int(run.get("produce", other)["sent_us"])
    run.set("produce", one, offset=offsets[1], attempts=2, done_us=sent_us + after_us)
    run.set("produce", other, offset=offsets[0])
    for table in ("log", "consume"):
        rows = run.frames[table]
        both = (rows["producer_id"] == 0) & rows["seq"].isin([300, 306])
        run.set(table, rows.index[both], seq=606 - rows.loc[both, "seq"])
        if table == "consume":
            run.set(table, rows.index[both], done_us=sent_us + S)
    run.read_in_order()


@defect(
    "a record that lies behind one that was sent before it was acknowledged in its second attempt: explained",
    says="sent the record more than once",
)
def overtaken_in_two_attempts(run: Run) -> None:
    _overtaken(run, 1_000)


@defect("the same, and the other was sent only after that acknowledgement", fails=("integrity/order",))
def overtaken_after_two_attempts(run: Run) -> None:
    _overtaken(run, -1_000)


@defect(
    "the same of a record that was given up then, and was written later: explained",
    says="sent the record more than once",
)
def overtaken_after_it_was_given_up(run: Run) -> None:
    _overtaken(run, -1_000)
    run.set("produce", run.at("produce", 0, 300), status="in_doubt", error="_PURGE_INFLIGHT", offset=None)


def _killed(run: Run, from_us: int, until_us: int) -> None:
    targets = {"brokers": [], "links": [], "topics": [], "clients": [PRODUCER], "roles": {}}
    line = {"fault": "held-1", "kind": "kill_client", "targets": targets, "undo": {"verb": "start_clients", "args": {}}}
    states = (("intended", from_us), ("injected", from_us), ("healed", until_us))
    run.documents["journal"] += [line | {"t_us": at_us, "state": state} for state, at_us in states]


@defect("two records that changed places at 2 s, and their producer was killed at 45 s", fails=("integrity/order",))
def swapped_before_a_kill(run: Run) -> None:
    _swapped(run, 60, 66)
    _killed(run, 45 * S, 46 * S)


@defect(
    "two records that changed places while their producer was killed: explained", says="the kill of orders-baseline-"
)
def swapped_at_a_kill(run: Run) -> None:
    _swapped(run, 60, 66)
    rows = run.frames["produce"]
    both = (rows["producer_id"] == 0) & rows["seq"].isin([60, 66])
    run.set("produce", rows.index[both], attempts=None)
    done_us = int(run.get("produce", run.at("produce", 0, 60))["done_us"])
    _killed(run, done_us - 1, done_us + 1)


@defect(
    "a last record that never got a result, that is in the log, and that no reader got",
    fails=(*LOST, "obligation/stuck"),
)
def tail_not_delivered(run: Run) -> None:
    rows = run.frames["produce"]
    last = rows[(rows["producer_id"] == 0) & (rows["partition"] == 5)]["seq"].max()
    run.lose(0, int(last), status="in_doubt")
