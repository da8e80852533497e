"""Dynamic settings of brokers, topics and clients (quotas), read and changed alike.

What a setting *is* depends on where it was said last (KIP-226): a dynamic value of the broker or topic itself, a
cluster-wide default, the server's file, or Kafka's own default. Only the first is what a fault changes and puts back.
A client's quotas (KIP-546) have only dynamic values, so they are settings like any other here; its name is its
``client.id``.
"""

from collections.abc import Mapping
from typing import Any, cast

from kio.schema.alter_client_quotas.v1 import request as alter_quotas
from kio.schema.describe_client_quotas.v1 import request as describe_quotas
from kio.schema.describe_configs.v4 import request as describe_configs

from aftershock.faults.values import BrokerId, Resource, Setting
from aftershock.harness.admin import BROKER, TOPIC, Admin, raise_for

_KINDS = {"broker": BROKER, "topic": TOPIC}
_OWN_SOURCE = {"topic": 1, "broker": 2}  # ConfigEntry.ConfigSource: DYNAMIC_TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG
_CLIENT = "client-id"
_ANY_NAMED = 2  # DescribeClientQuotasRequest.json: MatchType, any entity that has a name


def settings(admin: Admin, of: Resource, name: str) -> dict[str, Setting]:
    """Every setting in force, by its name; a broker is asked itself, so what it says is what it runs with."""
    if of == "client":
        return {key: Setting(value, value) for key, value in quotas(admin).get(name, {}).items()}
    resource = describe_configs.DescribeConfigsResource(
        resource_type=cast("Any", _KINDS[of]), resource_name=name, configuration_keys=None
    )
    only = BrokerId(int(name)) if of == "broker" and name else None
    (result,) = admin.ask(describe_configs.DescribeConfigsRequest(resources=(resource,)), only=only).results
    raise_for(result.error_code, f"describe the settings of {of} {name}", result.error_message)
    return {entry.name: _setting(entry, _OWN_SOURCE[of]) for entry in result.configs}


def change(admin: Admin, of: Resource, name: str, changes: Mapping[str, str | None]) -> None:
    """Set dynamic values; None takes one away. AdminError, with Kafka's reason, if it does not want to."""
    if of == "client":
        _change_quotas(admin, name, changes)
    else:
        admin.alter_configs(_KINDS[of], name, changes)


def quotas(admin: Admin) -> dict[str, dict[str, str]]:
    """The quotas of every client id that has some, numbers as text."""
    component = describe_quotas.ComponentData(entity_type=_CLIENT, match_type=cast("Any", _ANY_NAMED), match=None)
    response = admin.ask(describe_quotas.DescribeClientQuotasRequest(components=(component,), strict=True))
    raise_for(response.error_code, "describe quotas", response.error_message)
    return {
        entry.entity[0].entity_name: {each.key: _as_text(each.value) for each in entry.values}
        for entry in response.entries or ()
        if entry.entity[0].entity_name is not None
    }


def _change_quotas(admin: Admin, client_id: str, changes: Mapping[str, str | None]) -> None:
    entity = alter_quotas.EntityData(entity_type=_CLIENT, entity_name=client_id)
    ops = tuple(
        alter_quotas.OpData(key=key, value=cast("Any", float(value or 0)), remove=value is None)
        for key, value in changes.items()
    )
    entry = alter_quotas.EntryData(entity=(entity,), ops=ops)
    response = admin.ask_controller(alter_quotas.AlterClientQuotasRequest(entries=(entry,), validate_only=False))
    for result in response.entries:
        raise_for(result.error_code, f"change the quotas of {client_id}", result.error_message)


def _setting(entry: Any, own_source: int) -> Setting:
    own = entry.value if entry.config_source == own_source else None
    return Setting(entry.value, own, entry.read_only)


def _as_text(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
