"""`firn transaction`: lists and describes transactions, finds hanging ones and ends them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from service.base.patience import patience
from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned

if TYPE_CHECKING:
    from service.client.transaction_models import HangingTransaction, TransactionInfo

_OLDER_THAN_MS = 900_000
"""The default of transaction.max.timeout.ms."""
_LIST_WAIT_S = 60.0
"""A node's time to list its ids: a million take about twenty seconds."""
_OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
    "PrepareEpochFence",
)  # fmt: skip


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "transaction",
        help="list, describe and end transactions",
        description="List and describe the transactions of a cluster, find those that hang, and end them.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    listing = _add_list(actions)
    describe = actions.add_parser(
        "describe",
        help="show the state of a transactional id",
        description="Show a transactional id's producer, its state, since when a transaction is open, and the"
        " partitions whose markers are still to be written.",
    )
    describe.add_argument("id", metavar="ID", help="the transactional id (transactional.id)")
    describe.set_defaults(run=_describe)

    hanging = _add_hanging(actions)
    abort = actions.add_parser(
        "abort",
        help="abort a hanging transaction in a partition",
        description="Write the abort marker of a hanging transaction into one partition, so that its readers"
        " of committed records go on. One that a coordinator knows is refused: 'terminate' ends it.",
    )
    abort.add_argument("--topic", required=True, help="the topic")
    abort.add_argument("--partition", required=True, type=_number, metavar="N", help="the partition")
    abort.add_argument(
        "--start-offset", required=True, type=_number, metavar="OFFSET", help="as 'hanging' shows it"
    )
    abort.set_defaults(run=_abort)

    terminate = actions.add_parser(
        "terminate",
        help="abort the transaction of an id, and fence its producer",
        description="Abort the open transaction of a transactional id in all its partitions and fence its"
        " producer, whose next request fails. Nothing is open thereafter.",
    )
    terminate.add_argument("id", metavar="ID", help="the transactional id (transactional.id)")
    terminate.set_defaults(run=_terminate)
    for action in (listing, describe, hanging, abort, terminate):
        add_json_option(action)
        add_bootstrap_option(action)


def _add_list(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    listing = actions.add_parser(
        "list",
        help="list transactional ids",
        description="List the transactional ids of all coordinators, with producer id and state. Exit code 1"
        " if a node does not answer; the ids of the others are listed.",
    )
    listing.add_argument(
        "--state", action="append", default=[], choices=_STATES, help="of this state; may be repeated"
    )
    listing.add_argument(
        "--longer-than-ms", type=_number, default=-1, metavar="MS", help="open for longer than this"
    )
    listing.add_argument("--pattern", metavar="REGEX", help="whose whole id matches (RE2's syntax)")
    listing.set_defaults(run=_list)
    return listing


def _add_hanging(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    hanging = actions.add_parser(
        "hanging",
        help="find transactions that no coordinator will end",
        description="Find transactions that a partition holds open and that no coordinator knows: their"
        " readers of committed records wait for ever, until 'abort' ends them.",
    )
    hanging.add_argument("--topic", help="in this topic alone (default: all topics)")
    hanging.add_argument(
        "--partition", type=_number, metavar="N", help="in this partition of the topic alone"
    )
    hanging.add_argument(
        "--older-than-ms",
        type=_number,
        default=_OLDER_THAN_MS,
        metavar="MS",
        help="whose last record is older than this (default: 900000, that of transaction.max.timeout.ms)",
    )
    hanging.set_defaults(run=_hanging)
    return hanging


def _number(text: str) -> int:
    """Parse an argument of 0 to 2^63 - 1; `ArgumentTypeError` for any other text."""
    if not text.isascii() or not text.isdigit() or not int(text) < 2**63:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, found {text!r}")
    return int(text)


def _list(args: argparse.Namespace) -> int:
    from service.client.admin import Cluster
    from service.client.transaction_queries import list_transactions

    states = args.state
    if args.longer_than_ms >= 0 and not states:
        states = _OPEN_STATES  # an id at rest is older than any time: it began, says Kafka, at -1
    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        found = list_transactions(
            cluster,
            patience(),
            states=states,
            longer_than_ms=args.longer_than_ms,
            pattern=args.pattern,
            wait_s=_LIST_WAIT_S,
        )
    if args.json:
        print(json.dumps([row._asdict() for row in found.rows], indent=2))
    elif found.rows:
        rows = [(one.transactional_id, str(one.node), str(one.producer_id), one.state) for one in found.rows]
        print("\n".join(aligned([("transactional id", "coordinator", "producer", "state"), *rows])))
    return _tell(found.problems)


def _describe(args: argparse.Namespace) -> int:
    from service.client.admin import Cluster
    from service.client.transaction_queries import describe_transaction

    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        info = describe_transaction(cluster, patience(), args.id)
    if args.json:
        partitions = [{"topic": topic, "partition": number} for topic, number in info.partitions]
        print(json.dumps({**info._asdict(), "partitions": partitions}, indent=2))
    else:
        print("\n".join(format_transaction(info, time.time_ns() // 1_000_000)))
    return 0


def format_transaction(info: TransactionInfo, now_ms: int) -> list[str]:
    """Return lines of text about an id and its partitions."""
    from service.base.printable import escaped

    lines = [
        f"transactional id: {escaped(info.transactional_id)}",
        f"state: {info.state}",
        f"producer: {info.producer_id}, epoch {info.producer_epoch}",
        f"coordinator: {info.node}",
        f"timeout: {info.timeout_ms} ms",
        f"open for: {'-' if info.start_ms is None else _age(now_ms - info.start_ms)}",
    ]
    if info.partitions:
        rows = [(topic, str(number)) for topic, number in info.partitions]
        lines += ["", *aligned([("topic", "partition"), *rows])]
    return lines


def _hanging(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.client.admin import Cluster
    from service.client.transaction_queries import hanging_transactions, led_partitions

    if args.partition is not None and args.topic is None:
        raise ConfigError("--partition needs --topic")
    now_ms = time.time_ns() // 1_000_000
    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        places = list(led_partitions(cluster, args.topic, args.partition))
        if args.partition is not None and not places:
            raise ConfigError(f"{args.topic} has no partition {args.partition}")
        found = hanging_transactions(
            cluster, patience(), places, older_than_ms=args.older_than_ms, now_ms=now_ms
        )
    if args.json:
        rows = [{**one.open._asdict(), "transactional_id": one.transactional_id} for one in found.rows]
        print(json.dumps(rows, indent=2))
    elif found.rows:
        print("\n".join(format_hanging(found.rows, now_ms)))
    return _tell(found.problems) or bool(found.rows)


def format_hanging(rows: tuple[HangingTransaction, ...], now_ms: int) -> list[str]:
    """Return lines of text: a hanging transaction each, with what `abort` needs."""
    head = ("topic", "partition", "start offset", "producer", "epoch", "transactional id", "last record")
    return aligned(
        [
            head,
            *(
                (
                    one.topic, str(one.partition), str(one.first_offset), str(one.producer_id),
                    str(one.producer_epoch), transactional_id or "-",
                    f"{_age(now_ms - one.last_timestamp_ms)} ago",
                )
                for one, transactional_id in rows
            ),
        ]
    )  # fmt: skip


def _abort(args: argparse.Namespace) -> int:
    from service.client.admin import ChangingCluster
    from service.client.transaction_changes import abort_hanging

    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        one = abort_hanging(cluster, patience(), args.topic, args.partition, args.start_offset)
    if args.json:
        where = {"topic": args.topic, "partition": args.partition, "start_offset": one.first_offset}
        print(
            json.dumps(
                {**where, "producer_id": one.producer_id, "producer_epoch": one.producer_epoch}, indent=2
            )
        )
        return 0
    print(
        f"aborted the transaction of producer {one.producer_id}, epoch {one.producer_epoch},"
        f" in {args.topic}-{args.partition} from offset {one.first_offset} on"
    )
    return 0


def _terminate(args: argparse.Namespace) -> int:
    from service.client.admin import ChangingCluster
    from service.client.transaction_changes import terminate

    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        fence = terminate(cluster, patience(), args.id)
    if args.json:
        fenced_by = {"producer_id": fence.producer_id, "producer_epoch": fence.producer_epoch}
        print(json.dumps({"transactional_id": args.id, "fenced_by": fenced_by}, indent=2))
    else:
        print(f"fenced by producer {fence.producer_id}, epoch {fence.producer_epoch}")
    return 0


def _tell(problems: tuple[str, ...]) -> int:
    """Print what went wrong; return the exit code."""
    from service.base.printable import escaped

    for problem in problems:
        print(f"firn transaction: {escaped(problem)}", file=sys.stderr)
    return 1 if problems else 0


def _age(milliseconds: int) -> str:
    """Return a time in one unit, as people say it: `12.3 s`, `7 min`, `3 h`, `2 days`."""
    seconds = max(milliseconds, 0) / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 48 * 60 else f"{minutes / 1440:.0f} days"
