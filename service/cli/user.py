"""`firn user`: users with SCRAM credentials, and the open sessions of a principal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from service.cli.address import add_bootstrap_option, add_bootstrap_options
from service.cli.arguments import add_json_option, positive
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_ITERATIONS = 4096


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "user",
        help="list, add and remove users, and end their sessions",
        description="List, add and remove users that log in with SCRAM, whose credentials are in the"
        " cluster's metadata, and list or end open sessions.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)

    listing = actions.add_parser(
        "list",
        help="list users",
        description="List the users that have SCRAM credentials. Users of PLAIN are in the nodes' own"
        " settings, and those of certificates and tokens in none.",
    )
    listing.set_defaults(run=_list)

    add = actions.add_parser(
        "add",
        help="add a user, or change a password",
        description="Give a user a password, or another one. It is read from the file of --password, or asked"
        " for on a terminal, or else is the first line of standard input. Open sessions go on.",
    )
    add.add_argument("user", metavar="NAME", help="the user's name")
    add.add_argument(
        "--password", type=_file, metavar="@FILE", help="the password is the first line of this file"
    )
    add.add_argument(
        "--mechanism", action="append", choices=_MECHANISMS,
        help="mechanism to log in with (default: SCRAM-SHA-512; may be repeated)",
    )  # fmt: skip
    add.add_argument(
        "--iterations", type=positive, default=_ITERATIONS, metavar="N",
        help=f"from 4096 to 16384; the same for all users tells least (default: {_ITERATIONS})",
    )  # fmt: skip
    add.set_defaults(run=_add)

    remove = actions.add_parser(
        "remove",
        help="take a user's credentials away",
        description="Remove the credentials of a user: nobody can log in with them any more. Open sessions go"
        " on until they are ended.",
    )
    remove.add_argument("user", metavar="NAME", help="the user's name")
    remove.add_argument(
        "--mechanism", action="append", choices=_MECHANISMS,
        help="only the credential of this mechanism (default: all; may be repeated)",
    )  # fmt: skip
    remove.set_defaults(run=_remove)
    for action in (listing, add, remove):
        add_json_option(action)
        add_bootstrap_option(action)
    _add_sessions(actions)


def _add_sessions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sessions = actions.add_parser(
        "sessions",
        help="list the open sessions of users, and end them",
        description="List the sessions that are open at all brokers, or with --end close them: who is closed"
        " out has to log in again, with the credentials that are there then. Kafka has no such command; nodes"
        " of Kafka do not answer it. Exit code 1 if a node did not answer.",
    )
    sessions.add_argument(
        "user",
        nargs="?",
        metavar="NAME",
        help="of this user alone; a user of a certificate is its whole name",
    )
    sessions.add_argument(
        "--end", metavar="NAME", help="end all sessions of this user, but that of the command"
    )
    add_json_option(sessions)
    add_bootstrap_options(sessions, "controllers instead: sessions at the controllers' own listeners")
    sessions.set_defaults(run=_sessions)


def _file(text: str) -> str:
    if not text.startswith("@") or len(text) == 1:
        raise argparse.ArgumentTypeError(
            "expected @FILE: a password in an argument can be read by all users of this machine"
        )
    return text[1:]


def _list(args: argparse.Namespace) -> int:
    from service.client.access_requests import describe_users
    from service.client.admin import Cluster

    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        found = describe_users(cluster)
    rows = [(one.user, _name_of(one.mechanism), one.iterations) for one in found]
    if args.json:
        head = ("user", "mechanism", "iterations")
        print(json.dumps([dict(zip(head, row, strict=True)) for row in rows], indent=2))
    elif rows:
        shown = [(user, mechanism, str(iterations)) for user, mechanism, iterations in rows]
        print("\n".join(aligned([("user", "mechanism", "iterations"), *shown])))
    return 0


def _add(args: argparse.Namespace) -> int:
    import secrets

    from service.base.printable import printable
    from service.client.access_requests import UserCredential, describe_users, set_credential
    from service.client.admin import ChangingCluster
    from service.metadata.credentials import NUMBERS
    from service.security.scram import base36, salted_password

    password = _password(args.password, args.user)
    mechanisms = list(dict.fromkeys(args.mechanism or ("SCRAM-SHA-512",)))
    done = []
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        before = {one.mechanism for one in describe_users(cluster, [args.user])}
        for mechanism in mechanisms:
            salt = base36(secrets.randbits(130)).encode()
            salted = salted_password(mechanism, password, salt, args.iterations)
            credential = UserCredential(args.user, NUMBERS[mechanism], args.iterations)
            set_credential(cluster, credential, salt, salted)
            is_new = credential.mechanism not in before
            done.append({"user": args.user, "mechanism": mechanism, "is_new": is_new})
            if not args.json:
                what = "added" if is_new else "changed the password of"
                print(f"{what} {printable(args.user)} ({mechanism}, {args.iterations} iterations)")
    if args.json:
        print(json.dumps(done, indent=2))
    elif before:
        _say_that_sessions_go_on(args.user)
    return 0


def _remove(args: argparse.Namespace) -> int:
    from service.base.printable import printable
    from service.client.access_requests import delete_credential, describe_users
    from service.client.admin import ChangingCluster
    from service.metadata.credentials import NUMBERS

    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        found = {one.mechanism for one in describe_users(cluster, [args.user])}
        chosen = {int(NUMBERS[one]) for one in args.mechanism} if args.mechanism else found
        if not found or not chosen <= found:
            missing = "" if not found else " of " + ", ".join(_name_of(one) for one in sorted(chosen - found))
            print(f"firn user: {printable(args.user)} has no credential{missing}", file=sys.stderr)
            return 1
        for one in sorted(chosen):
            delete_credential(cluster, args.user, one)
    removed = [_name_of(one) for one in sorted(chosen)]
    if args.json:
        print(json.dumps([{"user": args.user, "mechanism": one} for one in removed], indent=2))
        return 0
    print(f"removed {printable(args.user)} ({', '.join(removed)})")
    _say_that_sessions_go_on(args.user)
    return 0


def _sessions(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError

    if args.end is None:
        return _list_sessions(args)
    if args.user is not None:
        raise ConfigError("sessions of one user or --end: one of them")
    return _end_sessions(args)


def _list_sessions(args: argparse.Namespace) -> int:
    from service.client.admin import Cluster
    from service.client.session_requests import find_sessions

    is_controller, address = _place(args)
    with Cluster(address, security=security_of_args(args)) as cluster:
        principal = None if args.user is None else _principal(args.user)
        found = find_sessions(cluster, principal, controllers=is_controller)
    rows = [
        {
            "node": node, "principal": one.principal, "host": one.host, "port": one.port,
            "listener": one.listener, "protocol": one.protocol, "client_id": one.client_id,
            "idle_ms": one.idle_ms, "left_ms": None if one.left_ms < 0 else one.left_ms,
        }
        for node, one in found.sessions
    ]  # fmt: skip
    if args.json:
        print(json.dumps(rows, indent=2))
    elif rows:
        head = ("node", "principal", "from", "listener", "protocol", "client", "idle", "ends in")
        shown = [
            (
                str(node), one.principal, f"{one.host}:{one.port}", one.listener, one.protocol,
                one.client_id or "-", _seconds(one.idle_ms), _seconds(one.left_ms),
            )
            for node, one in found.sessions
        ]  # fmt: skip
        print("\n".join(aligned([head, *shown])))
    return _tell(found.problems)


def _end_sessions(args: argparse.Namespace) -> int:
    from service.base.printable import printable
    from service.client.admin import ChangingCluster
    from service.client.session_requests import end_sessions

    is_controller, address = _place(args)
    principal = _principal(args.end)
    with ChangingCluster(address, security=security_of_args(args)) as cluster:
        done = end_sessions(cluster, principal, controllers=is_controller)
    if args.json:
        print(json.dumps({"principal": principal, "ended": done.ended}, indent=2))
    else:
        for node, count in done.ended.items():
            print(f"node {node}: ended {count} of {printable(principal)}")
    return _tell(done.problems)


def _tell(problems: Sequence[str]) -> int:
    from service.base.printable import escaped

    for problem in problems:
        print(f"firn user: {escaped(problem)}", file=sys.stderr)
    return 1 if problems else 0


def _place(args: argparse.Namespace) -> tuple[bool, str]:
    """Return whether controllers are asked, and the address."""
    controller: str | None = args.bootstrap_controller
    return controller is not None, args.bootstrap_server if controller is None else controller


def _principal(user: str) -> str:
    return user if user.startswith("User:") else f"User:{user}"


def _seconds(milliseconds: int) -> str:
    return "-" if milliseconds < 0 else f"{milliseconds / 1000:.1f} s"


def _say_that_sessions_go_on(user: str) -> None:
    from service.base.printable import printable

    print(f"open sessions go on until: firn user sessions --end {printable(user)}")


def _name_of(mechanism: int) -> str:
    from service.metadata.credentials import NUMBERS

    return next((name for name, number in NUMBERS.items() if number == mechanism), str(mechanism))


def _password(path: str | None, user: str) -> bytes:
    """Read the password. Raises `ConfigError` and `OSError`; neither repeats it."""
    from service.base.errors import ConfigError
    from service.base.printable import printable

    if path is not None:
        with open(path, "rb") as file:
            line = file.read(_MOST_BYTES + 1)
    elif sys.stdin.isatty():
        import getpass

        password = getpass.getpass(f"password of {printable(user)}: ")
        if getpass.getpass("again: ") != password:
            raise ConfigError("the two passwords differ")
        line = password.encode()
    else:
        line = sys.stdin.buffer.readline(_MOST_BYTES + 1)
    line = line.partition(b"\n")[0].rstrip(b"\r")
    if not line:
        raise ConfigError("the password is empty")
    if len(line) > _MOST_BYTES:
        raise ConfigError(f"the password is longer than {_MOST_BYTES} bytes")
    try:
        line.decode()
    except UnicodeDecodeError:
        raise ConfigError("the password is not UTF-8") from None
    return line


_MOST_BYTES = 4096
