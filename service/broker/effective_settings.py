"""Settings as they are: the node's with what the metadata says on top, and a topic's under those. [P]

Nothing here falls back: settings that do not hold are an error that names topic and key, and whoever asked
refuses to go on.
"""

from __future__ import annotations

from typing import Final

from service.base.errors import ConfigError
from service.base.steps import Steps
from service.config.settings import BrokerConfig, LogConfig, topic_config
from service.metadata.controller.requests import ResourceType
from service.metadata.image import MetadataImage

CHECK_US: Final = 15
_NAMED_AT_MOST: Final = 5


def dynamic_config(config: BrokerConfig, image: MetadataImage) -> BrokerConfig:
    """The node's settings with what the metadata log says on top."""
    own = image.config(ResourceType.BROKER, str(config.node_id))
    return config.with_dynamic(own, image.config(ResourceType.BROKER, ""))


def topic_settings(image: MetadataImage, topic: str, config: BrokerConfig) -> LogConfig:
    """What the overrides of a topic come to on a node.

    Raises `ConfigError` naming the topic and its overrides.
    """
    overrides = image.config(ResourceType.TOPIC, topic)
    try:
        return topic_config(overrides, config)
    except ConfigError as e:
        given = ", ".join(f"{key}={value}" for key, value in sorted(overrides.items()))
        raise ConfigError(f"topic {topic} ({given}): {e}") from e


def check_topics(image: MetadataImage, config: BrokerConfig) -> Steps[None]:
    """Whether the settings of every topic hold, in steps. `ConfigError` names topics and overrides."""
    problems = []
    yield len(image.topics_by_name)
    for name in sorted(image.topics_by_name):
        yield CHECK_US
        try:
            topic_settings(image, name, config)
        except ConfigError as e:
            problems.append(str(e))
    if problems:
        more = f" (and {len(problems) - _NAMED_AT_MOST} more)" if len(problems) > _NAMED_AT_MOST else ""
        raise ConfigError("; ".join(problems[:_NAMED_AT_MOST]) + more)
