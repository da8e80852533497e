"""Story of a group's rebalances: who gave up what, who got it, and when each partition was read again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aftershock.results.evidence.evidence import Client
from aftershock.results.explain.events import Moment, listed

Rebalance = Mapping[str, Any]


def of_client(analysis: Mapping[str, Any], client: Client) -> Sequence[Rebalance]:
    """Return a client's rebalances; empty if its group has one member, or an older version judged the run."""
    rows = (row["rebalances"] for row in analysis.get("rebalances", ()) if row["client"] == client.key)
    return next(rows, ())


def longest_ownerless_us(analysis: Mapping[str, Any], client: Client) -> int:
    """Return the longest time for which a client's records waited without a delivering owner; 0 if none did."""
    rows = (row["waits"] for row in analysis.get("unowned", ()) if row["client"] == client.key)
    return max((wait["end_us"] - wait["start_us"] for wait in next(rows, ())), default=0)


def told(rebalances: Sequence[Rebalance], client: Client, from_us: int, to_us: int, who: str) -> Iterator[Moment]:
    """Yield the start and the end of each rebalance that began between two times."""
    numbers = {worker: number for number, worker in enumerate(client.workers("consume"), 1)}
    for rebalance in rebalances:
        if not from_us <= rebalance["start_us"] < to_us:
            continue
        moved = rebalance["moved"]
        if not moved:
            text = f"the group rebalances, and each of {rebalance['returned']} partitions returns to its owner"
            yield Moment(rebalance["start_us"], f"{text} after {_seconds(rebalance)}{_kept(rebalance)}", who)
            continue
        yield Moment(rebalance["start_us"], f"the group rebalances: {_changes(moved, 'former', numbers, 'lose')}", who)
        last = max(moved, key=lambda change: change["read_us"])
        waits = [change for change in moved if change["unowned_us"] is not None]
        text = f"the rebalance is over after {_seconds(rebalance)}: {_changes(moved, 'owner', numbers, 'get')}"
        text += f"; {_place(last)} was read again last"
        if waits:
            longest = max(waits, key=lambda change: change["unowned_us"])
            text += f"; records of {_place(longest)} waited {longest['unowned_us'] / 1e6:.3f} s for the new owner"
        again = sum(change["again"] for change in moved)
        text += f"; {again} records were delivered again" if again else ""
        yield Moment(rebalance["end_us"], text + _kept(rebalance), who)


def _seconds(rebalance: Rebalance) -> str:
    return f"{(rebalance['end_us'] - rebalance['start_us']) / 1e6:.3f} s"


def _kept(rebalance: Rebalance) -> str:
    if not rebalance["kept_us"]:
        return ""
    return f"; partitions that kept their owner stood still for up to {rebalance['kept_us'] / 1e6:.3f} s"


def _changes(moved: Sequence[Mapping[str, Any]], side: str, numbers: Mapping[str, int], verb: str) -> str:
    """Return which members lose or get which partitions, in order of the members."""
    by_member: dict[int, list[str]] = {}
    for change in sorted(moved, key=lambda change: change["place"]):
        by_member.setdefault(numbers.get(change[side], 0), []).append(_place(change))
    return ", ".join(f"member {number} {verb}s {listed(places)}" for number, places in sorted(by_member.items()))


def _place(change: Mapping[str, Any]) -> str:
    topic, partition = change["place"]
    return f"{topic}/{partition}"
