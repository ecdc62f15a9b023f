"""ApiVersions: what is served, in which versions (KIP-35, KIP-511)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.api_versions.v4.response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kio.schema.errors import ErrorCode

from service.broker.broker import NO_THROTTLE, Broker
from service.metadata.features import supported_features
from service.network.exchange import RequestContext
from service.wire.api import APIS

FIRST_VERSION_WITH_CLIENT_SOFTWARE: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def answering(
    served: Collection[int],
) -> Callable[[Broker, RequestContext, ApiVersionsRequest], ApiVersionsResponse]:
    """The handler of a listener that serves the APIs of these keys, as they are when it is asked."""

    def handle(broker: Broker, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        return _answer(broker, context, request, served)

    return handle


def _answer(
    broker: Broker, context: RequestContext, request: ApiVersionsRequest, served: Collection[int]
) -> ApiVersionsResponse:
    """What the listener serves, and the features of the cluster; INVALID_REQUEST for a client whose software
    has an impossible name (KIP-511)."""
    if context.api_version >= FIRST_VERSION_WITH_CLIENT_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(
            error_code=ErrorCode.invalid_request, api_keys=(), throttle_time=NO_THROTTLE
        )
    image = broker.image
    return ApiVersionsResponse(
        error_code=ErrorCode.none,
        api_keys=tuple(
            ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
            for api in APIS.values()
            if api.key in served
        ),
        throttle_time=NO_THROTTLE,
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, low, high in supported_features()
        ),
        finalized_features_epoch=image.offset,
        finalized_features=tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in image.features.items()
        ),
    )
