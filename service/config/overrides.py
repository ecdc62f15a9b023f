"""Keys of one listener, and of one mechanism of it: `listener.name.<name>.[<mechanism>.]<key>`. [P]

Listener and mechanism are in lower case (Kafka `ListenerName.configPrefix`, `saslMechanismConfigPrefix`). The
most specific value counts: the mechanism's, else the listener's, else that of all listeners.

>>> values = {"ssl.client.auth": "none", "listener.name.internal.ssl.client.auth": "required"}
>>> value_for(values, "ssl.client.auth", "INTERNAL"), value_for(values, "ssl.client.auth", "EXTERNAL")
('required', 'none')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from service.base.errors import ConfigError
from service.config.foreign import refusal
from service.config.foreign.kafka_defaults import KAFKA_DEFAULTS
from service.config.keys import ConfigKey, Value
from service.config.parsing import LISTENER_PREFIX, foreign_tail, parse, parse_value
from service.config.suggestions import did_you_mean
from service.config.tables import BROKER_KEYS

PREFIX: Final = LISTENER_PREFIX
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
"""Mechanisms that a prefix can name."""

_PER_LISTENER: Final = tuple(sorted(name for name, key in BROKER_KEYS.items() if key.per_listener))


class Override(NamedTuple):
    """A key and whom it is for: names in lower case; `mechanism` is "" for all of the listener."""

    listener: str
    mechanism: str
    key: ConfigKey


def parse_node(
    given: Mapping[str, str], problems: list[str], strangers: list[str] | None = None
) -> dict[str, Value]:
    """Return a value for each key of a node, and for each key of one listener under its full name.

    Adds a line to `problems` for each invalid value, and one to `strangers`, by default the same list, for
    each key that no node has: the others can be checked without it. `check_listeners` has the rest of the
    check.
    """
    strangers = problems if strangers is None else strangers
    plain = {name: text for name, text in given.items() if not name.startswith(PREFIX)}
    values = parse(plain, BROKER_KEYS, "configuration key", problems, strangers)
    for name, text in given.items():
        if name in plain:
            continue
        try:
            key = split(name).key
        except ConfigError as e:
            strangers.append(str(e))
            continue
        try:
            values[name] = parse_value(key, text, shown=name)
        except ConfigError as e:
            problems.append(str(e))
    if values["broker.id"] not in (-1, values["node.id"]) and not problems:
        problems.append("You must set `node.id` to the same value as `broker.id`.")
    if "inter.broker.listener.name" in given and "security.inter.broker.protocol" in given:
        problems.append(
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set."
        )
    return values


def split(name: str) -> Override:
    """Take the full name of a key of one listener apart. Raises `ConfigError` if it ends with no such key.

    A listener's name may have dots: what remains before the longest key is the name, and the mechanism.
    """
    parts = name.removeprefix(PREFIX).split(".")
    for at in range(1, len(parts)):
        key = BROKER_KEYS.get(".".join(parts[at:]))
        if key is not None and key.per_listener:
            listener, mechanism = ".".join(parts[:at]), ""
            if key.per_mechanism and at > 1 and parts[at - 1].upper() in MECHANISMS:
                listener, mechanism = ".".join(parts[: at - 1]), parts[at - 1]
            return Override(listener, mechanism, key)
    raise ConfigError(f"{name}: {_no_key(parts)}")


def base_name(name: str) -> str:
    """Return the key that a full name ends with; the name itself if it is no key of one listener."""
    try:
        return split(name).key.name if name.startswith(PREFIX) else name
    except ConfigError:
        return name


def may_be_secret(name: str) -> bool:
    """Return whether a value of a broker's key may be a password: also if the key is not known, as in Kafka
    (`KafkaConfig.maybeSensitive`)."""
    key = BROKER_KEYS.get(base_name(name))
    return name not in KAFKA_DEFAULTS if key is None else key.is_secret


def of_listeners(settings: Mapping[str, str], listeners: Iterable[str]) -> dict[str, str]:
    """Return the settings without those of listeners that are not among these names."""
    known = {name.lower() for name in listeners}
    return {
        name: text
        for name, text in settings.items()
        if base_name(name) == name or split(name).listener in known
    }


def check_listeners(values: Mapping[str, Value], listeners: Iterable[str]) -> list[str]:
    """Return a line for each key in `values` of a listener or a mechanism that there is not."""
    known = [name.lower() for name in listeners]
    problems = []
    for name in values:
        if name.startswith(PREFIX):
            listener, mechanism, key = split(name)
            if listener not in known and f"{listener}.{mechanism}" not in known:
                problems.append(f"{name}: {_no_listener(listener, key, known)}")
    return problems


def check_dynamic(broker: Mapping[str, str], default: Mapping[str, str]) -> None:
    """Raise `ConfigError`, with Kafka's text, if a broker or all may not have these settings in the metadata
    log (Kafka `DynamicBrokerConfig.validateConfigs`)."""
    fixed, bare, whose = [], [], []
    for name in {**default, **broker}:
        key = BROKER_KEYS.get(base_name(name))
        if key is None or key.dynamic:
            continue
        if not key.listener_dynamic:
            fixed.append(name)
        elif name == key.name:
            bare.append(name)
        elif name in default:
            whose.append(name)
    for names, reason in (
        (fixed, "Cannot update these configs dynamically"),
        (
            bare,
            "These security configs can be dynamically updated only per-listener using the listener prefix",
        ),
        (whose, "Cannot update these configs at default cluster level, broker id must be specified"),
    ):
        if names:
            raise ConfigError(f"{reason}: [{', '.join(sorted(names))}]")


def of_all_listeners(settings: Mapping[str, str], *, is_default: bool = False) -> dict[str, str]:
    """Return the settings of another broker, or of all, without those of one listener.

    These are checked but for the listener: only its own node knows whether it is there. Raises `ConfigError`.
    """
    check_dynamic({} if is_default else settings, settings if is_default else {})
    for name, text in settings.items():
        if name.startswith(PREFIX):
            parse_value(split(name).key, text, shown=name)
    return {name: text for name, text in settings.items() if not name.startswith(PREFIX)}


def value_for(values: Mapping[str, Value], key: str, listener: str, mechanism: str = "") -> Value:
    """Return the value of `key` that counts for this listener, and for this mechanism of it."""
    own = f"{PREFIX}{listener.lower()}."
    names = ([f"{own}{mechanism.lower()}.{key}"] if mechanism else []) + [own + key]
    return next((values[name] for name in names if name in values), values[key])


def is_set_for(values: Mapping[str, Value], key: str, listener: str) -> bool:
    """Return whether `key` is set with the prefix of this listener."""
    return f"{PREFIX}{listener.lower()}.{key}" in values


def _no_key(parts: list[str]) -> str:
    """Return why no tail of these parts is a key of one listener."""
    tails = [".".join(parts[at:]) for at in range(1, len(parts))]
    if (foreign := foreign_tail(PREFIX + ".".join(parts))) is not None:
        return f"refused: {refusal(foreign)}"
    for tail in tails:
        if tail in BROKER_KEYS:
            return f"{tail} cannot be set for one listener"
    hints = (did_you_mean(tail, _PER_LISTENER) for tail in tails)
    return "unknown configuration key of a listener" + next((hint for hint in hints if hint), "")


def _no_listener(listener: str, key: ConfigKey, known: list[str]) -> str:
    """Return why `listener`, which is not among the `known`, cannot have `key`."""
    head, _, tail = listener.rpartition(".")
    if head in known and not key.per_mechanism:
        return f"{key.name} cannot be set for one mechanism"
    if head in known:
        names = [one.lower() for one in MECHANISMS]
        hint = did_you_mean(tail, names) or f"; there is {', '.join(names)}"
        return f"there is no SASL mechanism {tail!r}{hint}"
    if listener.lower() in known:
        return f"the listener's name is in lower case here: {listener.lower()}"
    return f"there is no listener called {listener!r}{did_you_mean(listener, known)}"
