"""`firn top`: prints a node's metrics as a table, repeatedly."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

DEFAULT_URL = "http://127.0.0.1:9464"
MOST_BYTES = 64 << 20


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
    parser.add_argument("--json", action="store_true", help="print JSON once: totals since the start")
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

    from service.cli.top_table import table
    from service.console.figures import Figures

    before: Figures | None = None
    while True:
        now = Figures(time.monotonic(), _get(args.url, "/metrics"), _health(args.url), _turns(args.url))
        if args.json:
            print(json.dumps(now.as_json(), indent=2))
            return 0
        lines = table(args.url, before, now)
        if sys.stdout.isatty():
            # Cursor home, each line cleared to its end, then the rest of the screen cleared.
            sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        else:
            sys.stdout.write("\n".join(lines) + "\n\n")
        sys.stdout.flush()
        before = now
        time.sleep(args.every)


def _health(url: str) -> Mapping[str, Any]:
    return _object(url, "/readyz", "checks", dict)


def _turns(url: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = _object(url, "/turns", "longest", list)["longest"]
    return found


def _object(url: str, path: str, key: str, kind: type) -> Mapping[str, Any]:
    """Get a JSON object with a `kind` under `key`. Raises `StorageError` for any other response."""
    from service.base.errors import StorageError

    try:
        found = json.loads(_get(url, path))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get(key), kind):
        raise StorageError(f"{url}{path}: not a node's response: is it a node's HTTP listener?")
    return found


def _get(url: str, path: str) -> str:
    """Get a page as text. Raises `StorageError` if there is no response, or not a node's."""
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    from service.base.errors import ConfigError, StorageError

    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url: expected http://host:port, found {url!r}")
    try:
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=10) as answer:
            text: str = answer.read(MOST_BYTES).decode("utf-8", "replace")
            return text
    except urllib.error.HTTPError as e:
        if e.code == 503 and path == "/readyz":
            return e.read(MOST_BYTES).decode("utf-8", "replace")
        raise StorageError(f"{url}{path}: {e.code} {e.reason}: is it a node's HTTP listener?") from e
    except (OSError, ValueError, HTTPException) as e:
        raise StorageError(f"{url}: {getattr(e, 'reason', e)}: has the node firn.http.listener?") from e
