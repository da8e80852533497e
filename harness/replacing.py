"""A node's container replaced by one of another image: same name, disk, addresses, labels, environment and limits.

::

    k2 runs ─▶ k2 stopped ─▶ k2 renamed k2-was-1 ─▶ new k2 created ─▶ started
                                  └──────────── between these, k2-was-1 stands for the node

Rules. What the image itself brings (its own environment, its command) is the new image's; all else is copied from the
engine's account of the old container, so whatever else was done to it stays done. The old one stays, stopped, until
the cluster is removed: its output is evidence, and a replacement that is broken off leaves the node in one of them.
"""

from collections.abc import Mapping
from typing import Any

from docker.errors import APIError
from docker.models.containers import Container

from aftershock.errors import ClusterError
from aftershock.harness.node import SHUT_DOWN_S, WAS, KafkaNode, name_of

_COPIED = ("Hostname", "Labels", "User", "WorkingDir", "StopSignal", "ExposedPorts")


def replace(node: KafkaNode, image: str) -> None:
    """Stop the node and start one of that image in its place; ``node`` is the new one then.

    Raises:
        ClusterError: the engine refused; the node is the old container, or the new one, but it may not run.
    """
    try:
        _end(node)
    except APIError as error:
        raise ClusterError(f"can't stop {node.container.name}: {error.explanation or error}") from error
    old = node.container
    name = name_of(old)
    try:
        if old.name == name:
            old.rename(_free_name(old, name))
        node.container = _created(old, name, image)
        node.container.start()
    except APIError as error:
        raise ClusterError(f"can't replace {old.name} by {image}: {error.explanation or error}") from error


def in_place(found: Mapping[str, Container], name: str) -> Container | None:
    """The container that stands for a node, of these by their names: its own, else the last that was replaced."""
    replaced = {int(each.rpartition(WAS)[2]): each for each in found if each.startswith(f"{name}{WAS}")}
    return found.get(name) or found.get(replaced.get(max(replaced, default=0), ""))


def _end(node: KafkaNode) -> None:
    if node.state() == "paused":
        node.resume()
    node.container.stop(timeout=SHUT_DOWN_S)


def _free_name(old: Container, name: str) -> str:
    """No name of a container is used twice, of those that stand for one node."""
    taken = {each.name for each in old.client.containers.list(all=True, filters={"name": f"{name}{WAS}"})}
    return next(free for n in range(1, len(taken) + 2) if (free := f"{name}{WAS}{n}") not in taken)


def _created(old: Container, name: str, image: str) -> Container:
    old.reload()
    config, brought = old.attrs["Config"], old.image.attrs["Config"]
    own = {key: config[key] for key in _COPIED if config.get(key) and config[key] != brought.get(key)}
    environment = [pair for pair in config["Env"] or () if pair not in (brought.get("Env") or ())]
    networks = {net: _endpoint(old, told) for net, told in old.attrs["NetworkSettings"]["Networks"].items()}
    whole = {
        **own,
        "Image": image,
        "Env": environment,
        "HostConfig": old.attrs["HostConfig"],
        "NetworkingConfig": {"EndpointsConfig": networks},
    }
    created = old.client.api.create_container_from_config(whole, name)
    return old.client.containers.get(created["Id"])


def _endpoint(old: Container, told: Mapping[str, Any]) -> dict[str, Any]:
    """Its names there, but for the one that the engine made of the old container's id."""
    aliases = [alias for alias in told.get("Aliases") or () if not str(old.id).startswith(alias)]
    return {"Aliases": aliases}
