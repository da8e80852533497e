"""Defects of commits and of the coordinators' log."""

from aftershock.tests.unit.results.planted.catalogue import defect
from aftershock.tests.unit.results.planted.world import Run
from aftershock.tests.unit.results.planted.worlds import commits_run

SOME, LAST = 500, 999


def _entry(run: Run, seq: int) -> int:
    """Return the index of a commit's log entry, which has the number of the commit."""
    return int(run.at("produce", 0, seq))


@defect(
    "a group's last acknowledged commit is not in its coordinator's log", fails=("integrity/lost",), base=commits_run
)
def commit_lost(run: Run) -> None:
    run.drop("offsets", _entry(run, LAST))


@defect("a commit that was acknowledged with the one that superseded it: no loss", base=commits_run)
def commit_superseded(run: Run) -> None:
    run.drop("offsets", _entry(run, SOME))


@defect("a coordinator's log without any entry of one group", fails=("integrity/lost",), base=commits_run)
def group_lost(run: Run) -> None:
    rows = run.frames["offsets"]
    run.drop("offsets", rows.index[rows["topic_partition"] == 1])


@defect(
    "a last commit that never got a result, and is not in its coordinator's log: no loss",
    fails=("obligation/stuck",),
    base=commits_run,
)
def commit_in_doubt(run: Run) -> None:
    run.set("produce", _entry(run, LAST), status="in_doubt", done_us=None)
    commit_lost(run)


@defect("an entry of a group's log that no client sent", fails=("integrity/phantom",), base=commits_run)
def commit_nobody_sent(run: Run) -> None:
    last = run.get("offsets", _entry(run, LAST))
    run.add("offsets", last | {"offset": last["offset"] + 1, "committed": last["committed"] + 1})


@defect(
    "two commits of a group that changed places in the log, and no connection ended",
    fails=("integrity/backward",),
    base=commits_run,
)
def commits_swapped(run: Run) -> None:
    one, other = (_entry(run, seq) for seq in (SOME, SOME + 3))
    first, second = (run.get("offsets", index)["offset"] for index in (one, other))
    run.set("offsets", one, offset=second)
    run.set("offsets", other, offset=first)


def _disconnected(run: Run, at_us: int) -> None:
    place = {"workload": "orders", "arm": "baseline", "op": "commit", "worker": "orders-baseline-commit"}
    run.documents["events"].append(place | {"event": "node_disconnected", "node_id": 1, "t_us": at_us})


@defect(
    "the same, and a connection of the committer ended between them: explained",
    says="1 of 1000 commits: all explained by a connection of the committer ended while the commit was in flight",
    base=commits_run,
)
def commits_swapped_at_a_disconnection(run: Run) -> None:
    commits_swapped(run)
    _disconnected(run, int(run.get("produce", _entry(run, SOME))["sent_us"]) + 1)


@defect(
    "the same, and a connection of the committer ended at another time", fails=("integrity/backward",), base=commits_run
)
def commits_swapped_beside_a_disconnection(run: Run) -> None:
    commits_swapped(run)
    _disconnected(run, int(run.get("produce", _entry(run, SOME + 3))["sent_us"]) + 1)


@defect(
    "the same of a client that does not tell when its connections end: the judge can't tell",
    unsure=("integrity/backward",),
    says="of which the client does not tell",
    base=commits_run,
)
def commits_swapped_and_not_told(run: Run) -> None:
    commits_swapped(run)
    run.arms["arms"]["baseline"]["client"] = "confluent"


@defect(
    "a group's committed position that was deleted, so that the group began anew",
    fails=("integrity/lost",),
    base=commits_run,
)
def taken_back(run: Run) -> None:
    last = run.get("offsets", _entry(run, LAST))
    more = [
        last | {"offset": last["offset"] + 1, "committed": None},
        last | {"offset": last["offset"] + 2, "committed": 0},
    ]
    run.add("offsets", *more)


@defect(
    "commits whose coordinators' log could not be read",
    unsure=("integrity/lost", "integrity/backward", "integrity/coverage"),
    base=commits_run,
)
def log_unread(run: Run) -> None:
    run.frames["offsets"] = run.frames["offsets"][:0]


@defect("commits of share groups, of which coordinators write no position: nothing to judge", base=commits_run)
def shared(run: Run) -> None:
    log_unread(run)
    run.arms["arms"]["baseline"]["settings"] = {"share": True}
