"""Parts of answers that are the same for everybody, encoded once: settings, and topics of the metadata.

What is kept is bounded by what there is, and thrown away when what it says has changed. Owned by the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kio.schema.describe_configs.v4.response import DescribeConfigsResourceResult, DescribeConfigsSynonym

from service.config.describing import (
    DescribedConfig,
    describe_broker,
    describe_broker_default,
    describe_group,
    describe_topic,
)
from service.config.keys import ConfigSource
from service.config.settings import BrokerConfig
from service.metadata.image import PartitionImage, TopicImage
from service.replicas.partition_registry import Replicas
from service.serving.metadata_cache import Standing
from service.wire.api import ApiKey, encode_element
from service.wire.metadata import MetadataResponseTopic
from service.wire.primitives import Encoded

MOST_SETTINGS: Final = 256
"""Different sets of settings whose answers are kept; most topics share a few."""


class Flavour(NamedTuple):
    """How settings are asked for."""

    version: int
    synonyms: bool
    documentation: bool


Settings = tuple[tuple[str, Encoded], ...]
"""Name of each key, and its entry in the answer."""


class EncodedSettings:
    """Entries of DescribeConfigs. They hold as long as the node's own settings do."""

    def __init__(self) -> None:
        self._config: BrokerConfig | None = None
        self._known: dict[object, Settings] = {}

    def of_topic(self, overrides: Mapping[str, str], config: BrokerConfig, flavour: Flavour) -> Settings:
        """Those of any topic with these overrides. `ConfigError` where they do not hold."""
        key = flavour, frozenset(overrides.items())
        return self._get(key, config) or self._add(key, describe_topic(overrides, config), flavour)

    def of_group(self, overrides: Mapping[str, str], config: BrokerConfig, flavour: Flavour) -> Settings:
        """Those of any group with these overrides."""
        key = flavour, "group", frozenset(overrides.items())
        return self._get(key, config) or self._add(key, describe_group(overrides, config), flavour)

    def of_broker(self, config: BrokerConfig, flavour: Flavour, *, default: bool) -> Settings:
        """This node's, or with `default` those for all brokers."""
        key = flavour, default
        if (known := self._get(key, config)) is not None:
            return known
        entries = describe_broker_default(config) if default else describe_broker(config)
        return self._add(key, entries, flavour)

    def knows_topic(self, overrides: Mapping[str, str], config: BrokerConfig, flavour: Flavour) -> bool:
        """Return whether `of_topic` has nothing to encode."""
        return self._get((flavour, frozenset(overrides.items())), config) is not None

    def _get(self, key: object, config: BrokerConfig) -> Settings | None:
        if config is not self._config:
            self._config = config
            self._known.clear()
        return self._known.get(key)

    def _add(self, key: object, entries: Sequence[DescribedConfig], flavour: Flavour) -> Settings:
        if len(self._known) >= MOST_SETTINGS:
            self._known.clear()
        path = ("results", "configs")
        made = tuple(
            (one.name, encode_element(ApiKey.DESCRIBE_CONFIGS, flavour.version, path, _entry(one, flavour)))
            for one in entries
        )
        self._known[key] = made
        return made


def encoded_loggers(levels: Sequence[tuple[str, str]], flavour: Flavour) -> Settings:
    """Loggers and their levels, as settings of a BROKER_LOGGER."""
    encode, version = encode_element, flavour.version
    entries = (
        DescribeConfigsResourceResult(
            name=name,
            value=level,
            read_only=False,
            config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            is_sensitive=False,
            synonyms=(),
            documentation=None,
        )
        for name, level in levels
    )
    path = ("results", "configs")
    return tuple((one.name, encode(ApiKey.DESCRIBE_CONFIGS, version, path, one)) for one in entries)


def _entry(entry: DescribedConfig, flavour: Flavour) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if flavour.synonyms else ()
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
        documentation=entry.documentation if flavour.documentation else None,
    )


class TopicFlavour(NamedTuple):
    """How topics are asked for, and where."""

    listener: str
    version: int
    operations: int


class TopicsOfFlavour:
    """Topics of Metadata for who asks in one way. They hold as long as their image does, the brokers stand as
    they do, and no replica of theirs is offline here."""

    __slots__ = ("_known", "_replicas", "flavour", "standing")

    def __init__(self, replicas: Replicas, flavour: TopicFlavour, standing: Standing) -> None:
        self._replicas = replicas
        self._known: dict[str, tuple[Mapping[int, PartitionImage], Encoded]] = {}
        self.flavour = flavour
        self.standing = standing

    def get(self, topic: TopicImage) -> Encoded | None:
        """None where it is to be made."""
        known = self._known.get(topic.name)
        if known is None or known[0] is not topic.partitions or self.has_offline(topic):
            return None
        return known[1]

    def has_offline(self, topic: TopicImage) -> bool:
        why = self._replicas.why_offline
        return any(why(topic.id, index) is not None for index in topic.partitions)

    def add(self, topic: TopicImage, element: MetadataResponseTopic, most: int) -> Encoded:
        """The element encoded, and kept; at most so many are."""
        if len(self._known) >= most:
            self._known.clear()
        made = encode_element(ApiKey.METADATA, self.flavour.version, ("topics",), element)
        if not self.has_offline(topic):
            self._known[topic.name] = (topic.partitions, made)
        return made


class EncodedTopics:
    """Topics of Metadata, by how they are asked for."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._known: dict[TopicFlavour, TopicsOfFlavour] = {}

    def asked(self, flavour: TopicFlavour, standing: Standing, most: int) -> TopicsOfFlavour:
        """Those of one flavour, while the brokers stand like this; at most so many flavours are kept."""
        known = self._known.get(flavour)
        if known is None or known.standing is not standing:
            if known is None and len(self._known) >= most:
                self._known.clear()
            known = self._known[flavour] = TopicsOfFlavour(self._replicas, flavour, standing)
        return known
