"""What a coordinator that was killed had answered, and what its successors know: the log of the offsets topic tells.

Rules. A commit's number says what it commits, so the largest that was acknowledged must be there, or a larger one: each
group's last entry. Entries of a group are in the order in which coordinators wrote them, and must not fall.
"""

from collections.abc import Iterable

import pyarrow.compute as pc

from aftershock.results.trials.commits import written
from aftershock.results.trials.part import Part
from aftershock.results.trials.statement import Estimate, Judged
from aftershock.results.trials.words import seen

FAULT = "coordinator"
_UNREAD = "what coordinators wrote could not be read"


def kept(part: Part) -> Judged:
    """Whether every acknowledged commit, or a later one of its group, is in the log."""
    log = written(part)
    if log is None:
        return seen(None, _kills(part, None), _UNREAD)
    last = dict(zip(log["group"].to_pylist(), log["committed"].to_pylist(), strict=True))
    acknowledged = _acknowledged(part)
    lost = sorted(group for group, offset in acknowledged.items() if (last.get(group) or -1) < offset)
    named = f", {lost[0]} first" if lost else ""
    why = f"{len(lost)} of {len(acknowledged)} groups lost a commit{named}; {_under_way(part)} under way at the kills"
    return seen(not lost, _kills(part, len(lost)), why)


def monotonic(part: Part) -> Judged:
    """Whether no entry of a group is below the one before it."""
    log = written(part)
    if log is None:
        return seen(None, _kills(part, None), _UNREAD)
    entries = list(zip(log["group"].to_pylist(), log["committed"].to_pylist(), strict=True))
    backward = falls(entries)
    return seen(not backward, _kills(part, backward), f"{backward} of {len(entries)} entries fall behind their group's")


def falls(entries: Iterable[tuple[str, int | None]]) -> int:
    """How many entries are below the one before of their group; one that was taken back (None) begins anew."""
    count, last = 0, dict[str, int]()
    for group, offset in entries:
        count += offset is not None and offset < last.get(group, -1)
        last[group] = -1 if offset is None else offset
    return count


def _kills(part: Part, value: float | None) -> Estimate:
    """The unit is the kill that was witnessed and met."""
    proven, _ = part.run.trials()
    return Estimate(value, None, None, len(proven or ()), "")


def _acknowledged(part: Part) -> dict[str, int]:
    rows = part.outcomes(("group", "offset"), (pc.field("op") == "commit") & (pc.field("status") == "ok"))
    largest = rows.group_by("group").aggregate([("offset", "max")])
    return dict(zip(largest["group"].to_pylist(), largest["offset_max"].to_pylist(), strict=True))


def _under_way(part: Part) -> int:
    """Commits that were sent before a kill and ended after it."""
    rows = part.outcomes(("sent_us", "done_us"), pc.field("op") == "commit")
    sent, done = rows["sent_us"].fill_null(0).to_numpy(), rows["done_us"].fill_null(0).to_numpy()
    return sum(int(((sent < each["start_us"]) & (done >= each["start_us"])).sum()) for each in part.phases(FAULT))
