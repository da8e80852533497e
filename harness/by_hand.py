"""What to type where a fault could not be healed: a command of Docker's or Toxiproxy's for each thing still broken."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aftershock.errors import FaultError
from aftershock.faults.record import Undo
from aftershock.harness.attached.cluster import AttachedCluster
from aftershock.harness.cluster import Cluster
from aftershock.harness.journal import Line, open_faults
from aftershock.harness.target import Target


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
