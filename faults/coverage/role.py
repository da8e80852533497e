"""Whom a fault hits, by its own words: the coordinate ``role`` of a cell.

Rules: what is said most closely decides, in this order: requests of an API, clients, links, a broker's role, a rack, a
topic. A fault that names nobody hits the cluster. A broker by its number, or any, is a ``broker``: whatever roles it
plays then, nobody asked for them.
"""

from aftershock.faults import links, roles
from aftershock.faults.crew import parse as parse_client
from aftershock.faults.fault import Fault

_PLAYED = {
    roles.Controller: "controller",
    roles.Leader: "leader",
    roles.Replica: "follower",
    roles.Coordinator: "coordinator",
}


def role_of(fault: Fault) -> str:
    """The word for it."""
    if fault.meeting() == "requests":
        return f"{api_of(fault) or 'all'} requests"
    for text in fault.clients().values():
        return parse_client(text).op or "client"
    for text in fault.links().values():
        return _link(text)
    for text in fault.roles().values():
        return _PLAYED.get(type(roles.parse(text)), "broker")
    return "rack" if fault.racks() else "topic" if fault.topics() else "cluster"


def api_of(fault: Fault) -> str | None:
    """The API whose requests it is about; None: every one's."""
    said = fault.parameters()
    return said.get("api") or next(iter(said.get("versions", ())), None)


def _link(text: str) -> str:
    selector = links.parse(text)
    return f"{selector.channel if isinstance(selector, links.ToBroker) else 'rack'} link"
