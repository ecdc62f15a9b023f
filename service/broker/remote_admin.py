"""What a broker itself asks of a controller that is elsewhere.

Topics that it needs, settings that it has looked at, producer ids. What clients ask for goes as it came
(`forwarding`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import Slice
from service.broker import controller_calls
from service.broker.forwarding import Asker
from service.metadata.controller.configs_control import alter_configs, incremental_alter_configs
from service.metadata.controller.requests import (
    ZERO_UUID,
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


class RemoteAdmin:
    """The active controller's admin, over the queue to it. Owned by the event loop.

    Raises `RequestError` where there is no controller in time, or it refuses the request as a whole.
    """

    def __init__(
        self,
        controllers: Asker,
        image: Callable[[], MetadataImage],
        rules: ConfigRules,
        caught_up: Callable[[], Awaitable[object]],
    ) -> None:
        """`caught_up` returns once this node's image holds what the controller has answered."""
        self._controllers = controllers
        self._image = image
        self._rules = rules
        self._caught_up = caught_up

    async def _ask(self, key: ApiKey, message: Any, *, is_safe_again: bool = False) -> Any:
        try:
            return await self._controllers.ask(
                key, message, timeout_ms=TIMEOUT_MS, is_safe_again=is_safe_again
            )
        except UnsupportedVersion as e:
            raise RequestError(ErrorCode.unsupported_version, str(e)) from e

    async def create_topics(
        self, requests: Sequence[CreateTopic], *, validate_only: bool = False
    ) -> list[CreateTopicResult]:
        """As `TopicMaker`; they are known here when this returns."""
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
        """As `ConfigAdmin`. What is a broker's is looked at here first, as only that broker can."""
        decide = incremental_alter_configs(
            self._image(), resources, self._rules, validate_only=True, via_broker=via_broker
        )
        module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)

        def message(chosen: Sequence[AlterResource]) -> Any:
            return module.IncrementalAlterConfigsRequest(
                resources=tuple(
                    module.AlterConfigsResource(
                        resource_type=one.resource_type,
                        resource_name=one.resource_name,
                        configs=tuple(
                            module.AlterableConfig(
                                name=change.name, config_operation=change.operation, value=change.value
                            )
                            for change in one.configs
                        ),
                    )
                    for one in chosen
                ),
                validate_only=validate_only,
            )

        return await self._alter(resources, decide, ApiKey.INCREMENTAL_ALTER_CONFIGS, message)

    async def alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        """As `incremental_alter_configs`; what is set of a resource and not named is deleted."""
        decide = alter_configs(
            self._image(), resources, self._rules, validate_only=True, via_broker=via_broker
        )
        module = request_module(ApiKey.ALTER_CONFIGS)

        def message(chosen: Sequence[AlterResource]) -> Any:
            return module.AlterConfigsRequest(
                resources=tuple(
                    module.AlterConfigsResource(
                        resource_type=one.resource_type,
                        resource_name=one.resource_name,
                        configs=tuple(
                            module.AlterableConfig(name=change.name, value=change.value)
                            for change in one.configs
                        ),
                    )
                    for one in chosen
                ),
                validate_only=validate_only,
            )

        return await self._alter(resources, decide, ApiKey.ALTER_CONFIGS, message)

    async def _alter(
        self,
        resources: Sequence[AlterResource],
        decide: Any,
        key: ApiKey,
        message: Callable[[Sequence[AlterResource]], Any],
    ) -> list[AlterResourceResult]:
        """The results, in the order of `resources`; who is refused here is not asked for there."""
        looked: list[AlterResourceResult] = (await Slice().go_on(decide)).response
        chosen = [
            one
            for one, found in zip(resources, looked, strict=True)
            if one.resource_type not in _OF_A_BROKER or found.error is ErrorCode.none
        ]
        if not chosen:
            return looked
        answer = await self._ask(key, message(chosen), is_safe_again=key == ApiKey.ALTER_CONFIGS)
        answered = {(one.resource_type, one.resource_name): one for one in answer.responses}
        await self._caught_up()
        results = []
        sent = set(map(id, chosen))
        for one, found in zip(resources, looked, strict=True):
            told = answered.get(one[:2]) if id(one) in sent else None
            if told is not None:
                found = AlterResourceResult(*one[:2], told.error_code, told.error_message)
            results.append(found)
        return results

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """As `ProducerIdSource`; a block whose answer was lost is nobody's."""
        answer = await self._ask(
            ApiKey.ALLOCATE_PRODUCER_IDS,
            controller_calls.producer_ids(broker_id, broker_epoch),
            is_safe_again=True,
        )
        return controller_calls.producer_ids_allocated(answer)


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
