"""`firn quota`: lists, sets and removes quotas of users, client ids and addresses."""

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

if TYPE_CHECKING:
    from service.client.access_requests import QuotaRow

_KEYS = (
    "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
    "connection_creation_rate",
)  # fmt: skip
_TYPES = (("user", "user", "NAME"), ("client", "client-id", "ID"), ("ip", "ip", "ADDRESS"))
"""Option, Kafka's type of entity, placeholder."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "quota",
        help="list, set and remove quotas",
        description="List, set and remove quotas of users, client ids and addresses (docs/quotas.md).",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)

    listing = actions.add_parser(
        "list",
        help="list quotas",
        description="List all quotas, or those whose entity has the named parts.",
    )
    listing.set_defaults(run=_list)

    setting = actions.add_parser(
        "set",
        help="set quotas of an entity",
        description="Set quotas of a user, of a client id, of both together, or of an address. The names of"
        f" quotas: {', '.join(_KEYS)}.",
    )
    setting.add_argument(
        "quotas", nargs="+", type=_assignment, metavar="QUOTA=VALUE", help="a quota, per second"
    )
    setting.set_defaults(run=_set)

    remove = actions.add_parser(
        "remove",
        help="take quotas of an entity away",
        description="Remove quotas of an entity: those that are named, or all. Exit code 1 if it has none.",
    )
    remove.add_argument("quotas", nargs="*", metavar="QUOTA", help="default: all that the entity has")
    remove.set_defaults(run=_remove)
    for action in (listing, setting, remove):
        _add_entity(action)
        add_json_option(action)
        add_bootstrap_option(action)


def _add_entity(action: argparse.ArgumentParser) -> None:
    for option, kind, metavar in _TYPES:
        group = action.add_mutually_exclusive_group()
        group.add_argument(f"--{option}", metavar=metavar, help=f"the {kind}")
        group.add_argument(
            f"--default-{option}", action="store_true", help=f"every {kind} that has no quota of its own"
        )


def _assignment(text: str) -> tuple[str, float]:
    key, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not equals or not key or not number > 0 or number == float("inf"):
        raise argparse.ArgumentTypeError(f"expected QUOTA=NUMBER above 0, found {text!r}")
    return key, number


def _entity(args: argparse.Namespace) -> dict[str, str | None]:
    """Return the parts that the options name, None for a default."""
    found: dict[str, str | None] = {}
    for option, kind, _ in _TYPES:
        name: str | None = getattr(args, option)
        if name is not None or getattr(args, f"default_{option}"):
            found[kind] = name
    return found


def _needed_entity(args: argparse.Namespace) -> dict[str, str | None]:
    from service.base.errors import ConfigError

    found = _entity(args)
    if not found:
        raise ConfigError("whose quota? --user, --client or --ip, or a default: --default-user …")
    if "ip" in found and len(found) > 1:
        raise ConfigError("a quota of an address is of nothing else: --ip alone")
    return found


def _list(args: argparse.Namespace) -> int:
    from service.client.access_requests import describe_quotas
    from service.client.admin import Cluster

    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        rows = describe_quotas(cluster, _entity(args))
    _print(rows, as_json=args.json)
    return 0


def _set(args: argparse.Namespace) -> int:
    from service.client.access_requests import alter_quotas, describe_quotas
    from service.client.admin import ChangingCluster

    entity = _needed_entity(args)
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        alter_quotas(cluster, entity, dict(args.quotas))
        rows = describe_quotas(cluster, entity, strict=True)
    _print(rows, as_json=args.json)
    return 0


def _remove(args: argparse.Namespace) -> int:
    from service.base.printable import printable
    from service.client.access_requests import alter_quotas, describe_quotas
    from service.client.admin import ChangingCluster

    entity = _needed_entity(args)
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        has = {key for row in describe_quotas(cluster, entity, strict=True) for key in row.values}
        chosen = set(args.quotas) or has
        if not chosen or not chosen <= has:
            missing = "" if not has else " " + ", ".join(sorted(chosen - has))
            print(f"firn quota: the entity has no quota{printable(missing)}", file=sys.stderr)
            return 1
        alter_quotas(cluster, entity, dict.fromkeys(sorted(chosen)))
    if args.json:
        print(json.dumps({"removed": sorted(chosen)}, indent=2))
    else:
        print(f"removed {', '.join(sorted(chosen))}")
    return 0


def _print(rows: Sequence[QuotaRow], *, as_json: bool) -> None:
    if as_json:
        document = [{"entity": dict(row.parts), "quotas": row.values} for row in rows]
        print(json.dumps(document, indent=2))
    elif rows:
        shown = [
            (*(_shown(dict(row.parts), kind) for _, kind, _ in _TYPES), key, f"{value:.15g}")
            for row in rows
            for key, value in row.values.items()
        ]
        print("\n".join(aligned([("user", "client-id", "ip", "quota", "value"), *shown])))


def _shown(parts: dict[str, str | None], kind: str) -> str:
    if kind not in parts:
        return "-"
    name = parts[kind]
    return "<default>" if name is None else name
