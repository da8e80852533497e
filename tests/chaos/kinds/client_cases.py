"""Cases of faults on clients: effects on the client that is hit, and none on another client.

Every form of client is killed and frozen once: a process, a program of a worker, and a container. Only the reference
client reports closed connections: librdkafka reconnects silently.
"""

from aftershock.tests.chaos.kinds.case import Case, Observation
from aftershock.tests.chaos.kinds.crew import SPARED


def arm_of(seen: Observation) -> str:
    return str(seen.targets["roles"]["asked"]).split()[0]


def due_meanwhile(seen: Observation, arm: str) -> list[dict[str, object]]:
    """Return the records of an arm that were due while the fault was in force."""
    from_us, to_us = seen.at_us("injected"), seen.at_us("healing")
    return [row for row in seen.work.rows[f"crew-{arm}-produce"] if from_us < row["intended_us"] < to_us]


def spared(seen: Observation) -> None:
    rows = seen.work.rows[f"crew-{SPARED}-produce"]
    assert {"ok"} == {row["status"] for row in rows}


def clients_continued(seen: Observation) -> None:
    """Assert that both of the arm's clients succeeded after the heal, and that the producer's numbers have no gap."""
    healed_us, arm = seen.at_us("healed"), arm_of(seen)
    sent, read = (seen.work.rows[f"crew-{arm}-{op}"] for op in ("produce", "consume"))
    assert [row["seq"] for row in sent] == list(range(len(sent)))
    assert any(row["status"] == "ok" and row["intended_us"] > healed_us for row in sent)
    assert any(row["done_us"] > healed_us for row in read)


def client_was_dead(seen: Observation) -> None:
    due = due_meanwhile(seen, arm_of(seen))
    assert due
    assert {("failed", "CLIENT_DOWN", None)} == {(row["status"], row["error"], row["sent_us"]) for row in due}
    spared(seen)
    clients_continued(seen)


def client_was_frozen(seen: Observation) -> None:
    due, thawed_us = due_meanwhile(seen, arm_of(seen)), seen.at_us("healing")
    assert due
    assert {"ok"} == {row["status"] for row in due}
    assert all(row["sent_us"] >= thawed_us for row in due)
    spared(seen)
    clients_continued(seen)


def member_was_expelled(seen: Observation) -> None:
    """Assert that the consumer came back as another member, or with another assignment."""
    worker = f"crew-{arm_of(seen)}-consume"
    assert len(seen.work.events_of(worker, "assigned")) >= 2
    spared(seen)


def client_was_disconnected(seen: Observation) -> None:
    """Assert that each client of the arm reports closed connections, and that its records in flight were sent again
    without failure.
    """
    since_us, arm = seen.at_us("intended"), arm_of(seen)
    for op in ("produce", "consume"):
        told = seen.work.events_of(f"crew-{arm}-{op}", "node_disconnected")
        assert [line for line in told if line["t_us"] >= since_us]
    no_record_lost(seen)


def no_record_lost(seen: Observation) -> None:
    """Assert that the arm that was hit lost no record and continued."""
    assert {"ok"} == {row["status"] for row in seen.work.rows[f"crew-{arm_of(seen)}-produce"]}
    spared(seen)
    clients_continued(seen)


CASES = {
    "kill_client": [
        Case("{kind: kill_client, client: confluent, for: 3s}", client_was_dead, crew=("confluent",)),
        Case("{kind: kill_client, client: reference, op: produce, for: 3s}", client_was_dead, crew=("reference",)),
        Case("{kind: kill_client, client: exec, for: 3s}", client_was_dead, crew=("exec",)),
        Case("{kind: kill_client, client: java, for: 3s}", client_was_dead, crew=("java",)),
    ],
    "pause_client": [
        Case("{kind: pause_client, client: confluent, for: 3s}", client_was_frozen, crew=("confluent",)),
        Case("{kind: pause_client, client: exec, for: 3s}", client_was_frozen, crew=("exec",)),
        Case("{kind: pause_client, client: java, for: 3s}", client_was_frozen, crew=("java",)),
    ],
    "zombie": [Case("{kind: zombie, client: confluent, for: 9s}", member_was_expelled, crew=("confluent",))],
    "disconnect_client": [
        Case("{kind: disconnect_client, client: reference}", client_was_disconnected, crew=("reference",)),
        Case("{kind: disconnect_client, client: confluent}", no_record_lost, crew=("confluent",)),
        Case("{kind: disconnect_client, client: java}", no_record_lost, crew=("java",)),
    ],
}
