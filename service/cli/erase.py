"""`firn erase`: orders to erase the records of some keys, from every tier and every replica."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option
from service.cli.client_properties import security_of_args

if TYPE_CHECKING:
    import re
    from uuid import UUID

    from service.client.admin import Cluster
    from service.client.admin_models import TopicInfo
    from service.client.all_brokers import CommandDeadline
    from service.remote.format.erase_codec import ErasureOrder

_ASK_S = 30.0
_CHANGE_S = 120.0
_COUNT_S = 3600.0
"""Default of --timeout: of what asks brokers, of what waits for `CUT`, and of what has brokers read."""
_FIRST_S = 30.0
"""Longest silence of the broker that is asked for the others."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "erase",
        help="erase the records of keys from all tiers and replicas",
        description="Erase the records of some keys that topics have now: from the logs of all replicas, from"
        " the bucket, and from what a restore could bring back (docs/erasure.md). Restores to moments before"
        " the end of an order are given up.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    plan = actions.add_parser(
        "plan",
        help="say what an order would read and write",
        description="Ask leaders which objects may have records of the keys, and print bytes, requests and"
        " money of an order. Changes nothing. Exit code 1 where not all partitions could be looked at.",
    )
    plan.set_defaults(run=_plan)
    start = actions.add_parser(
        "start",
        help="give an order",
        description="Order that the records of these keys below the topics' ends of now are erased. Without"
        " --execute it only says what the order would be.",
    )
    start.add_argument("--execute", action="store_true", help="do it")
    start.set_defaults(run=_start)
    for action in (plan, start):
        _add_order(action)
    listing = actions.add_parser(
        "list",
        help="list orders",
        description="List the orders that are not gone. Exit code 1 where a broker does not answer.",
    )
    listing.set_defaults(run=_list)
    status = actions.add_parser(
        "status",
        help="say what of an order is left, and why",
        description="Print how far an order is, what is left and why: replicas that are away, archives,"
        " tails, objects and versions until when. Exit code 0 once it is done, 1 before, and where a broker"
        " does not answer.",
    )
    status.set_defaults(run=_status)
    verify = actions.add_parser(
        "verify",
        help="read everything and count records of the keys",
        description="Read all that the topics of an order have below its ends, in the logs of all replicas,"
        " in objects and in tails, count records of its keys, and print a report with a checksum. Exit code 0"
        " if everything was read and there are none. Once the order is gone, give topics and keys again.",
    )
    verify.add_argument("-o", "--output", metavar="FILE", help="write the report to a file, too")
    verify.set_defaults(run=_verify)
    _add_order(verify, is_needed=False)
    cancel = actions.add_parser(
        "cancel",
        help="end an order that is not done",
        description="End an order: what is erased stays erased, the rest stays.",
    )
    cancel.set_defaults(run=_cancel)
    for action in (status, cancel):
        action.add_argument("id", type=_id, metavar="ID", help="the order, as `firn erase list` has it")
    verify.add_argument("id", type=_id, nargs="?", metavar="ID", help="the order")
    for action in (plan, start, listing, status, verify, cancel):
        add_bootstrap_option(action)
        add_json_option(action)
        counts = action in (plan, verify)
        action.add_argument(
            "--timeout",
            type=_seconds,
            default=_COUNT_S if counts else _CHANGE_S if action in (start, cancel) else _ASK_S,
            metavar="SECONDS",
            help="for the whole command (default: %(default)g); a broker that has not answered by then is"
            " named" + (", and what it was to read counts as not read" if counts else ""),
        )


def _add_order(parser: argparse.ArgumentParser, *, is_needed: bool = True) -> None:
    parser.add_argument(
        "--topics",
        type=_regex,
        required=is_needed,
        metavar="REGEX",
        help="topics whose whole name matches; internal and compacted ones are not erased from so",
    )
    which = parser.add_mutually_exclusive_group(required=is_needed)
    which.add_argument(
        "--key", action="append", metavar="KEY", help="a key as text (may be repeated; others see it in `ps`)"
    )
    which.add_argument(
        "--key-base64", action="append", metavar="BASE64", help="a key as base64 (may be repeated)"
    )
    which.add_argument(
        "--keys-file", metavar="FILE", help="a key on each line, as text; - for standard input"
    )
    parser.add_argument("--base64", action="store_true", help="the lines of --keys-file are base64")
    parser.add_argument(
        "--before",
        type=_time,
        metavar="TIME",
        help="only records older than a time (2026-01-31T12:00:00Z), by their timestamps",
    )


def _regex(text: str) -> re.Pattern[str]:
    import re

    try:
        return re.compile(text)
    except re.error as e:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {e}") from None


def _time(text: str) -> int:
    from service.base.errors import ConfigError
    from service.base.times import time_ms

    try:
        return time_ms(text)
    except ConfigError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _id(text: str) -> UUID:
    from uuid import UUID

    try:
        return UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not the id of an order") from None


def _keys(args: argparse.Namespace) -> list[bytes]:
    """Return the keys. Error messages have none of them."""
    from service.base.errors import ConfigError
    from service.cli.erase_keys import decoded, lines_of_file

    if args.base64 and args.keys_file is None:
        raise ConfigError("--base64 goes with --keys-file alone; one key as base64 is --key-base64")
    if args.key is not None:
        return [one.encode("utf-8", "surrogateescape") for one in args.key]
    if args.key_base64 is not None:
        return [
            decoded(one.encode(), f"--key-base64 number {at + 1}") for at, one in enumerate(args.key_base64)
        ]
    return lines_of_file(args.keys_file, is_base64=args.base64)


def _connected(args: argparse.Namespace) -> Cluster:
    from service.client.admin import Cluster

    timeout_s = min(args.timeout, _FIRST_S)
    return Cluster(args.bootstrap_server, timeout_s=timeout_s, security=security_of_args(args))


def _deadline(args: argparse.Namespace) -> CommandDeadline:
    from service.base.world import system_world
    from service.client.all_brokers import CommandDeadline

    return CommandDeadline(args.timeout, system_world())


def _chosen(cluster: Cluster, pattern: re.Pattern[str]) -> list[TopicInfo]:
    """Return the topics that an order may have. Raises `ConfigError` for none, and for compacted ones."""
    from service.base.errors import ConfigError
    from service.base.types import INTERNAL_TOPICS

    found = [one for one in cluster.topics() if pattern.fullmatch(one.name) is not None]
    chosen = [one for one in found if one.name not in INTERNAL_TOPICS]
    if not chosen:
        why = f"only internal topics match: {found[0].name}" if found else "no topic has such a name"
        raise ConfigError(f"--topics {pattern.pattern}: {why}")
    policies = cluster.topic_configs([one.name for one in chosen], ["cleanup.policy"])
    compacted = [name for name, keys in policies.items() if "compact" in (keys.get("cleanup.policy") or "")]
    if compacted:
        raise ConfigError(
            f"compacted topics are not erased from so; write a record without a value for each key, which"
            f" compaction honours: {', '.join(compacted[:10])}"
        )
    return chosen


def _order(args: argparse.Namespace, cluster: Cluster) -> ErasureOrder:
    from service.base.world import system_world
    from service.client.erasures import OrderIdentity, make_order

    keys = _keys(args)
    world = system_world()
    identity = OrderIdentity(world.new_uuid(), world.new_uuid().bytes, world.clock.now_ms())
    return make_order(cluster, _chosen(cluster, args.topics), keys, identity, args.before)


def _plan(args: argparse.Namespace) -> int:
    from service.cli.erase_words import plan_document, plan_lines
    from service.inspect.erase_report import plan_of

    deadline = _deadline(args)
    with _connected(args) as cluster:
        found = plan_of(cluster, _order(args, cluster), deadline)
    print(json.dumps(plan_document(found), indent=2) if args.json else "\n".join(plan_lines(found)))
    return 1 if found.problems else 0


def _start(args: argparse.Namespace) -> int:
    from service.cli.erase_words import order_document, order_lines
    from service.client.erasures import start_order

    deadline = _deadline(args)
    with _connected(args) as cluster:
        order = _order(args, cluster)
        row = start_order(cluster, order, deadline) if args.execute else None
    if args.json:
        print(json.dumps({**order_document(order), "started": row is not None}, indent=2))
        return 0
    print("\n".join(order_lines(order)))
    if row is None:
        print("nothing was ordered: --execute orders it")
    else:
        print(f"ordered: {row['id']}; firn erase status {row['id']} says how far it is")
    return 0


def _list(args: argparse.Namespace) -> int:
    from service.cli.erase_words import list_lines
    from service.client.erasures import find_orders

    deadline = _deadline(args)
    with _connected(args) as cluster:
        found = find_orders(cluster, deadline)
    rows = [
        found.orders[one] for one in sorted(found.orders, key=lambda one: found.orders[one]["started_ms"])
    ]
    if args.json:
        print(json.dumps({"orders": rows, "silent": found.silent, "away": found.away}, indent=2))
    else:
        print("\n".join(list_lines(rows)))
        for one in (*found.silent, *found.away):
            print(f"firn erase: {one}", file=sys.stderr)
    return 1 if found.silent else 0


def _status(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.cli.erase_words import status_document, status_lines
    from service.client.erasures import find_orders

    deadline = _deadline(args)
    with _connected(args) as cluster:
        found = find_orders(cluster, deadline)
    row = found.orders.get(str(args.id))
    if row is None and (found.silent or found.away):
        raise ConfigError(f"no broker that answers knows order {args.id}", *found.silent, *found.away)
    if row is None:
        raise ConfigError(f"there is no order {args.id}: it is gone, or never was")
    document = status_document(row, found)
    print(json.dumps(document, indent=2) if args.json else "\n".join(status_lines(document)))
    return 0 if row["state"] == "done" and not found.silent else 1


def _verify(args: argparse.Namespace) -> int:
    from pathlib import Path

    from service.base.errors import ConfigError
    from service.base.world import system_world
    from service.cli.erase_words import report_lines
    from service.inspect.erase_report import sealed, verify

    is_given = any(one is not None for one in (args.key, args.key_base64, args.keys_file))
    if (args.id is None) == (not is_given) or is_given != (args.topics is not None):
        raise ConfigError("which order? ID, or, once it is gone, --topics and its keys again")
    if not is_given and (args.before is not None or args.base64):
        raise ConfigError("--before and --base64 are for keys; an order that ID names has its own")
    deadline = _deadline(args)
    with _connected(args) as cluster:
        order = _order(args, cluster) if is_given else None
        report = verify(cluster, args.id, order, system_world().clock.now_ms(), deadline)
    document = sealed(report)
    text = json.dumps(document, indent=2)
    print(text if args.json else "\n".join(report_lines(document)))
    if args.output is not None:
        try:
            Path(args.output).write_text(f"{text}\n", encoding="utf-8")
        except OSError as e:
            if not args.json:
                print(text)  # it took long, perhaps
            raise ConfigError(
                f"--output {args.output}: {e.strerror}; the report is on standard output"
            ) from e
    return 0 if report.is_clean else 1


def _cancel(args: argparse.Namespace) -> int:
    from service.client.erasures import cancel_order

    deadline = _deadline(args)
    with _connected(args) as cluster:
        row = cancel_order(cluster, args.id, deadline)
    print(json.dumps({"cancelled": row["id"]}, indent=2) if args.json else f"cancelled {row['id']}")
    return 0
