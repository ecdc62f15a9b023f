"""Options that `firn produce` and `firn consume` share."""

from __future__ import annotations

import argparse
from typing import Final, NamedTuple

from service.cli.server import setting

FORMATS: Final = ("text", "json", "hex")
COLUMNS: Final = ("partition", "offset", "timestamp", "tier", "headers", "key")
"""Fields that stand in front of a value in `text` and `hex`, each with a tab behind it."""


class Place(NamedTuple):
    """An end of what is read: `kind` is beginning, end, offset, last (so many records) or time (in ms)."""

    kind: str
    number: int = 0


def add_librdkafka_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="KEY=VALUE",
        help="a setting of librdkafka, as queue.buffering.max.kbytes; may be repeated",
    )


def separator(text: str) -> bytes:
    r"""Parse an argument with ``\t``, ``\0`` and their like; `ArgumentTypeError` if it is empty.

    >>> separator(r"\t")
    b'\t'
    """
    found = text.replace("\\t", "\t").replace("\\0", "\0").replace("\\n", "\n").encode()
    if not found:
        raise argparse.ArgumentTypeError("expected at least one character")
    return found
