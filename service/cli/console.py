"""`firn console`: the web console of a cluster, a process of its own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from service.cli.address import DEFAULTS
from service.cli.client_properties import add_command_config_option, node_http_of_args, security_of_args
from service.cli.server import add_log_level_option, setting
from service.cli.stores import add_store_options, endpoint_of

if TYPE_CHECKING:
    from service.console.web.settings import ConsoleSettings

DEFAULT_PORT = 8080


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "console",
        help="show a cluster and its bucket in a browser",
        description="Serve the web console: a process of its own that only reads, unless --allow-changes."
        " Prints 'console: URL' once it serves; SIGTERM, SIGINT or SIGHUP ends it.",
    )
    parser.add_argument(
        "--bootstrap",
        "--bootstrap-server",
        dest="bootstrap",
        metavar="HOST:PORT,…",
        help=f"brokers of the cluster; the others are found through them ({DEFAULTS})",
    )
    _add_access_options(parser)
    parser.add_argument(
        "--url", metavar="URL", help="the cold tier's URL (default: the brokers' firn.remote.url)"
    )
    parser.add_argument(
        "--metrics",
        action="append",
        default=[],
        type=_listener,
        metavar="[NODE=]URL",
        help="a node's HTTP listener, if the cluster does not name it (may be repeated)",
    )
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        type=setting,
        metavar="KEY=VALUE",
        help="storage-gb-month[.CLASS], write-1000, read-1000 (may be repeated)",
    )
    parser.add_argument("--currency", default="USD", metavar="NAME", help="their currency (default: USD)")
    parser.add_argument("--fsck", metavar="FILE", help="the newest report of 'firn fsck --json', to show")
    parser.add_argument(
        "--survey-every",
        type=int,
        default=900,
        metavar="SECONDS",
        help="time between two listings of the bucket, 0 for none (default: 900)",
    )
    _add_schema_options(parser)
    add_command_config_option(parser)
    parser.add_argument("--until-eof", action="store_true", help="end at the end of standard input")
    add_store_options(parser)
    add_log_level_option(parser)
    parser.add_argument(
        "--log-format", default="text", choices=("text", "json"), help="how it is logged (default: text)"
    )
    parser.set_defaults(run=run)


def _add_access_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1); other interfaces need a token",
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help=f"0 for a free port (default: {DEFAULT_PORT})"
    )
    parser.add_argument(
        "--token", metavar="WORD", help="require this token; other users of this machine see it"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="the token is the first line of this file; read again on change, which ends all sessions",
    )
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="let whoever signs in with the token change topics, settings, groups and records, with the"
        " rights of --command-config; each change is a line of the log",
    )
    parser.add_argument(
        "--tls-cert",
        metavar="FILE",
        help="serve HTTPS with this certificate chain (PEM); read again on change",
    )
    parser.add_argument(
        "--tls-key", metavar="FILE", help="its private key (default: it is in the file of --tls-cert)"
    )


def _add_schema_options(parser: argparse.ArgumentParser) -> None:
    schemas = parser.add_argument_group("keys and values by schemas", "They need the extra schemas.")
    schemas.add_argument(
        "--schema-registry",
        metavar="URL",
        help="schema registry for values with a schema id (Avro, JSON Schema, Protobuf); its credentials: "
        "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO=USER:PASSWORD in the environment",
    )
    schemas.add_argument(
        "--schema-registry-config",
        metavar="FILE",
        help="properties of confluent-kafka's registry client, as ssl.ca.location=PATH",
    )
    schemas.add_argument(
        "--schemas", metavar="FILE", help="JSON list of schemas by topic or by id (docs/console.md)"
    )


def _listener(text: str) -> tuple[int | None, str]:
    head, separator, rest = text.partition("=")
    node_id, url = (int(head), rest) if separator and head.isdecimal() else (None, text)
    if not url.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"expected [NODE=]http://host:port, found {text!r}")
    return node_id, url.rstrip("/")


def run(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.cli.console_schemas import decode_settings
    from service.cli.log_lines import log_to_stderr
    from service.config.tables import store_url_problem
    from service.console.web.costs import prices
    from service.console.web.settings import ConsoleSettings

    if args.url and (problem := store_url_problem(args.url)):
        raise ConfigError(f"{args.url}: {problem}")
    if args.survey_every < 0:
        raise ConfigError(f"--survey-every {args.survey_every}: not a number of seconds")
    log_to_stderr(args.log_level, args.log_format)
    settings = ConsoleSettings(
        bootstrap=args.bootstrap,
        host=args.host,
        port=args.port,
        token=_token(args),
        token_file=args.token_file,
        url=args.url,
        endpoint=endpoint_of(args),
        region=args.region,
        listeners=tuple(args.metrics),
        prices=prices(args.price, args.currency),
        fsck_path=args.fsck,
        survey_s=args.survey_every,
        security=security_of_args(args),
        node_http=node_http_of_args(args),
        certificate=args.tls_cert,
        key=args.tls_key,
        allow_changes=args.allow_changes,
        decode=decode_settings(args.schema_registry, args.schema_registry_config, args.schemas),
    )
    settings.check()
    return serve(settings, until_eof=args.until_eof)


def _token(args: argparse.Namespace) -> str | None:
    from service.base.errors import ConfigError
    from service.console.web.token_file import read_token

    token: str | None = args.token
    if args.token_file is None:
        return token
    if token is not None:
        raise ConfigError("--token and --token-file: one of them")
    return read_token(args.token_file)


def serve(settings: ConsoleSettings, *, until_eof: bool = False) -> int:
    """Run the console in this process until a signal ends it; return its exit code."""
    import asyncio

    return asyncio.run(_serve(settings, until_eof))


async def _serve(settings: ConsoleSettings, until_eof: bool) -> int:
    import asyncio
    import os
    import sys
    import threading

    from service.base.stop_signals import ignore_unused, receive_stops
    from service.base.world import system_world
    from service.console.web.server import console

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    receive_stops(lambda _: None if loop.is_closed() else end_soon())
    ignore_unused()

    def end_soon() -> None:
        loop.call_soon_threadsafe(ended.set)

    if until_eof:
        descriptor = sys.stdin.fileno()

        def read() -> None:
            # Not through sys.stdin: Python aborts if a thread holds its lock when the process ends.
            while os.read(descriptor, 1 << 10):
                pass
            loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=read, name="stdin", daemon=True).start()
    async with console(settings, system_world()) as (url, server):
        print(f"console: {url}", flush=True)
        waiting = loop.create_task(ended.wait())
        while not ended.is_set():
            await asyncio.wait({waiting}, timeout=1)
            if (failure := server.desk.failure()) is not None:
                waiting.cancel()
                raise failure
    return 0
