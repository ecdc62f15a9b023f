"""`firn produce`: sends lines of standard input or a file as records."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from service.cli.address import add_bootstrap_option
from service.cli.arguments import partition
from service.cli.record_options import FORMATS, add_librdkafka_option, separator


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "produce",
        help="send lines as records",
        description="Send each line of standard input as a record, and wait until the brokers have it.",
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--file", metavar="FILE", help="lines to send (default: standard input)")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="of a line (default: text): json is what consume prints",
    )
    parser.add_argument(
        "--key-separator", type=separator, metavar="TEXT", help=r"what stands between key and value, as '\t'"
    )
    parser.add_argument("--key", metavar="TEXT", help="the key of records whose line has none")
    parser.add_argument(
        "--header", action="append", default=[], type=_header, metavar="NAME=VALUE", help="may be repeated"
    )
    parser.add_argument(
        "--null", metavar="TEXT", help="a value or key of this text is none: the record is a tombstone"
    )
    parser.add_argument(
        "--partition",
        type=_partition,
        metavar="N",
        help="or any, whatever a line says (default: what it says)",
    )
    parser.add_argument(
        "--compression",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        default="none",
        help="of batches (default: none)",
    )
    parser.add_argument("--acks", choices=("0", "1", "all"), default="all", help="default: all")
    add_librdkafka_option(parser)
    add_bootstrap_option(parser)
    parser.set_defaults(run=run)


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not name or not found:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, value.encode()


def _partition(text: str) -> int:
    return -1 if text == "any" else partition(text)


def run(args: argparse.Namespace) -> int:
    from service.base.confluent import confluent_kafka
    from service.base.extras import install_extra
    from service.cli.line_input import LineInput
    from service.cli.sending import Sending
    from service.cli.stopping import stops_raised

    kafka = confluent_kafka(install_extra("client"))
    with stops_raised(), _opened(args.file) as descriptor:
        Sending(args, kafka).send_lines(LineInput(descriptor))
    return 0


@contextmanager
def _opened(file: str | None) -> Iterator[int]:
    """Yield a descriptor of the lines: of a file, or of standard input."""
    if file is None:
        yield sys.stdin.fileno()
        return
    descriptor = os.open(file, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
