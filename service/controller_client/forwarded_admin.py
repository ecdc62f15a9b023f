"""Admin requests that a broker itself sends to the active controller.

They create topics, alter settings that the broker has validated, and allocate producer ids. Clients' other
requests are forwarded unchanged (`forwarding`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import Slice
from service.base.steps import Steps
from service.controller_client import lifecycle_messages
from service.controller_client.forwarding import Asker
from service.metadata.controller.configs_control import alter_configs, incremental_alter_configs
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.requests import (
    ZERO_UUID,
    AlterConfig,
    AlterResource,
    AlterResourceResult,
    ConfigRules,
    CreateTopic,
    CreateTopicResult,
    ProducerIdBlock,
    ResourceType,
)
from service.metadata.image import MetadataImage
from service.wire.api import ApiKey, request_module
from service.wire.errors import UnsupportedVersion

TIMEOUT_MS: Final = 30_000
_OF_A_BROKER: Final = frozenset({ResourceType.BROKER, ResourceType.BROKER_LOGGER})


class _Kind(NamedTuple):
    """One of the two APIs that alter settings."""

    key: ApiKey
    decide: Callable[..., Steps[ControllerResult[list[AlterResourceResult]]]]
    request: str


_INCREMENTAL: Final = _Kind(
    ApiKey.INCREMENTAL_ALTER_CONFIGS, incremental_alter_configs, "IncrementalAlterConfigsRequest"
)
_WHOLE: Final = _Kind(ApiKey.ALTER_CONFIGS, alter_configs, "AlterConfigsRequest")


class RemoteAdmin:
    """Admin operations of the active controller, over the queue to it. Owned by the event loop.

    Each raises `RequestError` without a controller in time, or where it refuses the request as a whole.
    """

    def __init__(
        self,
        controllers: Asker,
        image: Callable[[], MetadataImage],
        rules: ConfigRules,
        caught_up: Callable[[], Awaitable[object]],
    ) -> None:
        """`caught_up` returns once the image holds all that the controller had committed at its call."""
        self._controllers = controllers
        self._image = image
        self._rules = rules
        self._caught_up = caught_up

    async def _ask(self, key: ApiKey, message: Any) -> Any:
        try:
            return await self._controllers.ask(key, message, timeout_ms=TIMEOUT_MS)
        except UnsupportedVersion as e:
            raise RequestError(ErrorCode.unsupported_version, str(e)) from e

    async def create_topics(
        self, requests: Sequence[CreateTopic], *, validate_only: bool = False
    ) -> list[CreateTopicResult]:
        """Do what `TopicMaker` does, then wait until this node's image has the topics."""
        module = request_module(ApiKey.CREATE_TOPICS)
        answer = await self._ask(
            ApiKey.CREATE_TOPICS,
            module.CreateTopicsRequest(
                topics=tuple(_topic(module, one) for one in requests),
                timeout=timedelta(milliseconds=TIMEOUT_MS),
                validate_only=validate_only,
            ),
        )
        given = {one.name: dict(one.configs) for one in requests}
        results = [
            CreateTopicResult(
                one.name,
                one.error_code,
                one.error_message,
                one.topic_id or ZERO_UUID,
                one.num_partitions,
                one.replication_factor,
                {name: value for name, value in given.get(one.name, {}).items() if value is not None},
            )
            for one in answer.topics
        ]
        if not validate_only:
            await self._caught_up()
        return results

    async def incremental_alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        """Do what `ConfigAdmin` does. A broker's settings are validated here first: only that broker can."""
        return await self._alter(_INCREMENTAL, resources, validate_only, via_broker)

    async def alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        """Replace the settings of each resource: those that are not named are deleted."""
        return await self._alter(_WHOLE, resources, validate_only, via_broker)

    async def _alter(
        self, kind: _Kind, resources: Sequence[AlterResource], validate_only: bool, via_broker: int | None
    ) -> list[AlterResourceResult]:
        """Return results in the order of `resources`. Resources that this broker refuses are not sent."""
        image, rules = self._image(), self._rules
        validated = await Slice().go_on(
            kind.decide(image, resources, rules, validate_only=True, via_broker=via_broker)
        )
        results = validated.response
        sent = [
            number
            for number, one in enumerate(resources)
            if one.resource_type not in _OF_A_BROKER or results[number].error is ErrorCode.none
        ]
        if not sent:
            return results
        message = _alter_message(kind, [resources[number] for number in sent], validate_only)
        answer = await self._ask(kind.key, message)
        answers = {(one.resource_type, one.resource_name): one for one in answer.responses}
        for number in sent:
            name = resources[number][:2]
            if (one := answers.get(name)) is not None:
                results[number] = AlterResourceResult(*name, one.error_code, one.error_message)
        if not validate_only:
            await self._caught_up()
        return results

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """Do what `ProducerIdSource` does. A block whose response is lost stays unused."""
        answer = await self._ask(
            ApiKey.ALLOCATE_PRODUCER_IDS, lifecycle_messages.producer_ids(broker_id, broker_epoch)
        )
        return lifecycle_messages.producer_ids_allocated(answer)


def _topic(module: Any, one: CreateTopic) -> Any:
    return module.CreatableTopic(
        name=one.name,
        num_partitions=one.num_partitions,
        replication_factor=one.replication_factor,
        assignments=tuple(
            module.CreatableReplicaAssignment(partition_index=index, broker_ids=broker_ids)
            for index, broker_ids in one.assignments
        ),
        configs=tuple(module.CreatableTopicConfig(name=name, value=value) for name, value in one.configs),
    )


def _alter_message(kind: _Kind, resources: Sequence[AlterResource], validate_only: bool) -> Any:
    module = request_module(kind.key)

    def change(one: AlterConfig) -> Any:
        more = {"config_operation": one.operation} if kind is _INCREMENTAL else {}
        return module.AlterableConfig(name=one.name, value=one.value, **more)

    return getattr(module, kind.request)(
        resources=tuple(
            module.AlterConfigsResource(
                resource_type=one.resource_type,
                resource_name=one.resource_name,
                configs=tuple(map(change, one.configs)),
            )
            for one in resources
        ),
        validate_only=validate_only,
    )
