"""DescribeConfigs (KIP-133, KIP-226, KIP-412, KIP-569) for topics, groups, this broker and its loggers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, Protocol

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse, DescribeConfigsResult
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.config.settings import BrokerConfig
from service.metadata.controller.configs_control import broker_id_of
from service.metadata.controller.requests import ResourceType
from service.metadata.controller.topic_names import topic_name_error
from service.metadata.image import MetadataImage
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving import logger_levels
from service.serving.authorization import AuthorizerHost, check_config
from service.serving.request_host import NO_THROTTLE
from service.serving.response_cache import DescribeConfigsOptions, EncodedSettings, Settings, encoded_loggers
from service.wire.api import ApiKey, encode_element
from service.wire.primitives import Encoded

MOST_BYTES: Final = 100 << 20
"""Limit of one response: further resources are refused. Clients read no more (librdkafka: 100 MB)."""


class SettingsHost(AuthorizerHost, Protocol):
    """Interface of a node, broker or controller, whose settings are described."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def image(self) -> MetadataImage: ...
    @property
    def encoded_settings(self) -> EncodedSettings: ...


def handle(
    broker: SettingsHost, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | Awaitable[DescribeConfigsResponse]:
    """Describe the requested keys of each resource, all keys if the request names none.

    A repeated resource is described as often, as in Kafka (`ConfigHelper.describeConfigs`), with the same
    encoded bytes.
    """
    return in_slices(_steps(broker, context, request))


def _steps(
    broker: SettingsHost, context: RequestContext, request: DescribeConfigsRequest
) -> Steps[DescribeConfigsResponse]:
    version = context.api_version
    options = DescribeConfigsOptions(version, request.include_synonyms, request.include_documentation)
    same: dict[tuple[int, str, tuple[str, ...]], Encoded] = {}
    results: list[Any] = []  # `Encoded` elements
    size = 0
    for resource in request.resources:
        key = resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ())
        yield
        result = same.get(key)
        if result is None or size > MOST_BYTES:
            yield
            element = _result(broker, context, resource, options, is_room=size <= MOST_BYTES)
            result = same[key] = encode_element(ApiKey.DESCRIBE_CONFIGS, version, ("results",), element)
        size += len(result)
        results.append(result)
    return DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


def _result(
    broker: SettingsHost,
    context: RequestContext,
    resource: DescribeConfigsResource,
    options: DescribeConfigsOptions,
    *,
    is_room: bool,
) -> DescribeConfigsResult:
    settings: Settings = ()
    error, message = ErrorCode.none, ""
    try:
        of, name = resource.resource_type, resource.resource_name
        check_config(broker, context, AclOperation.DESCRIBE_CONFIGS, of, name)
        if not is_room:
            raise RequestError(
                ErrorCode.invalid_request,
                f"the response exceeds {MOST_BYTES} bytes: request fewer resources or keys",
            )
        settings = _settings(broker, resource, options)
    except RequestError as e:
        error, message = e.code, e.message or ""
    wanted = frozenset(resource.configuration_keys or ())
    return DescribeConfigsResult(
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(encoded for name, encoded in settings if not wanted or name in wanted),  # type: ignore[misc]
    )


def _settings(
    broker: SettingsHost, resource: DescribeConfigsResource, options: DescribeConfigsOptions
) -> Settings:
    known, name = broker.encoded_settings, resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        reason = topic_name_error(name)
        if reason is not None:
            raise RequestError(ErrorCode.invalid_topic_exception, reason)
        if name not in broker.image.topics_by_name:
            raise RequestError(ErrorCode.unknown_topic_or_partition)
        return known.of_topic(broker.image.config(ResourceType.TOPIC, name), broker.config, options)
    if resource.resource_type == ResourceType.BROKER:
        node = broker.config.node_id
        if name and _number(name) != node:
            raise RequestError(
                ErrorCode.invalid_request,
                f"Unexpected broker id, expected {node} or empty string, but received {name}",
            )
        return known.of_broker(broker.config, options, default=not name)
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        if not name:
            raise RequestError(ErrorCode.invalid_request, "Broker id must not be empty")
        node = broker.config.node_id
        if _number(name) != node:
            raise RequestError(
                ErrorCode.invalid_request, f"Unexpected broker id, expected {node} but received {name}"
            )
        return encoded_loggers(logger_levels.levels(), options)
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise RequestError(ErrorCode.invalid_request, "Group name must not be empty")
        return known.of_group(broker.image.config(ResourceType.GROUP, name), broker.config, options)
    raise RequestError(ErrorCode.invalid_request, f"Unsupported resource type: {resource.resource_type}")


def _number(name: str) -> int:
    try:
        return broker_id_of(name)
    except RequestError:
        raise RequestError(
            ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name}"
        ) from None
