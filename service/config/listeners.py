"""Parser and checks of listeners and of the quorum's voters, in Kafka's notation. [P]

`listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://:9093`. See Kafka
`SocketServerConfigs.listenerListToEndPoints` and `KafkaConfig.validateValues`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from service.base.errors import ConfigError
from service.config.keys import INT_MAX, Value
from service.config.protocols import SecurityProtocol, read_protocols

_ENTRY: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]{1,10})")
_ADDRESS: Final = re.compile(r"(?:[0-9a-zA-Z\-%._]*://)?\[?([0-9a-zA-Z\-%._:]*)\]?:([0-9]{1,5})")
PLAINTEXT: Final = "PLAINTEXT"
_EVERY_INTERFACE: Final = ("", "0.0.0.0", "::")


class Listener(NamedTuple):
    """One address. An empty host is every interface, port 0 a free port."""

    name: str
    host: str
    port: int
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class Listeners(NamedTuple):
    """Listeners and advertised listeners of a node, by role. `inter_broker`: name of the listener for traffic
    among brokers; `controller_names`: names of the controllers' listeners, on all nodes; `protocols`: by
    listener name, with those of other nodes' listeners."""

    broker: tuple[Listener, ...]
    advertised_broker: tuple[Listener, ...]
    controller: tuple[Listener, ...]
    advertised_controller: tuple[Listener, ...]
    controller_names: tuple[str, ...]
    inter_broker: str
    protocols: Mapping[str, SecurityProtocol]


class Address(NamedTuple):
    """Address of a controller."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class StaticVoter(NamedTuple):
    """A voter named by `controller.quorum.voters`."""

    node_id: int
    address: Address

    def __str__(self) -> str:
        return f"{self.node_id}@{self.address}"


def read_listeners(
    values: Mapping[str, Value], voters: Sequence[StaticVoter], *, is_alone: bool
) -> Listeners:
    """Return the listeners of a node with the roles, names and maps in `values`. Raises `ConfigError`.

    `is_alone`: the cluster has no other node.
    """
    roles = values["process.roles"]
    names = values["controller.listener.names"]
    assert isinstance(roles, tuple)
    assert isinstance(names, tuple)
    controller_names = tuple(name.upper() for name in names)
    if len(set(controller_names)) != len(controller_names):
        raise ConfigError("Configuration 'controller.listener.names' values must not be duplicated.")
    every = _parse_list("listeners", values["listeners"])
    _check_differ(every)
    protocols = read_protocols(
        values["listener.security.protocol.map"], [one.name for one in every], controller_names
    )
    every = _with_protocols(every, controller_names, protocols)
    controller = tuple(listener for listener in every if listener.name in controller_names)
    broker = tuple(listener for listener in every if listener.name not in controller_names)
    if "controller" in roles:
        _check_controller(controller, broker, controller_names, roles, is_alone=is_alone)
    else:
        _check_pure_broker(controller, controller_names)
    if "broker" in roles and not broker:
        raise ConfigError(
            "There must be at least one broker advertised listener. "
            "Perhaps all listeners appear in controller.listener.names?"
        )
    given = values["advertised.listeners"]
    advertised = None if given is None else _parse_list("advertised.listeners", given)
    advertised_broker = _advertised_broker(broker, every, advertised, controller_names)
    return Listeners(
        broker,
        advertised_broker,
        controller,
        _advertised_controller(controller, advertised, controller_names, _own(values, voters)),
        controller_names,
        _inter_broker(values, roles, advertised_broker, controller_names, protocols, is_alone=is_alone),
        protocols,
    )


def read_voters(values: Mapping[str, Value]) -> tuple[StaticVoter, ...]:
    """Parse `controller.quorum.voters`, by id (Kafka `parseVoterConnections`). Raises `ConfigError`."""
    entries = values["controller.quorum.voters"]
    assert isinstance(entries, tuple)
    voters: dict[int, StaticVoter] = {}
    for entry in entries:
        voter = _parse_voter(entry)
        if voter.node_id in voters:
            raise ConfigError(f"controller.quorum.voters: node {voter.node_id} is named twice")
        voters[voter.node_id] = voter
    return tuple(voters[node_id] for node_id in sorted(voters))


def read_bootstrap_servers(values: Mapping[str, Value]) -> tuple[Address, ...]:
    """Parse `controller.quorum.bootstrap.servers`, in the order given. Raises `ConfigError`."""
    entries = values["controller.quorum.bootstrap.servers"]
    assert isinstance(entries, tuple)
    found = []
    for entry in entries:
        address = _parse_address(entry)
        if address is None or not address.host:
            raise ConfigError(
                f"Failed to parse host name from {entry} for the configuration "
                'controller.quorum.bootstrap.servers. Each entry should be in the form "{host}:{port}"'
            )
        found.append(address)
    return tuple(found)


def _parse_voter(entry: str) -> StaticVoter:
    form = "Each entry should be in the form `{id}@{host}:{port}`."
    node_id, separator, rest = entry.partition("@")
    if not separator or "@" in rest:
        raise ConfigError(f"Invalid configuration value for controller.quorum.voters. {form}")
    if not (node_id.isascii() and node_id.isdigit() and len(node_id) <= 10 and int(node_id) <= INT_MAX):
        raise ConfigError(f"Failed to parse voter ID as an integer from {node_id}")
    address = _parse_address(rest)
    if address is None or not address.host:
        raise ConfigError(
            f"Failed to parse host name from entry {entry} for the configuration "
            f"controller.quorum.voters. {form}"
        )
    return StaticVoter(int(node_id), address)


def _parse_address(text: str) -> Address | None:
    """Parse `host:port`, the host in brackets or not; None if invalid (Kafka `Utils.getHost`, `getPort`)."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[2]) <= 65535:
        return None
    return Address(match[1], int(match[2]))


def _own(values: Mapping[str, Value], voters: Sequence[StaticVoter]) -> StaticVoter | None:
    return next((voter for voter in voters if voter.node_id == values["node.id"]), None)


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
            raise ConfigError(f"{key}: {entry.strip()}: a port must be between 0 and 65535")
        result.append(Listener(match[1].upper(), match[2], port))
    return tuple(result)


def _check_differ(every: Sequence[Listener]) -> None:
    names = [listener.name for listener in every]
    if len(set(names)) != len(names):
        raise ConfigError("listeners: Each listener must have a different name")
    addresses = [(listener.host, listener.port) for listener in every if listener.port]
    if len(set(addresses)) != len(addresses):
        raise ConfigError("listeners: Each listener must have a different address")


def _check_controller(
    controller: Sequence[Listener],
    broker: Sequence[Listener],
    controller_names: Sequence[str],
    roles: Sequence[str],
    *,
    is_alone: bool,
) -> None:
    if missing := sorted(set(controller_names) - {listener.name for listener in controller}):
        raise ConfigError(
            "controller.listener.names must only contain values appearing in the 'listeners' configuration "
            f"when running the KRaft controller role; missing: {', '.join(missing)}"
        )
    if "broker" not in roles and broker:
        raise ConfigError(
            "The listeners config must only contain KRaft controller listeners from "
            "controller.listener.names when process.roles=controller"
        )
    if not controller and not is_alone:
        raise ConfigError(
            "controller.listener.names must contain at least one value appearing in the 'listeners' "
            "configuration when running the KRaft controller role"
        )


def _check_pure_broker(controller: Sequence[Listener], controller_names: Sequence[str]) -> None:
    if not controller_names:
        raise ConfigError(
            "controller.listener.names must contain at least one value when running KRaft with just the "
            "broker role"
        )
    if controller:
        raise ConfigError(
            "controller.listener.names must not contain a value appearing in the 'listeners' configuration "
            "when running KRaft with just the broker role"
        )


def _with_protocols(
    every: Sequence[Listener], controller_names: Sequence[str], protocols: Mapping[str, SecurityProtocol]
) -> tuple[Listener, ...]:
    """Return the listeners with their protocols. Raises `ConfigError` if one has none."""
    if unknown := [listener.name for listener in every if listener.name not in protocols]:
        name = unknown[0]
        example = name if name in SecurityProtocol.__members__ else SecurityProtocol.SSL.name
        raise ConfigError(
            f"listeners: No security protocol defined for listener {name}; listener.security.protocol.map "
            f"has to name it, as in {name}:{example} (of {', '.join(SecurityProtocol.__members__)})"
        )
    if missing := [name for name in controller_names if name not in protocols]:
        raise ConfigError(
            f"Controller listener with name {missing[0]} defined in controller.listener.names not found in "
            "listener.security.protocol.map  (an explicit security mapping for each controller listener "
            "is required if listener.security.protocol.map is non-empty, or if there are security "
            "protocols other than PLAINTEXT in use)"
        )
    return tuple(listener._replace(protocol=protocols[listener.name]) for listener in every)


def _advertised_broker(
    broker: tuple[Listener, ...],
    every: Sequence[Listener],
    given: Sequence[Listener] | None,
    controller_names: Sequence[str],
) -> tuple[Listener, ...]:
    advertised = broker if given is None else tuple(one for one in given if one.name not in controller_names)
    own = {listener.name: listener.protocol for listener in broker}
    names = [listener.name for listener in advertised]
    known = [listener.name for listener in broker]
    if hidden := sorted(set(known) - set(names)):
        raise ConfigError(
            f"advertised.listeners: {hidden[0]} of listeners is missing: clients that connect to it could "
            "not get the addresses of leaders"
        )
    if stray := sorted(set(names) - set(known)):
        raise ConfigError(
            "advertised.listeners listener names must be equal to or a subset of the ones defined in "
            f"listeners. Found {','.join(stray)}. The valid options are "
            f"{','.join(listener.name for listener in every)}"
        )
    if given is not None:
        every_name = [listener.name for listener in given]
        if len(set(every_name)) != len(every_name):
            raise ConfigError("advertised.listeners: Each listener must have a different name")
    for listener in advertised:
        if given is not None or listener.host:  # else the machine's name, which `placed` fills in
            _check_routable(listener)
    return tuple(listener._replace(protocol=own[listener.name]) for listener in advertised)


def _advertised_controller(
    controller: Sequence[Listener],
    given: Sequence[Listener] | None,
    controller_names: Sequence[str],
    own: StaticVoter | None,
) -> tuple[Listener, ...]:
    """Return the advertised listeners of the controller, the first of `controller.listener.names` first.

    As Kafka's `KafkaConfig.effectiveAdvertisedControllerListeners`: those in `advertised.listeners`; for the
    first name, else the address of this node in `controller.quorum.voters`; else the listener itself, with
    the machine's name if it is on every interface.
    """
    by_name = {listener.name: listener for listener in given or ()}
    bound = {listener.name: listener for listener in controller}
    found = []
    for name in controller_names:
        if name in by_name and name in bound:
            _check_routable(by_name[name])
            found.append(by_name[name]._replace(protocol=bound[name].protocol))
        elif name in bound:
            listener = bound[name]
            if listener.host in _EVERY_INTERFACE:
                address = Address("", listener.port)
                if own is not None and name == controller_names[0]:
                    address = own.address
                listener = listener._replace(host=address.host, port=address.port)
            found.append(listener)
    return tuple(found)


def _check_routable(listener: Listener) -> None:
    if listener.host in _EVERY_INTERFACE:
        raise ConfigError(
            f"advertised.listeners cannot use the nonroutable meta-address {listener.host or '(empty)'}. "
            "Use a routable IP address."
        )


def _inter_broker(
    values: Mapping[str, Value],
    roles: Sequence[str],
    advertised: Sequence[Listener],
    controller_names: Sequence[str],
    protocols: Mapping[str, SecurityProtocol],
    *,
    is_alone: bool,
) -> str:
    """Return the name of the listener for traffic among brokers; "" on a pure controller that sets neither
    key of it."""
    chosen = values["inter.broker.listener.name"]
    by_protocol = SecurityProtocol[str(values["security.inter.broker.protocol"])]
    name = by_protocol.name if chosen is None else str(chosen).upper()
    if chosen is not None and name not in protocols:
        raise ConfigError(
            f"Listener with name {name} defined in inter.broker.listener.name not found in "
            "listener.security.protocol.map."
        )
    if "broker" not in roles:
        if chosen is not None and name in controller_names:
            raise ConfigError(
                "controller.listener.names must not contain an explicitly set inter.broker.listener.name "
                "configuration value when process.roles=controller"
            )
        return "" if chosen is None and by_protocol is SecurityProtocol.PLAINTEXT else name
    names = [listener.name for listener in advertised]
    if name in names:
        return name
    if chosen is None and is_alone and by_protocol is SecurityProtocol.PLAINTEXT:
        return names[0]
    raise ConfigError(
        "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid "
        f"options based on currently configured listeners are {','.join(names)}"
    )
