"""`firn profile`: names for clusters, each with its address and how to log in."""

from __future__ import annotations

import argparse
import json
import os
import sys

from service.cli.arguments import add_json_option


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "profile",
        help="name clusters, and choose the one that commands ask",
        description="A profile is a file of client properties in ~/.config/firn, with bootstrap.servers and"
        " what --command-config takes. The one in use counts where neither options nor FIRN_BOOTSTRAP and"
        " FIRN_COMMAND_CONFIG say otherwise; FIRN_PROFILE names one for a shell.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    listing = actions.add_parser(
        "list",
        help="list the profiles, with the one in use",
        description="List the profiles, with the one in use.",
    )
    listing.set_defaults(run=_list)
    add = actions.add_parser("add", help="make a profile", description="Make a profile.")
    add.add_argument("name", metavar="NAME", help="of the profile")
    add.add_argument("servers", metavar="HOST:PORT,…", help="brokers of the cluster")
    add.add_argument(
        "--properties", metavar="FILE", help="properties to copy into it, as for --command-config"
    )
    add.set_defaults(run=_add)
    use = actions.add_parser(
        "use",
        help="choose the profile that commands use",
        description="Choose the profile that commands use.",
    )
    use.add_argument("name", metavar="NAME", nargs="?", help="of the profile (default: none any more)")
    use.set_defaults(run=_use)
    remove = actions.add_parser("remove", help="delete a profile", description="Delete a profile.")
    remove.add_argument("name", metavar="NAME", help="of the profile")
    remove.set_defaults(run=_remove)
    for action in (listing, add, use, remove):
        add_json_option(action)


def _list(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.base.printable import escaped
    from service.base.properties_file import load_properties
    from service.cli.columns import aligned
    from service.cli.profiles import Profiles

    profiles = Profiles(os.environ)
    in_use = profiles.in_use()
    rows, problems = [], []
    for name in profiles.names():
        try:
            told = load_properties(profiles.path(name))
        except ConfigError as e:
            problems.append(str(e))
            continue
        security = told.get("security.protocol", "PLAINTEXT")
        rows.append((name, told.get("bootstrap.servers"), security, name == in_use))
    if args.json:
        names = ("name", "bootstrap_servers", "security_protocol", "is_in_use")
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
    else:
        shown = [
            (name, servers or "-", security, "in use" if used else "")
            for name, servers, security, used in rows
        ]
        for line in aligned([("name", "brokers", "security", ""), *shown]):
            print(line)
    for problem in problems:
        print(f"firn profile: {escaped(problem)}", file=sys.stderr)
    return 1 if problems else 0


def _add(args: argparse.Namespace) -> int:
    from service.base.properties_file import load_properties
    from service.cli.client_properties import check_properties
    from service.cli.profiles import Profiles

    properties = load_properties(args.properties) if args.properties else {}
    if args.properties:
        check_properties(args.properties)
    path = Profiles(os.environ).add(args.name, {**properties, "bootstrap.servers": args.servers})
    _tell(args, f"added {args.name}: {path}", name=args.name, path=str(path))
    return 0


def _use(args: argparse.Namespace) -> int:
    from service.cli.profiles import Profiles

    Profiles(os.environ).use(args.name)
    _tell(args, f"in use: {args.name or 'no profile'}", in_use=args.name)
    return 0


def _remove(args: argparse.Namespace) -> int:
    from service.cli.profiles import Profiles

    Profiles(os.environ).remove(args.name)
    _tell(args, f"removed {args.name}", removed=args.name)
    return 0


def _tell(args: argparse.Namespace, words: str, **facts: object) -> None:
    print(json.dumps(facts, indent=2) if args.json else words)
