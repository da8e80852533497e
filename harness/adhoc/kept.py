"""Kept clusters for ad-hoc work, with launch, status, conversion of their faults to a plan, and removal."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aftershock.errors import AftershockError, ClusterError, EvidenceError, Log
from aftershock.faults.plan import command_line
from aftershock.faults.sections.document import load
from aftershock.faults.sections.units import parse_duration_ms
from aftershock.faults.targets.values import Toxic
from aftershock.faults.timeline.from_run import EVENT, WrittenPlan, plan_from_run
from aftershock.faults.timeline.timeline import Marks
from aftershock.harness.cluster.cluster import DESCRIPTOR_FILE, Cluster, attach, collect_logs
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.lifecycle.heal import defer_interrupts, in_use, sweep
from aftershock.harness.lifecycle.launch import images_for, launch, provenance
from aftershock.harness.lifecycle.occupation import lock_of
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import Line, open_faults, read_journal
from aftershock.harness.safety.lease import host_lease
from aftershock.harness.safety.ownership import LabelledCluster
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.results.evidence.files import read_json, read_lines

_IN_SYNC_S = 30.0


def kept_clusters(client: docker.DockerClient) -> list[LabelledCluster]:
    return [cluster for cluster in ownership.list_clusters(client) if cluster.keep]


def resolve(client: docker.DockerClient, run_id: str | None) -> LabelledCluster:
    """Return the kept cluster ``run_id``, by default the only kept cluster; raise ClusterError if it is missing."""
    standing = ownership.list_clusters(client)
    if run_id is None:
        candidates = [cluster for cluster in standing if cluster.keep]
        if not candidates:
            raise ClusterError("no cluster is kept; start one with: aftershock cluster up")
        if len(candidates) > 1:
            names = ", ".join(cluster.run_id for cluster in candidates)
            raise ClusterError(f"several clusters are kept: {names}; choose one with --run ID")
        return candidates[0]
    named = next((cluster for cluster in standing if cluster.run_id == run_id), None)
    if named is None:
        raise ClusterError(
            f"no cluster {run_id} on this engine: it was taken down, or its containers were removed; "
            "`aftershock cluster status` lists the clusters"
        )
    if not named.keep:
        raise ClusterError(
            f"the cluster {run_id} is not kept: {describe_owner(named)}; wait until its owner removes the cluster, "
            "or see `aftershock heal`"
        )
    return named


def refuse_in_run(cluster: LabelledCluster) -> None:
    """Raise ClusterError if a run (`aftershock run --on`) uses a kept cluster."""
    if cluster.home.is_dir() and (holder := lock_of(cluster.home).held_by()):
        raise ClusterError(f"the cluster {cluster.run_id} is in use by {holder}; wait until that run has ended")


def describe_owner(cluster: LabelledCluster) -> str:
    if cluster.liveness == "unknown":
        return in_use(cluster)
    state = "running" if cluster.owned else "dead"
    return f"the owner of the cluster is {ownership.describe_owner(cluster.owner)}, which is {state}"


@contextmanager
def connect(client: docker.DockerClient, cluster: LabelledCluster) -> Iterator[Cluster]:
    """Connect to a kept cluster for the ``with`` block; raise ClusterError if a part of the cluster is missing."""
    if cluster.owned and not (cluster.home / DESCRIPTOR_FILE).exists():
        raise ClusterError(
            f"the cluster {cluster.run_id} is still being launched: {describe_owner(cluster)}; wait until it is ready"
        )
    try:
        connected = attach(client, cluster.home)
    except ClusterError as error:
        raise ClusterError(f"{error}; {removal_advice(cluster)}") from error
    try:
        yield connected
    finally:
        connected.close()


def clock_of(home: Path) -> RunClock:
    """Return a cluster's run clock; raise EvidenceError if ``run.json`` is missing, ClusterError during the launch."""
    facts = RunDir.open(home).facts
    if "origin_ns" not in facts:
        raise ClusterError(f"the cluster {home.name} is not ready yet; wait until its launch is complete")
    return RunClock(facts["origin_ns"])


def removal_advice(cluster: LabelledCluster) -> str:
    return f"take the cluster down with: aftershock cluster down --run {cluster.run_id}"


def heal_command(run_id: str) -> str:
    return f"aftershock heal --run {run_id}"


@dataclass(frozen=True)
class LiveFault:
    """A fault in force; ``left_ms`` is the rest of the fault's duration, None for a fault without a duration."""

    id: str
    kind: str
    targets: Mapping[str, Any]
    left_ms: int | None
    owner: str

    @property
    def pid(self) -> int:
        return int(self.owner.partition(":")[0] or 0)

    @property
    def orphaned(self) -> bool:
        """True if the process that injected the fault is dead."""
        return not ownership.is_alive(self.owner)

    def describe(self) -> str:
        if self.orphaned:
            holder = f"orphaned: its injector, process {self.pid}, is dead"
        else:
            time_left = "" if self.left_ms is None else f", {self.left_ms / 1000:.0f} s left"
            holder = f"held by process {self.pid}{time_left}"
        return f"{self.id}: {self.kind} on {describe_targets(self.targets)}; {holder}"

    def to_json(self, run_id: str) -> dict[str, Any]:
        """Return a fault as an entry of ``aftershock cluster status --json``."""
        return {
            "id": self.id,
            "kind": self.kind,
            "targets": self.targets,
            "left_ms": self.left_ms,
            "held_by": {"pid": self.pid, "alive": not self.orphaned},
            "heal": heal_command(run_id),
        }


def describe_targets(targets: Mapping[str, Any]) -> str:
    """Return the targets of a fault as text, such as ``node 2``, ``client_a-k1`` or ``topic orders``."""
    nodes = [f"node {broker}" for broker in targets["brokers"]]
    topics = [f"topic {topic}" for topic in targets["topics"]]
    return ", ".join([*nodes, *targets["links"], *topics, *targets.get("clients", ())]) or "all matching requests"


def live_faults(home: Path, now_us: int) -> list[LiveFault]:
    """Return the faults in force in the order of injection; ``now_us`` is the time on the run's clock."""
    lines = read_journal(home / "journal.jsonl")
    planned = read_json(home / "timeline.json")["steps"] if (home / "timeline.json").exists() else []
    durations_ms = {step["id"]: step["for_ms"] for step in planned if step["for_ms"] is not None}
    by_hand = [line["fault"] for line in read_lines(home / "events.jsonl") if line.get("event") == EVENT]
    durations_ms |= {words["id"]: parse_duration_ms(words["for"]) for words in by_hand if "for" in words}
    began_us = {line["fault"]: line["t_us"] for line in lines if line["state"] == "intended"}
    faults = []
    for line in open_faults(lines):
        fault, duration_ms = line["fault"], durations_ms.get(line["fault"])
        left_ms = None if duration_ms is None else max(0, duration_ms - (now_us - began_us[fault]) // 1000)
        faults.append(LiveFault(fault, line["kind"], line["targets"], left_ms, line.get("owner", "")))
    return faults


def foreign_changes(
    faults: Collection[Line], toxics: Mapping[str, Collection[Toxic]], disabled: Collection[str]
) -> Iterator[str]:
    """Yield a sentence for each toxic and each disabled proxy that no undo of a fault in force would remove."""
    undos = [line["undo"] for line in faults]
    own_toxics = {tuple(pair) for undo in undos if undo["verb"] == "remove_toxics" for pair in undo["args"]["toxics"]}
    own_disabled = {proxy for undo in undos if undo["verb"] == "enable_proxies" for proxy in undo["args"]["proxies"]}
    for proxy, on_proxy in sorted(toxics.items()):
        for toxic in on_proxy:
            if (proxy, toxic.name) not in own_toxics:
                yield f"not by Aftershock: toxic {toxic.name} ({toxic.type}, {toxic.stream}) on proxy {proxy}"
    yield from (f"not by Aftershock: proxy {proxy} is disabled" for proxy in sorted(set(disabled) - own_disabled))


@dataclass(frozen=True)
class Status:
    """State of a kept cluster; ``not_ours`` has sentences about toxics and disabled proxies of other tools."""

    run_id: str
    addresses: dict[str, Any]
    faults: Sequence[LiveFault]
    not_ours: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        faults = [fault.to_json(self.run_id) for fault in self.faults]
        return {"run_id": self.run_id, **self.addresses, "faults": faults, "not_ours": list(self.not_ours)}


def status(client: docker.DockerClient, cluster: LabelledCluster) -> Status:
    with connect(client, cluster) as connected:
        lines = open_faults(read_journal(cluster.home / "journal.jsonl"))
        toxiproxy = connected.toxiproxy
        foreign = tuple(foreign_changes(lines, toxiproxy.toxics(), toxiproxy.disabled()))
        faults = live_faults(cluster.home, clock_of(cluster.home).now_us())
        return Status(cluster.run_id, connected.describe(), faults, foreign)


def show(client: docker.DockerClient, clusters: Sequence[LabelledCluster], console: Console) -> bool:
    """Print the state of each cluster; return False if the state of a cluster can't be read."""
    all_readable = True

    def print_line(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    for cluster in clusters:
        try:
            state = status(client, cluster)
        except AftershockError as error:
            print_line(f"{cluster.run_id}: {error}")
            all_readable = False
        else:
            console.print(Text(cluster.run_id, style="bold"))
            for rack, bootstrap in state.addresses["bootstrap"].items():
                print_line(f"  bootstrap {rack:<6} {bootstrap}")
            print_line(f"  toxiproxy        {state.addresses['toxiproxy']}")
            table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
            for column in ("", "node", "rack", "kafka", "state", "container"):
                table.add_column(column, no_wrap=True)
            for broker in state.addresses["brokers"]:
                word = Text(broker["state"], style="" if broker["state"] == "running" else "red")
                table.add_row("", f"k{broker['id']}", broker["rack"], broker["kafka"], word, Text(broker["container"]))
            console.print(table)
            for line in (*(fault.describe() for fault in state.faults), *state.not_ours):
                print_line(f"  {line}")
            advice = (
                f"heal the faults with: {heal_command(cluster.run_id)}"
                if state.faults
                else "no fault is in force on the cluster"
            )
            print_line(f"  {advice}")
        print_line(f"  {f'in use: {describe_owner(cluster)}' if cluster.owned else removal_advice(cluster)}")
    return all_readable


def up(
    client: docker.DockerClient,
    document: command_line.ClusterDocument,
    kafka: str | None,
    out: Path,
    log: Log,
) -> tuple[str, str]:
    """Launch a kept cluster with its topics; return its run id, and a text with its addresses and the next commands.

    Raises EngineError if Docker does not answer or an image is not available, ClusterError if the cluster did not start
    or Kafka refused a topic, and LeaseError if the host can't be leased.
    """
    sweep(client, log)
    if running := kept_clusters(client):
        log(f"other kept clusters are running: {', '.join(cluster.run_id for cluster in running)}")
    spec = ClusterSpec.of(document.cluster, kafka)
    images = images_for(client, spec, log)
    with host_lease("integrity", "aftershock cluster up", log):
        home = RunDir.create(out, "cluster", 0)
        (home.path / "plan.yaml").write_text(document.on(spec.kafka).to_yaml(), encoding="utf-8")
        try:
            with closing(launch(spec, home.run_id, home.path, images, log, keep=True)) as cluster:
                for topic in document.topics:
                    cluster.admin.create_topic(topic.name, topic.partitions, topic.replication, topic.config)
                if document.topics:
                    cluster.await_in_sync(_IN_SYNC_S, [topic.name for topic in document.topics])
                addresses, origin_ns = cluster.describe(), RunClock.starting_now().origin_ns
                home.update(origin_ns=origin_ns, status="kept", **provenance(home, cluster, images), **addresses)
        except BaseException as error:
            with defer_interrupts(log):
                collect_logs(client, home.run_id, home.path / "logs")
                ownership.remove_run(client, home.run_id)
                stopped = isinstance(error, KeyboardInterrupt)
                home.update(status="interrupted" if stopped else "failed", why="interrupted" if stopped else str(error))
                log(f"the cluster is removed; its logs are in {home.path / 'logs'}")
            raise
    lines = [
        f"cluster {home.run_id} is up",
        *(f"  bootstrap {rack:<6} {servers}" for rack, servers in addresses["bootstrap"].items()),
        f"  toxiproxy        {addresses['toxiproxy']}",
        "  show status:     aftershock cluster status",
        "  inject a fault:  aftershock inject pause broker=1 --for 10s",
        f"  run a plan:      aftershock run PLAN --on {home.run_id}",
        "  list kinds:      aftershock plan faults",
        f"  write a plan:    aftershock plan from {home.run_id}",
        f"  take it down:    aftershock cluster down --run {home.run_id}",
    ]
    return home.run_id, "\n".join(lines)


def down(client: docker.DockerClient, run_id: str | None) -> str:
    """Remove a kept cluster, but not its run directory, and return its run id; raise ClusterError if it is in use."""
    cluster = resolve(client, run_id)
    if cluster.liveness == "unknown":
        raise ClusterError(in_use(cluster))
    if cluster.owned:
        raise ClusterError(f"the cluster {cluster.run_id} is in use: {describe_owner(cluster)}; end that process first")
    refuse_in_run(cluster)
    if cluster.home.is_dir():
        with suppress(EvidenceError):  # an unreadable journal must not prevent the removal
            for fault in live_faults(cluster.home, clock_of(cluster.home).now_us()):
                if not fault.orphaned:
                    raise ClusterError(
                        f"the cluster {cluster.run_id} is in use: {fault.describe()}; end that process first"
                    )
        collect_logs(client, cluster.run_id, cluster.home / "logs")
    ownership.remove_run(client, cluster.run_id)
    with suppress(EvidenceError):
        run = RunDir.open(cluster.home)
        if run.facts.get("status") == "kept":
            run.update(status="down")
    return cluster.run_id


def plan_of(home: Path) -> WrittenPlan:
    """Return the faults that were injected by hand into a run or kept cluster, as a plan.

    Raises EvidenceError if no fault was injected by hand or the evidence is unreadable, PlanError for an invalid plan.
    """
    run = RunDir.open(home)
    marks = run.facts.get("marks")
    events, journal = read_lines(home / "events.jsonl"), read_journal(home / "journal.jsonl")
    if (home / "plan.yaml").exists() or not (home / DESCRIPTOR_FILE).exists():
        document = load(home / "plan.yaml").data
    else:  # a cluster launched by a pool has no plan
        spec = ClusterSpec.from_json(read_json(home / DESCRIPTOR_FILE)["spec"])
        document = {"cluster": spec.as_plan().model_dump(mode="json")}
    return plan_from_run(
        run.run_id, document, events, journal, Marks(**marks) if marks else None, run.facts.get("seed", 0)
    )
