"""`firn server`: runs one node from a properties file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.config.given import GivenConfig
    from service.config.settings import BrokerConfig
    from service.node.process import OpenConsole


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "server",
        help="run a node",
        description="Run a node. Without a file it listens on 127.0.0.1:9092 and keeps its data in ./firn-"
        "data. Prints 'ready: node ID on HOST:PORT' once it serves; logs to stderr; SIGTERM, "
        "SIGINT or SIGHUP ends it cleanly.",
    )
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG.properties", help="settings, in Java's .properties syntax"
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
    from service.base.stop_signals import ignore_stops
    from service.config.settings import BrokerConfig

    if args.until_eof:
        _end_at_eof()
    given = given_config(args)
    config = given.checked(BrokerConfig.from_properties)
    code = serve(config, args.log_level, remarks=given.warnings())
    # A signal that comes while the interpreter exits must not change the exit code.
    ignore_stops()
    return code


def given_config(args: argparse.Namespace) -> GivenConfig:
    """Return the settings of the file, of `--set` and of the environment. Raises `ConfigError`."""
    import os

    from service.config.given import gather

    return gather(args.config, args.set, os.environ)


def _end_at_eof() -> None:
    """Send SIGTERM to this process at the end of its standard input, when the process at the other end of the
    pipe has ended."""
    import os
    import signal
    import sys
    import threading

    descriptor = sys.stdin.fileno()

    def read() -> None:
        # Not through sys.stdin: Python aborts if a thread holds its lock when the process ends.
        while os.read(descriptor, 1 << 10):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, name="stdin", daemon=True).start()


def serve(
    config: BrokerConfig,
    log_level: str,
    beside: Callable[[OpenConsole], OpenConsole] | None = None,
    remarks: Sequence[str] = (),
) -> int:
    """Run the node in this process until a signal ends it; return its exit code.

    `beside` can wrap the function that opens the HTTP listener. `remarks`: warnings about the settings.
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
    return run_server(config.placed(Path.cwd(), socket.gethostname()), console, remarks)


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
