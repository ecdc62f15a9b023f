"""Settings of each process of a machine, derived from the one file that all of them have.

A node is one event loop, so a machine of several cores runs several nodes (`firn.processes`). The first has
the file's settings; what the others need of their own follows from these and from their number:

>>> given = {"listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093", "controller.listener.names": "CONTROLLER"}
>>> second = derived({**given, "log.dirs": "/data", "node.id": "3"}, 2, 4)
>>> second["node.id"], second["process.roles"], second["listeners"], second["log.dirs"]
('1003', 'broker', 'PLAINTEXT://a:9102', '/data/processes/1003')
>>> second["controller.quorum.bootstrap.servers"]
'a:9093'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from service.base.errors import ConfigError
from service.config.cluster import ClusterConfig
from service.config.given import GivenConfig
from service.config.keys import INT_MAX
from service.config.listeners import Address, Listener
from service.config.parsing import parse_value
from service.config.protocols import SecurityProtocol
from service.config.tables import BROKER_KEYS
from service.config.tables.checks import AUTO, MOST_PROCESSES

PROCESSES: Final = "firn.processes"
PORT_STEP: Final = "firn.processes.port.step"
ID_STEP: Final = "firn.processes.id.step"
HTTP: Final = "firn.http.listener"
FOLDER: Final = "processes"
"""Folder of a log directory with a directory for each further process. No partition can be called so."""
SHARED: Final = (
    "queued.max.request.bytes",
    "firn.remote.cache.bytes",
    "firn.remote.cache.dir.bytes",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "remote.log.manager.copy.max.bytes.per.second",
    "remote.log.manager.fetch.max.bytes.per.second",
)  # fmt: skip
"""Keys whose given value is the machine's: each process has its share. Defaults are each process's."""
_CONTROLLER: Final = "CONTROLLER"
_LOOPBACK: Final = "127.0.0.1"
_EVERYWHERE: Final = {"": _LOOPBACK, "0.0.0.0": _LOOPBACK, "::": "::1"}


class _Bound(NamedTuple):
    """Address that a process listens on."""

    host: str
    port: int
    number: int
    what: str

    def meets(self, other: _Bound) -> bool:
        """Return whether both cannot be listened on."""
        hosts = {self.host, other.host}
        return self.port == other.port and (len(hosts) == 1 or bool(hosts & _EVERYWHERE.keys()))


def process_count(properties: Mapping[str, str], cores: int) -> int:
    """Return how many processes these settings ask for. Raises `ConfigError`."""
    value = parse_value(BROKER_KEYS[PROCESSES], properties.get(PROCESSES, "1"))
    return min(cores, MOST_PROCESSES) if value == AUTO else int(str(value))


def processes_of(given: GivenConfig, cores: int) -> tuple[GivenConfig, ...]:
    """Return the settings of each process. Raises `ConfigError`, with the place of each problem."""
    count = given.checked(lambda properties: process_count(properties, cores))
    if count == 1:
        return (given,)

    def every(properties: Mapping[str, str]) -> list[dict[str, str | None]]:
        found = [derived(properties, number, count) for number in range(1, count + 1)]
        _check_ports(with_derived(properties, one) for one in found)
        return found

    return tuple(
        replace(
            given,
            properties=with_derived(given.properties, one),
            texts={key: text for key, text in given.texts.items() if key not in one},
        )
        for one in given.checked(every)
    )


def with_derived(properties: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the properties with what is derived; a key with None is left out."""
    merged = {**properties, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def derived(properties: Mapping[str, str], number: int, count: int) -> dict[str, str | None]:
    """Return the settings in which process `number`, of 1 to `count`, differs from the given ones; None: the
    process does not have the key. Raises `ConfigError`."""
    cluster = ClusterConfig.from_properties(properties)
    if not cluster.is_broker:
        raise ConfigError(f"{PROCESSES}: {count} processes hold partitions, and process.roles has no broker")
    found: dict[str, str | None] = dict(_shares(properties, count))
    node_id = cluster.node_id + (number - 1) * _whole(properties, ID_STEP)
    if node_id > INT_MAX:
        raise ConfigError(f"node.id: process {number} of {count} would have the id {node_id}")
    if directory := properties.get("firn.remote.cache.dir"):
        # The first one, too: a node empties its cache at each start.
        found["firn.remote.cache.dir"] = _below(directory, node_id)
    first = _with_controller(cluster, properties, count)
    if number == 1:
        return {**found, **first}
    if first:
        cluster = ClusterConfig.from_properties(with_derived(properties, first))
        found["controller.listener.names"] = first["controller.listener.names"]
    by = (number - 1) * _whole(properties, PORT_STEP)
    found |= {
        "node.id": str(node_id),
        "process.roles": "broker",
        "listeners": ",".join(_shifted("listeners", cluster.listeners, by)),
        "log.dirs": ",".join(_below(path, node_id) for path in cluster.log_dirs),
    }
    if "broker.id" in properties:
        found["broker.id"] = str(node_id)
    if "advertised.listeners" in properties:
        shifted = _shifted("advertised.listeners", cluster.advertised_listeners, by)
        found["advertised.listeners"] = ",".join(shifted)
    if directory := properties.get("metadata.log.dir"):
        found["metadata.log.dir"] = _below(directory, node_id)
    if (http := _http_address(properties)) is not None:
        found[HTTP] = f"{http[0]}:{_port(HTTP, http[1], by)}"
    if "controller.quorum.auto.join.enable" in properties:
        found["controller.quorum.auto.join.enable"] = None
    if not cluster.quorum.voters and not cluster.quorum.bootstrap_servers:
        found["controller.quorum.bootstrap.servers"] = str(_controller(cluster))
    return found


def _with_controller(
    cluster: ClusterConfig, properties: Mapping[str, str], count: int
) -> dict[str, str | None]:
    """Return the controller's listener of the first process, where it would be alone without one: on the
    loopback interface, as its only clients are the other processes."""
    if cluster.is_member:
        return {}
    is_open = all(one.protocol is SecurityProtocol.PLAINTEXT for one in cluster.listeners)
    port = cluster.listeners[0].port
    if not is_open or not port or "listener.security.protocol.map" in properties:
        raise ConfigError(
            f"{PROCESSES}: {count} processes need a controller: give listeners one for it with a fixed port, "
            f"as {_CONTROLLER}://{_LOOPBACK}:9093, name it in controller.listener.names, and its protocol in "
            "listener.security.protocol.map"
        )
    controller = Listener(_CONTROLLER, _LOOPBACK, _port("listeners", port, 1))
    return {
        "listeners": ",".join(map(str, (*cluster.listeners, controller))),
        "controller.listener.names": _CONTROLLER,
    }


def _controller(cluster: ClusterConfig) -> Address:
    """Return the address of the machine's own controller, for its other processes."""
    listener = cluster.advertised_controller_listeners[0]
    if not listener.port:
        raise ConfigError("listeners: the controller's listener needs a fixed port: other processes use it")
    return Address(_EVERYWHERE.get(listener.host, listener.host), listener.port)


def _shares(properties: Mapping[str, str], count: int) -> Iterator[tuple[str, str]]:
    for name in SHARED:
        if name not in properties:
            continue
        key = BROKER_KEYS[name]
        value = parse_value(key, properties[name])
        assert isinstance(value, int | float)
        if value <= 0:
            continue  # no bound
        share = value // count if isinstance(value, int) else value / count
        if key.at_least is not None and share < key.at_least:
            raise ConfigError(
                f"{name}: {properties[name]} is the machine's: each of {count} processes has {share}, and "
                f"needs {key.at_least}"
            )
        yield name, str(share)


def _whole(properties: Mapping[str, str], name: str) -> int:
    key = BROKER_KEYS[name]
    value = parse_value(key, properties[name]) if name in properties else key.default
    assert isinstance(value, int)
    return value


def _http_address(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return host and port of the HTTP listener, None without one. Raises `ConfigError`."""
    if HTTP not in properties:
        return None
    host, _, port = str(parse_value(BROKER_KEYS[HTTP], properties[HTTP])).rpartition(":")
    return host, int(port)


def _below(directory: str | Path, node_id: int) -> str:
    return str(Path(directory) / FOLDER / str(node_id))


def _shifted(key: str, listeners: Iterable[Listener], by: int) -> Iterator[str]:
    return (str(one._replace(port=_port(key, one.port, by))) for one in listeners)


def _port(key: str, port: int, by: int) -> int:
    """Return a process's port; 0, a free one, stays."""
    if port + by > 65535:
        raise ConfigError(f"{key}: port {port} + {by} is no port: fewer processes, or a smaller {PORT_STEP}")
    return port and port + by


def _check_ports(processes: Iterable[Mapping[str, str]]) -> None:
    """Raise `ConfigError` where two processes would listen on one address."""
    taken: list[_Bound] = []
    for number, properties in enumerate(processes, 1):
        own = list(_bound(properties, number))
        for one in own:
            if (other := next((it for it in taken if it.meets(one)), None)) is not None:
                raise ConfigError(
                    f"listeners: {one.what} of process {number} and {other.what} of process {other.number} "
                    f"have port {one.port}: set {PORT_STEP}, or other ports"
                )
        taken += own


def _bound(properties: Mapping[str, str], number: int) -> Iterator[_Bound]:
    cluster = ClusterConfig.from_properties(properties)
    for one in (*cluster.listeners, *cluster.controller_listeners):
        if one.port:
            yield _Bound(one.host, one.port, number, one.name)
    http = _http_address(properties)
    if http is not None and http[1]:
        yield _Bound(http[0].strip("[]") or _LOOPBACK, http[1], number, HTTP)
