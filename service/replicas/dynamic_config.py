"""Effective settings: the node's with dynamic ones from the metadata, and a topic's above those. [P]

Nothing falls back to defaults: invalid settings are an error with topic and key, and the caller stops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from service.base.errors import ConfigError
from service.base.steps import Steps
from service.config.overrides import of_listeners
from service.config.settings import UNLIMITED, BrokerConfig, LogConfig, topic_config
from service.metadata.controller.requests import ResourceType
from service.metadata.image import MetadataImage

_NAMED_AT_MOST: Final = 5


def dynamic_config(config: BrokerConfig, image: MetadataImage) -> BrokerConfig:
    """Return the node's settings, overridden by those in the metadata.

    Settings of a listener that this node has not wait in the metadata until it has, or they are deleted.
    """
    names = config.cluster.listener_names
    own = of_listeners(image.config(ResourceType.BROKER, str(config.node_id)), names)
    return config.with_dynamic(own, of_listeners(image.config(ResourceType.BROKER, ""), names))


def topic_settings(image: MetadataImage, topic: str, config: BrokerConfig) -> LogConfig:
    """Return the effective settings of a topic. A topic whose settings are not known does not expire.

    Raises `ConfigError` with the topic and its overrides.
    """
    overrides = image.config(ResourceType.TOPIC, topic)
    try:
        found = topic_config(overrides, config)
    except ConfigError as e:
        given = ", ".join(f"{key}={value}" for key, value in sorted(overrides.items()))
        raise ConfigError(f"topic {topic} ({given}): {e}") from e
    if not waits_for_settings(image, topic):
        return found
    return replace(
        found,
        retention_ms=UNLIMITED,
        retention_bytes=UNLIMITED,
        local_retention_ms=UNLIMITED,
        local_retention_bytes=UNLIMITED,
        remote_log_delete_on_disable=False,
    )


def waits_for_settings(image: MetadataImage, topic: str) -> bool:
    """Return whether a recovery has restored the topic and its retention has not been set since."""
    known = image.topics_by_name.get(topic)
    state = None if known is None else image.recovered.get(known.id)
    return state is not None and state.settings_unknown


def check_topics(image: MetadataImage, config: BrokerConfig) -> Steps[None]:
    """Check the settings of every topic, in steps. Raises `ConfigError` with topics and overrides."""
    problems = []
    yield
    for name in sorted(image.topics_by_name):
        yield
        try:
            topic_settings(image, name, config)
        except ConfigError as e:
            problems.append(str(e))
    if problems:
        more = f" (and {len(problems) - _NAMED_AT_MOST} more)" if len(problems) > _NAMED_AT_MOST else ""
        raise ConfigError("; ".join(problems[:_NAMED_AT_MOST]) + more)
