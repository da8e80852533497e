"""What to type where a fault could not be healed: a command of Docker's or Toxiproxy's for each thing still broken.

Cleaning up after the dead: what a runner that was killed left broken is healed, what it left behind is removed.

Rules. What somebody answers for is left alone: a cluster whose owner lives, a fault whose injector lives. A kept
cluster is healed and stays; everything else that a dead owner left goes: containers, networks, volumes, client
processes and spools, what the clients wrote there being made evidence first. All of it may be repeated, and done by
several at once. A cluster is kept once its launch was through: half of one is nobody's.
"""

import asyncio
import fcntl
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import docker

from aftershock.errors import AftershockError, ClusterError, EvidenceError, FaultError
from aftershock.faults.runtime import verify_undo
from aftershock.faults.runtime.record import Undo
from aftershock.faults.runtime.undo import perform
from aftershock.faults.runtime.waiting import until
from aftershock.harness.cluster import ownership
from aftershock.harness.cluster.attached import AttachedCluster, is_attached, read_card
from aftershock.harness.cluster.cluster import CARD, Cluster, attach
from aftershock.harness.cluster.ownership import Standing
from aftershock.harness.cluster.target import Target
from aftershock.harness.run import client_processes
from aftershock.harness.run.rundir import RunClock, RunDir
from aftershock.harness.safety.journal import Journal, Line, open_faults, read_journal
from aftershock.harness.world.world import world_of


def advise(error: FaultError, lines: Iterable[Line], cluster: Target) -> None:
    """Note on the error what to type for each fault that these lines of a journal leave open."""
    for line in open_faults(lines):
        undo = Undo(line["undo"]["verb"], _renamed(line["undo"]["args"], _names(cluster)))
        for command in commands(undo, _containers(cluster), _toxiproxy(cluster), cluster.run_id):
            error.add_note(f"{line['fault']}, by hand: {command}")


def commands(undo: Undo, containers: Mapping[int, str], toxiproxy: str | None, run_id: str) -> list[str]:
    """Shell commands, in order, each once.

    Args:
        undo: what was to be undone.
        containers: the nodes' containers, by node.
        toxiproxy: where the server's API is, ``http://host:port``; None where there is none.
        run_id: for what only Kafka itself can put back.
    """
    return list(dict.fromkeys(_commands(undo, containers, toxiproxy, run_id)))


def _commands(undo: Undo, containers: Mapping[int, str], toxiproxy: str | None, run_id: str) -> Iterator[str]:
    args = undo.args
    match undo.verb:
        case "start" | "resume" if args["broker"] in containers:
            yield f"docker {'start' if undo.verb == 'start' else 'unpause'} {containers[args['broker']]}"
        case "remove_toxics" if toxiproxy:
            yield from (f"curl -X DELETE {toxiproxy}/proxies/{proxy}/toxics/{name}" for proxy, name in args["toxics"])
        case "enable_proxies" if toxiproxy:
            yield from (_change(toxiproxy, proxy, {"enabled": True}) for proxy in args["proxies"])
        case "redirect_proxies" if toxiproxy:
            yield from (_change(toxiproxy, proxy, {"upstream": upstream}) for proxy, upstream in args["upstreams"])
        case "all_of":
            for each in args["undos"]:
                yield from _commands(Undo(each["verb"], each["args"]), containers, toxiproxy, run_id)
        case "nothing":
            return
        case _:
            yield f"aftershock heal --run {run_id}"


def _change(toxiproxy: str, proxy: str, fields: Mapping[str, Any]) -> str:
    return f"curl -d {shlex.quote(json.dumps(fields))} {toxiproxy}/proxies/{proxy}"


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """An undo's arguments with the proxies' own names in them."""
    if isinstance(value, dict):
        return {key: _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def _names(cluster: Target) -> Mapping[str, str]:
    """What a user calls the proxies, by what we do."""
    return cluster.toxiproxy.theirs if isinstance(cluster, AttachedCluster) and cluster.toxiproxy else {}


def _containers(cluster: Target) -> Mapping[int, str]:
    return {node: each.container.name for node, each in cluster.nodes.items()} if isinstance(cluster, Cluster) else {}


def _toxiproxy(cluster: Target) -> str | None:
    server = getattr(cluster, "toxiproxy", None)
    return None if server is None else server.url


Say = Callable[[str], None]
_IN_SYNC_S = 60.0
_OWED_MS = 60_000
_STRAGGLER_S = 0.5
_LAST_VERBS = ("restore_assignment",)  # replicas can only move once their nodes are back


def heal(
    client: docker.DockerClient | None,
    run_id: str | None,
    say: Say,
    *,
    asked: bool | None = None,
    home: Path | None = None,
) -> list[str]:
    """Heal and remove what the dead left, of one run or of all; gives a sentence for each thing done.

    ``asked`` (default: when a run is named): a kept cluster's faults are healed also where their injector lives, and
    what stands in the way is an error. Else that is said, and the rest done. Without a ``client`` nothing is done to
    what we launched. ``home``: the named run's directory, if it is on an attached cluster and may have no spool left.

    Raises:
        ClusterError: the named run is being driven, or its cluster can't be reached any more.
        FaultError: a fault could not be healed.
    """
    asked = run_id is not None if asked is None else asked
    done: list[str] = []
    if home and is_attached(home):
        with _alone(home):
            done += _let_go(home, say)
    if client:
        done += _healed_here(client, run_id, say, asked=asked)
    for spool in client_processes.orphaned():
        if run_id in (None, spool.run_id):
            with _alone(spool.home):
                done += _cleared(spool, say, asked=asked) if spool.path.exists() else []
    return done


def _healed_here(client: docker.DockerClient, run_id: str | None, say: Say, *, asked: bool) -> list[str]:
    done = []
    for cluster in ownership.standing(client):
        if run_id in (None, cluster.run_id):
            try:
                with _alone(cluster.home):
                    done += _healed(client, cluster, say, asked=asked)
            except AftershockError as error:
                if asked:
                    raise
                say(f"{cluster.run_id}: {error}")
    return done


def sweep(client: docker.DockerClient | None, say: Say) -> None:
    """Heal and remove what any dead run left, before a cluster takes room beside it."""
    for sentence in heal(client, None, say):
        say(f"left by a dead run: {sentence}")


def leavings(client: docker.DockerClient | None, run_id: str) -> bool:
    """Whether anything of a run whose owner is dead is left to heal or to remove; without a client, of its own."""
    mine = [cluster for cluster in ownership.standing(client) if cluster.run_id == run_id] if client else []
    unhealed = [cluster for cluster in mine if not _is_kept(cluster) or _open(cluster.home)]
    return bool(unhealed) or any(spool.run_id == run_id for spool in client_processes.orphaned())


async def undo_open(
    journal: Path, origin_ns: int, cluster: Target, say: Say, *, whose: Callable[[str], bool]
) -> list[str]:
    """Heal every fault that a journal says is in force and whose owner ``whose`` accepts; gives their ids.

    Every one is tried. Raises FaultError with those that could not be healed.
    """
    owed = [line for line in open_faults(read_journal(journal)) if whose(line.get("owner", ""))]
    owed.sort(key=lambda line: line["undo"]["verb"] in _LAST_VERBS)
    failures = []
    clock = RunClock(origin_ns)
    with closing(Journal(journal, clock)) as book:
        for line in owed:
            try:
                await _undo(line, cluster, book, clock)
            except AftershockError as error:
                failures.append(f"{line['fault']} could not be healed: {error}")
                book.append({**_same(line), "state": "failed", "why": str(error)})
            else:
                say(f"{line['fault']}: healed")
    if failures:
        unhealed = FaultError("; ".join(failures))
        advise(unhealed, read_journal(journal), cluster)
        raise unhealed
    return [line["fault"] for line in owed]


async def _undo(line: Line, cluster: Target, book: Journal, clock: RunClock) -> None:
    book.append({**_same(line), "state": "healing"})
    undo, world = Undo(line["undo"]["verb"], line["undo"]["args"]), world_of(cluster)
    await perform(undo, world, clock)
    await until(lambda: verify_undo.owed(undo, world), clock, _OWED_MS)
    book.append({**_same(line), "state": "healed", "why": "healed for its injector, which is gone or was overruled"})


def _same(line: Line) -> dict[str, Any]:
    return {name: line[name] for name in ("fault", "kind", "targets", "undo") if name in line}


def _healed(client: docker.DockerClient, cluster: Standing, say: Say, *, asked: bool) -> list[str]:
    if not cluster.home.is_dir() and cluster.keep:
        raise ClusterError(
            f"its folder {cluster.home} is gone; remove it with: aftershock cluster down --run {cluster.run_id}"
        )
    if cluster.owned:
        if asked:
            raise ClusterError(driven(cluster))
        return []
    if _is_kept(cluster):
        return _mended(client, cluster, say, overrule=asked)
    return _removed(client, cluster)


def driven(cluster: Standing) -> str:
    """Why a cluster that somebody answers for is left alone."""
    pid = cluster.owner.partition(":")[0]
    where = f"process {pid}, which lives: interrupt that, and it heals itself" if cluster.here else "another host"
    return f"{cluster.run_id} belongs to {where}; it is left alone"


def _is_kept(cluster: Standing) -> bool:
    return cluster.keep and (not cluster.home.is_dir() or (cluster.home / CARD).exists())


def _open(home: Path) -> bool:
    with suppress(EvidenceError):
        return any(
            not ownership.lives(line.get("owner", "")) for line in open_faults(read_journal(home / "journal.jsonl"))
        )
    return False


def _mended(client: docker.DockerClient, standing: Standing, say: Say, *, overrule: bool) -> list[str]:
    """A kept cluster with no fault left in force that somebody doesn't answer for."""
    journal = standing.home / "journal.jsonl"
    if not (overrule and open_faults(read_journal(journal))) and not _open(standing.home):
        return []
    with closing(attach(client, standing.home)) as cluster:
        origin_ns = RunDir.open(standing.home).facts.get("origin_ns", 0)
        whose = (lambda _: True) if overrule else (lambda owner: not ownership.lives(owner))
        faults = asyncio.run(undo_open(journal, origin_ns, cluster, say, whose=whose))
        cluster.await_in_sync(_IN_SYNC_S)
    return [f"{standing.run_id}: healed {', '.join(faults)}"]


def _removed(client: docker.DockerClient, cluster: Standing) -> list[str]:
    client_processes.end_workers(cluster.run_id)
    names: list[str] = []
    # the engine may still be creating what the dead asked for last: look until nothing more turns up
    while found := ownership.remove_run(client, cluster.run_id):
        names += found
        time.sleep(_STRAGGLER_S)
    close_books(cluster.home)
    return [f"{cluster.run_id}: removed {', '.join(names)}"]


def _let_go(home: Path, say: Say) -> list[str]:
    """An attached cluster on which nothing of a dead run is left: none of its faults, and no topic that it created."""
    run, journal = RunDir.open(home), home / "journal.jsonl"
    if ownership.lives(run.facts.get("owner", "")):
        pid = run.facts["owner"].partition(":")[0]
        raise ClusterError(f"{run.run_id} is driven by process {pid}, which lives: interrupt that, and it heals itself")
    if read_card(home).over and not open_faults(read_journal(journal)):
        return []
    client_processes.end_workers(run.run_id)
    with closing(AttachedCluster(read_card(home), home)) as cluster:
        origin_ns = run.facts.get("origin_ns", 0)
        faults = asyncio.run(undo_open(journal, origin_ns, cluster, say, whose=lambda _: True))
        topics = cluster.clear()
    healed = [f"{run.run_id}: healed {', '.join(faults)}"] if faults else []
    return healed + ([f"{run.run_id}: deleted the topics it created: {', '.join(topics)}"] if topics else [])


def _cleared(spool: client_processes.Spool, say: Say, *, asked: bool = False) -> list[str]:
    client_processes.end_workers(spool.run_id)
    home, done = spool.home, list[str]()
    if home and is_attached(home):
        try:
            done += _let_go(home, say)
        except AftershockError as error:
            if asked:
                raise
            say(f"{spool.run_id}: {error}")
            return []  # its spool is how it is found again
    try:
        spool.salvage()
    except OSError as error:
        say(f"{spool.run_id}: what its clients wrote could not be kept: {error}")
        spool.discard()
    if home:
        close_books(home)
    return [*done, f"{spool.run_id}: cleared {spool.path}"]


def close_books(home: Path) -> None:
    """Say in the run directory how the run ended, and remove what Spark left there; not while its runner is at it."""
    with suppress(EvidenceError, OSError):
        run = RunDir.open(home)
        if ownership.lives(run.facts.get("owner", "")):
            return
        if run.facts.get("status") == "running":
            run.tell(status="failed", why="its runner died; what it left was healed and removed")
    for scratch in (home / "logs").glob(".spark-*"):
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _alone(home: Path | None) -> Iterator[None]:
    """One healer at a time for a run; without its folder there is nothing to agree on."""
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
