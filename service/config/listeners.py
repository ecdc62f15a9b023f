"""Listeners and the quorum's voters, as Kafka writes them. [P]

`listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://:9093`. Kafka `SocketServerConfigs.listenerListToEndPoints`,
`KafkaConfig.validateValues`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypedDict

from service.base.errors import ConfigError
from service.config.keys import Value

_ENTRY: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]{1,10})")
_VOTER: Final = re.compile(r"([0-9]{1,10})@\[?([0-9a-zA-Z\-%._:]+)\]?:([0-9]{1,5})")
PLAINTEXT: Final = "PLAINTEXT"
_PROTOCOLS: Final = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Listener(NamedTuple):
    """One address. An empty host is every interface, port 0 a free one."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class ListenerFields(TypedDict):
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    controller_listeners: tuple[Listener, ...]


def read_listeners(values: Mapping[str, Value]) -> ListenerFields:
    """The broker's listeners, what clients are told, and the controller's. Raises `ConfigError`."""
    every = _parse_list("listeners", values["listeners"])
    controllers = values["controller.listener.names"]
    assert isinstance(controllers, tuple)
    controller_names = {name.upper() for name in controllers}
    own = tuple(listener for listener in every if listener.name not in controller_names)
    _check_names(every, own, controller_names)
    _check_protocols(own, every, values["listener.security.protocol.map"])
    return ListenerFields(
        listeners=own,
        advertised_listeners=_advertised(own, values["advertised.listeners"]),
        controller_listeners=tuple(listener for listener in every if listener.name in controller_names),
    )


def read_voters(values: Mapping[str, Value]) -> None:
    """Check `controller.quorum.voters`: nobody but this node. Raises `ConfigError`."""
    voters = values["controller.quorum.voters"]
    assert isinstance(voters, tuple)
    for text in voters:
        match = _VOTER.fullmatch(text)
        if match is None:
            raise ConfigError(f"controller.quorum.voters: expected id@host:port, found {text!r}")
        if int(match[1]) != values["node.id"]:
            raise ConfigError(
                f"controller.quorum.voters: {text} is not this node (node.id={values['node.id']}); "
                "a quorum of several nodes is not supported"
            )
    if len(voters) > 1:
        raise ConfigError("controller.quorum.voters: this node is named twice")


def _parse_list(key: str, value: Value) -> tuple[Listener, ...]:
    result = []
    for entry in str(value).split(","):
        match = _ENTRY.fullmatch(entry.strip())
        if match is None:
            raise ConfigError(
                f"{key}: Unable to parse {entry.strip()!r} to a broker endpoint (NAME://host:port)"
            )
        port = int(match[3])
        if not 0 <= port <= 65535:
            raise ConfigError(f"{key}: {entry.strip()}: a port lies between 0 and 65535")
        result.append(Listener(match[1].upper(), match[2], port))
    return tuple(result)


def _check_names(every: Sequence[Listener], own: Sequence[Listener], controller_names: set[str]) -> None:
    names = [listener.name for listener in every]
    if len(set(names)) != len(names):
        raise ConfigError("listeners: Each listener must have a different name")
    addresses = [(listener.host, listener.port) for listener in every if listener.port]
    if len(set(addresses)) != len(addresses):
        raise ConfigError("listeners: Each listener must have a different address")
    if missing := sorted(controller_names - set(names)):
        raise ConfigError(
            "controller.listener.names must only contain values appearing in the 'listeners' configuration; "
            f"not there: {', '.join(missing)}"
        )
    if not own:
        raise ConfigError(
            "There must be at least one broker listener. "
            "Perhaps all listeners appear in controller.listener.names?"
        )


def _check_protocols(own: Sequence[Listener], every: Sequence[Listener], value: Value) -> None:
    if value is None:
        unknown = [listener.name for listener in own if listener.name != PLAINTEXT]
        if unknown:
            raise ConfigError(
                f"listeners: No security protocol defined for listener {unknown[0]}; "
                f"set listener.security.protocol.map={unknown[0]}:PLAINTEXT"
            )
        return
    protocols: dict[str, str] = {}
    for entry in str(value).split(","):
        name, separator, protocol = (part.strip().upper() for part in entry.rpartition(":"))
        if not separator or not name or protocol not in _PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: expected NAME:PROTOCOL, found {entry.strip()!r}"
            )
        if name in protocols:
            raise ConfigError(f"listener.security.protocol.map: {name} appears twice")
        protocols[name] = protocol
    for listener in every:
        protocol = protocols.get(listener.name, "")
        if not protocol:
            raise ConfigError(f"listeners: No security protocol defined for listener {listener.name}")
        if protocol != PLAINTEXT:
            raise ConfigError(f"listeners: {listener.name} is {protocol}; only PLAINTEXT is supported")


def _advertised(own: tuple[Listener, ...], value: Value) -> tuple[Listener, ...]:
    advertised = own if value is None else _parse_list("advertised.listeners", value)
    names = [listener.name for listener in advertised]
    known = [listener.name for listener in own]
    if hidden := sorted(set(known) - set(names)):
        raise ConfigError(
            f"advertised.listeners: {hidden[0]} of listeners is missing: a client that connects there could "
            "not be told where to find its leaders"
        )
    if stray := sorted(set(names) - set(known)):
        raise ConfigError(
            "advertised.listeners listener names must be equal to or a subset of the ones defined in "
            f"listeners. Found {','.join(stray)}. The valid options are {','.join(known)}"
        )
    if len(set(names)) != len(names):
        raise ConfigError("advertised.listeners: Each listener must have a different name")
    for listener in advertised:
        if not listener.host and value is None:
            continue  # the machine's name, which is known where the node runs
        if listener.host in ("", "0.0.0.0", "::"):
            raise ConfigError(
                f"advertised.listeners cannot use the nonroutable meta-address {listener.host or '(empty)'}. "
                "Use a routable IP address."
            )
    return advertised
