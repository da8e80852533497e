"""Clean runs with realistic noise: slow tails, failures within the SLOs, moved leaders, and a rebalance of a group."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from aftershock.tests.unit.results.evidence_factory import PARTITIONS, S
from aftershock.tests.unit.results.planted.world import EPOCH, Row, Run, good_run, typed

COUNT = 300
FATES = {"ok": 291, "failed": 5, "in_doubt": 2, "in_doubt and logged": 2}
REBALANCED_US = 30 * S
SLOS = (
    "produce.latency p95 < 2s",
    "produce.success >= 95%",
    "produce.gap < 20s",
    "consume.latency p90 < 5s",
    "lost == 0",
    "duplicate == 0",
)


def noisy_run(seed: int) -> Run:
    """Return a noisy run without any defect; the seed determines the run."""
    rng = np.random.default_rng(seed)
    run = good_run().copy(f"noisy-{seed}")
    workload = run.documents["timeline"]["workloads"][0]
    workload["arms"] = {"baseline": {"client": "reference", "settings": {}}}
    workload["consume"]["group"] = "readers"
    workload["produce"]["rate_per_s"] = COUNT / 50
    run.documents["run"]["producers"] = run.documents["run"]["producers"][:1]
    run.documents["run"]["values_compared"] = ["orders/baseline", "log"]
    run.slos(*SLOS)
    sent = _sent(rng)
    logged = sent[sent["logged"]]
    read = _read(rng, logged)
    run.documents["events"] = [*_events(logged, read), *_retries(sent)]
    run.frames["produce"] = typed("outcomes", sent)
    run.frames["log"] = typed("log", logged.assign(offset=logged["at"]))
    run.frames["consume"] = typed("outcomes", read)
    return run


def _sent(rng: np.random.Generator) -> pd.DataFrame:
    """Draw records with a fixed number per outcome, because independent draws would really break an SLO in some
    of 200 runs.
    """
    seq = np.arange(COUNT)
    intended = seq * (50 * S) // COUNT
    sent = intended + rng.integers(50, 3000, COUNT)
    taken = 5000 * rng.lognormal(0, 0.6, COUNT) + np.where(rng.random(COUNT) < 0.02, 400_000 * rng.pareto(2, COUNT), 0)
    fate = rng.permutation(np.repeat([*FATES], [*FATES.values()]))
    partition = seq % PARTITIONS
    moved_us = rng.integers(10 * S, 45 * S, (2, PARTITIONS))
    epoch = EPOCH + (intended >= moved_us[0][partition]).astype(int) + (intended >= moved_us[1][partition]).astype(int)
    broker = 1 + (partition + epoch) % 3
    rows = pd.DataFrame({**_named("produce"), "producer_id": 0, "seq": seq, "partition": partition, "status": fate})
    rows = rows.assign(intended_us=intended, sent_us=sent, deadline_us=intended + 30 * S, client_rack="a")
    rows["logged"] = (rows["status"] == "ok") | rows["status"].str.endswith("logged")
    rows["status"] = rows["status"].str.removesuffix(" and logged")
    rows["at"] = rows[rows["logged"]].groupby("partition").cumcount()
    ok = rows["status"] == "ok"
    rows = rows.assign(offset=rows["at"].where(ok), attempts=np.where(rng.random(COUNT) < 0.05, 2, 1))
    rows = rows.assign(
        leader_epoch=epoch, broker_id=broker, broker_rack=pd.Series(broker).map({1: "a", 2: "b", 3: "c"})
    )
    rows["done_us"] = pd.Series(sent + np.minimum(taken, 2 * S).astype(int)).where(rows["status"] != "in_doubt")
    return rows


def _named(op: str) -> Row:
    return {
        "workload": "orders",
        "arm": "baseline",
        "client": "reference",
        "op": op,
        "topic": "orders",
        "topic_id": "t1",
        "bytes": 1000,
    }


def _read(rng: np.random.Generator, logged: pd.DataFrame) -> pd.DataFrame:
    """Deliver in order; the last records of each partition before the rebalance are delivered again to another
    member.
    """
    at = logged["done_us"].fillna(logged["sent_us"] + 50_000) + rng.integers(1000, 20_000, len(logged))
    rows = pd.DataFrame(
        {**_named("consume"), "status": "ok", "client_rack": "b", "group": "readers-baseline"}, logged.index
    )
    kept = ("producer_id", "seq", "partition", "intended_us", "leader_epoch", "broker_id", "broker_rack")
    rows = rows.assign(**{name: logged[name] for name in kept}, offset=logged["at"], done_us=at)
    rows = rows.sort_values(["partition", "offset"])
    rows["done_us"] = rows.groupby("partition")["done_us"].cummax()
    before = rows["done_us"] <= REBALANCED_US
    again = rows[before].groupby("partition").tail(int(rng.integers(1, 5)))
    again = again.assign(done_us=REBALANCED_US + 1 + again["offset"])
    rows.loc[~before, "done_us"] = np.maximum(rows.loc[~before, "done_us"], REBALANCED_US + 1000)
    rows = pd.concat([rows.assign(member=np.where(before, "first", "second")), again.assign(member="second")])
    rows = rows.sort_values(["partition", "done_us", "offset"])
    ahead = rows["offset"] + rng.integers(1, 4, len(rows))
    rows["high_watermark"] = ahead.groupby(rows["partition"]).cummax()
    return rows


def _events(logged: pd.DataFrame, read: pd.DataFrame) -> Iterator[Row]:
    """Return assignments, commits and revocations; the second member continues from the last commit."""
    same = {"arm": "baseline", "workload": "orders", "op": "consume", "worker": "orders-baseline-consume"}
    committed = same | {"event": "committed", "group": "readers-baseline", "took_us": 1}
    every = [["orders", partition] for partition in range(PARTITIONS)]
    yield same | {"t_us": 0, "event": "assigned", "partitions": every}
    second = read[read["member"] == "second"].groupby("partition")["offset"].min()
    offsets = [["orders", int(partition), int(offset)] for partition, offset in second.items()]
    yield committed | {"t_us": REBALANCED_US - 2, "offsets": offsets}
    yield same | {"t_us": REBALANCED_US - 1, "event": "revoked", "partitions": every}
    yield same | {"t_us": REBALANCED_US, "event": "assigned", "partitions": every}
    ends = logged.groupby("partition")["at"].max()
    told = [["orders", int(partition), int(offset) + 1] for partition, offset in ends.items()]
    yield committed | {"t_us": 60 * S, "offsets": told}


def _retries(sent: pd.DataFrame) -> Iterator[Row]:
    """Return retries: the second attempt of one record was immediate after a new leader, that of another after
    a back-off.
    """
    same: dict[str, Any] = {"event": "batch_retried", "arm": "baseline", "workload": "orders", "op": "produce"}
    same |= {"worker": "orders-baseline-produce", "topic": "orders", "reason": "NOT_LEADER_OR_FOLLOWER", "records": 1}
    for row in sent[sent["attempts"] == 2].to_dict("records"):
        place = {"partition": row["partition"], "epoch": row["leader_epoch"], "token": row["seq"]}
        yield same | place | {"t_us": row["sent_us"], "immediate": True, "attempts": 1}
        yield same | place | {"t_us": row["sent_us"] + 100_000, "immediate": False, "attempts": 2}
