"""How kinds on clients are shown: to the client that is hit, and to another that must not notice.

Every sort of client is killed and frozen once: one that is a process, one that is a program of a process, and one in a
container. That its brokers hung up is told by the reference client alone: librdkafka passes over it in silence.
"""

from aftershock.tests.chaos.kinds.case import Case, Seen
from aftershock.tests.chaos.kinds.crew import SPARED


def arm_of(seen: Seen) -> str:
    return str(seen.targets["roles"]["asked"]).split()[0]


def due_meanwhile(seen: Seen, arm: str) -> list[dict[str, object]]:
    """The records of an arm that were due while the fault was in force."""
    from_us, to_us = seen.at_us("injected"), seen.at_us("healing")
    return [row for row in seen.work.rows[f"crew-{arm}-produce"] if from_us < row["intended_us"] < to_us]


def spared(seen: Seen) -> None:
    rows = seen.work.rows[f"crew-{SPARED}-produce"]
    assert {"ok"} == {row["status"] for row in rows}


def went_on(seen: Seen) -> None:
    """Both of the arm's clients had successes after the heal, and the producer's numbers have no gap."""
    healed_us, arm = seen.at_us("healed"), arm_of(seen)
    sent, read = (seen.work.rows[f"crew-{arm}-{op}"] for op in ("produce", "consume"))
    assert [row["seq"] for row in sent] == list(range(len(sent)))
    assert any(row["status"] == "ok" and row["intended_us"] > healed_us for row in sent)
    assert any(row["done_us"] > healed_us for row in read)


def was_dead(seen: Seen) -> None:
    due = due_meanwhile(seen, arm_of(seen))
    assert due
    assert {("failed", "CLIENT_DOWN", None)} == {(row["status"], row["error"], row["sent_us"]) for row in due}
    spared(seen)
    went_on(seen)


def was_frozen(seen: Seen) -> None:
    due, thawed_us = due_meanwhile(seen, arm_of(seen)), seen.at_us("healing")
    assert due
    assert {"ok"} == {row["status"] for row in due}
    assert all(row["sent_us"] >= thawed_us for row in due)
    spared(seen)
    went_on(seen)


def was_expelled(seen: Seen) -> None:
    """The consumer came back as another member, or with another assignment."""
    worker = f"crew-{arm_of(seen)}-consume"
    assert len(seen.work.told(worker, "assigned")) >= 2
    spared(seen)


def was_cut_off(seen: Seen) -> None:
    """Each of the arm's clients tells that its brokers hung up; the records under way were sent again, none failed."""
    since_us, arm = seen.at_us("intended"), arm_of(seen)
    for op in ("produce", "consume"):
        told = seen.work.told(f"crew-{arm}-{op}", "node_disconnected")
        assert [line for line in told if line["t_us"] >= since_us]
    unhurt(seen)


def unhurt(seen: Seen) -> None:
    """No record of the arm that was hit is lost on its side, and it went on."""
    assert {"ok"} == {row["status"] for row in seen.work.rows[f"crew-{arm_of(seen)}-produce"]}
    spared(seen)
    went_on(seen)


CASES = {
    "kill_client": [
        Case("{kind: kill_client, client: confluent, for: 3s}", was_dead, crew=("confluent",)),
        Case("{kind: kill_client, client: reference, op: produce, for: 3s}", was_dead, crew=("reference",)),
        Case("{kind: kill_client, client: exec, for: 3s}", was_dead, crew=("exec",)),
        Case("{kind: kill_client, client: java, for: 3s}", was_dead, crew=("java",)),
    ],
    "pause_client": [
        Case("{kind: pause_client, client: confluent, for: 3s}", was_frozen, crew=("confluent",)),
        Case("{kind: pause_client, client: exec, for: 3s}", was_frozen, crew=("exec",)),
        Case("{kind: pause_client, client: java, for: 3s}", was_frozen, crew=("java",)),
    ],
    "zombie": [Case("{kind: zombie, client: confluent, for: 9s}", was_expelled, crew=("confluent",))],
    "disconnect_client": [
        Case("{kind: disconnect_client, client: reference}", was_cut_off, crew=("reference",)),
        Case("{kind: disconnect_client, client: confluent}", unhurt, crew=("confluent",)),
        Case("{kind: disconnect_client, client: java}", unhurt, crew=("java",)),
    ],
}
