"""Parser of properties into typed values, key by key, which reports all errors at once. [P]"""

from __future__ import annotations

from collections.abc import Mapping

from service.base.errors import ConfigError
from service.config.keys import ConfigKey, Value, did_you_mean
from service.config.tables import TOPIC_KEYS, refusal
from service.config.tables.kafka_defaults import INTERNAL_TUNING, KAFKA_DEFAULTS


def parse(
    given: Mapping[str, str], keys: Mapping[str, ConfigKey], what: str, problems: list[str]
) -> dict[str, Value]:
    """Return a value for each of `keys`; add a line to `problems` for each invalid entry of `given`."""
    values = {key.name: key.default for key in keys.values()}
    for name, text in given.items():
        if name not in keys:
            reason = refusal(name)
            if reason is None and name in TOPIC_KEYS:
                reason = (
                    f"a topic key; its default is set by {TOPIC_KEYS[name].synonyms[0].name}"
                    if (TOPIC_KEYS[name].synonyms)
                    else "a topic key; it is set on topics only"
                )
            problems.append(
                f"{name}: refused: {reason}"
                if reason
                else f"{name}: unknown {what}{did_you_mean(name, keys)}"
            )
            continue
        try:
            values[name] = keys[name].parse(text)
        except ConfigError as e:
            problems.append(str(e))
    return values


def effective(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties without those that `without_effect` names."""
    return {name: text for name, text in properties.items() if not _has_no_effect(name, text)}


def without_effect(properties: Mapping[str, str]) -> list[str]:
    """Return a warning for each property that is accepted and has no effect.

    Keys of Apache Kafka without effect in Firn are accepted at Kafka's default, so that a file which spells
    defaults out works for both. Any other value is refused.
    """
    return [
        f"{name}={text} has no effect: {refusal(name)}"
        for name, text in properties.items()
        if _has_no_effect(name, text)
    ]


def _has_no_effect(name: str, text: str) -> bool:
    if name in INTERNAL_TUNING:
        return True
    default = KAFKA_DEFAULTS.get(name)
    return default is not None and text.strip().lower() == default.lower()
