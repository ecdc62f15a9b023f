"""DescribeConfigs (KIP-133, KIP-226, KIP-569) for topics and for this broker."""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.broker.broker import NO_THROTTLE, Broker
from service.config.describing import (
    ConfigEntry,
    describe_broker,
    describe_broker_default,
    describe_topic,
)
from service.metadata.controller.requests import ResourceType
from service.metadata.controller.topic_names import what_is_wrong_with
from service.network.server import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """The keys asked for of each resource, all of them where none are named."""
    results = []
    for asked in request.resources:
        try:
            entries = _entries(broker, asked)
            error, message = ErrorCode.none, None
        except RequestError as e:
            entries, error, message = (), e.code, e.message
        wanted = frozenset(asked.configuration_keys or ())
        results.append(
            DescribeConfigsResult(
                error_code=error,
                error_message=message,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
                configs=tuple(_result(e, request) for e in entries if not wanted or e.name in wanted),
            )
        )
    return DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


def _entries(broker: Broker, asked: DescribeConfigsResource) -> Sequence[ConfigEntry]:
    if asked.resource_type == ResourceType.TOPIC:
        reason = what_is_wrong_with(asked.resource_name)
        if reason is not None:
            raise RequestError(ErrorCode.invalid_topic_exception, reason)
        if asked.resource_name not in broker.image.topics_by_name:
            raise RequestError(ErrorCode.unknown_topic_or_partition)
        return describe_topic(broker.image.config(ResourceType.TOPIC, asked.resource_name), broker.config)
    if asked.resource_type == ResourceType.BROKER:
        node = str(broker.config.node_id)
        if asked.resource_name not in ("", node):
            raise RequestError(
                ErrorCode.invalid_request,
                f"Unexpected broker id, expected {node} or empty string, but received {asked.resource_name}",
            )
        return (
            describe_broker(broker.config) if asked.resource_name else describe_broker_default(broker.config)
        )
    raise RequestError(ErrorCode.invalid_request, f"Unsupported resource type: {asked.resource_type}")


def _result(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=tuple(
            DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source) for one in synonyms
        ),
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
