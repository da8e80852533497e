"""Groups of nodes as a plan says them, by their ids or by racks, and whether a cluster's links allow for them.

::

    between: [[1, 2], [3]]       between: [[a], [b, c]]

A node that is in no group keeps all its links.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from aftershock.errors import FaultError
from aftershock.faults.grudges import all_links, of_groups, streams_of
from aftershock.faults.links import Ways
from aftershock.faults.problem import did_you_mean

if TYPE_CHECKING:
    from aftershock.faults.plan import Cluster

_SCHEMA = {
    "type": "array",
    "items": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
    "description": "groups of node ids, or of racks: [[1, 2], [3]] or [[a], [b, c]]",
}
GROUPS_MIN = 2


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Member = Annotated[str, BeforeValidator(_text)]
Groups = Annotated[tuple[tuple[Member, ...], ...], WithJsonSchema(_SCHEMA)]


def nodes_in(groups: Groups, homes: Mapping[Any, str]) -> list[list[int]]:
    """The groups as node ids; FaultError for a member that the cluster doesn't have."""
    known = {*map(str, homes), *homes.values()}
    if strangers := [member for group in groups for member in group if member not in known]:
        raise FaultError(f"the cluster has no node or rack `{strangers[0]}`; {did_you_mean(strangers[0], known)}")
    return [[node for node, rack in homes.items() if str(node) in group or rack in group] for group in groups]


def misgrouped(groups: Sequence[Sequence[str]]) -> str | None:
    """Why these are no groups of nodes of any cluster."""
    members = [member for group in groups for member in group]
    if len(groups) < GROUPS_MIN or not all(groups):
        return "`between` needs two groups or more, and somebody in each: like [[1, 2], [3]]"
    if len({member.isdecimal() for member in members}) > 1:
        return "`between` takes node ids or racks, not both: like [[1, 2], [3]] or [[a], [b, c]]"
    twice = next((member for member, count in Counter(members).items() if count > 1), None)
    return f"`{twice}` is in `between` twice: a node belongs to one group" if twice else None


def impossible(groups: Groups, ways: Ways, cluster: "Cluster") -> str | None:
    """Why the links of this cluster can't keep these groups apart."""
    homes, brokers = cluster.node_racks, cluster.broker_racks
    try:
        streams_of(of_groups(nodes_in(groups, homes), ways), all_links(homes, brokers), homes, brokers)
    except FaultError as error:
        return str(error)
    return None
