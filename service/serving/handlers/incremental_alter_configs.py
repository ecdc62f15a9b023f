"""IncrementalAlterConfigs (KIP-339) for topics and brokers, and for this process's loggers (KIP-412)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

from service.base.errors import RequestError
from service.base.slices import Slice, each_in_slices
from service.metadata.controller.configs_control import TWICE
from service.metadata.controller.requests import (
    AlterConfig,
    AlterResource,
    AlterResourceResult,
    ResourceType,
)
from service.network.request import RequestContext
from service.serving import logger_levels
from service.serving.alter_configs_common import alter_each
from service.serving.change_audit import audited
from service.serving.change_words import changed_settings
from service.serving.ports import AdminHost
from service.serving.request_host import NO_THROTTLE


@audited(changed_settings)
async def handle(
    broker: AdminHost, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Make all changes of a resource or none. They are in effect on this node before the response is sent."""

    async def alter(resources: Sequence[AlterConfigsResource]) -> Sequence[AlterResourceResult]:
        changes = await each_in_slices(_parse, resources)
        return await _alter(broker, changes, validate_only=request.validate_only)

    results = await alter_each(broker, context, request.resources, alter)
    return IncrementalAlterConfigsResponse(
        throttle_time=NO_THROTTLE, responses=tuple(await each_in_slices(_answer, results))
    )


async def _alter(
    broker: AdminHost, resources: Sequence[AlterResource], *, validate_only: bool
) -> list[AlterResourceResult]:
    """Send stored configs to the controller, change log levels here. Results are in the request's order."""
    stored = [one for one in resources if one.resource_type != ResourceType.BROKER_LOGGER]
    times = Counter(one.resource_name for one in resources if one.resource_type == ResourceType.BROKER_LOGGER)
    results: Iterator[AlterResourceResult] = iter(())
    if stored or not times:
        results = iter(
            await broker.config_admin.incremental_alter_configs(
                stored, validate_only=validate_only, via_broker=broker.config.node_id
            )
        )

    def result(one: AlterResource) -> AlterResourceResult:
        if one.resource_type != ResourceType.BROKER_LOGGER:
            return next(results)
        error, message = ErrorCode.none, None
        try:
            if times[one.resource_name] > 1:
                raise RequestError(ErrorCode.invalid_request, TWICE)
            logger_levels.alter(one, broker.config.node_id, validate_only=validate_only)
        except RequestError as e:
            error, message = e.code, e.message
        return AlterResourceResult(one.resource_type, one.resource_name, error, message)

    piece, answers = Slice(), []
    for one in resources:
        if piece.is_over():
            await piece.next_turn()
        answers.append(result(one))
    return answers


def _parse(one: AlterConfigsResource) -> AlterResource:
    changes = tuple(AlterConfig(c.name, c.config_operation, c.value) for c in one.configs)
    return AlterResource(one.resource_type, one.resource_name, changes)


def _answer(one: AlterResourceResult) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=one.error,
        error_message=one.message,
        resource_type=one.resource_type,
        resource_name=one.resource_name,
    )
