"""`firn offsets`: offsets of partitions, by name, time or tier."""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Final

from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned
from service.cli.places import METAVAR, named_partitions
from service.cli.resolving import tell_refused

if TYPE_CHECKING:
    from service.client.admin import Cluster
    from service.client.admin_models import Place
    from service.client.offset_queries import OffsetAnswer

_NAMED: Final = {
    "latest": -1, "earliest": -2, "max-timestamp": -3, "earliest-local": -4, "latest-tiered": -5,
    "earliest-pending-upload": -6,
}  # fmt: skip
"""Kafka's names of special timestamps."""
_DEFAULT: Final = ("earliest", "latest")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "offsets",
        help="show offsets of partitions",
        description="Show where partitions begin and end, the offset of the first record of a time or later,"
        " of the record with the largest timestamp, and where the tiers of a tiered topic begin and end."
        " Exit code 1 if a partition's leader does not tell.",
    )
    parser.add_argument(
        "partitions", nargs="*", type=named_partitions, metavar=METAVAR,
        help="these topics or partitions (default: all)",
    )  # fmt: skip
    parser.add_argument("--pattern", metavar="REGEX", help="topics whose whole name matches")
    parser.add_argument("--exclude-internal-topics", action="store_true", help="leave internal topics out")
    parser.add_argument(
        "--time", action="append", metavar="WHICH", dest="times",
        help=f"{', '.join(_NAMED)}, milliseconds since 1970, or a time (2026-01-31T12:00Z, UTC without a"
        " zone); may be repeated (default: earliest and latest)",
    )  # fmt: skip
    add_json_option(parser)
    add_bootstrap_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.client.admin import Cluster
    from service.client.offset_queries import list_offsets
    from service.client.partition_lookup import resolved

    times = {word: _timestamp(word) for word in args.times or _DEFAULT}
    if args.partitions and args.pattern is not None:
        raise ConfigError("which topics? Names, or --pattern")
    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        places = resolved(cluster, args.partitions) if args.partitions else _all(cluster, args)
        found = {word: list_offsets(cluster, places, at) for word, at in times.items()}
    refused = {place: one.error for answers in found.values() for place, one in answers.items() if one.error}
    _print(found, [place for place in places if place not in refused], as_json=args.json)
    return tell_refused("offsets", refused)


def _timestamp(word: str) -> int:
    from service.base.times import time_ms

    if word in _NAMED:
        return _NAMED[word]
    if re.fullmatch(r"-[1-6]|\d{1,18}", word, re.ASCII):
        return int(word)
    return time_ms(word)


def _all(cluster: Cluster, args: argparse.Namespace) -> list[Place]:
    """Return all partitions of the topics that the arguments leave."""
    from service.base.errors import ConfigError
    from service.base.types import INTERNAL_TOPICS
    from service.client.offset_queries import partitions_of

    try:
        pattern = re.compile(args.pattern or ".*")
    except re.error as e:
        raise ConfigError(f"--pattern {args.pattern}: {e}") from None
    places = [
        place
        for place, _ in partitions_of(cluster)
        if pattern.fullmatch(place[0]) and not (args.exclude_internal_topics and place[0] in INTERNAL_TOPICS)
    ]
    if not places and args.pattern is not None:
        raise ConfigError(f"no topic matches {args.pattern}")
    return places


def _print(found: dict[str, dict[Place, OffsetAnswer]], places: list[Place], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "topic": topic,
                "partition": number,
                "offsets": {
                    word: None if (offset := answers[topic, number].offset) < 0 else offset
                    for word, answers in found.items()
                },
            }
            for topic, number in places
        ]
        print(json.dumps(rows, indent=2))
    elif places:
        shown = [
            (topic, str(number), *(_cell(answers[topic, number].offset) for answers in found.values()))
            for topic, number in places
        ]
        print("\n".join(aligned([("topic", "partition", *found), *shown])))


def _cell(offset: int) -> str:
    return "-" if offset < 0 else str(offset)
