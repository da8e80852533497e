"""The clusters that are kept for ad-hoc work, and how to name one of them.

The faults that are in force on a cluster now: what its journal says is open, who holds each, how long it has left.

And what is wrong with its links that no journal accounts for: somebody's own toxic, somebody's own disabled proxy.

How the kept clusters are: their nodes, the faults in force on them, and who holds those.

A cluster kept for ad-hoc work: launched whole or not at all, and taken down again.

It has a run directory of its own, so that what is injected into it has a journal, a clock and, afterwards, a plan.

Reads what `faults/plan/from_run.py` makes a plan of: a run's plan, events, journal and marks.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aftershock.errors import AftershockError, ClusterError, EvidenceError
from aftershock.faults.plan.command_line import Outline
from aftershock.faults.plan.document import load
from aftershock.faults.plan.from_run import EVENT, Written, plan_from
from aftershock.faults.plan.from_run import Words as Words_of_from_run
from aftershock.faults.plan.units import parse_duration_ms
from aftershock.faults.targets.values import Toxic
from aftershock.faults.timeline.timeline import Marks
from aftershock.harness.cluster import ownership
from aftershock.harness.cluster.cluster import CARD, Cluster, attach, collect_logs
from aftershock.harness.cluster.launch import Images, images_for, launch, provenance
from aftershock.harness.cluster.ownership import Standing
from aftershock.harness.cluster.topology import ClusterSpec
from aftershock.harness.run.run import undisturbed
from aftershock.harness.run.rundir import RunClock, RunDir
from aftershock.harness.safety.heal import sweep
from aftershock.harness.safety.journal import Line, open_faults, read_journal
from aftershock.harness.safety.lease import host_lease
from aftershock.results.evidence.files import read_json, read_lines


def kept(client: docker.DockerClient) -> list[Standing]:
    """Every cluster that is kept, or what is left of one, by run id."""
    return [cluster for cluster in ownership.standing(client) if cluster.keep]


def the_one(client: docker.DockerClient, run_id: str | None) -> Standing:
    """The kept cluster called ``run_id``; without that, the only one.

    Raises:
        ClusterError: there is none, or there are several to choose from.
    """
    there = ownership.standing(client)
    ours = [cluster for cluster in there if cluster.keep]
    if run_id is None:
        return _only(ours)
    found = next((cluster for cluster in there if cluster.run_id == run_id), None)
    if found is None:
        raise ClusterError(
            f"no cluster {run_id} stands on this engine: it was taken down, or somebody removed its containers; "
            "`aftershock cluster status` lists those that do"
        )
    if not found.keep:
        raise ClusterError(
            f"the cluster {run_id} is not a kept one: {whose(found)}; leave it to that, or see `aftershock heal`"
        )
    return found


def whose(cluster: Standing) -> str:
    """Who answers for a cluster, in words."""
    if not cluster.here:
        return "it belongs to a process of another host or container"
    pid = cluster.owner.partition(":")[0]
    return f"it belongs to process {pid}, which " + ("lives" if cluster.owned else "is dead")


@contextmanager
def attached(client: docker.DockerClient, cluster: Standing) -> Iterator[Cluster]:
    """The cluster, connected to. ClusterError, which says how to get rid of the rest, where not all of it is there."""
    if cluster.owned and not (cluster.home / CARD).exists():
        raise ClusterError(f"the cluster {cluster.run_id} is still being launched: {whose(cluster)}; wait for that")
    try:
        found = attach(client, cluster.home)
    except ClusterError as error:
        raise ClusterError(f"{error}; {how_to_remove(cluster)}") from error
    try:
        yield found
    finally:
        found.close()


def clock_of(home: Path) -> RunClock:
    """The clock that the times in a cluster's home are of.

    Raises:
        EvidenceError: there is no run.json, or it can't be read.
        ClusterError: its launch isn't through.
    """
    facts = RunDir.open(home).facts
    if "origin_ns" not in facts:
        raise ClusterError(f"{home.name} is not ready yet; wait until its launch is through")
    return RunClock(facts["origin_ns"])


def how_to_remove(cluster: Standing) -> str:
    """The command that takes it down."""
    return f"take it down with: aftershock cluster down --run {cluster.run_id}"


def how_to_heal(run_id: str) -> str:
    """The command that heals it."""
    return f"aftershock heal --run {run_id}"


def _only(ours: list[Standing]) -> Standing:
    if not ours:
        raise ClusterError("no cluster is kept; start one with: aftershock cluster up")
    if len(ours) > 1:
        names = ", ".join(cluster.run_id for cluster in ours)
        raise ClusterError(f"several clusters are kept: {names}; say which one with --run ID")
    return ours[0]


Words = Mapping[str, Any]


@dataclass(frozen=True)
class LiveFault:
    """One fault in force. ``left_ms``: None where it has no end of its own; 0 where that is past."""

    id: str
    kind: str
    targets: Words
    left_ms: int | None
    owner: str

    @property
    def pid(self) -> int:
        """The process that injected it."""
        return int(self.owner.partition(":")[0] or 0)

    @property
    def orphaned(self) -> bool:
        """Whether that process is dead, so that nobody will heal it."""
        return not ownership.lives(self.owner)

    def held(self) -> str:
        """``held by process 4711, 3 s left``, or that nobody holds it."""
        if self.orphaned:
            return f"orphaned, process {self.pid} is dead"
        left = "" if self.left_ms is None else f", {self.left_ms / 1000:.0f} s left"
        return f"held by process {self.pid}{left}"

    def told(self) -> str:
        """It all on one line."""
        return f"{self.id}: {self.kind} on {where(self.targets)}; {self.held()}"

    def to_json(self, run_id: str) -> dict[str, Any]:
        """What ``cluster status --json`` says of it."""
        holder = {"pid": self.pid, "alive": not self.orphaned}
        told = {"id": self.id, "kind": self.kind, "targets": self.targets, "left_ms": self.left_ms}
        return {**told, "held_by": holder, "heal": how_to_heal(run_id)}


def where(targets: Words) -> str:
    """``node 2``, ``client_a-k1``, ``topic orders`` or a client's name: a fault's targets as the journal has them."""
    nodes = [f"node {broker}" for broker in targets["brokers"]]
    topics = [f"topic {topic}" for topic in targets["topics"]]
    return ", ".join([*nodes, *targets["links"], *topics, *targets.get("clients", ())]) or "whatever it meets"


def live_faults(home: Path, now_us: int) -> list[LiveFault]:
    """The faults in force in the order they began, at ``now_us`` of the clock of the run whose home this is.

    Raises:
        EvidenceError: the journal can't be read.
    """
    lines = read_journal(home / "journal.jsonl")
    lasting = _lasting_ms(home)
    begun_us = {line["fault"]: line["t_us"] for line in lines if line["state"] == "intended"}
    return [_live(line, lasting.get(line["fault"]), begun_us[line["fault"]], now_us) for line in open_faults(lines)]


def not_ours(
    faults: Collection[Line], toxics: Mapping[str, Collection[Toxic]], disabled: Collection[str]
) -> Iterator[str]:
    """A sentence for each toxic and each disabled proxy that no open fault (its last line) would undo."""
    undone = [line["undo"] for line in faults]
    mine = {tuple(pair) for undo in undone if undo["verb"] == "remove_toxics" for pair in undo["args"]["toxics"]}
    shut = {proxy for undo in undone if undo["verb"] == "enable_proxies" for proxy in undo["args"]["proxies"]}
    for proxy, there in sorted(toxics.items()):
        for toxic in there:
            if (proxy, toxic.name) not in mine:
                yield f"not ours: toxic {toxic.name} ({toxic.type}, {toxic.stream}) on proxy {proxy}"
    yield from (f"not ours: proxy {proxy} is disabled" for proxy in sorted(set(disabled) - shut))


def _live(line: Line, lasting_ms: int | None, begun_us: int, now_us: int) -> LiveFault:
    left_ms = None if lasting_ms is None else max(0, lasting_ms - (now_us - begun_us) // 1000)
    return LiveFault(line["fault"], line["kind"], line["targets"], left_ms, line.get("owner", ""))


def _lasting_ms(home: Path) -> dict[str, int]:
    """How long each fault is to last, by its id: of the plan, and by hand. One without an end of its own is absent."""
    planned = read_json(home / "timeline.json")["steps"] if (home / "timeline.json").exists() else []
    lasting = {step["id"]: step["for_ms"] for step in planned if step["for_ms"] is not None}
    by_hand = [line["fault"] for line in read_lines(home / "events.jsonl") if line.get("event") == EVENT]
    return lasting | {words["id"]: parse_duration_ms(words["for"]) for words in by_hand if "for" in words}


@dataclass(frozen=True)
class Status:
    """One kept cluster. ``whereabouts``: as in ``run.json``; ``not_ours``: what no journal accounts for, in words."""

    run_id: str
    whereabouts: dict[str, Any]
    faults: Sequence[LiveFault]
    not_ours: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """The contract of ``cluster status --json`` (`design.md` 5.1), and ``not_ours``."""
        faults = [fault.to_json(self.run_id) for fault in self.faults]
        return {"run_id": self.run_id, **self.whereabouts, "faults": faults, "not_ours": list(self.not_ours)}


def status(client: docker.DockerClient, cluster: Standing) -> Status:
    """Look at one cluster.

    Raises:
        ClusterError: it vanished, or not all of it is left.
        FaultError: its Toxiproxy does not answer.
        EvidenceError: its run.json or its journal can't be read.
    """
    with attached(client, cluster) as found:
        lines = open_faults(read_journal(cluster.home / "journal.jsonl"))
        toxiproxy = found.toxiproxy
        foreign = tuple(not_ours(lines, toxiproxy.toxics(), toxiproxy.disabled()))
        faults = live_faults(cluster.home, clock_of(cluster.home).now_us())
        return Status(cluster.run_id, found.whereabouts(), faults, foreign)


def show(client: docker.DockerClient, clusters: Sequence[Standing], console: Console) -> bool:
    """Print each cluster; whether all of them could be looked at."""
    well = True
    for cluster in clusters:
        try:
            _print(status(client, cluster), console)
        except AftershockError as error:
            console.print(Text(f"{cluster.run_id}: {error}"), soft_wrap=True)
            well = False
        if cluster.owned:
            console.print(Text(f"  {whose(cluster)}, and drives it"), soft_wrap=True)
        else:
            console.print(Text(f"  {how_to_remove(cluster)}"), soft_wrap=True)
    return well


def _print(found: Status, console: Console) -> None:
    console.print(Text(found.run_id, style="bold"))
    for rack, bootstrap in found.whereabouts["bootstrap"].items():
        console.print(Text(f"  bootstrap {rack:<6} {bootstrap}"), soft_wrap=True)
    console.print(Text(f"  toxiproxy        {found.whereabouts['toxiproxy']}"), soft_wrap=True)
    console.print(_brokers(found.whereabouts["brokers"]))
    for fault in found.faults:
        console.print(Text(f"  {fault.told()}"), soft_wrap=True)
    for sentence in found.not_ours:
        console.print(Text(f"  {sentence}"), soft_wrap=True)
    if found.faults:
        console.print(Text(f"  heal it with: {how_to_heal(found.run_id)}"), soft_wrap=True)
    else:
        console.print(Text("  no faults in force"))


def _brokers(brokers: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for column in ("", "node", "rack", "kafka", "state", "container"):
        table.add_column(column, no_wrap=True)
    for broker in brokers:
        style = "" if broker["state"] == "running" else "red"
        state = Text(broker["state"], style=style)
        table.add_row("", f"k{broker['id']}", broker["rack"], broker["kafka"], state, Text(broker["container"]))
    return table


Say = Callable[[str], None]
_IN_SYNC_S = 30.0


@dataclass(frozen=True)
class Up:
    """A kept cluster: its run id, and where it is dialled (``bootstrap.servers`` by rack, ``admin`` for ourselves)."""

    run_id: str
    bootstrap: dict[str, str]
    toxiproxy: str

    def text(self) -> str:
        """What its user needs to know, without a newline at the end."""
        lines = [f"cluster {self.run_id} is up"]
        lines += [f"  bootstrap {rack:<6} {servers}" for rack, servers in self.bootstrap.items()]
        lines += [
            f"  toxiproxy        {self.toxiproxy}",
            "  see it:          aftershock cluster status",
            "  break it:        aftershock inject pause broker=1 --for 10s",
            "  the kinds:       aftershock plan faults",
            f"  make it a plan:  aftershock plan from {self.run_id}",
            f"  take it down:    aftershock cluster down --run {self.run_id}",
        ]
        return "\n".join(lines)


def up(client: docker.DockerClient, outline: Outline, kafka: str | None, out: Path, command: str, say: Say) -> Up:
    """Launch a cluster that stays, with its topics. Interrupted or failed half-way, nothing of it is left.

    Raises:
        EngineError: there is no engine, or no image.
        ClusterError: the cluster did not come up, or Kafka refused a topic.
        LeaseError: the host's lease can't be had.
    """
    sweep(client, say)
    if others := kept(client):
        say(f"another kept cluster is up too: {', '.join(cluster.run_id for cluster in others)}")
    spec = ClusterSpec.of(outline.cluster, kafka)
    images = images_for(client, spec, say)
    with host_lease("integrity", "aftershock cluster up", say):
        home = RunDir.create(out, "cluster", 0, command)
        (home.path / "plan.yaml").write_text(outline.on(spec.kafka).to_yaml(), encoding="utf-8")
        with (
            _whole_or_gone(client, home, say),
            closing(launch(spec, home.run_id, home.path, images, say, keep=True)) as cluster,
        ):
            _create_topics(cluster, outline)
            return _told(home, cluster, images)


def down(client: docker.DockerClient, run_id: str | None) -> str:
    """Remove a kept cluster; gives its run id. Its run directory stays.

    Raises:
        ClusterError: there is none of that name, or several to choose from, or somebody works with it.
    """
    cluster = the_one(client, run_id)
    if cluster.owned:
        raise ClusterError(f"the cluster {cluster.run_id} is being driven: {whose(cluster)}; end that first")
    if cluster.home.is_dir():
        _refuse_if_held(cluster)
        collect_logs(client, cluster.run_id, cluster.home / "logs")
    ownership.remove_run(client, cluster.run_id)
    _close_books(cluster.home)
    return cluster.run_id


@contextmanager
def _whole_or_gone(client: docker.DockerClient, home: RunDir, say: Say) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        with undisturbed(say):
            collect_logs(client, home.run_id, home.path / "logs")
            ownership.remove_run(client, home.run_id)
            stopped = isinstance(error, KeyboardInterrupt)
            home.tell(status="interrupted" if stopped else "failed", why="interrupted" if stopped else str(error))
            say(f"nothing is left of the cluster; its logs are in {home.path / 'logs'}")
        raise


def _create_topics(cluster: Cluster, outline: Outline) -> None:
    for topic in outline.topics:
        cluster.admin.create_topic(topic.name, topic.partitions, topic.replication, topic.config)
    if outline.topics:
        cluster.await_in_sync(_IN_SYNC_S, [topic.name for topic in outline.topics])


def _told(home: RunDir, cluster: Cluster, images: Images) -> Up:
    """Write down what it is; from here on it is kept."""
    whereabouts, origin_ns = cluster.whereabouts(), RunClock.starting_now().origin_ns
    home.tell(origin_ns=origin_ns, status="kept", **provenance(home, cluster, images), **whereabouts)
    return Up(home.run_id, whereabouts["bootstrap"], whereabouts["toxiproxy"])


def _refuse_if_held(cluster: ownership.Standing) -> None:
    with suppress(EvidenceError):  # a journal that can't be read must not keep a cluster for ever
        for fault in live_faults(cluster.home, clock_of(cluster.home).now_us()):
            if not fault.orphaned:
                raise ClusterError(f"somebody injects into {cluster.run_id}: {fault.told()}; end that first")


def _close_books(home: Path) -> None:
    with suppress(EvidenceError):
        run = RunDir.open(home)
        if run.facts.get("status") == "kept":
            run.tell(status="down")


def plan_of(home: Path) -> Written:
    """What was injected by hand into the run, or into the kept cluster, whose folder this is.

    Raises:
        EvidenceError: nothing was, or its files can't be read.
        PlanError: its plan can't be read.
    """
    run = RunDir.open(home)
    marks = run.facts.get("marks")
    events, journal = read_lines(home / "events.jsonl"), read_journal(home / "journal.jsonl")
    lasted = Marks(**marks) if marks else None
    return plan_from(run.run_id, _said(home), events, journal, lasted, run.facts.get("seed", 0))


def _said(home: Path) -> Words_of_from_run:
    """The plan of a run; of a cluster that a pool launched, what it is."""
    if (home / "plan.yaml").exists() or not (home / CARD).exists():
        return load(home / "plan.yaml").data
    spec = ClusterSpec.from_json(read_json(home / CARD)["spec"])
    return {"cluster": spec.as_plan().model_dump(mode="json")}
