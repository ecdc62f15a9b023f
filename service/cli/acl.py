"""`firn acl`: lists, adds and removes access control entries."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned
from service.security.operations import OPERATION_WORDS

if TYPE_CHECKING:
    from service.security.acl_index import AclEntry

_HEAD = ("type", "name", "pattern", "principal", "host", "permission", "operation")
_PATTERNS = ("any", "match", "literal", "prefixed")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "acl",
        help="list, add and remove access control entries",
        description="List, add and remove access control entries (ACLs): who may do what, and from where. The"
        " options are those of Kafka's kafka-acls.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    _add_list(actions)
    add = actions.add_parser(
        "add",
        help="allow or deny something",
        description="Add entries: each principal, host and operation on each resource. What is there already"
        " stays and is no error.",
    )
    add.set_defaults(run=_add)
    remove = actions.add_parser(
        "remove",
        help="take entries away",
        description="Remove what 'add' with the same options adds; without a principal all entries of the"
        " resources. Exit code 1 if there was nothing to remove.",
    )
    remove.add_argument(
        "--dry-run", action="store_true", help="print what would be removed, and remove nothing"
    )
    remove.set_defaults(run=_remove)
    for action in (add, remove):
        _add_subject(action)
        _add_resources(action, _PATTERNS if action is remove else _PATTERNS[2:])
        add_json_option(action)
        add_bootstrap_option(action)


def _add_list(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    listing = actions.add_parser(
        "list",
        help="list entries",
        description="List all entries, or those of the named resources and principals.",
    )
    listing.add_argument(
        "--principal", action="append", type=principal, metavar="User:NAME",
        help="of this principal alone (may be repeated)",
    )  # fmt: skip
    _add_resources(listing, _PATTERNS)
    add_json_option(listing)
    add_bootstrap_option(listing)
    listing.set_defaults(run=_list)


def _add_subject(action: argparse.ArgumentParser) -> None:
    for verb in ("allow", "deny"):
        action.add_argument(
            f"--{verb}-principal", action="append", type=principal, metavar="User:NAME",
            help=f"whom to {verb} it; User:* is everybody (may be repeated)",
        )  # fmt: skip
        action.add_argument(
            f"--{verb}-host", action="append", metavar="ADDRESS",
            help="from this address alone (default: from anywhere; may be repeated)",
        )  # fmt: skip
    action.add_argument(
        "--operation", action="append", choices=tuple(OPERATION_WORDS), metavar="OPERATION",
        help=f"one of {', '.join(OPERATION_WORDS)} (default: All; may be repeated)",
    )  # fmt: skip
    action.add_argument(
        "--producer", action="store_true",
        help="all that a producer needs: Write, Describe and Create on the topics, Write and Describe on the"
        " transactional ids",
    )  # fmt: skip
    action.add_argument(
        "--consumer", action="store_true",
        help="all that a consumer needs: Read and Describe on the topics, Read on the groups",
    )  # fmt: skip
    action.add_argument(
        "--idempotent", action="store_true",
        help="with --producer: IdempotentWrite on the cluster, which old clusters want",
    )  # fmt: skip


def _add_resources(action: argparse.ArgumentParser, patterns: Sequence[str]) -> None:
    for option, metavar in (
        ("topic", "TOPIC"), ("group", "GROUP"), ("transactional-id", "ID"), ("delegation-token", "ID"),
        ("user-principal", "User:NAME"),
    ):  # fmt: skip
        what = option.replace("-", " ")
        action.add_argument(
            f"--{option}",
            action="append",
            metavar=metavar,
            help=f"a {what}; * is every one (may be repeated)",
        )
    action.add_argument("--cluster", action="store_true", help="the cluster itself")
    action.add_argument(
        "--resource-pattern-type", choices=patterns, default="literal",
        help="prefixed: names that begin so; when entries are looked for also match (what counts for a"
        " resource of this name) and any (default: literal)",
    )  # fmt: skip


def principal(text: str) -> str:
    """Check that an argument is TYPE:NAME, as in Kafka's tools; `ArgumentTypeError` for any other text."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise argparse.ArgumentTypeError(f"expected User:NAME, found {text!r}")
    return text


def _list(args: argparse.Namespace) -> int:
    from service.cli.acl_entries import resources_of, row_of
    from service.client.access_requests import AclQuery, describe_acls
    from service.client.admin import Cluster

    asked = [AclQuery(*one) for one in resources_of(args)] or [AclQuery()]
    queries = [one._replace(principal=principal) for one in asked for principal in args.principal or (None,)]
    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        found = sorted({entry for query in queries for entry in describe_acls(cluster, query)})
    if args.json:
        print(json.dumps([row_of(one) for one in found], indent=2))
    elif found:
        _print_table(found)
    return 0


def _add(args: argparse.Namespace) -> int:
    from service.base.printable import escaped
    from service.cli.acl_entries import entries_of, row_of
    from service.client.access_requests import AclQuery, create_acls, describe_acls
    from service.client.admin import ChangingCluster

    wanted = entries_of(args)
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        present = {entry for one in wanted for entry in describe_acls(cluster, AclQuery(*one))}
        new = [one for one in wanted if one not in present]
        if not args.json and present:
            print("there already:")
            _print_table(sorted(present))
        if not args.json and new:
            print("to add:")
            _print_table(new)
        refused = create_acls(cluster, new) if new else []
    for entry, error in refused:
        print(f"firn acl: {escaped(entry.name)}: {escaped(str(error))}", file=sys.stderr)
    added = [one for one in new if one not in {entry for entry, _ in refused}]
    if args.json:
        document = {
            "added": [row_of(one) for one in added],
            "present": [row_of(one) for one in sorted(present)],
        }
        print(json.dumps(document, indent=2))
    else:
        print(f"added {len(added)}")
    return 1 if refused else 0


def _remove(args: argparse.Namespace) -> int:
    from service.cli.acl_entries import queries_of, row_of
    from service.client.access_requests import delete_acls, describe_acls
    from service.client.admin import ChangingCluster

    queries = queries_of(args)
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        if args.dry_run:
            found = sorted({entry for one in queries for entry in describe_acls(cluster, one)})
        else:
            found = delete_acls(cluster, queries)
    if args.json:
        word = "would_remove" if args.dry_run else "removed"
        print(json.dumps({word: [row_of(one) for one in found]}, indent=2))
        return 0 if found else 1
    if not found:
        print("firn acl: there is no such entry", file=sys.stderr)
        return 1
    print("would remove:" if args.dry_run else "removed:")
    _print_table(found)
    return 0


def _print_table(entries: Sequence[AclEntry]) -> None:
    from service.cli.acl_entries import row_of

    rows = [tuple(row_of(one).values()) for one in entries]
    print("\n".join(aligned([_HEAD, *rows])))
