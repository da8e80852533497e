"""A service that loses, repeats, inverts or forgets outputs, and causes that permit this or do not."""

import json
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from aftershock.tests.unit.results.evidence_factory import S
from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.transactions import ABORTED, RECORDS, committed_run
from aftershock.tests.unit.results.planted.world import Run, led_run, typed

FROM_US = 1_700_000_000_000_000
"""Unix time of the run's start."""
MOVE_US = 40 * S
"""Time at which partition 2 of the inputs moves from one member of the service to the other."""
CALM_US = 13 * S
"""Time without any fault, long before the first one that breaks connections."""
KEYS = 24
COMMIT_EVERY = 10


@cache
def pipe_run() -> Run:
    """Return a run with a service that writes each record of orders to billed, and commits after each ten records."""
    run = led_run().copy("piped")
    run.documents["run"]["origin_unix_us"] = FROM_US
    pipe = {"from": "orders", "to": {"svc": "billed"}, "groups": {"svc": "biller"}, "members": 2, "rack": "b"}
    pipe |= {"mark": "header", "outputs_min": 1, "outputs_max": 1, "restart_ms": 1000}
    arms = {"svc": {"client": "service", "settings": {}, "client_rack": None}}
    timeline = run.documents["timeline"]
    timeline["workloads"].append({"name": "billing", "produce": None, "consume": None, "pipe": pipe, "arms": arms})
    timeline["topics"].append(dict(timeline["topics"][0]) | {"name": "billed"})
    log = run.frames["log"]
    inputs = log.assign(key_hash=(log["seq"] // 6 * 2 + log["producer_id"]) % KEYS)
    sent = run.frames["produce"][["producer_id", "seq", "intended_us", "done_us"]]
    joined = inputs.merge(sent, on=["producer_id", "seq"]).sort_values(["partition", "offset"])
    # a service works through a partition in its order
    written_us = joined.groupby("partition")["done_us"].cummax() + 20_000
    outputs = joined.assign(topic="billed", topic_id="t2", timestamp_ms=(written_us + FROM_US) // 1000, leader_epoch=0)
    run.frames["log"] = typed("log", pd.concat([inputs, outputs], ignore_index=True))
    rows = outputs.assign(workload="billing", arm="svc", client="reference", op="pipe", worker="billing-svc-outputs")
    rows = rows.assign(done_us=written_us + 2_000, status="ok", client_rack="b", bytes=1000)
    run.frames["consume"] = typed("outcomes", pd.concat([run.frames["consume"], rows], ignore_index=True))
    last = joined.groupby("partition")["offset"].transform("max")
    committed = outputs[(joined["offset"] % COMMIT_EVERY == COMMIT_EVERY - 1) | (joined["offset"] == last)]
    commits = {"broker_id": 1, "partition": 0, "batch": 0, "leader_epoch": 0, "transactional": False, "group": "biller"}
    offsets = committed.assign(**commits, topic="orders", topic_partition=committed["partition"])
    offsets = offsets.assign(committed=committed["offset"] + 1, timestamp_ms=committed["timestamp_ms"] + 5)
    run.frames["offsets"] = typed("offsets", offsets.assign(offset=np.arange(len(offsets))))
    first = [["orders", number, "one" if number < 3 else "two"] for number in range(6)]
    moved = [[topic, number, "two" if number == 2 else member] for topic, number, member in first]
    done = [["orders", number, _committed_by(run, number, MOVE_US - S // 2)] for number in range(6)]
    seen = {"event": "group_changed", "group": "biller"}
    run.documents["events"] += [
        seen | {"t_us": S, "since_us": S, "owners": first, "offsets": []},
        seen | {"t_us": MOVE_US, "since_us": MOVE_US - S // 2, "owners": moved, "offsets": done},
        _settled(idle=False),
    ]
    return run


def _settled(*, idle: bool, positions: list[list[Any]] | None = None) -> dict[str, Any]:
    named = {"workload": "billing", "arm": "svc", "op": "pipe"}
    return {
        "t_us": 52 * S,
        "event": "pipe_settled",
        **named,
        "idle": idle,
        "commits": True,
        "positions": positions or [],
    }


def _committed_by(run: Run, partition: int, at_us: int) -> int:
    rows = run.frames["offsets"]
    early = rows[(rows["topic_partition"] == partition) & (rows["timestamp_ms"] * 1000 < at_us + FROM_US)]
    return int(early["committed"].max())


def _input(run: Run, partition: int, before_us: int) -> pd.Series:
    """Return the last input of a partition whose output was written before a time."""
    rows = _outputs(run)
    own = rows[(rows["partition"] == partition) & (rows["timestamp_ms"] * 1000 < before_us + FROM_US)]
    return own.sort_values("offset").iloc[-1]


def _outputs(run: Run) -> pd.DataFrame:
    rows = run.frames["log"]
    return rows[rows["topic"] == "billed"]


def _unwrite(run: Run, of: pd.Series) -> None:
    """Remove the outputs of an input."""
    for table in ("log", "consume"):
        rows = run.frames[table]
        same = (rows["topic"] == "billed") & (rows["producer_id"] == of["producer_id"]) & (rows["seq"] == of["seq"])
        run.drop(table, rows.index[same])


def _write_again(run: Run, of: pd.Series, at_us: int) -> None:
    """Add a second output of an input at the end of its partition."""
    end = int(_outputs(run).query(f"partition == {of['partition']}")["offset"].max()) + 1
    run.add("log", dict(of) | {"offset": end, "timestamp_ms": (at_us + FROM_US) // 1000})


@defect("an input in the midst of the run without an output", fails=("integrity/pipe_lost",), base=pipe_run)
def pipe_output_lost(run: Run) -> None:
    _unwrite(run, _input(run, 1, 30 * S))


@defect("the last inputs without outputs, of a service that stood still", fails=("integrity/pipe_lost",), base=pipe_run)
def pipe_stood_still(run: Run) -> None:
    _unwrite(run, _input(run, 1, 60 * S))
    run.documents["events"][-1] = _settled(idle=True, positions=[["orders", 1, 400, 501]])


@defect(
    "the last input without an output, of a service that was still at work",
    unsure=("integrity/pipe_lost",),
    says="1 further records were not judged",
    base=pipe_run,
)
def pipe_still_at_work(run: Run) -> None:
    last = _input(run, 1, 60 * S)
    _unwrite(run, last)
    end = int(last["offset"]) + 1
    run.documents["events"][-1] = _settled(idle=False, positions=[["orders", 1, end - 1, end]])


@defect(
    "an input below what the service had reached, without an output",
    fails=("integrity/pipe_lost",),
    base=pipe_run,
)
def pipe_lost_before_its_position(run: Run) -> None:
    last = _input(run, 1, 60 * S)
    _unwrite(run, _input(run, 1, 30 * S))
    end = int(last["offset"]) + 1
    run.documents["events"][-1] = _settled(idle=False, positions=[["orders", 1, end - 1, end]])


@defect("no output bears the mark of its input", unsure=("integrity/pipe_lost", "slo/pipe_lost"), base=pipe_run)
def pipe_drops_marks(run: Run) -> None:
    for table in ("log", "consume"):
        rows = run.frames[table]
        run.set(table, rows.index[rows["topic"] == "billed"], producer_id=None, seq=None)
    run.slos("pipe_lost == 0")


@defect("an output written twice long before the partition moved", fails=("integrity/pipe_duplicate",), base=pipe_run)
def pipe_duplicate_early(run: Run) -> None:
    _write_again(run, _input(run, 2, CALM_US), CALM_US + S)


@defect(
    "an uncommitted input whose output was written again when its partition had moved: no alarm",
    says="change of owner of orders/2",
    base=pipe_run,
)
def pipe_redelivered_after_move(run: Run) -> None:
    last = _input(run, 2, MOVE_US - S // 10)
    assert last["offset"] >= _committed_by(run, 2, MOVE_US - S // 2)
    _write_again(run, last, MOVE_US + S)


@defect(
    "the output of an input that had been committed before the move, written again after it",
    fails=("integrity/pipe_duplicate",),
    base=pipe_run,
)
def pipe_redelivered_below_commit(run: Run) -> None:
    _write_again(run, _input(run, 2, CALM_US), MOVE_US + S)


@defect(
    "an output written again when another partition had moved",
    fails=("integrity/pipe_duplicate",),
    base=pipe_run,
)
def pipe_redelivered_elsewhere(run: Run) -> None:
    _write_again(run, _input(run, 4, MOVE_US - S // 10), MOVE_US + S)


AGAIN = "word-count-words-repartition"


def _passes_through(run: Run) -> None:
    """Give the service an intermediate topic, whose partition 1 moves with partition 2 of the inputs."""
    for line in run.documents["events"]:
        if line["event"] == "group_changed":
            moved = any(number == 2 and member == "two" for _, number, member in line["owners"])
            line["owners"] += [[AGAIN, 0, "one"], [AGAIN, 1, "two" if moved else "one"]]


@defect(
    "outputs written again after a move of an intermediate topic, of an input that was committed before: no alarm",
    says="change of owners of word-count-words-repartition at 40.0 s",
    base=pipe_run,
)
def pipe_redelivered_in_between(run: Run) -> None:
    _passes_through(run)
    _write_again(run, _input(run, 2, CALM_US), MOVE_US + S)
    _write_again(run, _input(run, 2, CALM_US), MOVE_US + 2 * S)


@defect(
    "an input that was sent after an intermediate topic had moved, and whose output was written twice",
    fails=("integrity/pipe_duplicate",),
    base=pipe_run,
)
def pipe_duplicate_after_in_between(run: Run) -> None:
    _passes_through(run)
    _write_again(run, _input(run, 2, MOVE_US + 2 * S), MOVE_US + 3 * S)


@defect(
    "an output written twice long before an intermediate topic moved",
    fails=("integrity/pipe_duplicate",),
    base=pipe_run,
)
def pipe_duplicate_before_in_between(run: Run) -> None:
    _passes_through(run)
    _write_again(run, _input(run, 2, CALM_US), CALM_US + S)


@defect(
    "a commit of a service with an intermediate topic, before its outputs: no alarm, as what it read is in that topic",
    base=pipe_run,
)
def pipe_commits_in_between(run: Run) -> None:
    _passes_through(run)
    pipe_commits_first(run)


@defect(
    "an output written twice while the leader of its partition changed: no alarm, as a retry may have written it",
    says="change of leader of billed/4",
    base=pipe_run,
)
def pipe_retried(run: Run) -> None:
    leader = {"topic": "billed", "topic_id": "t2", "partition": 4, "leader": 1, "isr": [1, 2, 3], "unclean": False}
    bounds = {"after_us": 44 * S, "by_us": 45 * S, "start_offset": 1, "sources": ["controller"], "checkpoints": {}}
    first = leader | bounds | {"epoch": 0, "start_offset": 0, "after_us": 0, "by_us": 0}
    run.files["leaders.jsonl"] += f"{json.dumps(first)}\n{json.dumps(leader | bounds | {'epoch': 1})}\n".encode()
    _write_again(run, _input(run, 4, 45 * S), 46 * S)


@defect("two outputs of one key in the wrong order", fails=("integrity/pipe_order",), base=pipe_run)
def pipe_order_inverted(run: Run) -> None:
    late = _input(run, 3, CALM_US)
    rows = _outputs(run)
    same = rows[(rows["partition"] == 3) & (rows["key_hash"] == late["key_hash"]) & (rows["offset"] < late["offset"])]
    early = same.sort_values("offset").iloc[-1]
    log = run.frames["log"]
    places = [
        log.index[(log["topic"] == "billed") & (log["partition"] == 3) & (log["offset"] == row["offset"])][0]
        for row in (early, late)
    ]
    offsets = [run.get("log", place)["offset"] for place in places]
    for place, offset in zip(places, reversed(offsets), strict=True):
        run.set("log", place, offset=offset)


@defect("two outputs of different keys in the other order: no alarm", base=pipe_run)
def pipe_order_of_keys(run: Run) -> None:
    late = _input(run, 3, 30 * S)
    log = run.frames["log"]
    at = [
        log.index[(log["topic"] == "billed") & (log["partition"] == 3) & (log["offset"] == offset)][0]
        for offset in (late["offset"] - 1, late["offset"])
    ]
    assert run.get("log", at[0])["key_hash"] != run.get("log", at[1])["key_hash"]
    run.set("log", at[0], offset=late["offset"])
    run.set("log", at[1], offset=late["offset"] - 1)


@defect(
    "a commit before the outputs of its inputs were written",
    fails=("integrity/offsets_without_output",),
    base=pipe_run,
)
def pipe_commits_first(run: Run) -> None:
    rows = run.frames["offsets"]
    row = rows[(rows["topic_partition"] == 5) & (rows["committed"] > 200)].index[0]
    run.set("offsets", row, timestamp_ms=run.get("offsets", row)["timestamp_ms"] - 400)


PID = 500
"""Producer id in Kafka of the transactional service's process."""
IN_TRANSACTION = 10


@cache
def exactly_once_run() -> Run:
    """Return the run with a service whose outputs are written in transactions of ten, a fifth of which it repeats.

    The first attempt of a repeated transaction was aborted: its outputs are in the log, and nobody reads them.
    """
    run = pipe_run().copy("exactly-once")
    run.documents["timeline"]["workloads"][-1]["pipe"]["transactional"] = True
    log = run.frames["log"]
    inputs, outputs = log[log["topic"] != "billed"], log[log["topic"] == "billed"]
    batches, written = [], []
    for (topic, topic_id, partition), rows in outputs.groupby(["topic", "topic_id", "partition"]):
        place, offset = {"topic": topic, "topic_id": topic_id, "partition": partition, "leader_epoch": 0}, 0
        for number, start in enumerate(range(0, len(rows), IN_TRANSACTION)):
            chunk = rows.sort_values("offset").iloc[start : start + IN_TRANSACTION]
            for marker in ["abort", "commit"] if number % 5 == 1 else ["commit"]:
                last = offset + len(chunk) - 1
                batch = place | {"kafka_producer_id": PID, "kafka_epoch": number, "transactional": True}
                batches.append(
                    batch | {"first_offset": offset, "last_offset": last, "base_sequence": 0, "marker": None}
                )
                batches.append(batch | {"first_offset": last + 1, "last_offset": last + 1, "marker": marker})
                written.append(chunk.assign(offset=range(offset, last + 1)))
                offset = last + 2
    run.frames["log"] = typed("log", pd.concat([inputs, *written], ignore_index=True))
    run.frames["batches"] = typed("batches", pd.DataFrame(batches))
    run.frames["offsets"]["transactional"] = True
    run.documents["events"].append({"t_us": 53 * S, "event": "offsets_read"})
    return run


def _committed(run: Run, partition: int, before_us: int) -> pd.Series:
    """Return the last output of a partition before a time that is not in a repeated transaction."""
    rows = _outputs(run)
    own = rows[(rows["partition"] == partition) & (rows["timestamp_ms"] * 1000 < before_us + FROM_US)]
    once = own.groupby(["producer_id", "seq"]).filter(lambda copies: len(copies) == 1)
    return once.sort_values("offset").iloc[-1]


@defect(
    "an output of a transactional service that is committed twice after its partition moved",
    fails=("integrity/pipe_duplicate",),
    base=exactly_once_run,
)
def exactly_once_duplicate(run: Run) -> None:
    _write_again(run, _committed(run, 2, MOVE_US), MOVE_US + S)
    end = int(run.frames["log"].iloc[-1]["offset"])
    batch = dict(run.frames["batches"].query("partition == 2").iloc[0])
    run.add("batches", batch | {"first_offset": end, "last_offset": end})
    run.add("batches", batch | {"first_offset": end + 1, "last_offset": end + 1, "marker": "commit"})


@defect(
    "outputs of a transactional service that it wrote outside of a transaction",
    fails=("integrity/offsets_without_output",),
    base=exactly_once_run,
)
def exactly_once_outside(run: Run) -> None:
    rows = run.frames["batches"]
    run.set("batches", rows.index[rows["marker"].isna() & (rows["partition"] == 2)][5], transactional=False)


@defect(
    "an aborted output of a transactional service that was not repeated",
    fails=("integrity/pipe_lost",),
    base=exactly_once_run,
)
def exactly_once_aborted(run: Run) -> None:
    rows = run.frames["batches"]
    own = rows[(rows["partition"] == 2) & (rows["marker"] == "commit") & (rows["first_offset"] > 100)]
    last = own.sort_values("first_offset").index[0]
    run.set("batches", last, marker="abort")
    end, log = int(rows.loc[last, "first_offset"]), _outputs(run)
    aborted = log[(log["partition"] == 2) & log["offset"].between(end - IN_TRANSACTION, end - 1)]
    read, marks = run.frames["consume"], {*zip(aborted["producer_id"], aborted["seq"], strict=True)}
    same = [mark in marks for mark in zip(read["producer_id"], read["seq"], strict=True)]
    run.drop("consume", read.index[(read["topic"] == "billed") & pd.Series(same, index=read.index)])


@defect(
    "a commit of a transactional service that is older than its outputs: no alarm, as both take effect together",
    base=exactly_once_run,
)
def exactly_once_offsets_first(run: Run) -> None:
    rows = run.frames["offsets"]
    own = rows.index[rows["topic_partition"] == 5]
    run.set("offsets", own, timestamp_ms=rows.loc[own, "timestamp_ms"] - 400)


@cache
def aborted_inputs_run() -> Run:
    """Return a run with a transactional service whose inputs are in transactions, a fifth of which are aborted.

    Each output is a transaction; the service, which reads committed records, writes none for an aborted input.
    """
    run = committed_run().copy("aborted-inputs")
    run.documents["run"]["origin_unix_us"] = FROM_US
    pipe = {"from": "orders", "to": {"svc": "billed"}, "groups": {}, "members": 2, "rack": "b", "transactional": True}
    pipe |= {"mark": "header", "outputs_min": 1, "outputs_max": 1, "restart_ms": 1000}
    arms = {"svc": {"client": "service", "settings": {}, "client_rack": None}}
    timeline = run.documents["timeline"]
    timeline["workloads"].append({"name": "billing", "produce": None, "consume": None, "pipe": pipe, "arms": arms})
    timeline["topics"].append(dict(timeline["topics"][0]) | {"name": "billed"})
    log = run.frames["log"]
    _bill(run, log[log["seq"] // RECORDS % 5 != ABORTED % 5])
    run.documents["events"].append(_settled(idle=False))
    return run


def _bill(run: Run, inputs: pd.DataFrame) -> None:
    """Add an output of each input, in a transaction of its own."""
    rows = run.frames["log"]
    ends = rows[rows["topic"] == "billed"].groupby("partition")["offset"].max() + 2
    turn = inputs.sort_values(["partition", "offset"]).groupby("partition").cumcount()
    offset = 2 * turn + inputs["partition"].map(ends).fillna(0).astype(int)
    sent = run.frames["produce"][["producer_id", "seq", "done_us"]]
    written_us = inputs.merge(sent, on=["producer_id", "seq"], how="left")["done_us"].to_numpy() + 20_000
    own = {"topic": "billed", "topic_id": "t2", "leader_epoch": 0}
    outputs = inputs.assign(**own, offset=offset, timestamp_ms=(written_us + FROM_US) // 1000)
    run.frames["log"] = typed("log", pd.concat([rows, outputs], ignore_index=True))
    delivered = outputs.assign(workload="billing", arm="svc", client="reference", op="pipe")
    delivered = delivered.assign(worker="billing-svc-outputs", done_us=written_us + 2_000, status="ok", bytes=1000)
    read = [run.frames["consume"], delivered.assign(client_rack="b")]
    run.frames["consume"] = typed("outcomes", pd.concat(read, ignore_index=True))
    data = outputs[["topic", "topic_id", "partition", "leader_epoch"]].assign(
        first_offset=outputs["offset"], last_offset=outputs["offset"], kafka_producer_id=PID, transactional=True
    )
    data = data.assign(kafka_epoch=0, base_sequence=0)
    ended = {"first_offset": data["first_offset"] + 1, "last_offset": data["last_offset"] + 1, "marker": "commit"}
    batches = [run.frames["batches"], data, data.assign(**ended)]
    run.frames["batches"] = typed("batches", pd.concat(batches, ignore_index=True))


@defect(
    "an output of a transactional service for an input whose transaction was aborted",
    fails=("integrity/aborted_read",),
    base=aborted_inputs_run,
)
def exactly_once_of_aborted(run: Run) -> None:
    log = run.frames["log"]
    _bill(run, log[(log["topic"] == "orders") & (log["producer_id"] == 0) & (log["seq"] == ABORTED * RECORDS)])


@defect(
    "the same of a service that does not promise exactly once, and may read uncommitted inputs: no alarm",
    base=aborted_inputs_run,
)
def at_least_once_of_aborted(run: Run) -> None:
    run.documents["timeline"]["workloads"][-1]["pipe"]["transactional"] = False
    exactly_once_of_aborted(run)


def _commits(run: Run, partition: int) -> "pd.Index[int]":
    rows = run.frames["offsets"]
    return rows.index[rows["topic_partition"] == partition]


@defect(
    "positions of a transactional service that its consumer commits outside of the transactions",
    fails=("integrity/output_without_offset",),
    base=exactly_once_run,
)
def exactly_once_offsets_outside(run: Run) -> None:
    run.set("offsets", _commits(run, 5)[4], transactional=False)


@defect(
    "the last outputs of a transactional service, whose positions it never commits",
    fails=("integrity/output_without_offset",),
    base=exactly_once_run,
)
def exactly_once_offsets_missing(run: Run) -> None:
    run.drop("offsets", _commits(run, 5)[-1:])


@defect(
    "a position that a transactional service commits again outside of a transaction: no alarm", base=exactly_once_run
)
def exactly_once_offsets_again(run: Run) -> None:
    rows = run.frames["offsets"]
    again = dict(rows.loc[_commits(run, 5)[4]])
    run.add("offsets", again | {"offset": int(rows["offset"].max()) + 1, "transactional": False})
