"""UpdateFeatures (KIP-584, KIP-778): changes the finalized levels of the cluster's features."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import each_in_slices
from service.metadata.controller.features_control import FeatureUpdate, UpgradeType
from service.network.request import RequestContext
from service.serving.change_audit import audited
from service.serving.change_words import changed_features
from service.serving.ports import AdminHost
from service.serving.request_host import NO_THROTTLE
from service.wire.features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

FIRST_VERSION_WITH_TYPES: Final = 1
_FAILED: Final = "The update failed for all features since the following feature had an error: "


@audited(changed_features)
async def handle(
    broker: AdminHost, context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Change all features of the request or none; INVALID_UPDATE_VERSION for an unsupported level."""
    version = context.api_version
    updates = await each_in_slices(lambda one: _parse(one, version), request.feature_updates)
    try:
        await broker.feature_admin.update_features(updates, validate_only=request.validate_only)
    except RequestError as e:
        return UpdateFeaturesResponse(
            throttle_time=NO_THROTTLE, error_code=e.code, error_message=f"{_FAILED}{e.message}"
        )
    return UpdateFeaturesResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(
            UpdatableFeatureResult(feature=one.name, error_code=ErrorCode.none, error_message=None)
            for one in updates
        ),
    )


def _parse(one: FeatureUpdateKey, version: int) -> FeatureUpdate:
    kind: int = one.upgrade_type
    if version < FIRST_VERSION_WITH_TYPES:
        kind = UpgradeType.SAFE_DOWNGRADE if one.allow_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(one.feature, one.max_version_level, kind)
