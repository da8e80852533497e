"""Clean-up after runs whose process died: undo their faults, and remove their containers, processes and files.

Containers, processes and files that belong to a live process are left alone. The faults of a kept cluster are undone,
and the kept cluster stays. Before the spool of a dead run (the clients' output in shared memory) is removed, its rows
are converted to evidence. All steps of a clean-up can be repeated, and several processes may clean up at once.
"""

import asyncio
import fcntl
import json
import os
import shlex
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import docker

from aftershock.errors import AftershockError, ClusterError, EvidenceError, FaultError, Log
from aftershock.faults.runtime.record import Undo
from aftershock.faults.runtime.undo import perform
from aftershock.faults.runtime.verify_undo import verify_undo
from aftershock.harness.cluster import ownership
from aftershock.harness.cluster.attached import AttachedCluster, is_attached, read_descriptor
from aftershock.harness.cluster.cluster import DESCRIPTOR_FILE, Cluster, attach
from aftershock.harness.cluster.ownership import LabelledCluster
from aftershock.harness.cluster.target import Target
from aftershock.harness.run import client_processes
from aftershock.harness.run.rundir import RunClock, RunDir
from aftershock.harness.safety.journal import Journal, Line, open_faults, read_journal
from aftershock.harness.world.world import world_of


def heal(
    client: docker.DockerClient | None,
    run_id: str | None,
    log: Log,
    *,
    explicit: bool | None = None,
    home: Path | None = None,
) -> list[str]:
    """Undo the faults of dead processes and remove their resources; return a sentence for each action.

    Without a ``client`` of the Docker engine, only attached clusters are healed; without a ``run_id``, all runs are
    healed. ``explicit`` is True if the user named the run (default: True with a ``run_id``): then the faults of live
    processes in a kept cluster are healed too, and a failure to heal is raised as an error instead of logged. ``home``
    is the run directory of a run on an attached cluster, needed if the host was restarted since the run.

    Raises ClusterError if the named run is in progress or its cluster can't be reached, FaultError if a fault can't be
    healed.
    """
    explicit = run_id is not None if explicit is None else explicit
    actions: list[str] = []
    if home and is_attached(home):
        with _exclusive(home):
            actions += _heal_attached(home, log)
    if client:
        for cluster in ownership.list_clusters(client):
            if run_id in (None, cluster.run_id):
                try:
                    with _exclusive(cluster.home):
                        actions += _heal_launched(client, cluster, log, explicit=explicit)
                except AftershockError as error:
                    if explicit:
                        raise
                    log(f"{cluster.run_id}: {error}")
    for spool in client_processes.orphaned_spools():
        if run_id in (None, spool.run_id):
            with _exclusive(spool.home):
                actions += _clear_spool(spool, log, explicit=explicit) if spool.path.exists() else []
    return actions


def sweep(client: docker.DockerClient | None, log: Log) -> None:
    """Heal and remove all dead runs, before another cluster is launched."""
    for action in heal(client, None, log):
        log(f"cleaned up after a dead run: {action}")


def has_remains(client: docker.DockerClient | None, run_id: str) -> bool:
    """True if a dead run has left faults or resources; without a ``client``, Docker objects are not checked."""
    for cluster in ownership.list_clusters(client) if client else ():
        if cluster.run_id == run_id and (not _is_kept(cluster) or _has_orphaned_faults(cluster.home)):
            return True
    return any(spool.run_id == run_id for spool in client_processes.orphaned_spools())


def in_use(cluster: LabelledCluster) -> str:
    """Return the error message for a cluster that belongs to a live process."""
    if cluster.is_local:
        pid = cluster.owner.partition(":")[0]
        return (
            f"the cluster {cluster.run_id} belongs to the running process {pid}; interrupt that process, which then "
            "heals the cluster"
        )
    return f"the cluster {cluster.run_id} belongs to a process of another host; run `aftershock heal` on that host"


def _heal_launched(client: docker.DockerClient, cluster: LabelledCluster, log: Log, *, explicit: bool) -> list[str]:
    if not cluster.home.is_dir() and cluster.keep:
        raise ClusterError(
            f"the folder of the cluster {cluster.run_id}, {cluster.home}, is missing; "
            f"remove the cluster with: aftershock cluster down --run {cluster.run_id}"
        )
    if cluster.owned:
        if explicit:
            raise ClusterError(in_use(cluster))
        return []
    if _is_kept(cluster):
        in_force = open_faults(read_journal(cluster.home / "journal.jsonl")) if explicit else ()
        if not in_force and not _has_orphaned_faults(cluster.home):
            return []
        with closing(attach(client, cluster.home)) as attached:
            run = RunDir.open(cluster.home)
            faults = asyncio.run(undo_open(run, attached, log, orphaned_only=not explicit))
            attached.await_in_sync(60.0)
        return [f"{cluster.run_id}: healed {', '.join(faults)}"]
    client_processes.kill_workers(cluster.run_id)
    removed: list[str] = []
    # the engine may still be creating objects that the dead process requested: repeat until nothing is left
    while names := ownership.remove_run(client, cluster.run_id):
        removed += names
        time.sleep(0.5)
    close_run(cluster.home)
    return [f"{cluster.run_id}: removed {', '.join(removed)}"]


def _is_kept(cluster: LabelledCluster) -> bool:
    return cluster.keep and (not cluster.home.is_dir() or (cluster.home / DESCRIPTOR_FILE).exists())


def _has_orphaned_faults(home: Path) -> bool:
    with suppress(EvidenceError):
        return any(
            not ownership.is_alive(line.get("owner", "")) for line in open_faults(read_journal(home / "journal.jsonl"))
        )
    return False


def _heal_attached(home: Path, log: Log) -> list[str]:
    run = RunDir.open(home)
    if ownership.is_alive(run.facts.get("owner", "")):
        pid = run.facts["owner"].partition(":")[0]
        raise ClusterError(
            f"the run {run.run_id} belongs to the running process {pid}; interrupt that process, which then heals the "
            "cluster"
        )
    if read_descriptor(home).over and not open_faults(read_journal(home / "journal.jsonl")):
        return []
    client_processes.kill_workers(run.run_id)
    with closing(AttachedCluster(read_descriptor(home), home)) as cluster:
        faults = asyncio.run(undo_open(run, cluster, log))
        topics = cluster.clear()
    actions = [f"{run.run_id}: healed {', '.join(faults)}"] if faults else []
    return actions + ([f"{run.run_id}: deleted the topics that the run created: {', '.join(topics)}"] if topics else [])


def _clear_spool(spool: client_processes.Spool, log: Log, *, explicit: bool) -> list[str]:
    client_processes.kill_workers(spool.run_id)
    home, actions = spool.home, list[str]()
    if home and is_attached(home):
        try:
            actions += _heal_attached(home, log)
        except AftershockError as error:
            if explicit:
                raise
            log(f"{spool.run_id}: {error}")
            return []  # the next attempt finds the run by its spool
    try:
        spool.salvage()
    except OSError as error:
        log(f"{spool.run_id}: the clients' records of their requests could not be saved as evidence: {error}")
        spool.discard()
    if home:
        close_run(home)
    return [*actions, f"{spool.run_id}: cleared {spool.path}"]


def close_run(home: Path) -> None:
    """Set the status of a run whose process died to ``failed``, and remove Spark's scratch folders."""
    with suppress(EvidenceError, OSError):
        run = RunDir.open(home)
        if ownership.is_alive(run.facts.get("owner", "")):
            return
        if run.facts.get("status") == "running":
            run.update(
                status="failed", why="the runner died; its faults were healed, and its clients and containers removed"
            )
    for scratch in (home / "logs").glob(".spark-*"):
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _exclusive(home: Path | None) -> Iterator[None]:
    """Lock the run's folder, if it exists, so that only one process at a time heals the run."""
    try:
        folder = os.open(home or "", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


async def undo_open(run: RunDir, cluster: Target, log: Log, *, orphaned_only: bool = False) -> list[str]:
    """Heal the faults in force of a run, or, if ``orphaned_only``, of its dead processes; return the faults' ids.

    Raises FaultError, after an attempt for each fault, with a list of the faults that could not be healed.
    """
    journal_path = run.path / "journal.jsonl"
    faults = open_faults(read_journal(journal_path))
    if orphaned_only:
        faults = [line for line in faults if not ownership.is_alive(line.get("owner", ""))]
    # assignments come last, because replicas move only between running nodes
    faults.sort(key=lambda line: line["undo"]["verb"] == "restore_assignment")
    failures = []
    clock = RunClock(run.facts.get("origin_ns", 0))
    with closing(Journal(journal_path, clock)) as journal:
        for line in faults:
            fields = {name: line[name] for name in ("fault", "kind", "targets", "undo") if name in line}
            try:
                journal.append({**fields, "state": "healing"})
                undo, world = Undo(line["undo"]["verb"], line["undo"]["args"]), world_of(cluster)
                await perform(undo, world, clock)
                await verify_undo(undo, world, clock)
                why = "healed by a process that did not inject the fault, such as the watchdog or `aftershock heal`"
                journal.append({**fields, "state": "healed", "why": why})
            except AftershockError as error:
                failures.append(f"the fault {line['fault']} could not be healed: {error}")
                journal.append({**fields, "state": "failed", "why": str(error)})
            else:
                log(f"{line['fault']}: healed")
    if failures:
        unhealed = FaultError("; ".join(failures))
        advise(unhealed, read_journal(journal_path), cluster)
        raise unhealed
    return [line["fault"] for line in faults]


def advise(error: FaultError, lines: Iterable[Line], cluster: Target) -> None:
    """Add to the error the shell commands that heal each fault in force by hand; ``lines`` are lines of the journal."""
    containers: Mapping[int, str] = {}
    names: Mapping[str, str] = {}
    if isinstance(cluster, Cluster):
        containers = {node: instance.container.name for node, instance in cluster.nodes.items()}
    elif isinstance(cluster, AttachedCluster) and cluster.toxiproxy:
        names = cluster.toxiproxy.user_names
    server = getattr(cluster, "toxiproxy", None)
    toxiproxy = None if server is None else server.url
    for line in open_faults(lines):
        undo = Undo(line["undo"]["verb"], _replace_names(line["undo"]["args"], names))
        for command in manual_commands(undo, containers, toxiproxy, cluster.run_id):
            error.add_note(f"{line['fault']}, by hand: {command}")


def _replace_names(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replace_names(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replace_names(inner, names) for inner in value]
    return names.get(value, value) if isinstance(value, str) else value


def manual_commands(undo: Undo, containers: Mapping[int, str], toxiproxy: str | None, run_id: str) -> list[str]:
    """Return the shell commands that undo a fault by hand; ``aftershock heal`` for an undo over Kafka's protocol.

    ``containers`` maps nodes to container names; ``toxiproxy`` is the URL of Toxiproxy's API.
    """
    args, commands = undo.args, list[str]()
    match undo.verb:
        case "start" | "resume" if args["broker"] in containers:
            commands = [f"docker {'start' if undo.verb == 'start' else 'unpause'} {containers[args['broker']]}"]
        case "remove_toxics" if toxiproxy:
            commands = [f"curl -X DELETE {toxiproxy}/proxies/{proxy}/toxics/{name}" for proxy, name in args["toxics"]]
        case "enable_proxies" | "redirect_proxies" if toxiproxy:
            changes = [(proxy, {"enabled": True}) for proxy in args.get("proxies", ())]
            changes += [(proxy, {"upstream": upstream}) for proxy, upstream in args.get("upstreams", ())]
            commands = [
                f"curl -d {shlex.quote(json.dumps(body))} {toxiproxy}/proxies/{proxy}" for proxy, body in changes
            ]
        case "all_of":
            parts = [Undo(part["verb"], part["args"]) for part in args["undos"]]
            commands = [line for part in parts for line in manual_commands(part, containers, toxiproxy, run_id)]
        case "nothing":
            pass
        case _:
            commands = [f"aftershock heal --run {run_id}"]
    return list(dict.fromkeys(commands))


@contextmanager
def defer_interrupts(log: Log) -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM during the ``with`` block, but log each signal."""

    def log_wait(*_: object) -> None:
        log("ignoring the signal: the clean-up of the cluster needs a few more seconds")

    earlier = {number: signal.signal(number, log_wait) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
