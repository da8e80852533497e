"""Dynamic settings, quotas, topic placement, the metadata quorum and feature levels of a cluster.

Faults change and restore only the dynamic value of a setting, which overrides cluster-wide defaults, the server's file
and Kafka's own default (KIP-226). A client's quotas (KIP-546) are treated as settings of its ``client.id``.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, cast

from kio.schema.alter_client_quotas.v1 import request as alter_quotas
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.create_partitions.v3 import request as grow
from kio.schema.describe_client_quotas.v1 import request as describe_quotas
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.errors import ErrorCode
from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest
from kio.static.primitive import i8, i16, i32Timedelta

from aftershock.errors import AdminError
from aftershock.faults.targets.values import BrokerId, Resource, Setting
from aftershock.harness.kafka.admin import (
    BROKER,
    TIMEOUT,
    TOPIC,
    VERSIONS_REQUEST,
    Admin,
    Quorum,
    id_as_text,
    message,
    metadata_request,
    quorum_of,
    quorum_request,
    raise_for,
)
from aftershock.harness.kafka.versions import lowered
from aftershock.workloads.kafka.wire.connection import Address, Connection

_KINDS = {"broker": BROKER, "topic": TOPIC}
_DYNAMIC_SOURCE = {"topic": 1, "broker": 2}  # ConfigEntry.ConfigSource: DYNAMIC_TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG
_CLIENT = "client-id"
_ANY_NAMED = 2  # DescribeClientQuotasRequest.json: MatchType, any entity that has a name
_VOTER_TIMEOUT_S = 1.0
_UPGRADE, _SAFE_DOWNGRADE = i8(1), i8(2)  # upgrade types of UpdateFeatures
_FEATURES_TIMEOUT_S = 15.0


def settings(admin: Admin, of: Resource, name: str) -> dict[str, Setting]:
    """Return all settings of the broker, topic or client ``name``, by the setting's name."""
    if of == "client":
        return {key: Setting(value, value) for key, value in quotas(admin).get(name, {}).items()}
    return {
        key: Setting(entry.value, entry.value if entry.config_source == _DYNAMIC_SOURCE[of] else None, entry.read_only)
        for key, entry in admin.config_entries(_KINDS[of], name).items()
    }


def own_ids(connection: Connection, brokers: Sequence[int]) -> list[BrokerId]:
    """Return the ids in ``brokers`` for which a connection's broker returns settings, which is only its own.

    A broker answers "Unexpected broker id" to a request for another broker's settings (Kafka's `ConfigHelper`).
    """
    resources = tuple(
        DescribeConfigsResource(resource_type=i8(BROKER), resource_name=str(id_), configuration_keys=("node.id",))
        for id_ in brokers
    )
    request = DescribeConfigsRequest(resources=resources)
    results = cast("Any", connection.ask(lowered(request, connection.versions))).results
    return [BrokerId(int(item.resource_name)) for item in results if item.error_code == ErrorCode.none]


def change(admin: Admin, of: Resource, name: str, changes: Mapping[str, str | None]) -> None:
    """Set dynamic configuration values, or remove values given as None; raise AdminError if Kafka refuses."""
    if of != "client":
        admin.alter_configs(_KINDS[of], name, changes)
        return
    ops = tuple(
        message(alter_quotas.OpData, key=key, value=float(value or 0), remove=value is None)
        for key, value in changes.items()
    )
    entity = alter_quotas.EntityData(entity_type=_CLIENT, entity_name=name)
    entry = alter_quotas.EntryData(entity=(entity,), ops=ops)
    response = admin.ask_controller(alter_quotas.AlterClientQuotasRequest(entries=(entry,), validate_only=False))
    for result in response.entries:
        raise_for(result.error_code, f"change the quotas of {name}", result.error_message)


def quotas(admin: Admin) -> dict[str, dict[str, str]]:
    """Return all client quotas as text, by client id and name of the quota."""
    component = message(describe_quotas.ComponentData, entity_type=_CLIENT, match_type=_ANY_NAMED, match=None)
    response = admin.ask(describe_quotas.DescribeClientQuotasRequest(components=(component,), strict=True))
    raise_for(response.error_code, "describe quotas", response.error_message)
    return {
        entry.entity[0].entity_name: {item.key: f"{item.value:.6f}".rstrip("0").rstrip(".") for item in entry.values}
        for entry in response.entries or ()
        if entry.entity[0].entity_name is not None
    }


def topic_ids(admin: Admin) -> dict[str, str]:
    """Return the id of each topic; the ids are empty if the broker is older than Kafka 2.8 (Metadata v10)."""
    topics = admin.ask(metadata_request()).topics
    return {topic.name: id_as_text(topic.topic_id) if hasattr(topic, "topic_id") else "" for topic in topics}


def create_topic_on(admin: Admin, name: str, replicas: Mapping[int, Sequence[int]], config: Mapping[str, str]) -> str:
    return admin.create_topic(name, -1, -1, config, replicas)


def add_partitions(admin: Admin, name: str, partitions: int) -> None:
    """Increase the number of a topic's partitions to ``partitions``; Kafka places the new replicas."""
    topic = message(grow.CreatePartitionsTopic, name=name, count=partitions, assignments=None)
    request = grow.CreatePartitionsRequest(topics=(topic,), timeout=TIMEOUT, validate_only=False)
    for result in admin.ask_controller(request).results:
        raise_for(result.error_code, f"add partitions to {name}", result.error_message)


def ask_voters(voters: Mapping[BrokerId, Address]) -> Quorum:
    """Return the metadata quorum's state from its leader; raise AdminError if no voter leads the quorum.

    The request goes to the voters, because a voter answers DescribeQuorum itself (KIP-919). A broker forwards
    DescribeQuorum to the last known active controller; if that controller is frozen, the answer takes 36 s (measured).
    Of several answers the one with the highest leader epoch is used, because a former leader that was frozen still
    answers as leader.
    """

    def ask(voter: Address) -> Quorum | None:
        try:
            with Connection(voter, _VOTER_TIMEOUT_S) as connection:
                return quorum_of(connection.ask(quorum_request()))
        except (OSError, AdminError):  # the voter does not answer, or does not lead
            return None

    with ThreadPoolExecutor(max_workers=len(voters)) as pool:
        quorums = [quorum for quorum in pool.map(ask, voters.values()) if quorum]
    if not quorums:
        raise AdminError(f"none of the voters {sorted(voters)} leads the metadata quorum", "LEADER_NOT_AVAILABLE")
    return max(quorums, key=lambda quorum: quorum.epoch)


def finalised(admin: Admin) -> dict[str, int]:
    return {item.name: item.max_version_level for item in _api_versions(admin, None).finalized_features}


def supported(admin: Admin, broker: BrokerId) -> dict[str, int]:
    """Return the highest level that a broker supports of each Kafka feature."""
    return {item.name: item.max_version for item in _api_versions(admin, broker).supported_features}


def set_level(admin: Admin, name: str, level: int) -> None:
    """Finalise another level of a Kafka feature (UpdateFeatures, KIP-584); raise AdminError if Kafka refuses."""
    before = finalised(admin).get(name, 0)
    if before == level:
        return
    update = FeatureUpdateKey(
        feature=name, max_version_level=i16(level), upgrade_type=_UPGRADE if level > before else _SAFE_DOWNGRADE
    )
    request = UpdateFeaturesRequest(
        feature_updates=(update,),
        timeout=i32Timedelta.parse(timedelta(seconds=_FEATURES_TIMEOUT_S)),
        validate_only=False,
    )
    response = admin.ask(request, _FEATURES_TIMEOUT_S)
    # the error of each feature is in the response only before v2 (Kafka 4.0)
    for result in (response, *getattr(response, "results", ())):
        raise_for(result.error_code, f"set the feature {name} to {level}", result.error_message)


def _api_versions(admin: Admin, broker: BrokerId | None) -> ApiVersionsResponse:
    return cast("ApiVersionsResponse", admin.ask(VERSIONS_REQUEST, only=broker))
