"""DescribeConfigs entries of topics, groups and nodes: values, sources, synonyms and documentation. [P]

Sources and synonyms follow Kafka's `ConfigHelper`: the strongest setting first, then the weaker ones, then
the built-in default. As there, a topic key whose first broker synonym is not set (only `log.retention.hours`
is, say) shows the effective value without synonyms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from service.config.keys import ConfigKey, ConfigSource, ConfigType, to_text
from service.config.overrides import PREFIX, base_name, split
from service.config.parsing import effective, parse_value
from service.config.settings import BrokerConfig, topic_values
from service.config.tables import BROKER_KEYS, TOPIC_KEYS
from service.config.tables.groups import GROUP


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class DescribedConfig(NamedTuple):
    """One key of a DescribeConfigs response. A sensitive one has no value, and neither have its synonyms."""

    name: str
    value: str | None
    type: ConfigType
    source: ConfigSource
    is_default: bool
    is_sensitive: bool
    read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    documentation: str


_FAMILIES: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)


def describe_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> list[DescribedConfig]:
    """Return every topic key by name, internal ones only if set. Raises `ConfigError` for bad overrides."""
    values = topic_values(overrides, broker)
    entries = []
    for key in sorted(TOPIC_KEYS.values(), key=lambda key: key.name):
        if key.internal and key.name not in overrides:
            continue
        value = to_text(values[key.name])
        synonyms = _broker_synonyms(key.synonyms[0].name, broker) if key.synonyms else []
        if key.name in overrides:
            synonyms.insert(0, ConfigSynonym(key.name, value, ConfigSource.TOPIC_CONFIG))
        entries.append(_entry(key, value, synonyms, read_only=False))
    return entries


def describe_group(overrides: Mapping[str, str], broker: BrokerConfig) -> list[DescribedConfig]:
    """Return every group key by name; values out of the node's bounds are shown as they were set."""
    entries = []
    for key in sorted(GROUP, key=lambda key: key.name):
        of_node = key.synonyms[0].name
        synonyms = _broker_synonyms(of_node, broker)
        value = to_text(broker.groups[of_node])
        if key.name in overrides:
            value = overrides[key.name]
            synonyms.insert(0, ConfigSynonym(key.name, value, ConfigSource.GROUP_CONFIG))
        entries.append(_entry(key, value, synonyms, read_only=False))
    return entries


def describe_broker(broker: BrokerConfig) -> list[DescribedConfig]:
    """Return every key of this node by name; keys for the metadata log alone only if set.

    Those of one listener that are set are among them, with the key of all listeners as a synonym.
    """
    keys = {
        key.name: key
        for key in BROKER_KEYS.values()
        if key.static or key.name in broker.dynamic or key.name in broker.dynamic_default
    }
    for level in (broker.static, broker.dynamic_default, broker.dynamic):
        keys.update((name, _of_listener(name)) for name in effective(level) if name.startswith(PREFIX))
    return [
        _entry(
            key,
            _broker_value(key, broker),
            _broker_synonyms(key.name, broker),
            read_only=not (key.dynamic or key.listener_dynamic),
        )
        for _, key in sorted(keys.items())
    ]


def _of_listener(name: str) -> ConfigKey:
    """Return the key of this full name. It is shown as read-only, as in Kafka, even if it can change."""
    return replace(split(name).key, name=name, dynamic=False, listener_dynamic=False)


def describe_broker_default(broker: BrokerConfig) -> list[DescribedConfig]:
    """Return the dynamic settings for all brokers, those of the broker resource with an empty name."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        _entry(
            _of_listener(name) if name.startswith(PREFIX) else BROKER_KEYS[name],
            value,
            [ConfigSynonym(name, value, source)],
            read_only=name.startswith(PREFIX),
        )
        for name, value in sorted(broker.dynamic_default.items())
    ]


def _entry(
    key: ConfigKey, value: str | None, synonyms: Iterable[ConfigSynonym], *, read_only: bool
) -> DescribedConfig:
    found = tuple(synonyms)
    source = found[0].source if found else ConfigSource.DEFAULT_CONFIG
    if key.is_secret:
        value, found = None, tuple(one._replace(value=None) for one in found)
    return DescribedConfig(
        name=key.name,
        value=value,
        type=key.type,
        source=source,
        is_default=source is ConfigSource.DEFAULT_CONFIG,
        is_sensitive=key.is_secret,
        read_only=read_only,
        synonyms=found,
        documentation=key.doc,
    )


def _broker_value(key: ConfigKey, broker: BrokerConfig) -> str | None:
    if key.name == "log.dirs":
        # absolute, from whichever key: tools on the same machine read there
        return ",".join(str(path) for path in broker.log_dirs)
    for level in (broker.dynamic, broker.dynamic_default, broker.static):
        if key.name in level:
            return to_text(parse_value(key, level[key.name]))
    return to_text(key.default)


def _broker_synonyms(name: str, broker: BrokerConfig) -> list[ConfigSynonym]:
    if name == "log.flush.interval.ms":
        names: tuple[str, ...] = (name, "log.flush.scheduler.interval.ms")
    elif name.startswith(PREFIX):
        names = (name, base_name(name))
    else:
        names = next((family for family in _FAMILIES if name in family), (name,))
    levels = (
        (broker.dynamic, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (broker.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (broker.static, ConfigSource.STATIC_BROKER_CONFIG),
    )
    found = [ConfigSynonym(n, level[n], source) for level, source in levels for n in names if n in level]
    for candidate in names:
        key = BROKER_KEYS.get(candidate)
        if key is None:  # a listener's: it has no default of its own
            continue
        default = to_text(key.default)
        if key.static and default is not None:  # Kafka has no default for a key of the metadata log alone
            found.append(ConfigSynonym(candidate, default, ConfigSource.DEFAULT_CONFIG))
    while found and found[0].name != name:
        del found[0]
    return found
