"""ApiVersions: the served APIs with their versions, and the cluster's features (KIP-35, KIP-511).

A version of it that is not served, and any unknown API, is answered before, by `serving/dispatch`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.api_versions.v4.response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kio.schema.errors import ErrorCode

from service.metadata.features import supported_features
from service.metadata.image import FeatureRange
from service.network.request import RequestContext
from service.serving.request_host import NO_THROTTLE, Broker
from service.wire.apis import ListenerType, served_on

FIRST_VERSION_WITH_CLIENT_SOFTWARE: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class Features(NamedTuple):
    """Features that a node supports, and finalized levels as of an offset of the metadata."""

    supported: Collection[FeatureRange]
    finalized: Mapping[str, int]
    offset: int


def features_of_broker(broker: Broker) -> Features:
    """Return the features of a broker of this software version."""
    return Features(supported_features(), broker.image.features, broker.image.offset)


def answer_for(
    listener: ListenerType, features: Callable[[], Features]
) -> Callable[[int, ApiVersionsRequest], ApiVersionsResponse]:
    """Return what answers a request of a version on a listener of this type, before a login, too."""
    versions = _versions(listener)
    return lambda version, request: _answer(features(), version, request, versions)


def handler_for(
    listener: ListenerType, features: Callable[[Any], Features] = features_of_broker
) -> Callable[[Any, RequestContext, ApiVersionsRequest], ApiVersionsResponse]:
    """Return the handler for a listener of this type. `features` returns those of the handler's node."""
    versions = _versions(listener)

    def handle(node: Any, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        return _answer(features(node), context.api_version, request, versions)

    return handle


def _versions(listener: ListenerType) -> tuple[ApiVersion, ...]:
    return tuple(
        ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
        for api in served_on(listener)
    )


def _answer(
    features: Features, version: int, request: ApiVersionsRequest, versions: tuple[ApiVersion, ...]
) -> ApiVersionsResponse:
    """Return the response; INVALID_REQUEST for a malformed client software name or version (KIP-511)."""
    if version >= FIRST_VERSION_WITH_CLIENT_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(
            error_code=ErrorCode.invalid_request, api_keys=(), throttle_time=NO_THROTTLE
        )
    return ApiVersionsResponse(
        error_code=ErrorCode.none,
        api_keys=versions,
        throttle_time=NO_THROTTLE,
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, low, high in features.supported
        ),
        finalized_features_epoch=features.offset,
        finalized_features=tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features.finalized.items()
        ),
    )
