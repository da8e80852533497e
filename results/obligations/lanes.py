"""For each side of each client: what it was owed when, as a whole and partition by partition."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aftershock.results.evidence import Client, Evidence
from aftershock.results.obligations.grace import habits
from aftershock.results.obligations.harm import harms_of
from aftershock.results.obligations.spans import Post, Scene, Span, spans
from aftershock.results.obligations.terrain import (
    Seat,
    coordination,
    seats_of,
    settings_of,
    terrain_of,
    topic_of,
)
from aftershock.results.phases import RUN, Interval, windows_of
from aftershock.results.slo import Side

SIDES: tuple[Side, ...] = ("produce", "consume", "commit")


@dataclass(frozen=True)
class Lane:
    """What one side of a client was owed: ``whole``, while all its partitions were; ``partitions``, each for itself."""

    client: Client
    side: Side
    topic: str
    whole: tuple[Span, ...]
    partitions: Mapping[int, tuple[Span, ...]] = field(default_factory=dict)

    def of(self, partition: int | None) -> tuple[Span, ...]:
        """The spans of a partition; of the client as a whole for one that nobody knows."""
        return self.whole if partition is None else self.partitions.get(partition, self.whole)

    @property
    def owed_us(self) -> int:
        """How long anything was owed: of all its lanes, the most."""
        return max(sum(span.end_us - span.start_us for span in one if span.owed) for one in self._all())

    @property
    def length_us(self) -> int:
        """How long there was to look at."""
        return sum(span.end_us - span.start_us for span in self.whole)

    def _all(self) -> list[tuple[Span, ...]]:
        return [self.whole, *self.partitions.values()]


def lanes(evidence: Evidence) -> list[Lane]:
    """None where the run did not get beyond its warm-up, or does not tell its nodes and voters."""
    terrain, judged = terrain_of(evidence), windows_of(evidence.phases).get(RUN)
    if terrain is None or not judged:
        return []
    scene = Scene.of(terrain, settings_of(evidence), harms_of(evidence, judged[-1][1]))
    sides = [(client, side) for client in evidence.clients for side in SIDES]
    return [_lane(evidence, scene, client, side, judged[0]) for client, side in sides if topic_of(client, side)]


def _lane(evidence: Evidence, scene: Scene, client: Client, side: Side, judged: Interval) -> Lane:
    topic = str(topic_of(client, side))
    post, central = _post(evidence, scene, client, side)
    if side == "commit":
        return Lane(client, side, topic, spans(post, central, scene, *judged))
    seats = seats_of(evidence, scene.terrain, topic)
    whole = spans(post, [*seats, *central], scene, *judged)
    alike = {seat: spans(post, [seat, *central], scene, *judged) for seat in seats}
    each = {number: alike[seat] for seat, numbers in seats.items() for number in numbers}
    return Lane(client, side, topic, whole, each)


def _post(evidence: Evidence, scene: Scene, client: Client, side: Side) -> tuple[Post, list[Seat]]:
    """The client's post, and the coordination it needs: groups and commits have a coordinator, wherever it is."""
    workload, arm = _said(evidence, client)
    told = workload.get(side) or {}
    grouped = side == "commit" or bool(told.get("group"))
    patient = habits(str(arm.get("client")), arm.get("settings") or {}, scene.settings, grouped=grouped)
    post = Post(f"{client.workload}-{client.arm}-{side}", str(told.get("rack")), patient)
    return post, [coordination(scene.terrain)] if grouped else []


def _said(evidence: Evidence, client: Client) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The workload and the arm, as the timeline has them."""
    named = {one["name"]: one for one in evidence.timeline["workloads"]}
    workload: Mapping[str, Any] = named.get(client.workload, {})
    arms = workload.get("arms") or {}
    return workload, arms.get(client.arm) or {}
