"""Validation of configuration changes for the controller, with this node's tables and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from service.base.errors import ConfigError
from service.base.steps import Steps
from service.base.types import INTERNAL_TOPICS
from service.config.foreign import refusal
from service.config.keys import ConfigKey, ConfigType, to_text
from service.config.overrides import base_name, of_all_listeners, of_listeners
from service.config.settings import BrokerConfig, validate_topic_change
from service.config.tables import BROKER_KEYS, TOPIC_KEYS
from service.config.tables.groups import GROUP
from service.groups.consumer_config import check_group_settings
from service.metadata.controller.requests import ResourceType
from service.metadata.image import MetadataImage
from service.replicas.dynamic_config import check_topics
from service.serving.group_coordinators import consumer_config_of


class NodeConfigRules:
    """`ConfigRules` over the tables in `service.config.tables`. Owned by the event loop."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._config = config

    def validate(
        self,
        image: MetadataImage,
        resource_type: ResourceType,
        resource_name: str,
        configs: Mapping[str, str],
    ) -> Steps[None]:
        """Raise `ConfigError`, which names the key, if the resource cannot have `configs`; in steps. A change
        of a broker is checked against all topics, too: the error names the topic whose settings it breaks.
        """
        config = self._config()
        if resource_type is ResourceType.TOPIC:
            settings = validate_topic_change(image.config(resource_type, resource_name), configs, config)
            if settings.remote_storage_enable and resource_name in INTERNAL_TOPICS:
                raise ConfigError(f"Remote log storage is unsupported for the internal topic {resource_name}")
            return
        if resource_type is ResourceType.GROUP:
            check_group_settings(configs, consumer_config_of(config))
            return
        names, node = config.cluster.listener_names, str(config.node_id)
        if resource_name == "":
            everyone: Mapping[str, str] = of_all_listeners(configs, is_default=True)
            own: Mapping[str, str] = of_listeners(image.config(resource_type, node), names)
        else:
            everyone = of_listeners(image.config(resource_type, ""), names)
            own = configs if resource_name == node else of_all_listeners(configs)
        changed = config.with_dynamic(own, everyone)
        self._before(image, resource_name).check_threads(changed)
        yield from check_topics(image, changed)

    def _before(self, image: MetadataImage, broker: str) -> BrokerConfig:
        """Return the broker's current settings according to the metadata. If those are invalid, return this
        node's: the change may be the repair.
        """
        config, kind = self._config(), ResourceType.BROKER
        own = image.config(kind, broker or str(config.node_id))
        try:
            return config.with_dynamic(own, image.config(kind, ""))
        except ConfigError:
            return config

    def is_list(self, resource_type: ResourceType, key: str) -> bool:
        """Return whether `key` takes a comma-separated list."""
        known = _keys(resource_type).get(key)
        return known is not None and known.type is ConfigType.LIST

    def default(self, resource_type: ResourceType, key: str) -> str | None:
        """Return the value of `key` if nothing sets it."""
        if resource_type is ResourceType.TOPIC:
            return to_text(self._config().topic_defaults.get(key))
        known = _keys(resource_type).get(key)
        return None if known is None else to_text(known.default)

    def secrecy(self, key: str) -> str | None:
        """Return why the metadata may not have a value of `key`; None for a key that is no secret."""
        known = BROKER_KEYS.get(base_name(key))
        if known is None or not known.is_secret:
            return None
        return "the metadata is copied to the bucket: name a file, or set it in the node's properties"

    def refusal(self, key: str) -> str | None:
        """Return why a key that Kafka has would have no effect here."""
        return refusal(key)


def _keys(resource_type: ResourceType) -> Mapping[str, ConfigKey]:
    if resource_type is ResourceType.GROUP:
        return {one.name: one for one in GROUP}
    return TOPIC_KEYS if resource_type is ResourceType.TOPIC else BROKER_KEYS
