"""Cluster for `firn dev`: nodes planned out and formatted, to be run as child processes (`node_processes`).

Ports are chosen before the first node starts.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from service.base.errors import ConfigError
from service.base.world import World
from service.cli.node_processes import SERVER, Child

if TYPE_CHECKING:
    from service.metadata.records import UserScramCredentialRecord

HOST: Final = "127.0.0.1"
FREE_PORTS: Final = range(20_000, 32_000)
"""Below the range of ephemeral ports."""


class DevNode(NamedTuple):
    """A node of the plan, with its settings by key."""

    node_id: int
    is_controller: bool
    settings: dict[str, str]

    def child(self, log_level: str, environ: Mapping[str, str] | None = None) -> Child:
        """Return the `firn server` command of this node; the command line shows its ``node.id``."""
        words = [f"{key}={value}" for key, value in self.settings.items()]
        options = [word for one in words for word in ("--set", one)]
        command = (*SERVER, "--log-level", log_level, *options)
        return Child(self.node_id, command, self.is_controller, environ)


class Plan(NamedTuple):
    """Nodes of one cluster, and the first voters for `firn format`."""

    nodes: tuple[DevNode, ...]
    cluster_id: str
    initial_controllers: str


# -- planning


def agree_on_ports(first: int, nodes: int, controllers: int) -> tuple[list[int], list[int]]:
    """Return ports for the nodes, from `first` on or free ones (0), and free ports for the controllers.

    All are free at the same time. Raises `ConfigError` if one from `first` on is not.
    """
    if first and first + nodes - 1 > 65535:
        raise ConfigError(f"--port {first}: {nodes} nodes need as many ports from that one on")
    with contextlib.ExitStack() as held:
        chosen = [first + i for i in range(nodes)] if first else []
        for port in chosen:
            held.enter_context(_bound(port))
        free = [_free(held) for _ in range(controllers + nodes - len(chosen))]
        return [*chosen, *free[controllers:]], free[:controllers]


def _bound(port: int) -> socket.socket:
    try:
        return _bind(port)
    except OSError as e:
        raise ConfigError(f"cannot listen on port {port} of {HOST}: {e.strerror}") from e


def _free(held: contextlib.ExitStack) -> int:
    chance = random.SystemRandom()
    while True:
        port = chance.choice(FREE_PORTS)
        with contextlib.suppress(OSError):
            held.enter_context(_bind(port))
            return port


def _bind(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(1)  # else the address could be shared
    except OSError:
        listener.close()
        raise
    return listener


def plan_nodes(
    nodes: int,
    controllers: int,
    ports: tuple[Sequence[int], Sequence[int]],
    directory: Path,
    world: World,
    settings: Mapping[str, str],
) -> Plan:
    """Plan `nodes` nodes, the first `controllers` of which are controllers, too; `ports` are those of
    `agree_on_ports`. `settings` apply to all nodes, unless the cluster needs other values."""
    from service.hot.log_dir import encode_uuid, random_id
    from service.metadata.bootstrap import InitialController

    if not 1 <= controllers <= nodes:
        raise ConfigError(f"--controllers {controllers}: must be from 1 to the number of nodes ({nodes})")
    brokers, quorum = ports
    voters = [InitialController(i + 1, HOST, port, random_id(world)) for i, port in enumerate(quorum)]
    bootstrap = ",".join(f"{HOST}:{port}" for port in quorum)
    planned = []
    for number, port in enumerate(brokers):
        is_controller = number < controllers
        own = f",CONTROLLER://{HOST}:{quorum[number]}" if is_controller else ""
        planned.append(
            DevNode(
                number + 1,
                is_controller,
                {
                    **settings,
                    "node.id": str(number + 1),
                    "process.roles": "broker,controller" if is_controller else "broker",
                    "controller.quorum.bootstrap.servers": bootstrap,
                    "controller.listener.names": "CONTROLLER",
                    "listeners": f"PLAINTEXT://{HOST}:{port}{own}",
                    "log.dirs": str(directory / f"node-{number + 1}"),
                },
            )
        )
    return Plan(tuple(planned), encode_uuid(random_id(world)), ",".join(map(str, voters)))


def format_nodes(
    plan: Plan,
    world: World,
    features: Mapping[str, int] | None = None,
    credentials: tuple[UserScramCredentialRecord, ...] = (),
) -> None:
    """Format the nodes' directories, with the first voters of the plan and the users of `credentials`.

    `features` start at these levels, the others at their newest.
    """
    from service.config.cluster import ClusterConfig
    from service.metadata.bootstrap import parse_initial_controllers
    from service.metadata.features import cluster_features
    from service.metadata.formatting import Order, effective_levels, format_directories

    levels = effective_levels(features or {}, cluster_features(), is_dynamic=True)
    for node in plan.nodes:
        cluster = ClusterConfig.from_properties(node.settings)
        order = Order(
            plan.cluster_id,
            node.node_id,
            cluster.directories,
            cluster.metadata_log_dir,
            cluster.controller_listener_names[0],
            levels,
            parse_initial_controllers(plan.initial_controllers),
            credentials=credentials,
        )
        format_directories(world, order, lambda _: None)
