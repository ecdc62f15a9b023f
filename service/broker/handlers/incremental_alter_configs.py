"""IncrementalAlterConfigs (KIP-339) for topics and brokers."""

from __future__ import annotations

from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

from service.broker.broker import NO_THROTTLE, Broker
from service.metadata.controller.requests import AlterConfig, AlterResource
from service.network.exchange import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change each resource wholly or not at all; the changes hold on this node once the answer is there."""
    results = await broker.config_admin.incremental_alter_configs(
        [
            AlterResource(
                one.resource_type,
                one.resource_name,
                tuple(AlterConfig(c.name, c.config_operation, c.value) for c in one.configs),
            )
            for one in request.resources
        ],
        validate_only=request.validate_only,
        via_broker=broker.config.node_id,
    )
    return IncrementalAlterConfigsResponse(
        throttle_time=NO_THROTTLE,
        responses=tuple(
            AlterConfigsResourceResponse(
                error_code=one.error,
                error_message=one.message,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
            for one in results
        ),
    )
