"""Types of command-line arguments, and options that many commands have. [P]"""

from __future__ import annotations

import argparse


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add `--json`: what a command prints is one document (docs/commands.md says how it looks)."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def positive(text: str) -> int:
    """Parse an argument of 1 to 2^31 - 1; `ArgumentTypeError` for any other text."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return int(text)


def replicas(text: str) -> int:
    """Parse a number of replicas, 1 to 2^15 - 1; `ArgumentTypeError` for any other text."""
    if positive(text) >= 2**15:
        raise argparse.ArgumentTypeError(f"expected a number below {2**15}, found {text!r}")
    return int(text)


def offset(text: str) -> int:
    """Parse an offset; `ArgumentTypeError` for any other text."""
    if not text.isascii() or not text.isdigit() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected an offset, found {text!r}")
    return int(text)


def partition(text: str) -> int:
    """Parse the number of a partition; `ArgumentTypeError` for any other text."""
    if not text.isascii() or not text.isdigit() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"expected a partition's number, found {text!r}")
    return int(text)


def node_id(text: str) -> int:
    """Parse the id of a node; `ArgumentTypeError` for any other text."""
    if not text.isascii() or not text.isdigit() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"expected the id of a node, found {text!r}")
    return int(text)
