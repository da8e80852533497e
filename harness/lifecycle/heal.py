"""Clean-up after runs whose process died, which undoes their faults and removes their containers and files.

Containers, processes and files that belong to a live process are left alone. The faults of a kept cluster are undone,
and the kept cluster stays. Before the spool of a dead run (the clients' output in shared memory) is removed, its rows
are converted to evidence. All steps of a clean-up can be repeated, and several processes may clean up at once. After a
failure a clean-up goes on with the other faults and runs, also if neither the journal nor the log can be written.
"""

import asyncio
import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import docker

from aftershock.errors import AftershockError, ClusterError, EngineError, EvidenceError, FaultError, Log
from aftershock.faults.runtime.record import Undo
from aftershock.faults.runtime.undo import perform, verify_undo
from aftershock.faults.sections.cluster import Attach
from aftershock.harness.attach.attached import DESCRIPTOR_FILE as DESCRIPTOR
from aftershock.harness.attach.attached import (
    AttachedCluster,
    AttachmentDescriptor,
    is_attached,
    read_descriptor,
    restore,
)
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.cluster import DESCRIPTOR_FILE, Cluster, attach
from aftershock.harness.cluster.kubernetes.api import IN_CLUSTER, Api, RefusedError
from aftershock.harness.cluster.kubernetes.cluster import (
    BEAT_S,
    BEATS_MISSED,
    PLACE_FILE,
    KubernetesCluster,
    list_runs,
    remove_run,
    silent_runs,
)
from aftershock.harness.cluster.kubernetes.cordons import cordoned_by_runs, uncordon
from aftershock.harness.cluster.kubernetes.manifests import Place
from aftershock.harness.cluster.target import Target
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.lifecycle.occupation import Occupation, occupation_of, vacate
from aftershock.harness.safety import ownership
from aftershock.harness.safety.journal import FILE, Journal, Line, open_faults, read_journal
from aftershock.harness.safety.ownership import LabelledCluster
from aftershock.harness.safety.rundir import RunClock, RunDir
from aftershock.harness.world import client_processes
from aftershock.harness.world.world import world_of

LOCK_DEADLINE_S = 180.0  # an undo is verified for up to 60 s


class Healing(NamedTuple):
    """Result of a clean-up, with a sentence for each action, and for each run that is not wholly cleaned up."""

    actions: list[str]
    problems: list[str]


def heal(
    client: docker.DockerClient | None,
    run_id: str | None,
    log: Log,
    *,
    explicit: bool | None = None,
    home: Path | None = None,
) -> Healing:
    """Undo the faults of dead processes and remove their resources.

    Without a ``client`` of the Docker engine, only attached clusters are healed; without a ``run_id``, all runs are
    healed. ``explicit`` is True if the user named the run, by default if there is a ``run_id``. With ``explicit``, the
    faults of live processes in a kept cluster are healed too, and a failure to heal is raised as an error instead of
    logged. ``home`` is the run's directory, needed for a run on an attached cluster if the host was restarted since the
    run, and for a spool in the run directory if the run's containers are gone.

    Raises ClusterError if the named run is in progress or its cluster can't be reached, FaultError if a fault can't be
    healed, EvidenceError if its journal can't be read, EngineError if the engine can't list its containers.
    """
    explicit = run_id is not None if explicit is None else explicit
    log = _unfailing(log)
    actions, errors = list[str](), list[tuple[str, Exception]]()

    def attempt(name: str, folder: Path | None, work: Callable[[], list[str]]) -> None:
        try:
            with _exclusive(folder):
                actions.extend(work())
        except Exception as error:  # noqa: BLE001 -- whatever the reason: the other runs are cleaned up regardless
            errors.append((name, error))
            if not explicit:
                log(f"{name}: {_one_line(error)}")

    homes = {home.resolve()} if home else set()
    if home and is_attached(home):
        attempt(home.name, home, partial(_heal_attached, home, log, explicit=explicit))
    if client:
        with engine.docker_errors(EngineError, "list the clusters"):
            clusters = ownership.list_clusters(client)
        for cluster in clusters:
            if run_id in (None, cluster.run_id, _occupant(cluster)):
                homes.add(cluster.home.resolve())
                work = partial(_heal_launched, client, cluster, log, explicit=explicit)
                attempt(cluster.run_id, cluster.home, work)
    in_homes = [spool for folder in sorted(homes) if (spool := client_processes.spool_in(folder))]
    for spool in client_processes.orphaned_spools(log) + in_homes:
        if run_id in (None, spool.run_id):
            attempt(spool.run_id, spool.home, partial(_clear_spool, spool, log, explicit=explicit))
    return _result(actions, errors, explicit=explicit)


def sweep(client: docker.DockerClient | None, log: Log) -> None:
    """Heal and remove all dead runs, before another cluster is launched; log what can't be cleaned up."""
    for action in heal(client, None, log).actions:
        log(f"cleaned up after a dead run: {action}")


def heal_kubernetes(
    api: Api,
    run_id: str | None,
    log: Log,
    *,
    namespace: str | None = None,
    explicit: bool | None = None,
    listen: bool = False,
    permit: Callable[[Attach, str], object] | None = None,
) -> Healing:
    """Remove the clusters of dead runs from a Kubernetes cluster, of all or of one run, with their clients' processes.

    With a ``namespace``, only runs in that one are looked for, whose user may have no permission outside. With
    ``listen``, runs of other machines are removed as well, if they give no sign of life, which takes half a minute.
    ``explicit`` is True if the user named the run, by default if there is a ``run_id``; then a failure is raised.
    ``permit`` raises an error if the user does not permit an attachment that a run on another machine kept beside the
    brokers, with the name of its config map; without it none is permitted. Raises ClusterError if the named run is in
    progress, or an object can't be removed.
    """
    explicit = run_id is not None if explicit is None else explicit
    log, actions, errors = _unfailing(log), list[str](), list[tuple[str, Exception]]()
    runs = [remains for remains in list_runs(api, namespace) if run_id in (None, remains.place.run_id)]
    cordoned = dict[str, list[str]]()
    with suppress(RefusedError):  # who may not list nodes has cordoned none
        cordoned = cordoned_by_runs(api)
    foreign = [remains.place for remains in runs if remains.cluster.liveness == "unknown"] if listen else []
    if foreign:
        log(f"listening {BEAT_S * BEATS_MISSED:.0f} s for a sign of life of {len(foreign)} runs of other machines")
    silent = silent_runs(api, foreign)
    for remains in runs:
        cluster, place = remains.cluster, remains.place
        try:
            if cluster.owned and place not in silent:
                if cluster.liveness == "unknown":
                    state = "gives signs of life" if listen else "may be alive"
                    log(f"the run {place.run_id} of another machine {state}, and is left alone")
                if explicit:
                    process = ownership.describe_owner(cluster.owner)
                    raise ClusterError(  # noqa: TRY301 -- as any other failure of this run
                        f"the run {place.run_id} belongs to the running {process}; interrupt that process, which then "
                        "removes its cluster"
                    )
                continue
            with _exclusive(cluster.home if cluster.home.is_dir() else None):
                client_processes.kill_workers(place.run_id)
                try:
                    actions += _uncordon(api, place.run_id, cordoned)
                finally:
                    # after a failure the run's objects stay, because they know its faults
                    if is_attached(cluster.home):
                        _ask(permit, read_descriptor(cluster.home), f"{cluster.home / DESCRIPTOR}")
                        actions += _heal_attached(cluster.home, log, explicit=explicit)
                    else:
                        actions += _heal_kept(api, place, permit, log)
                    removed = remove_run(api, place)
                    close_run(cluster.home)
                    actions.append(f"{place.run_id}: removed {', '.join(removed)}")
        except Exception as error:  # noqa: BLE001 -- whatever the reason: the other runs are cleaned up regardless
            errors.append((place.run_id, error))
            if not explicit:
                log(f"{place.run_id}: {_one_line(error)}")
    for run in cordoned.keys() - {remains.place.run_id for remains in runs}:
        # a run without other objects gives no sign of life, so the user must name it
        if run == run_id:
            actions += _uncordon(api, run, cordoned)
        elif run_id is None:
            remedy = f"if it is dead: aftershock heal --kubernetes --run {run}"
            log(f"{', '.join(cordoned[run])} cordoned by the run {run}; {remedy}")
    if explicit and not actions and not errors:
        raise ClusterError(f"the Kubernetes cluster {api.context} has nothing of a run {run_id}")
    for spool in client_processes.orphaned_spools(log):
        if spool.home and (spool.home / PLACE_FILE).exists() and run_id in (None, spool.run_id):
            actions += _clear_spool(spool, log, explicit=explicit)
    return _result(actions, errors, explicit=explicit)


def _heal_kept(api: Api, place: Place, permit: Callable[[Attach, str], object] | None, log: Log) -> list[str]:
    """Heal a run on attached brokers by what it kept beside them, if it is of another machine.

    What the config map says may come from a stranger, so ``permit`` decides about it. A run on a launched cluster kept
    nothing: its cluster is removed with its faults.
    """
    root = api.find("ConfigMap", place.namespace, place.root)
    with TemporaryDirectory(prefix="aftershock-heal-") as folder:
        home = restore((root or {}).get("data") or {}, Path(folder), place.run_id)
        if home is None:
            return []
        descriptor = read_descriptor(home)
        if pods := descriptor.attach.kubernetes:
            # the contexts of the other machine's kubeconfig may be missing here, or mean another cluster
            here = pods.model_copy(update={"context": None if api.context == IN_CLUSTER else api.context})
            descriptor = replace(descriptor, attach=descriptor.attach.model_copy(update={"kubernetes": here}))
        _ask(permit, descriptor, f"the config map {place.root} in the namespace {place.namespace}")
        descriptor.write(home)
        return _heal_attached(home, log, explicit=True)


def _ask(permit: Callable[[Attach, str], object] | None, descriptor: AttachmentDescriptor, where: str) -> None:
    """Ask whether the user permits an attachment; raise ClusterError if nobody can be asked."""
    if permit is None:
        raise ClusterError(
            f"the run kept the undo of its faults on {descriptor.attach.bootstrap}: heal it by name, with "
            f"aftershock heal --kubernetes --run {descriptor.run_id}"
        )
    permit(descriptor.attach, where)


def _uncordon(api: Api, run_id: str, cordoned: Mapping[str, list[str]]) -> list[str]:
    """Let pods be placed again on the Kubernetes nodes that a run has cordoned; return what was done."""
    machines = cordoned.get(run_id, [])
    for machine in machines:
        uncordon(api, machine, run_id)
    return [f"{run_id}: uncordoned {machine}" for machine in machines]


def _result(actions: list[str], errors: list[tuple[str, Exception]], *, explicit: bool) -> Healing:
    """Return what a clean-up did; if ``explicit``, raise its first error."""
    if errors and explicit:
        name, error = errors[0]
        raise error if isinstance(error, AftershockError) else ClusterError(f"{name}: {_one_line(error)}") from error
    return Healing(actions, [f"{name}: {_one_line(error)}" for name, error in errors])


def _occupant(cluster: LabelledCluster) -> str | None:
    """Return the id of the run on a kept cluster, if there is one."""
    with suppress(EvidenceError):
        occupation = occupation_of(cluster.home)
        return occupation.run_id if occupation else None
    return None


def has_remains(client: docker.DockerClient | None, run_id: str, home: Path) -> bool:
    """True if a dead run has left faults or resources; without a ``client``, Docker objects are not checked."""
    for cluster in ownership.list_clusters(client) if client else ():
        if cluster.run_id == run_id and not cluster.owned:
            occupation = occupation_of(cluster.home)
            if not _is_kept(cluster) or _has_orphaned_faults(home) or (occupation and occupation.is_over):
                return True
    if is_attached(home):
        left = read_descriptor(home)
        if not left.over and (left.created or left.attach.changes_processes or left.attach.proxy):
            return True  # topics, or containers of ours beside the user's
        if _has_orphaned_faults(home):
            return True
    spools = client_processes.orphaned_spools()
    return bool(client_processes.spool_in(home)) or any(spool.run_id == run_id for spool in spools)


def in_use(cluster: LabelledCluster) -> str:
    """Return the error message for a cluster that belongs, or may belong, to a live process."""
    process = ownership.describe_owner(cluster.owner)
    if cluster.liveness == "alive":
        return (
            f"the cluster {cluster.run_id} belongs to the running {process}; interrupt that process, which then heals "
            "the cluster"
        )
    label = f"label={ownership.RUN}={cluster.run_id}"
    return (
        f"the cluster {cluster.run_id} is left alone, because its owner, {process}, can't be checked from here (it is "
        "on another host, in another container, hidden, or of an older version): run `aftershock heal` there, or, if "
        f"it has ended, type: docker ps -aqf {label} | xargs -r docker rm -fv; docker network ls -qf {label} | "
        f"xargs -r docker network rm; docker volume ls -qf {label} | xargs -r docker volume rm"
    )


def _one_line(error: Exception) -> str:
    known = error if isinstance(error, AftershockError) else engine.engine_error(error)
    text = str(known) if known else str(error) if isinstance(error, OSError) else repr(error)
    return " ".join(text.split())


def _unfailing(log: Log) -> Log:
    """Return ``log`` as a function that ignores a log that can't be written, for example on a full disk."""

    def write(line: str) -> None:
        with suppress(OSError):
            log(line)

    return write


def _heal_launched(client: docker.DockerClient, cluster: LabelledCluster, log: Log, *, explicit: bool) -> list[str]:
    if cluster.owned:
        if explicit:
            raise ClusterError(in_use(cluster))
        if cluster.liveness == "unknown":
            log(in_use(cluster))
        return []
    if not cluster.home.is_dir() and cluster.keep:
        raise ClusterError(
            f"the folder of the cluster {cluster.run_id}, {cluster.home}, is missing; "
            f"remove the cluster with: aftershock cluster down --run {cluster.run_id}"
        )
    if _is_kept(cluster):
        in_force = open_faults(read_journal(cluster.home / FILE)) if explicit else ()
        occupation = occupation_of(cluster.home)
        if occupation and not occupation.is_over:
            if explicit:
                raise ClusterError(
                    f"the cluster {cluster.run_id} is in use by the run {occupation.run_id}; interrupt that run, which "
                    "then heals the cluster"
                )
            occupation = None
        if not in_force and not _has_orphaned_faults(cluster.home) and not occupation:
            return []
        with closing(attach(client, cluster.home)) as attached:
            actions = _heal_occupation(occupation, cluster.home, attached, log) if occupation else []
            run = RunDir.open(cluster.home)
            outcomes = asyncio.run(undo_open(run, attached, log, orphaned_only=not explicit))
            attached.await_in_sync(60.0)
        return actions + _healed(cluster.run_id, outcomes)
    client_processes.kill_workers(cluster.run_id)
    removed = ownership.remove_run_completely(client, cluster.run_id)
    close_run(cluster.home)
    return [f"{cluster.run_id}: removed {', '.join(removed)}"]


def _heal_occupation(occupation: Occupation, home: Path, cluster: Cluster, log: Log) -> list[str]:
    """Heal the faults of a dead run on a kept cluster, and remove its topics and groups."""
    client_processes.kill_workers(occupation.run_id)
    outcomes = dict[str, str]()
    if Path(occupation.run).is_dir():
        outcomes = asyncio.run(undo_open(RunDir.open(Path(occupation.run)), cluster, log))
    vacate(home, cluster, occupation)
    return _healed(occupation.run_id, outcomes)


def _healed(run_id: str, outcomes: Mapping[str, str]) -> list[str]:
    healed = [fault for fault, outcome in outcomes.items() if outcome == _HEALED]
    others = [f"{run_id}: {fault}: {outcome}" for fault, outcome in outcomes.items() if outcome != _HEALED]
    return [f"{run_id}: {_HEALED} {', '.join(healed)}", *others] if healed else others


def _is_kept(cluster: LabelledCluster) -> bool:
    return cluster.keep and (not cluster.home.is_dir() or (cluster.home / DESCRIPTOR_FILE).exists())


def _has_orphaned_faults(home: Path) -> bool:
    return any(not ownership.is_alive(line.get("owner", "")) for line in open_faults(read_journal(home / FILE)))


def _heal_attached(home: Path, log: Log, *, explicit: bool) -> list[str]:
    run = RunDir.open(home)
    owner = run.facts.get("owner", "")
    process, liveness = ownership.describe_owner(owner), ownership.liveness(owner)
    if liveness == "alive":
        raise ClusterError(
            f"the run {run.run_id} belongs to the running {process}; interrupt that process, which then heals the "
            "cluster"
        )
    if liveness == "unknown":
        unchecked = f"the owner of the run {run.run_id}, {process}, can't be checked from this host or container"
        if not explicit:
            raise ClusterError(f"{unchecked}; if it has ended, type: aftershock heal --run {run.run_id}")
        log(f"{unchecked}; the run is healed, because you named it")
    if read_descriptor(home).over and not open_faults(read_journal(home / FILE)):
        return []
    client_processes.kill_workers(run.run_id)
    with closing(AttachedCluster(read_descriptor(home), home)) as cluster:
        outcomes = asyncio.run(undo_open(run, cluster, log))
        topics = cluster.clear()
    actions = _healed(run.run_id, outcomes)
    return actions + ([f"{run.run_id}: deleted the topics that the run created: {', '.join(topics)}"] if topics else [])


def _clear_spool(spool: client_processes.Spool, log: Log, *, explicit: bool) -> list[str]:
    if not spool.path.exists():
        return []  # another process has cleared it meanwhile
    client_processes.kill_workers(spool.run_id)
    home, actions = spool.home, list[str]()
    if home and is_attached(home):
        # after a failure, the next attempt finds the run by its spool
        actions += _heal_attached(home, log, explicit=explicit)
    try:
        spool.salvage()
    except OSError as error:
        raise EvidenceError(
            f"the clients' records of their requests, in {spool.path}, can't be saved as evidence in {home}: {error}; "
            f"correct this, for example free disk space, then type: aftershock heal --run {spool.run_id}; or give the "
            f"records up with: rm -r {spool.path}"
        ) from error
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
    """Lock the run's folder, if it exists, so that only one process at a time heals the run.

    Raises ClusterError if another process holds the lock for longer than ``LOCK_DEADLINE_S``.
    """
    try:
        folder = os.open(home or "", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return

    def locked() -> str:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return "locked"
        return ""

    try:
        if still_lacking(locked, LOCK_DEADLINE_S):
            raise ClusterError(
                f"another process has been healing the run in {home} for more than {LOCK_DEADLINE_S:.0f} s; see which "
                f"one with: fuser -v {home}"
            )
        yield
    finally:
        os.close(folder)


_HEALED = "healed"


def _outcome(undo: Undo) -> str:
    """Return what an undo has done to the cluster, also if the fault never took effect."""
    if undo.verb == "nothing":
        return "the fault has no undo, so nothing was changed; its effect on the cluster, if any, stays"
    if undo.verb == "create_topic":
        return f"the topic {undo.args['topic']} exists; if the fault deleted it, the records from before are lost"
    return _HEALED


async def undo_open(run: RunDir, cluster: Target, log: Log, *, orphaned_only: bool = False) -> dict[str, str]:
    """Heal the faults in force of a run, or, if ``orphaned_only``, of its dead processes; return the outcome by fault.

    If the journal can't be written, faults are healed all the same, and healed again by the next heal, which changes
    nothing. Raises FaultError, after an attempt for each fault, with a list of the faults that could not be healed.
    """
    log = _unfailing(log)
    journal_path = run.path / FILE
    faults = open_faults(read_journal(journal_path))
    if orphaned_only:
        faults = [line for line in faults if not ownership.is_alive(line.get("owner", ""))]
    # assignments come last, because replicas move only between running nodes
    faults.sort(key=lambda line: line["undo"]["verb"] == "restore_assignment")
    failures, outcomes, unwritten = list[str](), dict[str, str](), list[OSError]()
    clock = RunClock(run.facts.get("origin_ns", 0))
    with ExitStack() as on_exit:

        def write(line: Line) -> None:
            try:
                if journal:
                    journal.append(line)
            except OSError as error:
                unwritten.append(error)

        journal = None
        try:
            journal = Journal(journal_path, clock)
            on_exit.callback(journal.close)
        except OSError as error:
            unwritten.append(error)
        for line in faults:
            fields = {name: line[name] for name in ("fault", "kind", "targets", "undo") if name in line}
            write({**fields, "state": "healing"})
            try:
                undo, world = Undo(line["undo"]["verb"], line["undo"]["args"]), world_of(cluster)
                await perform(undo, world, clock)
                await verify_undo(undo, world, clock)
            except Exception as error:  # noqa: BLE001 -- reported at the end, after every other heal was tried
                failures.append(f"the fault {line['fault']} could not be healed: {_one_line(error)}")
                write({**fields, "state": "failed", "why": _one_line(error)})
            else:
                outcomes[line["fault"]] = outcome = _outcome(undo)
                by = "by a process that did not inject the fault, such as the watchdog or `aftershock heal`"
                write({**fields, "state": "healed", "why": f"{outcome}{':' * (outcome != _HEALED)} {by}"})
                log(f"{line['fault']}: {outcome}")
    if unwritten:
        log(
            f"{journal_path} can't be written ({unwritten[0].strerror}), so the healed faults stay listed as in force; "
            f"free disk space, then type: aftershock heal --run {run.run_id}"
        )
    with suppress(OSError):  # the disk may be full
        run.reseal("journal.jsonl")
    if failures:
        unhealed = FaultError("; ".join(failures))
        advise(unhealed, read_journal(journal_path), cluster)
        raise unhealed
    return outcomes


def advise(error: FaultError, lines: Iterable[Line], cluster: Target) -> None:
    """Add to the error the shell commands that heal each fault in force by hand; ``lines`` are lines of the journal."""
    containers: Mapping[int, str] = {}
    names: Mapping[str, str] = {}
    if isinstance(cluster, Cluster) and not isinstance(cluster, KubernetesCluster):
        containers = {node: instance.container.name for node, instance in cluster.nodes.items()}
    elif isinstance(cluster, AttachedCluster):
        containers = cluster.descriptor.attach.containers
        names = cluster.toxiproxy.user_names if cluster.toxiproxy else {}
    server = None if isinstance(cluster, KubernetesCluster) else getattr(cluster, "toxiproxy", None)
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
        case "uncordon":
            label = f"{ownership.RUN}-"
            commands = [f"kubectl uncordon {args['machine']}", f"kubectl label node {args['machine']} {label}"]
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
    """Delay Ctrl-C, SIGTERM and SIGHUP until the end of the ``with`` block, and log each signal.

    If the block belongs to the clean-up after an exception, that exception goes on instead.
    """
    cleaning_up, received = sys.exc_info()[0] is not None, list[int]()

    def delay(number: int, _: object) -> None:
        received.append(number)
        log("the clean-up of the cluster needs a few more seconds; then the signal takes effect")

    earlier = {number: signal.signal(number, delay) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if received and not cleaning_up:
        signal.raise_signal(received[0])
