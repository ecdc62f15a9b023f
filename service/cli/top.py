"""`firn top`: prints a node's metrics as a table, repeatedly."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from service.cli.client_properties import add_command_config_option, node_http_of_args
from service.cli.top_table import ORDERS, table

if TYPE_CHECKING:
    from service.client.node_http import NodeHttp

DEFAULT_URL = "http://127.0.0.1:9464"
MOST_BYTES = 64 << 20
WAIT_S = 10.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "top",
        help="show the activity of a node, live",
        description="Show the activity of a node from its HTTP listener (firn.http.listener): requests, "
        "reads of each tier, the event loop, offload and the object store. Ends with Ctrl-C.",
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"the node's HTTP listener (default: {DEFAULT_URL})"
    )
    parser.add_argument("--every", type=_seconds, default=2.0, metavar="SECONDS", help="default: 2")
    parser.add_argument(
        "--sort", choices=ORDERS, default=ORDERS[0], help=f"column of APIs (default: {ORDERS[0]})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON once: totals since the start")
    add_command_config_option(parser)
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.1 to 3600, found {text!r}")
    return value


def run(args: argparse.Namespace) -> int:
    import sys
    import time

    from service.console.figures import Figures

    before: Figures | None = None
    node = _Node(args.url, node_http_of_args(args))
    while True:
        now = Figures(time.monotonic(), node.get("/metrics"), node.health(), node.turns())
        if args.json:
            print(json.dumps(now.as_json(), indent=2))
            return 0
        lines = table(args.url, before, now, args.sort)
        if sys.stdout.isatty():
            # Cursor home, each line cleared to its end, then the rest of the screen cleared.
            sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        else:
            sys.stdout.write("\n".join(lines) + "\n\n")
        sys.stdout.flush()
        before = now
        time.sleep(args.every)


class _Node:
    """HTTP listener of one node. Methods raise `StorageError` for what is no answer of a node."""

    def __init__(self, url: str, http: NodeHttp) -> None:
        """Raises `ConfigError`."""
        from service.base.errors import ConfigError

        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url: expected http://host:port, found {url!r}")
        self._url = url
        self._http = http

    def health(self) -> Mapping[str, Any]:
        return self._object("/readyz", "checks", dict)

    def turns(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self._object("/turns", "longest", list)["longest"]
        return found

    def _object(self, path: str, key: str, kind: type) -> Mapping[str, Any]:
        """Get a JSON object with a `kind` under `key`."""
        from service.base.errors import StorageError

        try:
            found = json.loads(self.get(path))
        except ValueError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get(key), kind):
            raise StorageError(f"{self._url}{path}: not a node's response: is it a node's HTTP listener?")
        return found

    def get(self, path: str) -> str:
        """Get a page as text."""
        from http.client import HTTPException
        from urllib.error import HTTPError

        from service.base.errors import StorageError

        url = self._url
        try:
            return self._http.get(url.rstrip("/") + path, WAIT_S, MOST_BYTES).decode("utf-8", "replace")
        except HTTPError as e:
            hint = (
                "firn.http.token.file of --command-config"
                if e.code == 401
                else "is it a node's HTTP listener?"
            )
            raise StorageError(f"{url}{path}: {e.code} {e.reason}: {hint}") from e
        except (OSError, ValueError, HTTPException) as e:
            raise StorageError(f"{url}: {getattr(e, 'reason', e)}: has the node firn.http.listener?") from e
