"""Cache of encoded response elements that many responses share: settings, and topics of the metadata.

The caches are bounded, and drop elements whose source has changed. Owned by the loop.
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
from service.serving.metadata_cache import BrokerAvailability
from service.wire.api import ApiKey, encode_element
from service.wire.metadata import MetadataResponseTopic
from service.wire.primitives import Encoded

MOST_SETTINGS: Final = 256
FIRST_FLEXIBLE_METADATA: Final = 9
"""Most cached sets of settings; most topics share a few."""


class DescribeConfigsOptions(NamedTuple):
    """Options of DescribeConfigs on which an encoded setting depends."""

    version: int
    synonyms: bool
    documentation: bool


Settings = tuple[tuple[str, Encoded], ...]
"""Each key's name and encoded element."""


class EncodedSettings:
    """Cache of encoded elements of DescribeConfigs, valid as long as the node's settings do not change."""

    def __init__(self) -> None:
        self._config: BrokerConfig | None = None
        self._known: dict[object, Settings] = {}

    def of_topic(
        self, overrides: Mapping[str, str], config: BrokerConfig, options: DescribeConfigsOptions
    ) -> Settings:
        """Return the settings of topics with these overrides. Raises `ConfigError` if they are invalid."""
        key = options, frozenset(overrides.items())
        return self._get(key, config) or self._add(key, describe_topic(overrides, config), options)

    def of_group(
        self, overrides: Mapping[str, str], config: BrokerConfig, options: DescribeConfigsOptions
    ) -> Settings:
        """Return the settings of groups with these overrides."""
        key = options, "group", frozenset(overrides.items())
        return self._get(key, config) or self._add(key, describe_group(overrides, config), options)

    def of_broker(self, config: BrokerConfig, options: DescribeConfigsOptions, *, default: bool) -> Settings:
        """Return this node's settings or, with `default`, the cluster-wide defaults of brokers."""
        key = options, default
        if (known := self._get(key, config)) is not None:
            return known
        entries = describe_broker_default(config) if default else describe_broker(config)
        return self._add(key, entries, options)

    def _get(self, key: object, config: BrokerConfig) -> Settings | None:
        if config is not self._config:
            self._config = config
            self._known.clear()
        return self._known.get(key)

    def _add(
        self, key: object, entries: Sequence[DescribedConfig], options: DescribeConfigsOptions
    ) -> Settings:
        if len(self._known) >= MOST_SETTINGS:
            self._known.clear()
        path = ("results", "configs")
        made = tuple(
            (one.name, encode_element(ApiKey.DESCRIBE_CONFIGS, options.version, path, _entry(one, options)))
            for one in entries
        )
        self._known[key] = made
        return made


def encoded_loggers(levels: Sequence[tuple[str, str]], options: DescribeConfigsOptions) -> Settings:
    """Return the encoded settings of a BROKER_LOGGER resource: its loggers and their levels."""
    encode, version = encode_element, options.version
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


def _entry(entry: DescribedConfig, options: DescribeConfigsOptions) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if options.synonyms else ()
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
        documentation=entry.documentation if options.documentation else None,
    )


class MetadataVariant(NamedTuple):
    """Properties of a Metadata request on which an encoded topic depends."""

    listener: str
    version: int
    operations: int


def with_operations(element: Encoded, version: int, operations: int) -> Encoded:
    """Return an encoded topic of Metadata with other authorized operations: its last field, which version 8
    has and version 9 and later have before the tagged fields, of which there are none. Cached topics can be
    shared by clients with different rights so."""
    end = len(element) - (version >= FIRST_FLEXIBLE_METADATA)
    return Encoded(element[: end - 4] + operations.to_bytes(4, "big", signed=True) + element[end:])


class VariantTopics:
    """Cache of encoded topics for one variant of Metadata requests. A topic is valid as long as its image
    and the brokers' availability do not change and this node has no offline replica of it.
    """

    __slots__ = ("_known", "_replicas", "availability", "variant")

    def __init__(
        self, replicas: Replicas, variant: MetadataVariant, availability: BrokerAvailability
    ) -> None:
        self._replicas = replicas
        self._known: dict[str, tuple[Mapping[int, PartitionImage], Encoded]] = {}
        self.variant = variant
        self.availability = availability

    def get(self, topic: TopicImage) -> Encoded | None:
        """Return the encoded topic, or None if it is not cached."""
        known = self._known.get(topic.name)
        if known is None or known[0] is not topic.partitions or self.has_offline(topic):
            return None
        return known[1]

    def has_offline(self, topic: TopicImage) -> bool:
        why = self._replicas.why_offline
        return any(why(topic.id, index) is not None for index in topic.partitions)

    def add(self, topic: TopicImage, element: MetadataResponseTopic, most: int) -> Encoded:
        """Encode `element` and cache it, with at most `most` topics."""
        if len(self._known) >= most:
            self._known.clear()
        made = encode_element(ApiKey.METADATA, self.variant.version, ("topics",), element)
        if not self.has_offline(topic):
            self._known[topic.name] = (topic.partitions, made)
        return made


class EncodedTopics:
    """Caches of encoded topics, by variant of Metadata requests."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._known: dict[MetadataVariant, VariantTopics] = {}

    def of_variant(
        self, variant: MetadataVariant, availability: BrokerAvailability, most: int
    ) -> VariantTopics:
        """Return the cache of one variant, emptied if `availability` has changed. At most `most` are kept."""
        known = self._known.get(variant)
        if known is None or known.availability is not availability:
            if known is None and len(self._known) >= most:
                self._known.clear()
            known = self._known[variant] = VariantTopics(self._replicas, variant, availability)
        return known
