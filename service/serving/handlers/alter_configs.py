"""AlterConfigs (KIP-133): replaces all settings of each resource.

Clients older than IncrementalAlterConfigs have no other API.
"""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.alter_configs.v2.request import AlterConfigsRequest, AlterConfigsResource
from kio.schema.alter_configs.v2.response import AlterConfigsResourceResponse, AlterConfigsResponse

from service.base.slices import each_in_slices
from service.metadata.controller.requests import (
    AlterConfig,
    AlterResource,
    AlterResourceResult,
    ConfigOperation,
)
from service.network.request import RequestContext
from service.serving.alter_configs_common import alter_each
from service.serving.change_audit import audited
from service.serving.change_words import changed_settings
from service.serving.ports import AdminHost
from service.serving.request_host import NO_THROTTLE


@audited(changed_settings)
async def handle(
    broker: AdminHost, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Make all changes of a resource or none. They are in effect on this node before the response is sent."""

    async def alter(resources: Sequence[AlterConfigsResource]) -> Sequence[AlterResourceResult]:
        return await broker.config_admin.alter_configs(
            await each_in_slices(_parse, resources),
            validate_only=request.validate_only,
            via_broker=broker.config.node_id,
        )

    results = await alter_each(broker, context, request.resources, alter)
    return AlterConfigsResponse(
        throttle_time=NO_THROTTLE, responses=tuple(await each_in_slices(_answer, results))
    )


def _parse(one: AlterConfigsResource) -> AlterResource:
    changes = tuple(AlterConfig(c.name, ConfigOperation.SET, c.value) for c in one.configs)
    return AlterResource(one.resource_type, one.resource_name, changes)


def _answer(one: AlterResourceResult) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=one.error,
        error_message=one.message,
        resource_type=one.resource_type,
        resource_name=one.resource_name,
    )
