"""`firn group delete` and `delete-offsets`: done only with `--execute`."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from service.base.patience import patience
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned
from service.cli.places import METAVAR, named_partitions
from service.cli.resolving import failure_noted, tell, tell_refused

if TYPE_CHECKING:
    from service.client.admin_models import Place
    from service.groups.admin_models import GroupRow, Listing

NOT_DONE = "nothing was changed: --execute does it"


def add_changes(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
) -> list[argparse.ArgumentParser]:
    """Add the actions, and return them: options that all actions have are the caller's."""
    delete = actions.add_parser(
        "delete",
        help="delete groups and their offsets",
        description="Delete groups that have no members, with all their committed offsets. Without --execute"
        " it only says which could be deleted. Exit code 1 if one cannot be.",
    )
    add_groups(delete)
    delete.set_defaults(run=_delete)

    forget = actions.add_parser(
        "delete-offsets",
        help="delete committed offsets of a group",
        description="Delete what a group has committed for topics or partitions: its consumers begin there as"
        " auto.offset.reset says. A topic that members subscribe to is refused. Without --execute it only"
        " says what would go. Exit code 1 if a partition was refused.",
    )
    forget.add_argument("group", metavar="GROUP", help="the group's id (group.id)")
    forget.add_argument(
        "--topic", action="append", required=True, type=named_partitions, metavar=METAVAR, dest="topics",
        help="of a topic, or of some of its partitions (may be repeated)",
    )  # fmt: skip
    forget.set_defaults(run=_delete_offsets)
    for action in (delete, forget):
        add_execute(action)
    return [delete, forget]


def add_groups(action: argparse.ArgumentParser) -> None:
    action.add_argument("groups", nargs="*", metavar="GROUP", help="ids of groups (group.id)")
    action.add_argument("--all-groups", action="store_true", help="all groups of consumers")


def add_execute(action: argparse.ArgumentParser) -> None:
    choice = action.add_mutually_exclusive_group()
    choice.add_argument("--execute", action="store_true", help="do it")
    choice.add_argument("--dry-run", action="store_true", help="only say what would be done: the default")


def groups_of(args: argparse.Namespace, found: Listing) -> list[str]:
    """Return the ids that the arguments name. Raises `ConfigError` for none, or for both ways to say it."""
    from service.base.errors import ConfigError

    if bool(args.groups) == args.all_groups:
        raise ConfigError("which groups? GROUP …, or --all-groups")
    if args.all_groups and found.problems:
        raise ConfigError(f"not all groups are known: {'; '.join(found.problems)}")
    return list(dict.fromkeys(args.groups)) or [row.group_id for row in found.rows if _is_of_consumers(row)]


def _is_of_consumers(row: GroupRow) -> bool:
    """Return whether a group is one that Kafka's tool means by all groups: workers of Connect have groups,
    too, and so have share consumers (Kafka `ListGroupsOptions.forConsumerGroups`)."""
    from service.groups.admin_models import CLASSIC, CONSUMER

    return row.kind in (CLASSIC, CONSUMER) and row.protocol_type in ("", "consumer")


def _delete(args: argparse.Namespace) -> int:
    from service.base.printable import escaped
    from service.cli.report import Report
    from service.client.admin import ChangingCluster
    from service.client.group_changes import delete_group
    from service.groups.admin_changes import deletable_group
    from service.groups.admin_queries import list_groups

    done: list[str] = []
    problems: list[str] = []
    report = Report(as_json=args.json)
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        found = list_groups(cluster)
        groups = groups_of(args, found)
        try:
            for group in groups:
                with failure_noted(problems):
                    deletable_group(found, group)
                    if args.execute:
                        delete_group(cluster, patience(), group)
                    done.append(group)
                    report.say(f"{'deleted' if args.execute else 'would delete'} {escaped(group)}")
        finally:  # also what was done before Ctrl-C
            report.end(executed=args.execute, groups=done)
    if not args.execute:
        report.say(NOT_DONE)
    for problem in problems:
        tell("group", problem)
    return 1 if problems else 0


def _delete_offsets(args: argparse.Namespace) -> int:
    from service.client.admin import ChangingCluster
    from service.client.group_changes import delete_offsets
    from service.groups.admin_changes import committed_there
    from service.groups.admin_queries import list_groups

    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        wanted = committed_there(cluster, list_groups(cluster), args.group, args.topics)
        refused: dict[Place, Exception] = {}
        if args.execute and wanted:
            results = delete_offsets(cluster, patience(), args.group, wanted)
            refused = {place: error for place, error in results.items() if error is not None}
    rows = [(*place, offset) for place, offset in wanted.items() if place not in refused]
    if args.json:
        head = ("topic", "partition", "committed")
        document = [dict(zip(head, row, strict=True)) for row in rows]
        print(json.dumps({"group": args.group, "executed": args.execute, "offsets": document}, indent=2))
    else:
        if rows:
            print(
                "\n".join(
                    aligned([("topic", "partition", "committed"), *([str(c) for c in r] for r in rows)])
                )
            )
        print(f"deleted {len(rows)}" if args.execute else NOT_DONE)
    if not wanted:
        tell("group", f"{args.group} has committed nothing there")
        return 1
    return tell_refused("group", refused)
