"""`firn log-dirs`: log directories of brokers, and what is in them."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned
from service.cli.places import whole_numbers
from service.cli.resolving import tell
from service.cli.tiers import human_bytes

if TYPE_CHECKING:
    from service.client.log_dir_queries import LogDirectory

_OK = "ok"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "log-dirs",
        help="show log directories of brokers",
        description="Show the log directories of brokers, whether each is in order, how much of its file"
        " system is free, and how many replicas of which size it has. Exit code 1 if one is not in order, or"
        " a broker does not answer.",
    )
    parser.add_argument("--broker", type=whole_numbers, metavar="ID,…", help="of these (default: all)")
    parser.add_argument(
        "--topic", action="append", metavar="TOPIC", dest="topics",
        help="replicas of this topic alone, one a line (may be repeated)",
    )  # fmt: skip
    parser.add_argument("--partitions", action="store_true", help="list each replica")
    add_json_option(parser)
    add_bootstrap_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.client.admin import Cluster
    from service.client.log_dir_queries import describe_log_dirs

    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        found = describe_log_dirs(cluster, args.broker, args.topics)
    each = args.partitions or args.topics is not None
    if args.json:
        print(json.dumps([_document(one, each=each) for one in found.directories], indent=2))
    elif found.directories:
        rows = _replicas(found.directories) if each else _directories(found.directories)
        print("\n".join(aligned(rows)))
    there = {replica.place[0] for one in found.directories for replica in one.replicas}
    missing = [f"there is no replica of {topic}" for topic in args.topics or () if topic not in there]
    problems = found.problems or missing
    for problem in problems:
        tell("log-dirs", problem)
    return 1 if problems or any(one.state != _OK for one in found.directories) else 0


def _document(one: LogDirectory, *, each: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "broker": one.broker,
        "directory": one.path,
        "state": one.state,
        "total_bytes": one.total_bytes,
        "usable_bytes": one.usable_bytes,
        "replicas": len(one.replicas),
        "size": one.size,
    }
    if each:
        document["partitions"] = [
            {
                "topic": replica.place[0],
                "partition": replica.place[1],
                "size": replica.size,
                "lag": replica.lag,
                "is_future": replica.is_future,
            }
            for replica in sorted(one.replicas)
        ]
    return document


def _directories(found: tuple[LogDirectory, ...]) -> list[tuple[str, ...]]:
    head = ("broker", "directory", "state", "replicas", "size", "free", "of")
    return [
        head,
        *(
            (
                str(one.broker), one.path, one.state, str(len(one.replicas)), human_bytes(one.size),
                human_bytes(one.usable_bytes), human_bytes(one.total_bytes),
            )
            for one in found
        ),
    ]  # fmt: skip


def _replicas(found: tuple[LogDirectory, ...]) -> list[tuple[str, ...]]:
    head = ("topic", "partition", "broker", "size", "lag", "directory")
    rows = sorted(
        (*replica.place, one.broker, replica.size, replica.lag, one.path)
        for one in found
        for replica in one.replicas
    )
    return [
        head,
        *(
            (topic, str(number), str(broker), human_bytes(size), str(lag), path)
            for topic, number, broker, size, lag, path in rows
        ),
    ]
