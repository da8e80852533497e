"""The last look: what is read of a cluster when the load is over, and what its clients left there when they went."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError
from aftershock.faults.timeline import Timeline
from aftershock.harness.fetch_sessions import still_open, told_sessions
from aftershock.harness.kafka.committed import OFFSETS, SHARE_STATE, read_committed
from aftershock.harness.kafka.replicas import read_replicas
from aftershock.harness.target import Target
from aftershock.results.files import read_lines
from aftershock.workloads.logread import EndOffsets, Topic, read_log

READ_DEADLINE_S = 30.0

Say = Callable[[str], None]


async def read_topics(cluster: Target, topics: Sequence[Topic], begin: EndOffsets, home: Path, say: Say) -> EndOffsets:
    """What the topics hold, and each of their replicas; how far that is."""
    say("reading the topics as they are now")
    bootstrap, security = cluster.bootstrap(None), cluster.security.resolved()
    read = partial(read_log, bootstrap, topics, home / "log", security=security, begin=begin)
    ends = await asyncio.to_thread(read, READ_DEADLINE_S)
    say("reading every replica")
    await asyncio.to_thread(read_replicas, cluster.admin, topics, ends, home / "replicas", READ_DEADLINE_S, begin)
    return ends


async def read_commits(cluster: Target, timeline: Timeline, home: Path, say: Say) -> None:
    """What coordinators wrote of the plan's commits; the offsets of an attached cluster are none of ours."""
    committing = [arm for each in timeline.workloads if each.get("commit") for arm in each["arms"].values()]
    topics = {SHARE_STATE if arm["settings"].get("share") else OFFSETS for arm in committing}
    if "attach" in timeline.cluster or not topics:
        return
    try:
        await asyncio.to_thread(read_committed, cluster.admin, sorted(topics), home / "offsets", READ_DEADLINE_S)
    except AftershockError as error:
        say(f"what coordinators wrote can't be read: {error}")


async def sessions_left(cluster: Target, home: Path) -> dict[str, Any] | None:
    """Of the fetch sessions that clients told of: how many, and which are open still. None where none was told of."""
    told = told_sessions(read_lines(home / "events.jsonl"))
    if not told:
        return None
    return {"told": len(told), "left": await asyncio.to_thread(still_open, told, cluster.admin)}
