"""Settings of a node as a member of its cluster: roles, quorum, listeners by role, broker sessions. [P]

`ClusterConfig` is made from the same string properties as `BrokerConfig`. The rules across keys are those of
Kafka's `KafkaConfig.validateValues` for KRaft, with its texts. A node that is alone, which has both roles and
names no other voter or bootstrap server, needs none of the keys.

>>> ClusterConfig.from_properties({}).is_alone
True
>>> three = "1@a:9093,2@b:9093,3@c:9093"
>>> node = ClusterConfig.from_properties(
...     {
...         "controller.quorum.voters": three,
...         "listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093",
...         "controller.listener.names": "CONTROLLER",
...     }
... )
>>> node.is_alone, [str(voter) for voter in node.quorum.voters]
(False, ['1@a:9093', '2@b:9093', '3@c:9093'])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from service.base.addresses import is_loopback
from service.base.errors import ConfigError
from service.config.keys import Value
from service.config.listeners import (
    Address,
    Listener,
    Listeners,
    StaticVoter,
    read_bootstrap_servers,
    read_listeners,
    read_voters,
)
from service.config.overrides import check_listeners, parse_node
from service.config.parsing import effective, with_node_id
from service.config.security import NodeSecurity, read_security

BROKER: Final = "broker"
CONTROLLER: Final = "controller"


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    """The keys ``controller.quorum.*`` and ``firn.quorum.*``: a field is its key without that, `_` for `.`.

    `voters` are the configured ones, by id; none if the log directories record the voters.
    """

    voters: tuple[StaticVoter, ...]
    bootstrap_servers: tuple[Address, ...]
    election_timeout_ms: int
    fetch_timeout_ms: int
    election_backoff_max_ms: int
    append_linger_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    auto_join_enable: bool
    fetch_max_bytes: int
    fetch_snapshot_max_bytes: int
    refused_election: bool


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Settings of one node in its cluster. A field is its key with `_` for `.` and without `firn.`.

    Listeners are by role. Other nodes learn those of the controller, the first of
    `controller_listener_names` first. An empty host is every interface or, advertised, the machine's name
    (`placed`). `inter_broker_listener_name` is empty on a pure controller that sets none.
    """

    node_id: int
    process_roles: tuple[str, ...]
    log_dirs: tuple[Path, ...]
    metadata_log_dir: Path
    quorum: QuorumConfig
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    controller_listeners: tuple[Listener, ...]
    advertised_controller_listeners: tuple[Listener, ...]
    controller_listener_names: tuple[str, ...]
    inter_broker_listener_name: str
    security: NodeSecurity
    metadata_max_retention_bytes: int
    metadata_max_retention_ms: int
    metadata_max_idle_interval_ms: int
    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    initial_broker_registration_timeout_ms: int
    broker_refused_fence_ms: int
    controlled_shutdown_enable: bool
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    unclean_leader_election_enable: bool
    unclean_leader_election_interval_ms: int

    @property
    def listener_names(self) -> tuple[str, ...]:
        """Names of this node's listeners, of the controllers' and of the brokers' for each other."""
        own = (one.name for one in (*self.listeners, *self.controller_listeners))
        return (*own, *self.controller_listener_names, self.inter_broker_listener_name)

    @property
    def is_broker(self) -> bool:
        return BROKER in self.process_roles

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.process_roles

    @property
    def is_alone(self) -> bool:
        """True if the configuration names no other node: this node is its own quorum."""
        return _is_alone(self.node_id, self.process_roles, self.quorum.voters, self.quorum.bootstrap_servers)

    @property
    def is_member(self) -> bool:
        """True if the node follows a quorum's metadata log: other nodes are configured, or can join. A node
        that is alone and has no controller listener decides in memory."""
        return not self.is_alone or bool(self.controller_listeners)

    @property
    def is_static_voter(self) -> bool:
        """True if the configuration names this node among the quorum's voters, or it is alone."""
        return self.is_alone or any(voter.node_id == self.node_id for voter in self.quorum.voters)

    @property
    def names_no_other_controller(self) -> bool:
        """True if this is a controller, and the only one that its configuration names."""
        own = (*self.controller_listeners, *self.advertised_controller_listeners)
        return (
            self.is_controller
            and not any(voter.node_id != self.node_id for voter in self.quorum.voters)
            and all(any(_is_at(server, one) for one in own) for server in self.quorum.bootstrap_servers)
        )

    @property
    def directories(self) -> tuple[Path, ...]:
        """All directories of the node, with that of the metadata log."""
        return tuple(dict.fromkeys((*self.log_dirs, self.metadata_log_dir)))

    @staticmethod
    def from_properties(properties: Mapping[str, str]) -> ClusterConfig:
        """Parse and check properties; raise `ConfigError` with one line for each error.

        The node's other keys are accepted, too; each is checked by itself.
        """
        problems: list[str] = []
        strangers: list[str] = []
        values = parse_node(effective(with_node_id(properties)), problems, strangers)
        if problems:
            raise ConfigError(*problems, *strangers)
        try:
            cluster = read_cluster(values)
        except ConfigError as e:
            raise ConfigError(*e.problems, *strangers) from None
        if strangers:
            raise ConfigError(*strangers)
        return cluster

    def placed(self, directory: Path, host: str) -> ClusterConfig:
        """Return these settings for a machine called `host`, with the working directory `directory`."""
        return dataclasses.replace(
            self,
            log_dirs=tuple(directory / path for path in self.log_dirs),
            metadata_log_dir=directory / self.metadata_log_dir,
            advertised_listeners=_named(self.advertised_listeners, host),
            advertised_controller_listeners=_named(self.advertised_controller_listeners, host),
        )

    def complaints(self) -> list[str]:
        """Return warnings about accepted but doubtful settings, for the log (Kafka logs the same)."""
        found = []
        interval, timeout = self.broker_heartbeat_interval_ms, self.broker_session_timeout_ms
        if interval * 2 > timeout:
            found.append(
                f"broker.heartbeat.interval.ms ({interval} ms) must be less than or equal to half of the "
                f"broker.session.timeout.ms ({timeout} ms), which is configured on controllers: a broker "
                "whose heartbeat is late is fenced"
            )
        if not self.is_controller and len(self.controller_listener_names) > 1:
            found.append(
                "controller.listener.names has multiple entries; only the first will be used since "
                f"process.roles=broker: {','.join(self.controller_listener_names)}"
            )
        return [*found, *self.security.complaints]


def read_cluster(values: Mapping[str, Value]) -> ClusterConfig:
    """Build the cluster's settings from the parsed `values` of all keys. `ConfigError`: a line per error."""
    roles, node_id = values["process.roles"], values["node.id"]
    assert isinstance(roles, tuple)
    assert isinstance(node_id, int)
    problems: list[str] = []
    dirs = _log_dirs(values, problems)
    if not roles:
        problems.append(
            "Configuration 'process.roles' must not be empty. Valid values include: broker, controller"
        )
        raise ConfigError(*problems)
    try:
        voters, bootstrap = read_voters(values), read_bootstrap_servers(values)
    except ConfigError as e:
        raise ConfigError(*problems, *e.problems) from None
    is_alone = _is_alone(node_id, roles, voters, bootstrap)
    problems.extend(_quorum_problems(values, node_id, roles, voters, bootstrap, is_alone=is_alone))
    try:
        listeners = read_listeners(values, voters, is_alone=is_alone)
    except ConfigError as e:
        raise ConfigError(*problems, *e.problems) from None
    names = {one.name for one in (*listeners.broker, *listeners.controller)}
    problems.extend(check_listeners(values, (*names, *listeners.controller_names, listeners.inter_broker)))
    security = read_security(
        values,
        listeners,
        problems,
        is_broker=BROKER in roles,
        is_alone=is_alone and not listeners.controller,
        joins_controllers=CONTROLLER in roles and _has_others(listeners, node_id, voters, bootstrap),
    )
    if problems:
        raise ConfigError(*problems)
    metadata_dir = values["metadata.log.dir"]
    fields: dict[str, Any] = {name.removeprefix("firn.").replace(".", "_"): values[name] for name in values}
    known = {field.name for field in dataclasses.fields(ClusterConfig)}
    return ClusterConfig(
        **{
            **{name: value for name, value in fields.items() if name in known},
            "log_dirs": dirs,
            "metadata_log_dir": Path(str(metadata_dir)) if metadata_dir else dirs[0],
            "quorum": _quorum(fields, voters, bootstrap),
            "listeners": listeners.broker,
            "advertised_listeners": listeners.advertised_broker,
            "controller_listeners": listeners.controller,
            "advertised_controller_listeners": listeners.advertised_controller,
            "controller_listener_names": listeners.controller_names,
            "inter_broker_listener_name": listeners.inter_broker,
            "security": security,
        }
    )


def _quorum(
    fields: Mapping[str, Any], voters: tuple[StaticVoter, ...], bootstrap: tuple[Address, ...]
) -> QuorumConfig:
    own = {
        name.removeprefix("controller_").removeprefix("quorum_"): value
        for name, value in fields.items()
        if name.startswith(("controller_quorum_", "quorum_"))
    }
    return QuorumConfig(**{**own, "voters": voters, "bootstrap_servers": bootstrap})


def _quorum_problems(
    values: Mapping[str, Value],
    node_id: int,
    roles: tuple[str, ...],
    voters: tuple[StaticVoter, ...],
    bootstrap: tuple[Address, ...],
    *,
    is_alone: bool,
) -> Iterable[str]:
    ids = {voter.node_id for voter in voters}
    shown = "{" + ",".join(map(str, sorted(ids))) + "}"
    if not voters and not bootstrap and not is_alone:
        yield (
            "If using process.roles, either controller.quorum.bootstrap.servers must contain the set of "
            "bootstrap controllers or controller.quorum.voters must contain a parseable set of controllers."
        )
    if CONTROLLER in roles and voters and node_id not in ids:
        yield (
            f"If process.roles contains the 'controller' role, the node id {node_id} must be included in "
            f"the set of voters controller.quorum.voters={shown}"
        )
    if CONTROLLER not in roles and node_id in ids:
        yield (
            f"If process.roles contains just the 'broker' role, the node id {node_id} must not be included "
            f"in the set of voters controller.quorum.voters={shown}"
        )
    if CONTROLLER not in roles and values["controller.quorum.auto.join.enable"]:
        yield (
            "controller.quorum.auto.join.enable is only supported when process.roles contains the "
            "'controller' role."
        )
    if not is_alone:
        for voter in voters:
            if voter.address.host == "0.0.0.0":
                yield f"Host string ({voter.address.host}) is not routeable"


def _is_alone(
    node_id: int, roles: tuple[str, ...], voters: tuple[StaticVoter, ...], bootstrap: tuple[Address, ...]
) -> bool:
    return set(roles) == {BROKER, CONTROLLER} and not bootstrap and {v.node_id for v in voters} <= {node_id}


def _has_others(
    listeners: Listeners, node_id: int, voters: tuple[StaticVoter, ...], bootstrap: tuple[Address, ...]
) -> bool:
    """Return whether the configuration names controllers beside this one."""
    own = {(one.host, one.port) for one in (*listeners.controller, *listeners.advertised_controller)}
    return any(one.node_id != node_id for one in voters) or any(tuple(one) not in own for one in bootstrap)


def _is_at(address: Address, listener: Listener) -> bool:
    """Return whether an address of a controller is that of this node's listener."""
    if address.port != listener.port:
        return False
    is_here = listener.host in ("", "0.0.0.0", "::") or is_loopback(listener.host)
    return address.host == listener.host or (is_here and is_loopback(address.host))


def _log_dirs(values: Mapping[str, Value], problems: list[str]) -> tuple[Path, ...]:
    chosen = values["log.dirs"] if values["log.dirs"] is not None else values["log.dir"]
    assert isinstance(chosen, tuple)
    dirs = tuple(Path(text) for text in chosen if text)
    if not dirs:
        problems.append("At least one log directory must be defined via log.dirs or log.dir.")
    if len(set(dirs)) != len(dirs):
        problems.append("log.dirs: a directory is named twice")
    return dirs


def _named(listeners: Iterable[Listener], host: str) -> tuple[Listener, ...]:
    return tuple(one if one.host else one._replace(host=host) for one in listeners)
