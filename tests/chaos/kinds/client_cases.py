"""Cases of faults on clients: effects on the client that is hit, and none on another client.

Every form of client is killed and frozen once: a process, a program of a worker, and a container. Only the reference
client reports closed connections: librdkafka reconnects silently.
"""

from typing import Any

from aftershock.tests.chaos.kinds.case import Case, Observation
from aftershock.tests.chaos.kinds.crew import SPARED
from aftershock.tests.chaos.kinds.probe import PARTITIONS


def arm_of(seen: Observation) -> str:
    return str(seen.targets["clients"][0]).split("-")[1]  # a worker is called crew-ARM-consume-2


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


def all_delivered(seen: Observation) -> None:
    """Assert that the members of the group have delivered every record between them, and that the load never failed."""
    sent = seen.work.rows[f"crew-{arm_of(seen)}-produce"]
    assert {"ok"} == {row["status"] for row in sent}
    assert {row["seq"] for row in sent} <= {row["seq"] for row in deliveries(seen)}


def deliveries(seen: Observation) -> list[dict[str, Any]]:
    prefix = f"crew-{arm_of(seen)}-consume-"
    return [row for worker, rows in seen.work.rows.items() if worker.startswith(prefix) for row in rows]


def others_took_over(seen: Observation) -> None:
    """Assert that the other members delivered from every partition during the fault, and the targets did after it."""
    from_us, to_us, targets = seen.at_us("injected"), seen.at_us("healing"), seen.targets["clients"]
    meanwhile = [row for row in deliveries(seen) if from_us < row["done_us"] < to_us and row["worker"] not in targets]
    assert set(range(PARTITIONS)) == {row["partition"] for row in meanwhile}
    all_delivered(seen)


def newcomer_took_part(seen: Observation) -> None:
    """Assert that the new member delivered records, and gave its partitions back."""
    (newcomer,) = seen.targets["clients"]
    assert [row for row in deliveries(seen) if row["worker"] == newcomer]
    assert seen.work.events_of(newcomer, "revoked")
    all_delivered(seen)


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


# a member learns from its next heartbeat, up to 5 s later, that it gets the partitions of another
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
    "leave": [
        Case("{kind: leave, client: confluent member 2, for: 12s}", others_took_over, crew=("confluent:3",)),
        Case("{kind: leave, client: member of java that owns probe/0, for: 12s}", others_took_over, crew=("java:2",)),
        Case("{kind: leave, client: any member of reference, for: 12s}", others_took_over, crew=("reference:2",)),
    ],
    "roll_members": [
        Case("{kind: roll_members, client: confluent}", all_delivered, crew=("confluent:3",)),
        Case("{kind: roll_members, client: java, pause: 1s}", all_delivered, crew=("java:2",)),
    ],
    "join": [
        Case("{kind: join, client: confluent, for: 8s}", newcomer_took_part, crew=("confluent:2",)),
        Case("{kind: join, client: reference, for: 8s}", newcomer_took_part, crew=("reference:2",)),
    ],
    "evict": [
        Case("{kind: evict, client: confluent member 1, for: 12s}", others_took_over, crew=("confluent:2",)),
        Case("{kind: evict, client: java member 1, for: 12s}", others_took_over, crew=("java:2",)),
    ],
    "churn": [Case("{kind: churn, client: confluent, every: 2s, for: 14s}", all_delivered, crew=("confluent:3",))],
    "disconnect_client": [
        Case("{kind: disconnect_client, client: reference}", client_was_disconnected, crew=("reference",)),
        Case("{kind: disconnect_client, client: confluent}", no_record_lost, crew=("confluent",)),
        Case("{kind: disconnect_client, client: java}", no_record_lost, crew=("java",)),
    ],
}
