"""Parts of a plan that the plan's version of Kafka lacks.

Kafka 3.7 to 3.9 have the group protocol ``consumer`` (KIP-848) only as a preview that is off, no share groups, and no
features but ``metadata.version`` and, since 3.9, ``kraft.version`` (KIP-853).
"""

from collections.abc import Iterator

from aftershock.faults.plan.parsing import Draft
from aftershock.faults.sections.broker_settings import lacking_settings
from aftershock.faults.sections.cluster import Cluster
from aftershock.faults.sections.document import Location, Problem
from aftershock.faults.sections.workloads import group_protocol

_OLDEST = (3, 7)  # the oldest version of which `harness/cluster/images` builds an image
_KRAFT_VERSION_SINCE = (3, 9)
_NEW_GROUPS_SINCE = (4, 0)
_UPGRADE = "or launch Kafka 4.0 or later"


def version_problems(draft: Draft, kafka: str | None = None) -> Iterator[Problem]:
    """Yield a problem for each part of a plan that Kafka lacks in the version ``kafka``, by default the plan's own."""
    cluster = draft.cluster
    if cluster is None:
        return
    if cluster.image:
        yield from _own_classes(cluster, f"not in the image {cluster.image}", "or use `kafka` in the place of `image`")
        return
    version = kafka or cluster.kafka
    if version == "default":
        return
    major, minor, _ = map(int, version.split("."))
    if (major, minor) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        yield Problem(("cluster", "kafka"), f"Kafka {version} can't be launched: use a version from {oldest} on")
    elif (major, minor) < _NEW_GROUPS_SINCE:
        features = ("metadata.version", *(("kraft.version",) if (major, minor) >= _KRAFT_VERSION_SINCE else ()))
        yield from _own_classes(cluster, "built for Kafka 4", _UPGRADE)
        for name in cluster.features or {}:
            if name not in features:
                sentence = (
                    f"Kafka {version} has no feature `{name}`, only {' and '.join(features)}: remove it, {_UPGRADE}"
                )
                yield Problem(("cluster", "features", name), sentence, on_key=True)
        for loc, name, _ in _node_settings(cluster):
            if name in lacking_settings()["node"]:
                sentence = f"Kafka {version} has no node setting `{name}`: remove it, {_UPGRADE}"
                yield Problem(loc, sentence, on_key=True)
        for index, topic in draft.topics.items():
            for name in topic.config.keys() & lacking_settings()["topic"]:
                sentence = f"Kafka {version} has no topic setting `{name}`: remove it, {_UPGRADE}"
                yield Problem(("topics", index, "config", name), sentence, on_key=True)
        yield from _lacking_groups(draft, f"Kafka {version}")


def _node_settings(cluster: Cluster) -> Iterator[tuple[Location, str, str]]:
    """Yield the place, the name and the value of each setting of nodes."""
    for loc, settings in (
        (("cluster", "config"), cluster.config),
        *((("cluster", "brokers", broker), own) for broker, own in (cluster.brokers or {}).items()),
    ):
        for name, value in settings.items():
            yield (*loc, name), name, value


def _own_classes(cluster: Cluster, why: str, remedy: str) -> Iterator[Problem]:
    for loc, name, value in _node_settings(cluster):
        if value.startswith("aftershock."):
            yield Problem(loc, f"the class `{value}` is {why}: remove `{name}`, {remedy}")


def _lacking_groups(draft: Draft, kafka: str) -> Iterator[Problem]:
    for index, workload in draft.workloads.items():
        consume = workload.consume
        for name, arm in workload.arms.items():
            if arm.settings.get("share"):
                sentence = f"{kafka} has no share groups (KIP-932): remove `share`, {_UPGRADE}"
                yield Problem(("workloads", index, "arms", name, "settings", "share"), sentence, on_key=True)
            elif consume and consume.group and group_protocol(consume.protocol, arm.client, arm.settings) == "consumer":
                default = "" if consume.protocol else f", that of the arm `{name}`,"
                setting = "" if consume.protocol else "give the arm the setting `group.protocol: classic`, "
                sentence = (
                    f"{kafka} has the group protocol `consumer` (KIP-848){default} only as a preview: {setting}write "
                    f"`protocol: classic`, {_UPGRADE}"
                )
                yield Problem(("workloads", index, "consume", "protocol" if consume.protocol else "group"), sentence)
