"""`firn server`: runs one node from a properties file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.config.given import GivenConfig
    from service.config.settings import BrokerConfig
    from service.node.process import OpenConsole
    from service.node.whole_question import Asks


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "server",
        help="run a node",
        description="Run a node. Without a file it listens on 127.0.0.1:9092 and keeps its data in ./firn-"
        "data. Prints 'ready: node ID on HOST:PORT' once it serves; logs to stderr; SIGTERM, "
        "SIGINT or SIGHUP ends it cleanly. With --processes or firn.processes it runs several nodes of one "
        "cluster, starts those that end again, and SIGUSR1 restarts them one by one.",
    )
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG.properties", help="settings, in Java's .properties syntax"
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        help="nodes to run on this machine, auto for one on each core; as the key firn.processes",
    )
    parser.add_argument(
        "--process", type=int, metavar="K", help="run the K-th of the file's processes alone, from 1"
    )
    parser.add_argument("--until-eof", action="store_true", help="end at the end of standard input")
    add_set_option(parser)
    add_log_level_option(parser)
    parser.set_defaults(run=run)


def add_set_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        "--override",
        action="append",
        default=[],
        type=setting,
        metavar="KEY=VALUE",
        help="a setting that counts before the file's (may be repeated)",
    )


def add_log_level_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="how much is logged to stderr (default: info)",
    )


def setting(text: str) -> tuple[str, str]:
    """Parse `key=value`, for argparse."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, found {text!r}")
    return key.strip(), value


def run(args: argparse.Namespace) -> int:
    from service.base.control_groups import usable_cores
    from service.base.errors import ConfigError
    from service.base.stop_signals import ignore_stops
    from service.cli.parent_pipe import ParentPipe
    from service.config.processes import PROCESSES, processes_of
    from service.config.settings import BrokerConfig

    asks = None
    if args.until_eof:
        parent = ParentPipe(sys.stdin.fileno())
        parent.start()
        asks = parent.asks
    if args.processes is not None:
        args.set = [*args.set, (PROCESSES, args.processes)]
    processes = processes_of(given_config(args), usable_cores())
    if args.process is not None:
        if not 1 <= args.process <= len(processes):
            raise ConfigError(f"--process {args.process}: there are {len(processes)}, as {PROCESSES} says")
        processes = processes[args.process - 1 :][:1]
    configs = [given.checked(BrokerConfig.from_properties) for given in processes]
    if len(processes) > 1:
        code = _run_machine(args, configs)
    else:
        code = serve(configs[0], args.log_level, remarks=processes[0].warnings(), asks=asks)
    # A signal that comes while the interpreter exits must not change the exit code.
    ignore_stops()
    return code


def _run_machine(args: argparse.Namespace, configs: Sequence[BrokerConfig]) -> int:
    """Run a child for each of these nodes; each reads the file anew at each of its starts."""
    from service.base.errors import ConfigError
    from service.cli.node_processes import SERVER, Child, run_nodes
    from service.config.processes import PROCESSES, processes_of
    from service.config.settings import BrokerConfig

    args.set = [*args.set, (PROCESSES, str(len(configs)))]
    given = [word for key, value in args.set for word in ("--set", f"{key}={value}")]
    given += ["--log-level", args.log_level]
    file = [] if args.config is None else [args.config]
    children = [
        Child(
            config.node_id,
            (*SERVER, *given, "--process", str(number), *file),
            config.cluster.is_controller,
        )
        for number, config in enumerate(configs, 1)
    ]

    def refused() -> str | None:
        """Return what is wrong with the file as it is now."""
        try:
            found = [one.checked(BrokerConfig.from_properties) for one in processes_of(given_config(args), 1)]
        except (ConfigError, OSError) as e:
            return "; ".join(str(e).splitlines())
        ids = [config.node_id for config in found]
        return None if ids == [one.node_id for one in children] else f"node.id: the nodes would be {ids}"

    return run_nodes(children, patience_s=None, is_supervised=True, refused=refused)


def given_config(args: argparse.Namespace) -> GivenConfig:
    """Return the settings of the file, of `--set` and of the environment. Raises `ConfigError`."""
    from service.config.given import gather

    return gather(args.config, args.set, os.environ)


def serve(
    config: BrokerConfig,
    log_level: str,
    beside: Callable[[OpenConsole], OpenConsole] | None = None,
    remarks: Sequence[str] = (),
    asks: Asks | None = None,
) -> int:
    """Run the node in this process until a signal ends it; return its exit code.

    `beside` can wrap the function that opens the HTTP listener. `remarks`: warnings about the settings.
    `asks`: questions of the process that runs this one.
    """
    import socket
    from pathlib import Path

    from service.base.release import release
    from service.cli.log_lines import log_to_stderr
    from service.node.process import run_server

    release()  # which may run git: no work for the event loop
    log_to_stderr(log_level, config.log_format, config.node_id)
    console = _console(config)
    if console is not None and beside is not None:
        console = beside(console)
    return run_server(config.placed(Path.cwd(), socket.gethostname()), console, remarks, asks)


def _console(config: BrokerConfig) -> OpenConsole | None:
    """Return the function that opens the HTTP listener; without a listener its modules are not imported."""
    if config.http_listener is None:
        return None
    from functools import partial

    from service.console.access_settings import AccessSettings
    from service.console.server import LISTENER_KEY, serving

    security = config.cluster.security
    access = AccessSettings(
        LISTENER_KEY,
        certificate=config.http_ssl_keystore_location,
        certificate_option="firn.http.ssl.keystore.location",
        key_password=config.http_ssl_key_password,
        token=config.http_token_file,
        token_option="firn.http.token.file",
        interval_s=security.reload_interval_ms / 1000,
        timeout_s=security.authentication_timeout_ms / 1000,
    )
    return partial(
        serving,
        listener=config.http_listener,
        access=access,
        most_partitions=config.metrics_partitions_max if config.metrics_partitions_enable else 0,
    )
