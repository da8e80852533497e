"""The committer as a worker uses it: start, commits despite errors, close."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kio.schema.errors import ErrorCode

from aftershock.errors import BrokerError, UnsupportedError
from aftershock.tests.scripted_broker import ScriptedBroker
from aftershock.tests.unit.workloads.kafka.committing import Keeper, committing


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ScriptedBroker) -> Iterator[ScriptedBroker]:
    yield running
    running.clear()


@contextmanager
def away(cluster: ScriptedBroker, *nodes: int) -> Iterator[None]:
    """Make these brokers (by default all) stop answering and refuse connections."""
    for node in nodes or cluster.addresses:
        cluster.down(node)
    try:
        yield
    finally:
        for node in nodes or cluster.addresses:
            cluster.up(node)


async def test_every_commit_is_acknowledged_and_the_last_is_stored(cluster: ScriptedBroker) -> None:
    """Five groups, ten commits each: one outcome for each commit, in each group's order, and counters that add up."""
    async with committing(cluster, 5) as keeper:
        for _ in range(10):
            for group in range(5):
                keeper.offer(group)
        outcomes = await keeper.settle()
        assert [(0, False, 1, 1)] * 50 == [(o.error, o.in_doubt, o.broker_id, o.attempts) for o in outcomes]
        assert [45, 46, 47, 48, 49] == [keeper.committed(group) for group in range(5)]
        counts = keeper.committer.counts
        assert (50, 0, 0, 5) == (
            counts["commits_sent"],
            counts["commits_retried"],
            counts["commits_superseded"],
            counts["coordinator_lookups"],
        )
        assert 45 == counts["commits_queued_behind"]
        sent, received = keeper.committer.traffic[1]
        assert sent >= sum(seen.size_bytes for seen in keeper.asked("OffsetCommit"))
        assert received > 0


async def test_commits_are_of_groups_without_members(cluster: ScriptedBroker) -> None:
    """Generation -1 and no member id, in the version that names topics by id."""
    async with committing(cluster) as keeper:
        keeper.offer()
        await keeper.settle()
        (seen,) = keeper.asked("OffsetCommit")
        assert (10, -1, "") == (seen.version, seen.fields["generation_id_or_member_epoch"], seen.fields["member_id"])
        assert ((keeper.topic, 0),) == seen.partitions


async def test_commits_carry_metadata_of_the_set_size(cluster: ScriptedBroker) -> None:
    async with committing(cluster, commit_metadata_bytes=4_000) as large, committing(cluster) as small:
        for keeper in (large, small):
            keeper.offer()
            await keeper.settle()
        # the topic's name, which may be longer than the other's, is also in the client id and in the group
        sizes = [keeper.asked("OffsetCommit")[0].size_bytes - 3 * len(keeper.topic) for keeper in (large, small)]
        assert sizes[0] - sizes[1] in range(4_000, 4_010)


@pytest.mark.parametrize(("connections", "expected"), [(1, 1), (2, 2), (16, 4)])
async def test_groups_are_dealt_to_connections(cluster: ScriptedBroker, connections: int, expected: int) -> None:
    """A broker serves one connection's requests in order, so groups share no more connections than are set."""
    async with committing(cluster, 4, connections_per_broker=connections) as keeper:
        for group in range(4):
            keeper.offer(group)
        await keeper.settle()
        assert expected == len({seen.connection for seen in keeper.asked("OffsetCommit")})


async def test_groups_do_not_wait_for_each_other(cluster: ScriptedBroker) -> None:
    """One group's answer is held back; the other's commits complete before it."""
    async with committing(cluster, 2) as keeper:
        cluster.script("OffsetCommit", partition=(keeper.topic, 0), delay_ms=1_000)
        keeper.offer(0)
        await cluster.until("OffsetCommit", topic=keeper.topic)
        keeper.offer(1, count=5)
        await keeper.settle()
        assert [1, 2, 3, 4, 5, 0] == keeper.ended


async def test_a_moved_coordinator_is_looked_up(cluster: ScriptedBroker) -> None:
    """NOT_COORDINATOR from the old coordinator; the outcome names the new one."""
    async with committing(cluster) as keeper:
        keeper.offer()
        await keeper.settle()
        cluster.move_coordinator(keeper.targets[0].group, 3)
        keeper.offer()
        outcome = (await keeper.settle())[1]
        assert (0, 3, 2) == (outcome.error, outcome.broker_id, outcome.attempts)
        assert 2 == keeper.committer.counts["coordinator_lookups"]
        assert ["NOT_COORDINATOR"] == [details["why"] for event, details in keeper.told if event == "commit_retried"]


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_coordinator_unknown_to_metadata_is_reached(cluster: ScriptedBroker, transactional: bool) -> None:
    """A broker that came up after the last metadata is reached at once, not after the metadata's age."""
    keeper = Keeper(cluster, 1, transactional=transactional)
    with away(cluster, 3):
        await keeper.committer.start(keeper.targets)
    cluster.move_coordinator(keeper.targets[0].group, 3)
    keeper.offer()
    (outcome,) = await keeper.settle()
    assert (0, 1 if transactional else 3) == (outcome.error, outcome.broker_id)
    await keeper.committer.close(1_000)


@pytest.mark.parametrize(
    "error",
    [ErrorCode.coordinator_load_in_progress, ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id],
)
async def test_a_coordinator_that_is_not_ready_is_asked_again(cluster: ScriptedBroker, error: ErrorCode) -> None:
    """The same coordinator, without a look-up."""
    async with committing(cluster) as keeper:
        cluster.script("OffsetCommit", partition=(keeper.topic, 0), error=error, times=2)
        keeper.offer()
        (outcome,) = await keeper.settle()
        assert (0, 3) == (outcome.error, outcome.attempts)
        assert 1 == keeper.committer.counts["coordinator_lookups"]


async def test_a_final_error_fails_one_commit(cluster: ScriptedBroker) -> None:
    """Without doubt and without another attempt."""
    async with committing(cluster) as keeper:
        cluster.script("OffsetCommit", partition=(keeper.topic, 0), error=ErrorCode.group_authorization_failed)
        keeper.offer(count=2)
        refused, fine = await keeper.settle()
        assert (ErrorCode.group_authorization_failed, False, 1) == (refused.error, refused.in_doubt, refused.attempts)
        assert 0 == fine.error
        assert 2 == len(keeper.asked("OffsetCommit"))


@pytest.mark.parametrize("answer", ["close", "refuse"])
async def test_a_lost_connection_costs_a_retry(cluster: ScriptedBroker, answer: str) -> None:
    """Closed before or after the commit was carried out: the commit is sent again, and acknowledged."""
    async with committing(cluster) as keeper:
        cluster.script("OffsetCommit", partition=(keeper.topic, 0), answer=answer)  # type: ignore[arg-type]
        keeper.offer()
        (outcome,) = await keeper.settle()
        assert (0, 2) == (outcome.error, outcome.attempts)
        assert 0 == keeper.committed()


async def test_a_malformed_answer_costs_a_retry(cluster: ScriptedBroker) -> None:
    """An impossible length closes the connection, and the commit is sent on another."""
    async with committing(cluster) as keeper:
        cluster.script("OffsetCommit", partition=(keeper.topic, 0), garble={0: 0x7F})
        keeper.offer()
        (outcome,) = await keeper.settle()
        assert (0, 2) == (outcome.error, outcome.attempts)
        assert 2 == len({seen.connection for seen in keeper.asked("OffsetCommit")})


async def test_newer_commits_supersede_a_failed_commit(cluster: ScriptedBroker) -> None:
    """Four commits wait behind a failed one: one request has the newest position, and all five are acknowledged."""
    async with committing(cluster) as keeper:
        cluster.script("OffsetCommit", partition=(keeper.topic, 0), error=ErrorCode.not_coordinator, delay_ms=50)
        keeper.offer(count=5)
        outcomes = await keeper.settle()
        assert [(0, 2)] + [(0, 1)] * 4 == [(o.error, o.attempts) for o in outcomes]
        fields = [seen.fields["partition_fields"] for seen in keeper.asked("OffsetCommit")]
        assert [0, 4] == [next(iter(each.values()))["committed_offset"] for each in fields]
        assert (4, 4) == (keeper.committed(), keeper.committer.counts["commits_superseded"])


async def test_a_commit_ends_at_its_deadline(cluster: ScriptedBroker) -> None:
    """The coordinator never answers: the commit is in doubt."""
    async with committing(cluster, delivery_timeout_ms=900, request_timeout_ms=100) as keeper:
        cluster.script("OffsetCommit", partition=(keeper.topic, 0), answer="none", times=99)
        keeper.offer()
        (outcome,) = await keeper.settle()
        assert (ErrorCode.request_timed_out, True) == (outcome.error, outcome.in_doubt)
        assert outcome.attempts > 1


async def test_commits_offered_during_an_outage(cluster: ScriptedBroker) -> None:
    """Acknowledged once the brokers are back; failed without doubt if the deadline comes first."""
    async with committing(cluster, delivery_timeout_ms=10_000, request_timeout_ms=500) as keeper:
        with away(cluster):
            keeper.offer(count=3)
            await keeper.until(lambda: any(event == "commit_retried" for event, _ in keeper.told), "no attempt failed")
            assert not keeper.outcomes
        assert [0, 0, 0] == [outcome.error for outcome in await keeper.settle()]
        assert 2 == keeper.committed()


async def test_a_commit_that_was_never_sent_has_failed(cluster: ScriptedBroker) -> None:
    """With the cluster down until the deadline there is no request and no doubt.

    The first commit may be sent before the outage is noticed; the second can't.
    """
    async with committing(cluster, delivery_timeout_ms=100, request_timeout_ms=100) as keeper:
        with away(cluster):
            for _ in range(2):
                keeper.offer()
                outcome = (await keeper.settle())[-1]
        assert (ErrorCode.request_timed_out, False, 0) == (outcome.error, outcome.in_doubt, outcome.attempts)


# ---- start


async def test_starting_waits_for_the_topic(cluster: ScriptedBroker) -> None:
    """While the topic is missing, start retries; its caller has the deadline."""
    keeper = Keeper(cluster, 1)
    cluster.delete(keeper.topic)
    starting = asyncio.create_task(keeper.committer.start(keeper.targets))
    await keeper.until(lambda: len(keeper.asked("Metadata")) > 1, "metadata was not asked for again")
    assert not starting.done()
    cluster.create(keeper.topic)
    async with asyncio.timeout(15):
        await starting
    await keeper.committer.close(1_000)


async def test_starting_waits_for_a_coordinator(cluster: ScriptedBroker) -> None:
    """COORDINATOR_NOT_AVAILABLE is the error while a cluster creates __consumer_offsets."""
    cluster.script("FindCoordinator", error=ErrorCode.coordinator_not_available, times=3)
    async with committing(cluster) as keeper:
        assert 4 == keeper.committer.counts["coordinator_lookups"]


async def test_an_unauthorized_group_ends_the_start(cluster: ScriptedBroker) -> None:
    """A retry can't help: the error has Kafka's name."""
    keeper = Keeper(cluster, 1)
    cluster.script("FindCoordinator", error=ErrorCode.group_authorization_failed)
    with pytest.raises(BrokerError, match=f"{keeper.topic}-0.*GROUP_AUTHORIZATION_FAILED"):
        await keeper.committer.start(keeper.targets)
    await keeper.committer.close(1_000)


@pytest.mark.parametrize("api", ["OffsetCommit", "FindCoordinator"])
async def test_a_broker_that_is_too_old_ends_the_start(api: str) -> None:
    """The error has both version ranges; no commit was sent."""
    with ScriptedBroker(versions={api: (0, 3)}) as old:
        keeper = Keeper(old, 1)
        with pytest.raises(UnsupportedError, match="0 to 3"):
            await keeper.committer.start(keeper.targets)
        await keeper.committer.close(1_000)


# ---- close


async def test_closing_reports_every_open_commit(cluster: ScriptedBroker) -> None:
    """A sent and unanswered commit is in doubt, a commit that waits behind it has failed; no task is left."""
    keeper = Keeper(cluster, 1)
    await keeper.committer.start(keeper.targets)
    cluster.script("OffsetCommit", partition=(keeper.topic, 0), answer="none")
    keeper.offer(count=2)
    await cluster.until("OffsetCommit", topic=keeper.topic)
    await keeper.committer.close(10)
    assert [(0, True), (1, False)] == [(o.token, o.in_doubt) for o in keeper.outcomes.values()]
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_closing_waits_for_commits_in_flight(cluster: ScriptedBroker) -> None:
    """They are acknowledged within the time given to close."""
    async with committing(cluster, 3) as keeper:
        for group in range(3):
            keeper.offer(group, count=3)
    assert {0} == {outcome.error for outcome in keeper.outcomes.values()}


async def test_an_internal_error_is_raised_by_the_next_offer(cluster: ScriptedBroker) -> None:
    """A commit that can't be encoded would otherwise block its group silently."""
    keeper = Keeper(cluster, 1)
    await keeper.committer.start(keeper.targets)
    keeper.committer.offer(keeper.targets[0], 2**63, token=0)
    await keeper.until(lambda: len(asyncio.all_tasks()) < 3, "the group's task went on")
    with pytest.raises(ValueError, match="can't be encoded"):
        keeper.committer.offer(keeper.targets[0], 1, token=1)
    await keeper.committer.close(10)
