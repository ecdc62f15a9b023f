"""Parser of properties into typed values, which checks type and bounds of each and reports all errors. [P]"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from service.base.errors import ConfigError
from service.config.foreign import foreign_key, is_at_default, refusal
from service.config.foreign.foreign_key import ForeignKey, Owner
from service.config.keys import INT_MAX, LONG_MAX, ConfigKey, ConfigType, Value, invalid
from service.config.passwords import Password
from service.config.suggestions import did_you_mean
from service.config.tables import BROKER_KEYS, TOPIC_KEYS

LISTENER_PREFIX: Final = "listener.name."
_TIERING_SWITCH: Final = "remote.log.storage.system.enable"
_DOUBLE: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", re.ASCII)


def parse(
    given: Mapping[str, str],
    keys: Mapping[str, ConfigKey],
    what: str,
    problems: list[str],
    strangers: list[str],
) -> dict[str, Value]:
    """Return a value for each of `keys`; add a line to `problems` for each invalid value in `given`, and to
    `strangers` for each key that is not among `keys`."""
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
            strangers.append(
                f"{name}: refused: {reason}"
                if reason
                else f"{name}: unknown {what}{did_you_mean(name, keys)}"
            )
            continue
        try:
            values[name] = parse_value(keys[name], text)
        except ConfigError as e:
            problems.append(str(e))
    return values


def parse_value(key: ConfigKey, text: str, *, shown: str | None = None) -> Value:
    """Return the typed value of `text`; raise `ConfigError` with Kafka's text if its type or a bound is
    wrong. `shown`: the name in that text, if not the key's."""
    if shown is not None:
        key = replace(key, name=shown)
    if "\0" in text:
        raise invalid(key.name, "(hidden)" if key.is_secret else text, "No file or name can have a NUL")
    value = _parse_type(key, text.strip(), text)
    if key.any_case:
        value = next((one for one in key.one_of if one.lower() == str(value).lower()), value)
    if key.one_of and isinstance(value, tuple):
        value = tuple(dict.fromkeys(value))  # duplicates are dropped, as in Kafka
    if isinstance(value, int | float) and not isinstance(value, bool):
        if key.at_least is not None and value < key.at_least:
            raise invalid(key.name, value, f"Value must be at least {key.at_least}")
        if key.at_most is not None and value > key.at_most:
            raise invalid(key.name, value, f"Value must be no more than {key.at_most}")
    if key.one_of:
        for item in value if isinstance(value, tuple) else (str(value),):
            if item not in key.one_of:
                raise invalid(key.name, item, f"String must be one of: {', '.join(key.one_of)}")
    if key.check is not None and (reason := key.check(text.strip())) is not None:
        raise invalid(key.name, f"[{', '.join(value)}]" if isinstance(value, tuple) else text, reason)
    return value


def _parse_type(key: ConfigKey, text: str, original: str) -> Value:
    match key.type:
        case ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise invalid(key.name, original, "Expected value to be either true or false")
            return text.lower() == "true"
        case ConfigType.INT | ConfigType.LONG:
            limit = INT_MAX if key.type is ConfigType.INT else LONG_MAX
            # int() alone also accepts "1_000" and digits of other scripts
            digits = text[1:] if text[:1] in ("-", "+") else text
            number = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 40 else limit + 1
            if not -limit - 1 <= number <= limit:
                raise invalid(key.name, original, f"Not a number of type {key.type.name}")
            return number
        case ConfigType.DOUBLE:
            if not _DOUBLE.fullmatch(text):
                raise invalid(key.name, original, f"Not a number of type {key.type.name}")
            return float(text)
        case ConfigType.LIST:
            return tuple(part.strip() for part in text.split(",")) if text else ()
        case ConfigType.STRING | ConfigType.CLASS:
            return text
        case ConfigType.PASSWORD:
            return Password(text)


def effective(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties without those that `without_effect` names."""
    left_out = without_effect(properties)
    return {name: text for name, text in properties.items() if name not in left_out}


def without_effect(properties: Mapping[str, str]) -> dict[str, ForeignKey]:
    """Return the rows of the given keys that a node takes although they have no effect.

    These are those of things that a node does not have, unless `firn.config.strict` is true; and all foreign
    keys at Apache Kafka's default, so that a file which spells defaults out works for both. The switch of
    tiered storage has to say what `firn.remote.url` says: where there is a bucket it is taken if it is on.
    """
    strict = is_strict(properties)
    found = {}
    for name, text in properties.items():
        of_all = foreign_tail(name) if name.startswith(LISTENER_PREFIX) else name
        row = None if of_all is None else foreign_key(of_all)
        if row is None:
            continue
        is_so = is_at_default(str(of_all), text)
        if name == _TIERING_SWITCH and properties.get("firn.remote.url", "").strip():
            is_so = text.strip().lower() in ("true", "")
        if is_so or not (row.is_refused or strict):
            found[name] = row
    return found


def is_strict(properties: Mapping[str, str]) -> bool:
    """Return whether keys of things that a node does not have are refused."""
    return properties.get("firn.config.strict", "").strip().lower() == "true"


def with_node_id(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with `node.id`, where only `broker.id` is set, its former name (Kafka
    `AbstractKafkaConfig.populateSynonyms`)."""
    given = dict(properties)
    if given.get("broker.id", "").strip().isdigit():
        given.setdefault("node.id", given["broker.id"])
    return given


def foreign_tail(name: str) -> str | None:
    """Return the key without effect that is set here for one listener; None if it is another one."""
    parts = name.removeprefix(LISTENER_PREFIX).split(".")
    for at in range(1, len(parts)):
        tail = ".".join(parts[at:])
        if tail in BROKER_KEYS:
            return None
        row = foreign_key(tail)
        if row is not None and row.owner in (Owner.KAFKA, Owner.FORMER_KAFKA):
            return tail
    return None
