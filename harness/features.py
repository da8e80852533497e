"""Feature levels (KIP-584): what the cluster has finalised, what a broker knows, and raising one."""

from datetime import timedelta
from typing import cast

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest
from kio.static.primitive import i8, i16, i32Timedelta

from aftershock.errors import AdminError
from aftershock.faults.values import BrokerId
from aftershock.harness.admin import Admin

_TIMEOUT_S = 15.0
_UPGRADE = i8(1)


def finalised(admin: Admin) -> dict[str, int]:
    """The levels in force, as any broker has them."""
    return {each.name: each.max_version_level for each in _asked(admin, None).finalized_features}


def supported(admin: Admin, broker: BrokerId) -> dict[str, int]:
    """The highest level of each feature that one broker knows."""
    return {each.name: each.max_version for each in _asked(admin, broker).supported_features}


def raise_level(admin: Admin, name: str, level: int) -> None:
    """Finalise a higher level (UpdateFeatures); one in force is no error. AdminError with Kafka's reason."""
    if finalised(admin).get(name) == level:
        return
    update = FeatureUpdateKey(feature=name, max_version_level=i16(level), upgrade_type=_UPGRADE)
    request = UpdateFeaturesRequest(
        feature_updates=(update,), timeout=i32Timedelta.parse(timedelta(seconds=_TIMEOUT_S)), validate_only=False
    )
    answer = admin.ask(request, _TIMEOUT_S)
    if answer.error_code is not ErrorCode.none:
        code = answer.error_code.name.upper()
        raise AdminError(f"Kafka refused to raise {name} to {level}: {code} ({answer.error_message})", code)


def _asked(admin: Admin, broker: BrokerId | None) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name="aftershock", client_software_version="1")
    return cast("ApiVersionsResponse", admin.ask(request, only=broker))
