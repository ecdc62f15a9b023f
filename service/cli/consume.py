"""`firn consume`: prints a topic's records as lines, from and to where it is told, or for a group."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from service.cli.address import add_bootstrap_option
from service.cli.arguments import partition, positive
from service.cli.record_options import COLUMNS, FORMATS, Place, add_librdkafka_option

_FOREVER: Final = 2**63 - 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "consume",
        help="print records as lines",
        description="Print the records of a topic, those that are there and then those that arrive. A PLACE"
        " is beginning, end, an offset, @TIME (ISO 8601, UTC without a zone, or milliseconds) or, for --from,"
        " -N: the last N records of each partition.",
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--partition",
        action="append",
        default=[],
        type=partition,
        metavar="N",
        help="may be repeated; default: all",
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=_start,
        default=Place("beginning"),
        metavar="PLACE",
        help="default: beginning",
    )
    parser.add_argument(
        "--to",
        dest="stop",
        type=_stop,
        metavar="PLACE",
        help="read up to there, without it; end is that of now",
    )
    parser.add_argument("-n", "--records", type=positive, metavar="N", help="end after so many records")
    parser.add_argument("--group", metavar="GROUP", help="read as a member, and commit what was printed")
    parser.add_argument(
        "--isolation", choices=("read_uncommitted", "read_committed"), default="read_committed",
        help="default: read_committed",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="of a line (default: text, the value)"
    )
    parser.add_argument(
        "--show", type=_columns, default=(), metavar="FIELD,…",
        help=f"in front of each value, of {', '.join(COLUMNS)}; json has them all",
    )  # fmt: skip
    parser.add_argument(
        "--tier",
        action="store_true",
        help="say for each record whether it came from local disks or the bucket",
    )
    add_librdkafka_option(parser)
    add_bootstrap_option(parser)
    parser.set_defaults(run=run)


def _start(text: str) -> Place:
    if text.startswith("-") and text[1:].isascii() and text[1:].isdigit():
        return Place("last", min(int(text[1:]), _FOREVER))
    return _place(text, ("beginning", "end"))


def _stop(text: str) -> Place:
    return _place(text, ("end",))


def _place(text: str, words: Sequence[str]) -> Place:
    if text in words:
        return Place(text)
    if text.isascii() and text.isdigit():
        return Place("offset", min(int(text), _FOREVER))
    if text.startswith("@"):
        return Place("time", _time_ms(text[1:]))
    raise argparse.ArgumentTypeError(f"expected {', '.join(words)}, an offset or @TIME, found {text!r}")


def _time_ms(text: str) -> int:
    from service.base.errors import ConfigError
    from service.base.times import time_ms

    if text.isascii() and text.isdigit() and len(text) > 8:
        return min(int(text), _FOREVER)
    try:
        return time_ms(text)
    except ConfigError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise argparse.ArgumentTypeError(f"expected fields of {', '.join(COLUMNS)}, found {name!r}")
    return names


def run(args: argparse.Namespace) -> int:
    from service.base.confluent import confluent_kafka
    from service.base.errors import ConfigError
    from service.base.extras import install_extra
    from service.cli.reading import Reading
    from service.cli.stopping import stops_raised

    kafka = confluent_kafka(install_extra("client"))
    if args.group and (args.partition or args.stop or args.start.kind not in ("beginning", "end")):
        raise ConfigError(
            "--group reads from where the group is: it goes with --from beginning or end, for partitions"
            " without an offset, and neither with --to nor --partition"
        )
    with stops_raised(), closing(Reading(args, kafka)) as reading:
        reading.print_records(sys.stdout.buffer)
    return 0
