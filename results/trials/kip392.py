"""KIP-392 on trial: reads from the closest replica, and what a consumer does when that replica is no good.

Rules. All leaders are in rack a, all consumers in rack b. Bytes are those that each client counted on its connections
to each broker, Metadata among them; their unit is a slice of 10 s from when every partition had its three replicas, the
first one left out, in which the leaders name the replicas. The KIP promises no more than less traffic between racks:
how stale a follower is, is reported. What the text promised and Kafka did not ship stands in the table too.
"""

from functools import partial

from aftershock.results.trials import kip392_lease as lease
from aftershock.results.trials import kip392_near as near
from aftershock.results.trials.claim import Claim, Parts
from aftershock.results.trials.kept import kept
from aftershock.results.trials.proven import Judge, proven
from aftershock.results.trials.statement import Judged, Role, unknown
from aftershock.results.trials.words import reported

_SET_UP = ("second", "third", "replicas")
_NOT_SHIPPED = {
    "hw-push": (
        "the leader pushes a new high watermark to its followers at once",
        "removed in Kafka 2.6 (KAFKA-9952): a follower hears of it with its next fetch; see the staleness above",
    ),
    "replica-id": (
        "consumers that may read from a follower send replica id -2",
        "they send -1: that the request names a rack, from version 11 on, is the mark",
    ),
    "reset-at-follower": (
        "a reset to earliest is looked up at the follower",
        "ListOffsets goes to the leader; docs/KIPS.md has the four cases of an offset out of range",
    ),
}


def _in_near(name: str, claim: str, published: str, bound: str, judge: Judge, role: Role, part: str = "near") -> Claim:
    return Claim(name, claim, published, bound, role, (part,), proven(judge, part, *_SET_UP))


def _in_lease(name: str, claim: str, bound: str, judge: Judge, *faults: str, role: Role = "claim") -> Claim:
    return Claim(name, claim, "-", bound, role, ("lease",), proven(judge, "lease", *_SET_UP, *faults))


def _nothing_lost(parts: Parts) -> Judged:
    return kept(parts["lease"], ["lost"])


def _not_shipped(parts: Parts, why: str) -> Judged:  # noqa: ARG001 - there is nothing to look at
    return reported(unknown(), why)


CLAIMS = (
    _in_near(
        "cross-rack",
        "bytes from other racks, of all that the consumer fetched",
        "0",
        "at most 0.1 %",
        partial(near.crossing, name="near", arm="closest"),
        "claim",
    ),
    _in_near(
        "off",
        "control: with the rule off all bytes cross",
        "-",
        "above 99 %",
        partial(near.all_crossing, name="near", arm="leader"),
        "control",
    ),
    _in_near(
        "rackless",
        "control: a client without a rack reads from the leader",
        "-",
        "above 99 %",
        partial(near.all_crossing, name="near", arm="rackless"),
        "control",
    ),
    _in_near(
        "selector-off",
        "control: brokers without a selector name nobody",
        "-",
        "above 99 %",
        partial(near.all_crossing, name="selector-off", arm="closest"),
        "control",
        "selector-off",
    ),
    _in_near(
        "own-selector",
        "a selector of one's own, which names the highest follower: bytes from there",
        "promised",
        "above 99 %",
        partial(near.selected, name="selector-own"),
        "report",
        "selector-own",
    ),
    _in_near(
        "staleness",
        "how much later a follower shows a record, at 100/s",
        "-",
        "",
        partial(near.staleness, name="near"),
        "report",
    ),
    _in_near(
        "staleness-slow",
        "how much later a follower shows a record, at 1/s",
        "-",
        "",
        partial(near.staleness, name="trickle"),
        "report",
        "trickle",
    ),
    _in_lease("kept", "a replica that lags out of the ISR is kept until its lease ends", "≤ 25 s", lease.kept, "lag"),
    _in_lease(
        "preferred-dies",
        "when the preferred replica dies, the consumer goes back to the leader",
        "gap < 2 s above the leader's readers'",
        partial(lease.survived, fault="preferred"),
        "preferred",
    ),
    _in_lease(
        "leader-dies",
        "when the leader dies, the consumer goes on",
        "gap < 2 s above the leader's readers'",
        partial(lease.survived, fault="leader"),
        "leader",
    ),
    _in_lease("nothing-lost", "and nothing is lost", "0 records", _nothing_lost, "lag", "preferred", "leader"),
    _in_lease("no-oscillation", "nor does it waver", "at most 2 in 10 s", lease.steady, "lag", "preferred", "leader"),
    _in_lease("grants", "how often a replica was granted, also in vain", "", lease.wavered, role="report"),
    _in_lease("lag-felt", "how late a lagging replica's reader was", "", lease.felt, "lag", role="report"),
    *(
        Claim(
            f"text-{name}", f"text, not shipped: {text}", "promised", "", "report", (), partial(_not_shipped, why=why)
        )
        for name, (text, why) in _NOT_SHIPPED.items()
    ),
)
