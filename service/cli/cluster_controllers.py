"""`firn cluster features` and `quorum`: levels of features, voters of the quorum."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from service.cli.address import add_bootstrap_options
from service.cli.arguments import add_json_option, node_id
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned

if TYPE_CHECKING:
    from uuid import UUID

    from service.client.admin_models import ClusterInfo
    from service.client.blocking_client import BlockingClient
    from service.client.cluster_changes import VoterEndpoint
    from service.client.cluster_health import MetadataReplica, QuorumInfo


def add_features(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `features` with its own actions."""
    parser = actions.add_parser(
        "features",
        help="show and change levels of features",
        description="Show the levels of a cluster's features, and change them.",
    )
    below = parser.add_subparsers(metavar="ACTION", dest="features_action", required=True)
    describe = below.add_parser(
        "describe",
        help="show levels",
        description="Show the level of each feature in the cluster, and the levels that the asked node"
        " supports.",
    )
    describe.set_defaults(run=_describe_features)
    for name, words in (("upgrade", "raise"), ("downgrade", "lower")):
        change = below.add_parser(
            name,
            help=f"{words} levels",
            description=f"{words.capitalize()} the levels of features: all that are named, or none. Every"
            " node has to support them.",
        )
        change.add_argument(
            "features", nargs="+", type=_feature, metavar="FEATURE=LEVEL", help="such as kraft.version=1"
        )
        change.add_argument("--dry-run", action="store_true", help="only check that it can be done")
        change.set_defaults(run=_update_features, unsafe=False)
        if name == "downgrade":
            change.add_argument(
                "--unsafe", action="store_true", help="also where metadata of the higher level is lost"
            )
        _add_common(change)
    _add_common(describe)


def add_quorum(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `quorum` with its own actions."""
    parser = actions.add_parser(
        "quorum",
        help="show the quorum, add and remove voters",
        description="Show the controllers' quorum, and change who votes in it (kraft.version 1).",
    )
    below = parser.add_subparsers(metavar="ACTION", dest="quorum_action", required=True)
    describe = below.add_parser(
        "describe",
        help="show leader, voters and how far each is",
        description="Show the leader of the metadata, its epoch, and of each voter and observer the id, the"
        " directory, how far it is behind and when it last fetched.",
    )
    describe.set_defaults(run=_describe_quorum)
    add = below.add_parser(
        "add-voter",
        help="have a controller vote",
        description="Have a controller that follows the quorum vote in it: with --config what its own"
        " configuration file says, on its own machine; or else its id and its listener. Its directory is"
        " taken from what it has fetched with.",
    )
    add.add_argument("voter", nargs="?", type=node_id, metavar="ID", help="the controller's node.id")
    add.add_argument("--config", metavar="FILE.properties", help="the controller's own configuration")
    add.add_argument(
        "--endpoint", action="append", default=[], type=_endpoint, metavar="NAME://HOST:PORT",
        help="its controller listener (may be repeated)",
    )  # fmt: skip
    add.add_argument("--dry-run", action="store_true", help="only print who would vote")
    add.set_defaults(run=_add_voter)
    remove = below.add_parser(
        "remove-voter",
        help="have a controller vote no more",
        description="Take a voter out of the quorum, also one that is lost. It may go on following.",
    )
    remove.add_argument("voter", type=node_id, metavar="ID", help="the voter's node.id")
    remove.add_argument("--dry-run", action="store_true", help="only print who would be taken out")
    remove.set_defaults(run=_remove_voter)
    for action in (add, remove):
        action.add_argument(
            "--directory-id", type=_directory, metavar="ID", help="of its directory (default: as it is known)"
        )
    for action in (describe, add, remove):
        _add_common(action)


def _add_common(action: argparse.ArgumentParser) -> None:
    add_json_option(action)
    add_bootstrap_options(action, "controllers instead, where no broker is left")


def _feature(text: str) -> tuple[str, int]:
    name, equals, level = text.partition("=")
    if not name or not equals or not level.isascii() or not level.isdigit() or int(level) > 32767:
        raise argparse.ArgumentTypeError(f"expected FEATURE=LEVEL, found {text!r}")
    return name, int(level)


def _directory(text: str) -> UUID:
    from service.base.uuids import decode_uuid

    try:
        return decode_uuid(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def _endpoint(text: str) -> tuple[str, str, int]:
    name, slashes, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not (name and slashes and host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise argparse.ArgumentTypeError(f"expected NAME://HOST:PORT, found {text!r}")
    return name, host.strip("[]"), int(port)


@contextmanager
def _reached(args: argparse.Namespace) -> Iterator[tuple[ClusterInfo, BlockingClient, QuorumInfo | None]]:
    """Yield the cluster, the node to ask, which with --bootstrap-controller is the active controller, and
    the quorum."""
    from kio.schema.errors import ErrorCode

    from service.base.errors import RequestError
    from service.client.admin import ChangingCluster
    from service.client.cluster_health_queries import ask_quorum

    at_controller = args.bootstrap_controller is not None
    address = args.bootstrap_controller if at_controller else args.bootstrap_server
    with ChangingCluster(address, security=security_of_args(args)) as cluster:
        info = cluster.describe(controllers=at_controller)
        if at_controller and info.controller < 0:
            raise RequestError(ErrorCode.not_controller, "nobody leads the quorum")
        controller = info.controller if at_controller else None
        client = cluster.first if controller is None else cluster.client(controller)
        yield info, client, ask_quorum(cluster, controller)


# -- features


def _describe_features(args: argparse.Namespace) -> int:
    from service.client.cluster_changes import describe_features

    with _reached(args) as (_, client, _):
        found = describe_features(client)
    if args.json:
        print(json.dumps([one._asdict() for one in found], indent=2))
    elif found:
        rows = [
            (
                one.name,
                "-" if one.level is None else str(one.level),
                f"{one.min_supported} to {one.max_supported}",
            )
            for one in found
        ]
        print("\n".join(aligned([("feature", "level", "supported"), *rows])))
    return 0


def _update_features(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.client.cluster_changes import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, UPGRADE, update_features

    levels = dict(args.features)
    if len(levels) != len(args.features):
        raise ConfigError("a feature is named twice")
    lowered = UNSAFE_DOWNGRADE if args.unsafe else SAFE_DOWNGRADE
    kind = UPGRADE if args.features_action == "upgrade" else lowered
    with _reached(args) as (_, client, _):
        update_features(client, levels, kind, dry_run=args.dry_run)
    if args.json:
        print(json.dumps({"dry_run": args.dry_run, "features": levels}, indent=2))
    else:
        for name, level in levels.items():
            print(f"{name} {'could be' if args.dry_run else 'is'} at {level}")
    return 0


# -- quorum


def _quorum(found: QuorumInfo | None) -> QuorumInfo:
    from service.base.errors import ConfigError

    if found is None:
        raise ConfigError("the node is alone: it has no quorum that others could join")
    return found


def _describe_quorum(args: argparse.Namespace) -> int:
    with _reached(args) as (info, _, found):
        quorum = _quorum(found)
    rows = [
        {
            "node_id": one.node_id,
            "role": "leader" if one.node_id == quorum.leader else role,
            "directory_id": _kafkas_id(one.directory_id),
            "end": one.end,
            "lag": quorum.lag(one),
            "fetched_ms": one.fetched_ms,
            "caught_up_ms": one.caught_up_ms,
            "endpoints": [
                f"{name}://{host}:{port}" for name, host, port in quorum.listeners.get(one.node_id, ())
            ],
        }
        for role, replicas in (("voter", quorum.voters), ("observer", quorum.observers))
        for one in replicas
    ]
    if args.json:
        document = {
            "cluster_id": info.cluster_id, "leader": quorum.leader, "epoch": quorum.epoch,
            "high_watermark": quorum.high_watermark, "replicas": rows,
        }  # fmt: skip
        print(json.dumps(document, indent=2))
        return 0
    print(f"cluster: {info.cluster_id}")
    print(f"leader: {quorum.leader}, epoch {quorum.epoch}, high watermark {quorum.high_watermark}")
    head = ("node", "role", "directory", "end", "lag", "last fetch", "caught up", "endpoints")
    print("\n".join(aligned([head, *(_shown(row) for row in rows)])))
    return 0


def _shown(row: Mapping[str, object]) -> list[str]:
    cells = [*row.values()]
    endpoints = row["endpoints"]
    assert isinstance(endpoints, list)
    times = [_time(row["fetched_ms"]), _time(row["caught_up_ms"])]
    return ["-" if one is None else str(one) for one in (*cells[:5], *times, ", ".join(endpoints) or None)]


def _time(ms: object) -> str | None:
    from datetime import UTC, datetime

    if not isinstance(ms, int):
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _kafkas_id(directory: str | None) -> str | None:
    from uuid import UUID

    from service.base.uuids import encode_uuid

    return None if directory is None else encode_uuid(UUID(directory))


def _add_voter(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.client.cluster_changes import VoterEndpoint, add_voter

    if (args.config is not None) == (args.voter is not None and bool(args.endpoint)):
        raise ConfigError("who is to vote? --config FILE, or ID with --endpoint NAME://HOST:PORT")
    endpoints = [VoterEndpoint(*one) for one in args.endpoint]
    voter, directory = args.voter, args.directory_id
    if args.config is not None:
        voter, directory, endpoints = _from_file(args.config)
    with _reached(args) as (info, client, found):
        if directory is None:
            directory = _known_directory(voter, _quorum(found).observers, "observer")
        if not args.dry_run:
            add_voter(client, info.cluster_id, voter, directory, endpoints)
    _tell_voter(args, "could vote" if args.dry_run else "votes", voter, directory)
    return 0


def _from_file(path: str) -> tuple[int, UUID, list[VoterEndpoint]]:
    """Return id, directory and listeners of the controller whose configuration this is."""
    import os
    import socket
    from pathlib import Path

    from service.base.errors import ConfigError
    from service.base.world import system_world
    from service.client.cluster_changes import VoterEndpoint
    from service.config.cluster import ClusterConfig
    from service.config.given import gather
    from service.hot.log_dir import read_meta

    given = gather(path, (), os.environ)  # as `firn server` takes them: a container's id is in a variable
    config = given.checked(ClusterConfig.from_properties).placed(Path.cwd(), socket.gethostname())
    if not config.is_controller:
        raise ConfigError(f"{path}: process.roles has no controller")
    meta = read_meta(system_world().disk, config.metadata_log_dir)
    if meta is None:
        raise ConfigError(f"{path}: {config.metadata_log_dir} is not formatted: 'firn format' does that")
    endpoints = [
        VoterEndpoint(one.name, one.host, one.port) for one in config.advertised_controller_listeners
    ]
    return config.node_id, meta.directory_id, endpoints


def _remove_voter(args: argparse.Namespace) -> int:
    from service.client.cluster_changes import remove_voter

    with _reached(args) as (info, client, found):
        directory = args.directory_id
        if directory is None:
            directory = _known_directory(args.voter, _quorum(found).voters, "voter")
        if not args.dry_run:
            remove_voter(client, info.cluster_id, args.voter, directory)
    _tell_voter(args, "could be taken out" if args.dry_run else "votes no more", args.voter, directory)
    return 0


def _known_directory(node: int, replicas: tuple[MetadataReplica, ...], what: str) -> UUID:
    """Return the directory with which a node follows the quorum. Raises `ConfigError`."""
    from uuid import UUID

    from service.base.errors import ConfigError

    found = [one.directory_id for one in replicas if one.node_id == node and one.directory_id is not None]
    if len(found) != 1:
        why = "there is none" if not found else "there are several: name its --directory-id"
        raise ConfigError(f"{what} {node}: {why}; 'firn cluster quorum describe' shows what there is")
    return UUID(found[0])


def _tell_voter(args: argparse.Namespace, words: str, voter: int, directory: UUID) -> None:
    from service.base.uuids import encode_uuid

    if args.json:
        document = {"dry_run": args.dry_run, "voter": voter, "directory_id": encode_uuid(directory)}
        print(json.dumps(document, indent=2))
    else:
        print(f"controller {voter} with directory {encode_uuid(directory)} {words}")
