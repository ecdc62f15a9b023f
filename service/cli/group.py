"""`firn group`: lists and describes consumer groups of both protocols, resets and deletes them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned
from service.cli.group_changes import add_changes
from service.cli.group_reset import add_reset

if TYPE_CHECKING:
    from service.groups.admin_models import GroupInfo, Partitions


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "group",
        help="list, describe, reset and delete consumer groups",
        description="List consumer groups of both protocols, classic and KIP-848, describe one, move what"
        " groups have committed, and delete them.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)

    listing = actions.add_parser(
        "list",
        help="list all groups",
        description="List the groups of all nodes: protocol, state, and the coordinator of each. Exit code 1"
        " if a node does not answer; the groups of the others are listed.",
    )
    listing.set_defaults(run=_list)

    describe = actions.add_parser(
        "describe",
        help="show a group's members, assignments and lag",
        description="Show a group's state, its members and their assignments, and for each partition the"
        " committed offset, the end of the log and the lag between them.",
    )
    describe.add_argument("group", metavar="GROUP", help="the group's id (group.id)")
    describe.set_defaults(run=_describe)

    for action in (listing, describe, add_reset(actions), *add_changes(actions)):
        add_json_option(action)
        add_bootstrap_option(action)


def _list(args: argparse.Namespace) -> int:
    from service.client.admin import Cluster
    from service.groups.admin_queries import list_groups

    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        found = list_groups(cluster)
    if args.json:
        print(json.dumps([row._asdict() for row in found.rows], indent=2))
    elif found.rows:
        rows = [(one.group_id, one.kind, one.state, str(one.node)) for one in found.rows]
        print("\n".join(aligned([("group", "protocol", "state", "coordinator"), *rows])))
    for problem in found.problems:
        print(f"firn group: {problem}", file=sys.stderr)
    return 1 if found.problems else 0


def _describe(args: argparse.Namespace) -> int:
    from service.client.admin import Cluster
    from service.groups.admin_models import as_json
    from service.groups.admin_queries import describe_group, find_group, list_groups

    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        info = describe_group(cluster, find_group(list_groups(cluster), args.group))
    if args.json:
        print(json.dumps(as_json(info), indent=2))
    else:
        print("\n".join(format_group(info)))
    return 0


def format_group(info: GroupInfo) -> list[str]:
    """Return lines of text: the group, its members, and its position in each partition."""
    from service.base.printable import escaped

    row = info.row
    lines = [f"group: {escaped(row.group_id)}", f"protocol: {row.kind}", f"state: {row.state}"]
    lines += [f"assignor: {escaped(info.protocol) or '-'}", f"coordinator: {row.node}"]
    if info.epoch is not None:
        lines.append(f"epoch: {info.epoch} (assignment: {info.assignment_epoch})")
    lines.append(f"lag: {_number(info.lag)}")
    if info.members:
        head = ("member", "instance", "client", "host", "epoch", "partitions")
        rows = [
            (
                m.member_id, m.instance_id or "-", m.client_id, m.client_host, _number(m.epoch),
                m.problem or format_partitions(m.assigned),
            )
            for m in info.members
        ]  # fmt: skip
        lines += ["", *aligned([head, *rows])]
    if info.positions:
        head = ("topic", "partition", "committed", "end", "lag", "member")
        rows = [
            (
                p.topic, str(p.partition), _number(p.committed), _number(p.end), _number(p.lag),
                p.member_id or "-",
            )
            for p in info.positions
        ]  # fmt: skip
        lines += ["", *aligned([head, *rows])]
    return lines


def format_partitions(partitions: Partitions) -> str:
    """Return text like `flights-0,1,2 other-5`; `-` for none."""
    return " ".join(f"{topic}-{','.join(map(str, numbers))}" for topic, numbers in partitions) or "-"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
