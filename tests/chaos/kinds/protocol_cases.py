"""Cases of faults in the protocol: behind the wire proxy, observed by librdkafka and by a small client."""

import asyncio
import base64
import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaException, Producer

from aftershock.faults.targets.values import BrokerId, TopicPartition
from aftershock.harness.kafka.admin import Admin
from aftershock.tests.chaos.kinds.case import Case, Observation
from aftershock.tests.chaos.kinds.looker import Looker, Turn
from aftershock.tests.chaos.kinds.probe import TOPIC
from aftershock.tests.chaos.kinds.stand import Stand

DOUBLED, HELD, KNOCKER, LOOKER, TWICE = "doubled", "held", "knocker", "aftershock", "twice"
NOBODYS_SESSION = 1 << 30  # The drawn delay is above this value.
running: dict[str, Any] = {}


def later_by(ms: float) -> Any:
    def effect(seen: Observation) -> None:
        assert seen.median_ms("during") > seen.median_ms("before") + ms
        assert hits(seen)

    return effect


def disturbed(seen: Observation) -> None:
    """Assert that some records were sent again, and that none was lost."""
    assert hits(seen)
    assert seen.slowest_ms("during") > seen.median_ms("before") + 50
    assert not seen.failures("during")


def given_and_disturbed(count: int) -> Any:
    """Return an effect: the client of the probe got so many answers of the script, and each record got through."""

    def effect(seen: Observation) -> None:
        disturbed(seen)
        assert hits(seen) == count
        assert "not used up" not in seen.witnesses[-1].what

    return effect


def throttled(seen: Observation) -> None:
    """Assert that librdkafka was told of the throttle time; it goes on sending, and no record fails."""
    assert hits(seen)
    assert not seen.failures("during")


def unknown_epochs(seen: Observation) -> None:
    """Assert that each partition's epoch was seen lower than the controller has it, and that no record failed."""
    compared = [witness for witness in seen.witnesses if witness.unit == "partitions"]
    assert compared
    assert all(witness.ok for witness in compared)
    assert not seen.failures("during")


class Mover:
    """Moves the leaders of the probe's topic every two seconds until it is stopped."""

    def __init__(self, admin: Admin) -> None:
        self._admin, self._over = admin, threading.Event()
        self._planned = {(state.topic, state.partition): state.replicas for state in admin.partitions([TOPIC])}
        self._thread = threading.Thread(target=self._move, name="mover", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and put the leaders back where they were."""
        self._over.set()
        self._thread.join()
        self._lead(self._planned)
        self._admin.close()

    def _move(self) -> None:
        while not self._over.wait(2):
            states = self._admin.partitions([TOPIC])
            self._lead({(TOPIC, state.partition): (*state.replicas[1:], state.replicas[0]) for state in states})

    def _lead(self, replicas: Mapping[TopicPartition, Sequence[BrokerId]]) -> None:
        """Make the first of each partition's replicas its leader."""
        self._admin.reassign({place: tuple(order) for place, order in replicas.items()})
        self._admin.elect_preferred(list(replicas))


async def moving(stand: Stand) -> None:
    running["last"] = Mover(stand.cluster.admin.copy())


def untouched(seen: Observation) -> None:
    """Assert that clients which know the brokers do not notice, and that no client used the addresses."""
    assert not seen.failures("during")
    assert hits(seen) == 0


def knocked(seen: Observation) -> None:
    """Assert that clients which start reach the cluster by the address that is left, and tried the others, too."""
    assert hits(seen)
    assert {3} == {*running[KNOCKER].brokers}
    assert not seen.failures("during")


class Knocker:
    """Starts a client every 100 ms, until it is stopped, that knows bootstrap addresses alone and asks for metadata."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap, self._over = bootstrap, threading.Event()
        self.brokers: list[int] = []
        self._thread = threading.Thread(target=self._knock, name="knocker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _knock(self) -> None:
        while not self._over.wait(0.1):
            producer = Producer({"bootstrap.servers": self._bootstrap, "log_level": 0})
            self.brokers.append(len(producer.list_topics(timeout=10).brokers))


async def knocking(stand: Stand) -> None:
    running[KNOCKER] = running["last"] = Knocker(stand.cluster.bootstrap("a", own_addresses=True))


def stalled(seen: Observation) -> None:
    assert hits(seen)
    assert seen.longest_gap_ms("during") > 1_500


def hits(seen: Observation) -> float:
    return max(measurement.observed for measurement in seen.witnesses if measurement.unit == "requests")


async def sending_twice(stand: Stand) -> None:
    """Start a producer without idempotence on its own topic."""
    name = f"{DOUBLED}-{len(running)}"
    await asyncio.to_thread(stand.cluster.admin.create_topic, name, 1, 3, {"min.insync.replicas": "2"})
    await asyncio.to_thread(stand.cluster.await_in_sync, 30.0, [name])
    running[TWICE] = running["last"] = Unsafe(stand.cluster.bootstrap("a"), name)


async def transacting(stand: Stand) -> None:
    """Start a producer with transactions on its own topic, whose protocol is that of KIP-98."""
    await asyncio.to_thread(stand.cluster.admin.create_topic, HELD, 1, 3, {"min.insync.replicas": "2"})
    await asyncio.to_thread(stand.cluster.await_in_sync, 30.0, [HELD])
    running["last"] = Transacting(stand.cluster.bootstrap("a"), HELD)


async def stopped(_: Stand) -> None:
    await asyncio.to_thread(running.pop("last").stop)


class Transacting:
    """Commits one short transaction after the other until it is stopped, or until one can't be committed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._over = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "client.id": HELD, "linger.ms": 0, "log_level": 0}
        self._producer = Producer(settings | {"transactional.id": HELD})
        self._thread = threading.Thread(target=self._send, name="transacting", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        with contextlib.suppress(KafkaException):
            self._producer.init_transactions(20)
            while not self._over.is_set():
                self._producer.begin_transaction()
                for _ in range(4):
                    self._producer.produce(self._topic, b"value")
                    self._producer.flush(5)
                    self._over.wait(0.05)  # the transaction stays open for a while
                self._producer.commit_transaction(20)


def arrived_late(seen: Observation) -> None:
    """Assert that the coordinator answered a held commit while the next transaction was open."""
    assert seen.witnesses[-1].ok
    assert hits(seen)


def twice_in_the_log(seen: Observation) -> None:
    acknowledged = running[TWICE].acknowledged
    ends = asyncio.run(seen.stand.world.log_ends(running[TWICE].topic))
    _, end = ends[running[TWICE].topic, 0]
    assert hits(seen)
    assert end > acknowledged > 0


class Unsafe:
    """Sends at a steady rate until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.acknowledged = 0
        self._over = threading.Event()
        said = {"bootstrap.servers": bootstrap, "client.id": TWICE, "linger.ms": 0, "acks": "all", "log_level": 0}
        self._producer = Producer(said | {"enable.idempotence": False})
        self._thread = threading.Thread(target=self._send, name="unsafe", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._producer.flush(20)

    def _send(self) -> None:
        while not self._over.wait(0.02):
            self._producer.produce(self.topic, b"x", on_delivery=self._done)
            self._producer.poll(0)

    def _done(self, error: Any, _: Any) -> None:
        self.acknowledged += error is None


async def looking(stand: Stand) -> None:
    """Start a client that sends requests to the leader of a partition in another rack, and to a broker that doesn't
    lead it.
    """
    states = await stand.world.partitions([TOPIC])
    state = next(each for each in states if each.partition == 0)
    assert state.leader is not None
    other = next(replica for replica in state.replicas if replica != state.leader)
    topic_id = UUID(bytes=base64.urlsafe_b64decode((await stand.world.topic_ids())[TOPIC] + "=="))
    addresses = stand.cluster.wire_proxy.addresses  # type: ignore[union-attr]
    ways = [addresses[f"client_c-k{broker}"] for broker in (state.leader, other)]
    running[LOOKER] = running["last"] = Looker(ways[0], ways[1], topic_id, stand.clock)
    running["leader"] = state.leader
    running["ports"] = {broker: addresses[f"client_c-k{broker}"].port for broker in state.replicas}


def turns_during_and_around(seen: Observation) -> tuple[list[Turn], list[Turn]]:
    """Return the turns while the fault was in force, and around it; turns in between are left out."""
    everything = running[LOOKER].turns
    begin, end = seen.at_us("injected") + 300_000, seen.at_us("healing") - 300_000
    during = [each for each in everything if begin <= each.t_us <= end]
    around = [each for each in everything if not begin - 1_000_000 <= each.t_us <= end + 1_000_000]
    assert during
    assert around
    return during, around


def no_hints(seen: Observation) -> None:
    during, around = turns_during_and_around(seen)
    assert {(-1, (), 0)} == {(each.leader, each.endpoints, each.session) for each in during}
    leader, ports = running["leader"], running["ports"]
    assert {(leader, ((leader, ports[leader]),))} == {(each.leader, each.endpoints) for each in around}
    assert all(each.session for each in around)
    assert hits(seen)


def false_hints(seen: Observation) -> None:
    during, around = turns_during_and_around(seen)
    leader, ports = running["leader"], running["ports"]
    false = seen.targets["roles"]["rule"]["broker"]
    assert {(false, ((leader, ports[false]),), false)} == {
        (each.leader, each.endpoints, each.replica) for each in during
    }
    assert {leader} == {each.leader for each in around}
    assert all(each.session >= NOBODYS_SESSION for each in during)
    assert hits(seen)


def successes(seen: Observation) -> None:
    """Assert that the client is told of success by a broker that has no such leader; the hint beside it remains."""
    during, around = turns_during_and_around(seen)
    assert {(0, running["leader"])} == {(each.error, each.leader) for each in during}
    assert {6} == {each.error for each in around}  # NOT_LEADER_OR_FOLLOWER
    assert hits(seen)


def old(seen: Observation) -> None:
    during, around = turns_during_and_around(seen)
    assert {9} == {each.produce for each in during}
    assert all(each.produce > 9 for each in around)
    assert hits(seen)


P = "api: Produce, topic: probe, for: 3s"
SOME = "probability: 0.1"
SCRIPT = "[{error: REQUEST_TIMED_OUT, after: 200ms}, ok, {error: NOT_LEADER_OR_FOLLOWER, times: 2}, {lost: response}, {after: 100ms}]"  # noqa: E501 -- YAML in one piece
CASES = {
    "delay_request": [Case(f"{{kind: delay_request, {P}, delay: 150ms}}", later_by(80), "proxied")],
    "delay_response": [
        Case(f"{{kind: delay_response, {P}, delay: 150ms}}", later_by(80), "proxied"),
        Case(f"{{kind: delay_response, {P}, delay: 100ms, serial: true}}", later_by(60), "proxied"),
    ],
    "drop_request": [Case(f"{{kind: drop_request, {P}, {SOME}}}", disturbed, "proxied")],
    "drop_response": [
        Case(f"{{kind: drop_response, {P}, {SOME}}}", disturbed, "proxied"),
        Case(f"{{kind: drop_response, {P}, connection: silent}}", stalled, "proxied"),
    ],
    "duplicate_request": [
        Case(
            f"{{kind: duplicate_request, api: Produce, client_id: {TWICE}, for: 3s}}",
            twice_in_the_log,
            "proxied",
            sending_twice,
            stopped,
        )
    ],
    "hold_request": [
        Case(
            f"{{kind: hold_request, api: EndTxn, nth: 1, until: {{sent: 2}}, client_id: {HELD}, for: 4s}}",
            arrived_late,
            "proxied",
            transacting,
            stopped,
        )
    ],
    "answer_error": [
        Case(f"{{kind: answer_error, {P}, error: NOT_LEADER_OR_FOLLOWER, {SOME}}}", disturbed, "proxied"),
        Case(f"{{kind: answer_error, {P}, error: REQUEST_TIMED_OUT, applied: true, {SOME}}}", disturbed, "proxied"),
        Case(f"{{kind: answer_error, {P}, partition: 0, answers: {SCRIPT}}}", given_and_disturbed(5), "proxied"),
    ],
    "throttle_response": [Case(f"{{kind: throttle_response, {P}, throttle_time: 50ms}}", throttled, "proxied")],
    "hide_error": [
        Case(
            f"{{kind: hide_error, api: Produce, error: NOT_LEADER_OR_FOLLOWER, client_id: {LOOKER}, for: 3s}}",
            successes,
            "proxied",
            looking,
            stopped,
        )
    ],
    "close_mid_frame": [
        Case(f"{{kind: close_mid_frame, {P}, {SOME}}}", disturbed, "proxied"),
        Case(f"{{kind: close_mid_frame, {P}, message: request, {SOME}}}", disturbed, "proxied"),
        Case(f"{{kind: close_mid_frame, {P}, after_bytes: 3, {SOME}}}", disturbed, "proxied"),
    ],
    "falsify_epochs": [
        Case("{kind: falsify_epochs, topic: probe, epoch: absent, for: 3s}", unknown_epochs, "proxied"),
        Case(
            "{kind: falsify_epochs, topic: probe, epoch: frozen, for: 5s}", unknown_epochs, "proxied", moving, stopped
        ),
    ],
    "lose_bootstrap": [
        Case("{kind: lose_bootstrap, brokers: [1, 2], for: 3s}", knocked, "proxied", knocking, stopped),
        Case("{kind: lose_bootstrap, brokers: [1], connection: silent, for: 3s}", untouched, "proxied"),
        Case("{kind: lose_bootstrap, brokers: [1], to: 3, for: 3s}", untouched, "proxied"),
    ],
    "strip_hints": [
        Case(
            f"{{kind: strip_hints, hints: [current_leader, node_endpoints, session_id], client_id: {LOOKER}, for: 3s}}",
            no_hints,
            "proxied",
            looking,
            stopped,
        )
    ],
    "falsify_hints": [
        Case(
            "{kind: falsify_hints, hints: [current_leader, node_endpoints, preferred_replica, session_id], "
            f"client_id: {LOOKER}, broker: any broker except leader of probe/0, for: 3s}}",
            false_hints,
            "proxied",
            looking,
            stopped,
        )
    ],
    "cap_versions": [
        Case(
            f"{{kind: cap_versions, versions: {{Produce: 9}}, client_id: {LOOKER}, for: 3s}}",
            old,
            "proxied",
            looking,
            stopped,
        )
    ],
}
