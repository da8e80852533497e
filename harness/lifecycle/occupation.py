"""Runs on kept clusters (``aftershock run PLAN --on ID``): which run uses a kept cluster, and what it leaves.

A run holds the lock ``run.lock`` in the folder of the cluster, and writes ``occupied.json`` before it changes anything
there. The file names the run, whose journal has its faults, and the topics and groups that it is about to create. So
another process can clean up after a run that died, and the topics and groups of the user's stay.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from aftershock.errors import AdminError, EvidenceError
from aftershock.faults.targets.values import BrokerId
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.kafka.admin import still_lacking
from aftershock.harness.kafka.groups import delete_group, groups
from aftershock.harness.safety import ownership
from aftershock.harness.safety.lease import Lock
from aftershock.results.evidence.files import read_object, write_whole

FILE = "occupied.json"
_GROUPS_S = 30.0


@dataclass(frozen=True)
class Occupation:
    """Content of ``occupied.json``: the run's directory, its process, its topics and groups that are its own."""

    run: str
    owner: str
    topics: tuple[str, ...]
    groups: tuple[str, ...]

    @classmethod
    def of(cls, run: Path, cluster: Cluster, topics: Sequence[str], groups_: Sequence[str]) -> "Occupation":
        """Describe what a run is about to create on a cluster: the topics and groups that do not exist yet."""
        existing = {*cluster.admin.topics()}
        new_topics = tuple(topic for topic in topics if topic not in existing)
        known = {
            group for broker in cluster.spec.topology.broker_ids for group in groups(cluster.admin, BrokerId(broker))
        }
        new_groups = tuple(group for group in groups_ if group not in known)
        return cls(str(run.resolve()), ownership.owner(), new_topics, new_groups)

    @property
    def run_id(self) -> str:
        return Path(self.run).name

    @property
    def is_over(self) -> bool:
        """True if the process of the run is dead, so that another one may clean up."""
        return not ownership.is_alive(self.owner)

    def write(self, home: Path) -> None:
        write_whole(home / FILE, json.dumps(asdict(self), indent=1) + "\n")


def lock_of(home: Path) -> Lock:
    return Lock(home / "run.lock")


def occupation_of(home: Path) -> Occupation | None:
    """Return the run on a kept cluster, None without one; raise EvidenceError for an unreadable file."""
    if not (home / FILE).exists():
        return None
    document: Mapping[str, object] = read_object(home / FILE)
    try:
        lists = (tuple(map(str, document[name])) for name in ("topics", "groups"))  # type: ignore[call-overload]
        return Occupation(str(document["run"]), str(document["owner"]), *lists)
    except (KeyError, TypeError) as error:
        raise EvidenceError(f"{home / FILE}: not the description of a run; remove the file") from error


def vacate(home: Path, cluster: Cluster, occupation: Occupation) -> None:
    """Delete the topics and groups of a run whose faults are healed, and wait until all replicas are in sync.

    The preferred replicas lead again, so that the next run meets the cluster as this one did.
    """
    cluster.await_in_sync(60.0)
    cluster.admin.delete_topics(occupation.topics)
    led_by_others = [
        (state.topic, state.partition)
        for state in cluster.admin.partitions()
        if state.leader != state.replicas[0] and state.topic not in occupation.topics
    ]
    if led_by_others:
        with suppress(AdminError):  # then Kafka does it by itself some minutes later
            cluster.admin.elect_preferred(led_by_others)

    def missing_state() -> str:
        for group in occupation.groups:
            coordinator = cluster.admin.coordinator(group)
            kind = groups(cluster.admin, coordinator).get(group)
            if kind and (obstacle := delete_group(cluster.admin, coordinator, group, kind)):
                return obstacle
        return ""

    still_lacking(missing_state, _GROUPS_S)  # a group that stays harms no later run
    (home / FILE).unlink(missing_ok=True)
