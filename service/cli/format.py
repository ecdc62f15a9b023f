"""`firn format`, `firn random-uuid`: format directories before a node starts, as Kafka's tool does."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from service.cli.server import add_set_option, given_config

if TYPE_CHECKING:
    from service.config.cluster import ClusterConfig
    from service.metadata.bootstrap import InitialController
    from service.metadata.frames import Frame
    from service.metadata.image import FeatureRange
    from service.metadata.records import UserScramCredentialRecord

_MOST_PASSWORD = 4096
_ONLY_ONE = (
    "The settings name no controller but this one: `firn format -s` makes it the first, and for now the "
    "only, voter."
)
_SEVERAL = (
    "For a new quorum give all its controllers the same -I; or begin with -s on one, and let the others join "
    "by -N."
)
_UNROUTABLE = ("", "0.0.0.0", "::")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add_random_uuid(subparsers)
    parser = subparsers.add_parser(
        "format",
        help="format a node's directories",
        description="Format the log and metadata directories of a node, or of all firn.processes, as Apache "
        "Kafka's kafka-storage does: one of several controllers needs it before its first start. A node that "
        "is alone formats empty directories by itself, and so does a pure broker.",
    )
    parser.add_argument(
        "-c",
        "--config",
        metavar="CONFIG.properties",
        help="the node's settings, in Java's .properties syntax",
    )
    add_set_option(parser)
    parser.add_argument(
        "-t", "--cluster-id", required=True, help="the cluster's id, the same on all nodes (firn random-uuid)"
    )
    first = parser.add_mutually_exclusive_group()
    first.add_argument(
        "-s",
        "--standalone",
        action="store_true",
        help="a dynamic quorum of which this node is the only voter",
    )
    first.add_argument(
        "-I",
        "--initial-controllers",
        metavar="ID@HOST:PORT:DIRECTORY-ID,…",
        help="the first voters of a dynamic quorum, the same on all nodes",
    )
    first.add_argument(
        "-N",
        "--no-initial-controllers",
        action="store_true",
        help="a node that joins an existing dynamic quorum",
    )
    parser.add_argument(
        "-f",
        "--feature",
        action="append",
        default=[],
        type=_feature,
        metavar="NAME=LEVEL",
        help="the first level of a feature (may be repeated)",
    )
    parser.add_argument(
        "-r",
        "--release-version",
        metavar="VERSION",
        help="the release of Kafka whose record formats are used: 4.3",
    )
    parser.add_argument(
        "-S",
        "--add-scram",
        action="append",
        default=[],
        metavar="MECHANISM=[name=…,password=@FILE]",
        help="a user that can log in from the first start on (may be repeated); also password=…, or "
        "saltedpassword=…,salt=…, and iterations=…",
    )
    parser.add_argument(
        "--restore",
        metavar="FILE",
        help="the file of `firn restore apply`: the metadata that a restored cluster begins with; on each "
        "controller, or the one node",
    )
    parser.add_argument(
        "-g",
        "--ignore-formatted",
        action="store_true",
        help="skip directories that are already formatted",
    )
    parser.set_defaults(run=run)


def _add_random_uuid(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    ids = subparsers.add_parser(
        "random-uuid",
        help="print a new id for a cluster or a directory",
        description="Print a random id, for a cluster or a controller's directory.",
    )
    ids.set_defaults(run=random_uuid)


def random_uuid(args: argparse.Namespace) -> int:
    from service.base.world import system_world
    from service.hot.log_dir import encode_uuid, random_id

    print(encode_uuid(random_id(system_world())))
    return 0


def run(args: argparse.Namespace) -> int:
    import socket
    from pathlib import Path

    from service.base.control_groups import usable_cores
    from service.base.errors import ConfigError
    from service.base.world import system_world
    from service.config.cluster import ClusterConfig
    from service.config.processes import processes_of
    from service.config.tables.checks import cluster_id_problem
    from service.metadata.bootstrap import levels_of
    from service.metadata.features import cluster_features, supported_features
    from service.metadata.formatting import Order, effective_levels, format_directories

    processes = processes_of(given_config(args), usable_cores())
    clusters = [given.checked(ClusterConfig.from_properties) for given in processes]
    first = clusters[0]
    if (problem := cluster_id_problem(args.cluster_id)) is not None:
        raise ConfigError(f"--cluster-id {args.cluster_id}: {problem}")
    controllers = _initial_controllers(args, first)
    named = bool(controllers) or args.no_initial_controllers
    is_dynamic = not first.quorum.voters and (named or not first.is_alone)
    supported = cluster_features() if first.is_member else supported_features()
    restored = restored_frames(args, first, supported) if args.restore is not None else ()
    requested = levels_of(restored) if restored else _feature_levels(args)
    levels = effective_levels(requested, supported, is_dynamic=is_dynamic)
    credentials = tuple(map(credential_record, args.add_scram))
    orders = []
    for one in clusters:
        cluster = one.placed(Path.cwd(), socket.gethostname())
        orders.append(
            Order(
                cluster_id=args.cluster_id,
                node_id=cluster.node_id,
                directories=cluster.directories,
                metadata_directory=cluster.metadata_log_dir,
                controller_listener=next(iter(cluster.controller_listener_names), ""),
                levels=levels,
                initial_controllers=controllers,
                ignore_formatted=args.ignore_formatted,
                credentials=credentials,
                restored=restored if cluster.is_controller else (),
            )
        )
    for order in orders:
        format_directories(system_world(), order, print)
    return 0


def restored_frames(
    args: argparse.Namespace, cluster: ClusterConfig, supported: Iterable[FeatureRange]
) -> tuple[Frame, ...]:
    """Return the records of `--restore`, without features that this node does not serve.

    Raises `ConfigError` where they are not for this node.
    """
    from pathlib import Path

    from service.base.errors import ConfigError
    from service.base.world import system_world
    from service.inspect.restore_file import check_restore, read_restore
    from service.metadata.bootstrap import split_supported

    if not cluster.is_controller:
        raise ConfigError(
            "--restore: a pure broker needs no file; format it with the same --cluster-id alone"
        )
    for name, given in (
        ("--feature", args.feature),
        ("--release-version", args.release_version),
        ("--no-initial-controllers", args.no_initial_controllers),
    ):
        if given:
            raise ConfigError(f"{name} does not go with --restore: the file says how the log begins")
    found = read_restore(system_world().disk, Path(args.restore))
    check_restore(found, cluster_id=args.cluster_id, node_id=cluster.node_id, is_broker=cluster.is_broker)
    return split_supported(found.frames, supported)[0]


def credential_record(text: str) -> UserScramCredentialRecord:
    """Return the record of a user of `--add-scram`. Raises `ConfigError`."""
    import secrets

    from service.base.errors import ConfigError
    from service.metadata.credentials import NUMBERS
    from service.metadata.records import UserScramCredentialRecord
    from service.security.scram import base36
    from service.security.scram_argument import parse_scram

    user = parse_scram(text)
    if user.password is not None and user.password.startswith("@"):
        path = user.password[1:]
        try:
            with open(path, encoding="utf-8") as file:
                password = file.read(_MOST_PASSWORD).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"--add-scram: {path}: {getattr(e, 'strerror', None) or e}") from e
        if not password:
            raise ConfigError(f"--add-scram: {path}: no password in it")
        user = user._replace(password=password)
    keys = user.credential(lambda: base36(secrets.randbits(130)).encode())
    return UserScramCredentialRecord(
        name=user.name,
        mechanism=NUMBERS[user.mechanism],
        salt=keys.salt,
        stored_key=keys.stored_key,
        server_key=keys.server_key,
        iterations=keys.iterations,
    )


def _feature(text: str) -> tuple[str, int]:
    """Parse `name=level`, for argparse."""
    name, equals, level = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"can't parse feature=level string {text}: equals sign not found")
    if not (level.isascii() and level.isdigit() and len(level) <= 5 and int(level) < 2**15):
        raise argparse.ArgumentTypeError(
            f"can't parse feature=level string {text}: unable to parse {level} as a short"
        )
    return name, int(level)


def _feature_levels(args: argparse.Namespace) -> dict[str, int]:
    """Return the feature levels of the command line."""
    from service.base.errors import ConfigError
    from service.metadata.formatting import release_level
    from service.metadata.image import METADATA_VERSION

    levels = dict(args.feature)
    if args.release_version is None:
        return levels
    if METADATA_VERSION in levels:
        raise ConfigError(
            f"Use --release-version instead of --feature {METADATA_VERSION}=X to avoid ambiguity."
        )
    return {**levels, METADATA_VERSION: release_level(args.release_version)}


def _initial_controllers(args: argparse.Namespace, cluster: ClusterConfig) -> tuple[InitialController, ...]:
    """Return the first voters of a dynamic quorum; none for a static one, or a node that joins later."""
    from service.base.errors import ConfigError
    from service.metadata.bootstrap import parse_initial_controllers

    if cluster.quorum.voters and (args.standalone or args.initial_controllers is not None):
        raise ConfigError(
            "You cannot specify controller.quorum.voters and format the node with --initial-controllers or "
            "--standalone. If you want to use dynamic quorum, please remove controller.quorum.voters and "
            "specify controller.quorum.bootstrap.servers instead."
        )
    if args.initial_controllers is not None:
        if not cluster.controller_listener_names:
            raise ConfigError("--initial-controllers needs controller.listener.names")
        return parse_initial_controllers(args.initial_controllers)
    if args.standalone:
        return (_standalone(cluster),)
    is_told = bool(cluster.quorum.voters) or cluster.is_alone or args.no_initial_controllers
    if cluster.is_controller and not is_told:
        raise ConfigError(
            "Because controller.quorum.voters is not set on this controller, you must specify one of the "
            "following: --standalone, --initial-controllers, or --no-initial-controllers. "
            + (_ONLY_ONE if cluster.names_no_other_controller else _SEVERAL)
        )
    return ()


def _standalone(cluster: ClusterConfig) -> InitialController:
    from service.base.errors import ConfigError
    from service.base.world import system_world
    from service.hot.log_dir import random_id
    from service.metadata.bootstrap import InitialController

    if not cluster.is_controller:
        raise ConfigError("You can only use --standalone on a controller.")
    if not cluster.advertised_controller_listeners:
        raise ConfigError(
            "No controller listeners found: name one in controller.listener.names and listeners."
        )
    listener = cluster.advertised_controller_listeners[0]
    if not listener.port:
        raise ConfigError(f"{listener}: a controller needs a fixed port, which other nodes must know")
    host = "localhost" if listener.host in _UNROUTABLE else listener.host
    return InitialController(cluster.node_id, host, listener.port, random_id(system_world()))
