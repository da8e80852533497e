"""The ablation matrix of a consumer: one history, one switch off, and which counters change."""

from collections import Counter
from collections.abc import Iterator

import pytest

from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.consuming import Reader, append, fresh_topic, reading

OUT_OF_RANGE, NOT_LEADER = 1, 6
PARTITIONS = range(4)
FETCHES = {"fetches_full", "fetches_incremental"}
"""How often a broker is asked hangs on the clock, and a redirection is one more question."""
OWN = {
    "read_replica": {"replica_switched", "replica_failed_back"} | FETCHES,
    "fetch_session": {"sessions_established", "sessions_lost", "sessions_reset"} | FETCHES,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=3, racks=["a", "b", "c"]) as cluster:
        yield cluster


async def read_all(cluster: ScriptedBroker, reader: Reader, topic: str) -> None:
    """Write one record to each partition, read all of them; then again, by requests that start after the first read."""
    for _ in range(2):
        for number in PARTITIONS:
            append(cluster, topic, number)
        await reader.take(len(PARTITIONS))


async def read_all_and_learn(cluster: ScriptedBroker, reader: Reader, topic: str) -> None:
    """Do the same where a leader refuses, and wait for the metadata that the client then requests.

    Otherwise the metadata might arrive after the next step and replace that step's hint.
    """
    refreshed = len(reader.events("metadata_refreshed"))
    await read_all(cluster, reader, topic)
    await reader.until(lambda: len(reader.events("metadata_refreshed")) > refreshed, "no metadata came")


async def play(cluster: ScriptedBroker, **switches: bool) -> Counter[str]:
    """Return one consumer's counters: a preferred replica comes, fails and comes again; a broker forgets its
    sessions; a session is refused; a hint is stale; a leader moves.

    Each broker leads a partition throughout, so that each gets fetches, whichever replica is preferred.
    """
    topic = fresh_topic(cluster, len(PARTITIONS), leaders=[1, 1, 2, 3])
    options = {"client_rack": "b", "auto_offset_reset": "earliest"} | switches
    async with reading(cluster, topic, dict.fromkeys(PARTITIONS, "earliest"), **options) as reader:
        await read_all(cluster, reader, topic)
        cluster.prefer_replica(topic, 0, 2, rack="b")
        await read_all(cluster, reader, topic)
        cluster.script("Fetch", node=2, partition=(topic, 0), error=OUT_OF_RANGE)
        await read_all(cluster, reader, topic)
        cluster.forget_sessions(3)
        await read_all(cluster, reader, topic)
        cluster.script("Fetch", node=3, top_error=71)
        await read_all(cluster, reader, topic)
        cluster.script("Fetch", node=1, partition=(topic, 1), error=NOT_LEADER, hint=(2, 0))
        await read_all_and_learn(cluster, reader, topic)
        cluster.move_leader(topic, 1, to=3)
        await read_all(cluster, reader, topic)  # the position awaits validation, so the error requests no metadata
        return reader.consumer.counts


@pytest.fixture(scope="module")
async def on(cluster: ScriptedBroker) -> Counter[str]:
    """Return the counters with all switches on."""
    return await play(cluster)


async def test_the_history_has_every_kind_of_event(on: Counter[str]) -> None:
    """The matrix proves nothing otherwise."""
    everything = {"hints_accepted", "hints_refused_not_newer", "position_validations", "position_resets"}
    assert everything | set.union(*OWN.values()) <= {name for name, count in on.items() if count}


@pytest.mark.parametrize("switch", OWN)
async def test_a_switch_changes_its_own_counters_only(cluster: ScriptedBroker, on: Counter[str], switch: str) -> None:
    """With one switch off, only its own counters differ, and these are 0.

    Bytes are left out, since they follow from the requests.
    """
    off = await play(cluster, **{switch: False})
    differing = {name for name in on.keys() | off.keys() if on[name] != off[name] and "_bytes_" not in name}
    assert differing
    assert differing <= OWN[switch]
    assert set() == {name for name in OWN[switch] - FETCHES if off[name]}
