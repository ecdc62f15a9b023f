"""DescribeClientQuotas (KIP-546): the entities that a filter matches, with their quotas, from the image."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import (
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.metadata.controller.quota_control import QuotaFilter, describe_client_quotas
from service.metadata.image import MetadataImage
from service.network.request import RequestContext
from service.serving.request_host import NO_THROTTLE, Broker


def handle(
    broker: Broker, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse | Awaitable[DescribeClientQuotasResponse]:
    """Return the matching entities.

    INVALID_REQUEST for filters that contradict each other, UNSUPPORTED_VERSION for an unknown type of entity.
    """
    return in_slices(_steps(broker.image, request))


def _steps(image: MetadataImage, request: DescribeClientQuotasRequest) -> Steps[DescribeClientQuotasResponse]:
    filters = [QuotaFilter(one.entity_type, one.match_type, one.match) for one in request.components]
    try:
        found = yield from describe_client_quotas(image, filters, strict=request.strict)
    except RequestError as e:
        return DescribeClientQuotasResponse(
            throttle_time=NO_THROTTLE, error_code=e.code, error_message=e.message, entries=None
        )
    entries = []
    for entity, quotas in found:
        yield
        entries.append(
            EntryData(
                entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts),
                values=tuple(ValueData(key=key, value=value) for key, value in quotas.items()),
            )
        )
    return DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message="", entries=tuple(entries)
    )
