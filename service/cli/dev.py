"""`firn dev`: a node, or a cluster of several, with an embedded S3 and without any configuration."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.server import add_log_level_option, add_set_option, serve

if TYPE_CHECKING:
    from service.cli.dev_secure import DevSecurity
    from service.cli.embedded_s3 import EmbeddedS3

BUCKET = "firn"
BUCKET_URL = f"s3://{BUCKET}/dev"
# short intervals, so that the tiers visibly change
DEV_SETTINGS = {
    "remote.log.manager.task.interval.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "firn.remote.object.grace.ms": "60000",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "dev",
        help="run a node, or a cluster, with an embedded S3",
        description="Run a node, or with --nodes a cluster of several, whose cold tier is an embedded S3 "
        "server (moto), and their web console. All end with SIGTERM, SIGINT or SIGHUP. The "
        "embedded S3 keeps its objects only as long as it runs.",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=9092,
        help="the node's port, those of several follow it; 0 for free ones (default: 9092)",
    )
    parser.add_argument("--nodes", type=int, default=1, help="number of brokers (default: 1)")
    parser.add_argument(
        "--controllers",
        type=int,
        help="number of them that are controllers, too (default: three, or all if fewer)",
    )
    parser.add_argument(
        "--http-port",
        type=int,
        default=0,
        help="the port of metrics and health over HTTP (default: 0, a free one)",
    )
    parser.add_argument(
        "--console-port",
        type=int,
        default=0,
        help="the port of the web console (default: 0, a free one)",
    )
    parser.add_argument("--no-console", action="store_true", help="do not start the web console")
    parser.add_argument(
        "--secure",
        action="store_true",
        help="TLS, logins (users admin and alice) and access rules; prints the files that clients need",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        help="keep the node's data here; must be empty, but for what --secure has made (default: a temporary "
        "directory, removed at the end)",
    )
    add_set_option(parser)
    add_log_level_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.base.stop_signals import ignore_stops, ignore_unused, stops_received
    from service.cli.embedded_s3 import FOREIGN, EmbeddedS3, environment

    if args.nodes < 1:
        raise ConfigError(f"--nodes {args.nodes}: at least one")
    if args.nodes == 1 and args.controllers not in (None, 1):
        raise ConfigError(f"--controllers {args.controllers}: there is one node")
    with contextlib.ExitStack() as stack:
        stack.enter_context(stops_received(_interrupt))
        ignore_unused()
        directory = stack.enter_context(_data_directory(args.dir))
        stack.callback(ignore_stops)  # a second one must not interrupt the removal of the directory
        s3 = stack.enter_context(EmbeddedS3(BUCKET))
        for name in FOREIGN:
            os.environ.pop(name, None)
        os.environ.update(environment())
        return (_run_cluster if args.nodes > 1 else _run_node)(args, directory, s3)


def _store_settings(directory: Path, s3: EmbeddedS3) -> dict[str, str]:
    """Wait for the bucket, print its address, and return the settings of the store."""
    print(f"s3: {s3.endpoint}", f"bucket: {BUCKET_URL}", f"data: {directory}", sep="\n")
    print(f"to read the bucket: export AWS_ENDPOINT_URL={s3.endpoint} {_keys()}", flush=True)
    return {"firn.remote.url": BUCKET_URL, "firn.remote.s3.endpoint": s3.endpoint}


def _run_node(args: argparse.Namespace, directory: Path, s3: EmbeddedS3) -> int:
    from functools import partial

    from service.base.stop_signals import handlers_given_back
    from service.cli.dev_console import with_console
    from service.config.given import gather
    from service.config.settings import BrokerConfig

    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{args.port}",
        "log.dirs": str(directory),
        "firn.http.listener": f"127.0.0.1:{args.http_port}",
        **_store_settings(directory, s3),
        **DEV_SETTINGS,
        **dict(args.set),
    }
    security = _security(args, directory)
    if security is not None:
        from service.cli.dev_secure import format_alone, secured_alone

        settings = secured_alone(security, settings, directory.absolute(), args.port)
        print(*security.lines(settings["listeners"].partition("://")[2]), sep="\n", flush=True)
    given = gather(None, tuple(settings.items()), os.environ)
    config = given.checked(BrokerConfig.from_properties)
    if security is not None:
        format_alone(security, config.cluster)
    beside = None
    if not args.no_console:
        beside = partial(
            with_console,
            node_id=config.node_id,
            port=args.console_port,
            log_level=args.log_level,
            command_config=None if security is None else security.admin,
        )
    with handlers_given_back():
        return serve(config, args.log_level, beside, given.warnings())


def _run_cluster(args: argparse.Namespace, directory: Path, s3: EmbeddedS3) -> int:
    """Run several nodes as processes of their own, and one console for all."""
    from service.base.world import system_world
    from service.cli.dev_console import end_console, start_console
    from service.cli.dev_nodes import HOST, agree_on_ports, format_nodes, plan_nodes
    from service.cli.node_processes import run_nodes

    controllers = min(3, args.nodes) if args.controllers is None else args.controllers
    security = _security(args, directory)
    internal = args.nodes if args.secure else 0
    beside = controllers + internal + (0 if args.http_port else args.nodes)
    ports, free = agree_on_ports(args.port, args.nodes, beside)
    http = free[controllers + internal :] or agree_on_ports(args.http_port, args.nodes, 0)[0]
    world = system_world()
    # The bucket is being created meanwhile; formatting does not need it.
    plan = plan_nodes(
        args.nodes,
        controllers,
        (ports, free[:controllers]),
        directory,
        world,
        {
            **DEV_SETTINGS,
            **({} if security is None else security.settings(is_cluster=True)),
            **dict(args.set),
        },
    )
    if security is not None:
        from service.cli.dev_secure import secured

        plan = secured(plan, free[controllers : controllers + internal], HOST)
    format_nodes(plan, world, credentials=() if security is None else security.credentials())
    store = _store_settings(directory, s3)
    if security is not None:
        print(*security.lines(f"{HOST}:{ports[0]}"), sep="\n", flush=True)
    for node, port in zip(plan.nodes, http, strict=True):
        node.settings.update({**store, **node.settings, "firn.http.listener": f"{HOST}:{port}"})
    consoles: list[subprocess.Popen[bytes]] = []

    def say(line: str) -> None:
        print(line, flush=True)
        if line.startswith("ready: ") and not args.no_console:
            metrics = [f"{n}=http://{HOST}:{port}" for n, port in enumerate(http, start=1)]
            bootstrap = line.rpartition(" ")[2]
            admin = None if security is None else security.admin
            consoles.append(start_console(bootstrap, metrics, args.console_port, args.log_level, admin))

    try:
        return run_nodes([node.child(args.log_level) for node in plan.nodes], say=say)
    finally:
        for console in consoles:
            end_console(console)


def _security(args: argparse.Namespace, directory: Path) -> DevSecurity | None:
    """Return the certificates and users of `--secure`, made where they are not there."""
    if not args.secure:
        return None
    from service.cli.dev_secure import FOLDER, prepare

    return prepare((directory / FOLDER).absolute())


def _keys() -> str:
    from service.cli.embedded_s3 import CREDENTIALS

    return " ".join(f"{name}={CREDENTIALS[name]}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))


@contextlib.contextmanager
def _data_directory(chosen: Path | None) -> Iterator[Path]:
    from service.base.errors import ConfigError
    from service.cli.dev_secure import FOLDER

    if chosen is None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="firn-dev-") as temporary:
            yield Path(temporary)
        return
    if chosen.exists() and any(path.name != FOLDER for path in chosen.iterdir()):
        raise ConfigError(
            f"{chosen} is not empty: the embedded S3 loses its objects when it ends, so a node cannot "
            "continue with its old data; choose an empty directory, or run 'firn server' with a durable store"
        )
    chosen.mkdir(parents=True, exist_ok=True)
    yield chosen


def _interrupt(number: signal.Signals) -> None:
    """Unwind as Ctrl-C does, while the node has not installed its own handlers."""
    raise KeyboardInterrupt
