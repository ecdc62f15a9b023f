"""ListConfigResources (KIP-714, KIP-1142): the resources that DescribeConfigs describes.

Only groups with settings of their own are listed. There are no client metrics resources, so version 0, which
lists those, lists nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest
from kio.schema.list_config_resources.v1.response import ConfigResource, ListConfigResourcesResponse

from service.base.slices import in_slices
from service.base.steps import Steps
from service.metadata.controller.requests import ResourceType
from service.network.request import RequestContext
from service.serving.request_host import NO_THROTTLE, Broker

CLIENT_METRICS: Final = 16
KINDS: Final = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.BROKER_LOGGER,
    CLIENT_METRICS,
    ResourceType.GROUP,
)


def handle(
    broker: Broker, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse | Awaitable[ListConfigResourcesResponse]:
    """Return the resources of the requested types, of all types if the request names none.

    UNSUPPORTED_VERSION for a type that Kafka does not list.
    """
    return in_slices(_steps(broker, context.api_version, request))


def _steps(
    broker: Broker, version: int, request: ListConfigResourcesRequest
) -> Steps[ListConfigResourcesResponse]:
    yield
    wanted = {CLIENT_METRICS} if version == 0 else set(request.resource_types) or set(KINDS)
    if not wanted <= set(KINDS):
        return ListConfigResourcesResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.unsupported_version, config_resources=()
        )
    found: list[ConfigResource] = []
    for kind in (one for one in KINDS if one in wanted):
        for name in _names(broker, kind):
            yield
            found.append(ConfigResource(resource_name=name, resource_type=int(kind)))
    return ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, config_resources=tuple(found)
    )


def _names(broker: Broker, kind: int) -> list[str]:
    image = broker.image
    if kind == ResourceType.TOPIC:
        return list(image.topics_by_name)
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(one) for one in sorted(image.brokers)]
    if kind == ResourceType.GROUP:
        return [name for (of, name), values in image.configs.items() if of == kind and values]
    return []
