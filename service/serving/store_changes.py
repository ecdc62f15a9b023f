"""Changes of this broker's key and trust stores: loaded and checked here before the controller hears of them.

Only the node that has the files can say whether a store can be used. Source: Kafka
``DynamicBrokerConfig.validate``, which answers INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError
from service.config.overrides import base_name, of_listeners
from service.config.security import NodeSecurity
from service.config.settings import BrokerConfig
from service.config.tables import BROKER_KEYS
from service.metadata.controller.requests import AlterResource, AlterResourceResult, ResourceType
from service.metadata.image import MetadataImage
from service.serving.ports import ConfigAdmin

_SET: Final = 0
_DELETE: Final = 1


@dataclass(frozen=True, slots=True)
class StoreCheckedAdmin:
    """`ConfigAdmin` of a broker with TLS. `refusal` tells why the node could not take settings."""

    admin: ConfigAdmin
    config: Callable[[], BrokerConfig]
    image: Callable[[], MetadataImage]
    refusal: Callable[[NodeSecurity], Awaitable[str | None]]

    async def incremental_alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        """Do what `ConfigAdmin` does with the resources whose stores can be used."""
        refused = [await self._refused(one, is_whole=False) for one in resources]
        kept = [one for one, error in zip(resources, refused, strict=True) if error is None]
        results = iter(
            await self.admin.incremental_alter_configs(
                kept, validate_only=validate_only, via_broker=via_broker
            )
            if kept or not resources
            else ()
        )
        return [next(results) if error is None else error for error in refused]

    async def alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        """Do what `ConfigAdmin` does with the resources whose stores can be used."""
        refused = [await self._refused(one, is_whole=True) for one in resources]
        kept = [one for one, error in zip(resources, refused, strict=True) if error is None]
        results = iter(
            await self.admin.alter_configs(kept, validate_only=validate_only, via_broker=via_broker)
            if kept or not resources
            else ()
        )
        return [next(results) if error is None else error for error in refused]

    async def _refused(self, resource: AlterResource, *, is_whole: bool) -> AlterResourceResult | None:
        """Return the answer to a change that this node cannot make."""
        config, kind = self.config(), ResourceType.BROKER
        if resource.resource_type != kind or resource.resource_name != str(config.node_id):
            return None
        if not is_whole and not any(_is_of_a_store(change.name) for change in resource.configs):
            return None
        own = {} if is_whole else dict(self.image().config(kind, resource.resource_name))
        for change in resource.configs:
            if change.operation == _DELETE and not is_whole:
                own.pop(change.name, None)
            elif change.value is not None and (is_whole or change.operation == _SET):
                own[change.name] = change.value
        try:
            own = of_listeners(own, config.cluster.listener_names)
            changed = config.with_dynamic(own, self.image().config(kind, ""))
        except ConfigError:
            return None  # who validates settings says why
        why = await self.refusal(changed.cluster.security)
        if why is None:
            return None
        return AlterResourceResult(kind, resource.resource_name, ErrorCode.invalid_request, why)


def _is_of_a_store(name: str) -> bool:
    key = BROKER_KEYS.get(base_name(name))
    return key is not None and key.listener_dynamic
