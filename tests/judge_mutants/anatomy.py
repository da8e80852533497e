"""Facts of a stored run that planters need to choose a place: records, lanes, faults, calm times, owners, epochs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import pandas as pd

from aftershock.results.evidence.evidence import Client
from aftershock.tests.judge_mutants.draft import Stored

S = 1_000_000
DESTRUCTIVE = (
    *("power_loss", "delete_records", "recreate_topic", "disk_errors", "corrupt_segment", "truncate_segment"),
    *("delete_group_offsets", "config"),
)
"""Kinds of faults that can remove what all replicas in sync had; ``config`` may shorten the retention."""
_RETRIES = (
    "node_disconnected",
    "request_timed_out",
    "batch_retried",
    "client_error",
    "epoch_bumped",
    "metadata_refreshed",
)
RECORD = ["topic", "partition", "offset"]


@dataclass(frozen=True)
class Fault:
    """One injected fault; ``end_us`` is when it was healed, or the end of the run."""

    name: str
    kind: str
    start_us: int
    end_us: int
    targets: Mapping[str, Any]
    step: Mapping[str, Any]


@dataclass(frozen=True)
class Tenure:
    """A time in which a member owned a partition, from ``assigned`` to ``revoked``, ``lost`` or the end of the run."""

    arm: str
    workload: str
    worker: str
    topic: str
    partition: int
    start_us: int
    end_us: int
    ended: bool


@dataclass(frozen=True)
class Lane:
    """Deliveries of one partition to one member, in the order of time: indices of rows in ``outcomes``."""

    client: Client
    worker: str
    topic: str
    partition: int
    rows: pd.DataFrame


def _tenure(key: tuple[str, str, str, str, int], start_us: int, end_us: int, *, ended: bool) -> Tenure:
    arm, workload, worker, topic, partition = key
    return Tenure(arm, workload, worker, topic, partition, start_us, end_us, ended)


class Anatomy:
    """A stored run, with its parts by name. ``bad`` clients are in no list of clients, records, lanes or tenures."""

    def __init__(self, run: Stored) -> None:
        self.run = run
        self.timeline: Mapping[str, Any] = run.documents["timeline.json"]
        self.events: Sequence[Mapping[str, Any]] = run.documents["events.jsonl"]
        self.journal: Sequence[Mapping[str, Any]] = run.documents["journal.jsonl"]
        marks = run.documents["run.json"]["marks"]
        self.load_start_us: int = marks["load_start_us"]
        self.steady_us: int = marks["steady_start_us"]
        self.load_end_us: int = marks["load_end_us"]

    @cached_property
    def clients(self) -> tuple[Client, ...]:
        return tuple(client for client in self.run.evidence.clients if client.arm not in self.run.bad)

    def client_of(self, workload: str, arm: str) -> Client | None:
        return next((each for each in self.clients if (each.workload, each.arm) == (workload, arm)), None)

    def settings(self, client: Client) -> Mapping[str, Any]:
        return self.run.evidence.arm_settings(client)

    @cached_property
    def outcomes(self) -> pd.DataFrame:
        """All outcomes with a ``worker``: runs of 0.1.0 have no such column, but a file per process."""
        rows = self.run.tables["outcomes"].copy()
        if "worker" not in rows.columns:
            rows["worker"] = None
        missing = rows["worker"].isna()
        if missing.any():
            rows.loc[missing, "worker"] = rows["workload"] + "-" + rows["arm"] + "-" + rows["op"]
        good = pd.DataFrame([(c.workload, c.arm) for c in self.clients], columns=["workload", "arm"])
        keys = pd.MultiIndex.from_frame(rows[["workload", "arm"]])
        return rows[keys.isin(pd.MultiIndex.from_frame(good))]

    @cached_property
    def produced(self) -> pd.DataFrame:
        return self.outcomes[self.outcomes["op"] == "produce"]

    @cached_property
    def delivered(self) -> pd.DataFrame:
        return self.outcomes[(self.outcomes["op"] == "consume") & (self.outcomes["status"] == "ok")]

    @cached_property
    def commits(self) -> pd.DataFrame:
        return self.outcomes[self.outcomes["op"] == "commit"]

    @cached_property
    def records(self) -> pd.DataFrame:
        """Acknowledged records of the log that are in it once, by topic, partition, offset.

        ``row`` is the index of the producer's row in ``outcomes``, ``entry`` that of the log's row in ``log``.
        """
        log = self.run.tables["log"].copy()
        log["entry"] = log.index
        log = log[log["producer_id"].notna()].drop_duplicates(["producer_id", "seq"], keep=False)
        if "leader_epoch" in log.columns:
            log = log.rename(columns={"leader_epoch": "epoch"})
        else:
            log["epoch"] = pd.array([None] * len(log), dtype="Int64")
        sent = self.produced[self.produced["status"] == "ok"]
        sent = sent[["workload", "arm", "producer_id", "seq", "intended_us", "sent_us", "done_us", "worker"]].copy()
        sent["row"] = sent.index
        wanted = log[["topic", "topic_id", "partition", "offset", "producer_id", "seq", "entry", "epoch"]]
        joined = wanted.merge(sent, on=["producer_id", "seq"]).sort_values(RECORD, ignore_index=True)
        compacted = {row["name"] for row in self.timeline["topics"] if "compact" in str(row.get("config"))}
        return joined[~joined["topic"].isin(compacted)].reset_index(drop=True)

    def records_of(self, client: Client) -> pd.DataFrame:
        mine = (self.records["workload"] == client.workload) & (self.records["arm"] == client.arm)
        return self.records[mine]

    @cached_property
    def producers(self) -> tuple[Client, ...]:
        return tuple(client for client in self.clients if client.produces_to and len(self.records_of(client)))

    @cached_property
    def readers(self) -> tuple[Client, ...]:
        return tuple(client for client in self.clients if client.consumes_from)

    @cached_property
    def traceable(self) -> bool:
        """True if the evidence has the epoch history of partitions, which tells a permitted loss from a defect."""
        log = self.run.tables["log"]
        return (
            "leaders.jsonl" in self.run.documents
            and "leader_epoch" in log.columns
            and log["leader_epoch"].notna().all()
        )

    @cached_property
    def destructive(self) -> bool:
        """True if something in the run could destroy records that were acknowledged by all replicas in sync."""
        settings = f"{self.timeline['topics']} {self.timeline['cluster']}".lower()
        unclean = "'unclean.leader.election.enable': 'true'" in settings
        return unclean or any(fault.kind in DESTRUCTIVE for fault in self.faults)

    def epochs(self, topic: str, partition: int) -> list[Mapping[str, Any]]:
        """Return the leader epochs of a partition of the final topic, oldest first."""
        ids = set(self.run.tables["log"].loc[self.run.tables["log"]["topic"] == topic, "topic_id"])
        lines = [
            line
            for line in self.run.documents.get("leaders.jsonl", ())
            if line["topic"] == topic and line["partition"] == partition and line["topic_id"] in ids
        ]
        return sorted(lines, key=lambda line: int(line["epoch"]))

    @cached_property
    def faults(self) -> tuple[Fault, ...]:
        steps = {step["id"]: step for step in self.timeline["steps"]}
        starts: dict[str, Mapping[str, Any]] = {}
        ends: dict[str, int] = {}
        for line in self.journal:
            if line["state"] in ("intended", "injected"):
                starts.setdefault(line["fault"], line)
            elif line["state"] == "healed":
                ends[line["fault"]] = line["t_us"]
        return tuple(
            Fault(
                name, line["kind"], line["t_us"], ends.get(name, self.load_end_us), line["targets"], steps.get(name, {})
            )
            for name, line in starts.items()
        )

    @cached_property
    def quiet_until_us(self) -> int:
        """The start of the first fault: nothing that happens before it can be caused by a fault."""
        return min((fault.start_us for fault in self.faults), default=self.load_end_us)

    def undisturbed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the records that were answered within a second before the first fault, far from any sign of a retry.

        A sign is an event of the producer about a lost connection or a late answer, from two seconds before the record
        was sent to two seconds after it was answered.
        """
        early = (rows["done_us"] < self.quiet_until_us - 2 * S) & (rows["done_us"] - rows["sent_us"] < S)
        for event in self.events:
            if event["event"] in _RETRIES and event.get("op") in ("produce", None):
                since = event.get("since_us", event["t_us"])
                mine = rows["arm"] == event.get("arm")
                early &= ~(mine & (rows["sent_us"] < event["t_us"] + 2 * S) & (rows["done_us"] > since - 2 * S))
        return rows[early.to_numpy(bool, na_value=False)]

    def calm(self, settle_us: int, least_us: int) -> list[tuple[int, int]]:
        """Return the spans of the load of ``least_us`` or more with no fault active or healed ``settle_us`` ago."""
        spans, at = [], self.load_start_us
        for fault in sorted(self.faults, key=lambda fault: fault.start_us):
            spans.append((at, fault.start_us))
            at = max(at, fault.end_us + settle_us)
        spans.append((at, self.load_end_us))
        return [(start, end) for start, end in spans if end - start >= least_us]

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        found = []
        keys = ["workload", "arm", "worker", "topic", "partition"]
        for (workload, arm, worker, topic, partition), rows in self.delivered.groupby(keys, sort=True):
            client = self.client_of(workload, arm)
            if client is not None:
                ordered = rows.sort_values(["done_us", "offset"])
                found.append(Lane(client, worker, topic, int(partition), ordered))
        return tuple(found)

    def some_lanes(self, dice: Random) -> Iterator[Lane]:
        yield from dice.sample(self.lanes, len(self.lanes))

    def own_watermarks(self, client: Client) -> bool:
        """Return True if a client tells the high watermark of each response; librdkafka tells the latest one it had."""
        workload = next(row for row in self.timeline["workloads"] if row["name"] == client.workload)
        return (workload["arms"][client.arm] or {}).get("client") == "reference"

    def newest_epoch(self, lane: Lane) -> int:
        """Return the newest leader epoch of a lane's partition that a client reported."""
        rows = self.outcomes
        return int(rows[(rows["topic"] == lane.topic) & (rows["partition"] == lane.partition)]["leader_epoch"].max())

    def position_unknown(self, lane: Lane) -> bool:
        """True if the reader stopped before the end of its topics, so that its last records are not due."""
        return any(event.get("event") == "drain_incomplete" and lane.client.wrote(event) for event in self.events)

    @cached_property
    def tenures(self) -> tuple[Tenure, ...]:
        """All tenures of members: each ends with an event of the member, or with its death or restart."""
        kills = [
            {"t_us": line["t_us"], "event": "restarted", "worker": worker}
            for line in self.journal
            if line["state"] == "injected" and (line.get("undo") or {}).get("verb") == "start_clients"
            for worker in line["targets"].get("clients", ())
        ]
        found: list[Tenure] = []
        since: dict[tuple[str, str, str, str, int], int] = {}
        for event in sorted([*self.events, *kills], key=lambda event: int(event["t_us"])):
            name, worker = event["event"], event.get("worker")
            if name not in ("assigned", "revoked", "lost", "partitions_lost", "restarted"):
                continue
            if name == "restarted":
                ended = [key for key in since if key[2] == worker]
            else:
                client = self.client_of(event.get("workload", ""), event.get("arm", ""))
                who = (event.get("arm", ""), event.get("workload", ""), str(worker or (client and client.key)))
                ended = [(*who, topic, partition) for topic, partition in event["partitions"]] if client else []
            for key in ended:
                if key in since:
                    found.append(_tenure(key, since.pop(key), event["t_us"], ended=name != "assigned"))
                if name == "assigned":
                    since[key] = event["t_us"]
        end = max(int(self.outcomes["done_us"].max()), self.load_end_us)
        return (*found, *(_tenure(key, start, end, ended=False) for key, start in since.items()))

    def tenure_at(self, lane: Lane, at_us: int) -> Tenure | None:
        """Return the tenure of a lane's member in which a time lies."""
        own = (lane.client.arm, lane.client.workload, lane.worker, lane.topic, lane.partition)
        return next(
            (
                each
                for each in self.tenures
                if (each.arm, each.workload, each.worker, each.topic, each.partition) == own
                and each.start_us <= at_us < each.end_us
            ),
            None,
        )

    def neighbours(self, lane: Lane, number: int) -> bool:
        """Return True if a delivery and the one before it belong to one tenure and lie in the order of offsets."""
        rows = lane.rows.iloc[number - 1 : number + 1]
        times = [int(time) for time in rows["done_us"]]
        rising = times[0] < times[1] and rows["offset"].iloc[0] < rows["offset"].iloc[1]
        return bool(rising) and self.tenure_at(lane, times[0]) == self.tenure_at(lane, times[1])

    def touched(self, topic: str) -> frozenset[str]:
        """Return the arms that write or read a topic."""
        return frozenset(c.arm for c in self.run.evidence.clients if topic in (*c.produces_to, *c.consumes_from))

    def loss_status(self, client: Client) -> str:
        """Return what the judge must say of an unexplained loss: without the epoch history it may be undecided."""
        return "FAIL" if self.traceable or (client.acks_all and not self.destructive) else "INCONCLUSIVE"
