"""`firn config get`, `set` and `unset`: settings of topics, brokers, groups and loggers while they run."""

from __future__ import annotations

import argparse
import difflib
import json
from typing import TYPE_CHECKING, Final

from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option, node_id
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned
from service.cli.server import setting

if TYPE_CHECKING:
    from service.client.admin_models import ConfigEntry
    from service.client.setting_changes import SettingChange, SettingsOwner

_SOURCES: Final = {
    1: "topic", 2: "broker", 3: "all brokers", 4: "file", 5: "default", 6: "logger", 7: "client metrics",
    8: "group",
}  # fmt: skip
_DEFAULT: Final = 5
_SECRET: Final = "(secret)"


def add_entries(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `get`, `set` and `unset` to the actions of `firn config`."""
    get = actions.add_parser(
        "get",
        help="show settings that are in effect",
        description="Show the settings of a topic, a broker, all brokers, a group or a broker's loggers:"
        " those that are not as they are by default, those that are named, or with --all every one, and"
        " where each comes from. Values of passwords are not told to anybody.",
    )
    get.add_argument("keys", nargs="*", metavar="KEY", help="these settings")
    get.add_argument("--all", action="store_true", help="defaults, too")
    get.set_defaults(run=_get)

    put = actions.add_parser(
        "set",
        help="change settings while brokers run",
        description="Set settings of a topic, a broker, all brokers, a group or a broker's loggers. Other"
        " settings stay as they are. All changes are made, or none.",
    )
    put.add_argument("values", nargs="*", type=setting, metavar="KEY=VALUE", help="set these")
    put.add_argument(
        "--append", action="append", default=[], type=setting, metavar="KEY=VALUE",
        help="add to the list that the key has (may be repeated)",
    )  # fmt: skip
    put.add_argument(
        "--subtract", action="append", default=[], type=setting, metavar="KEY=VALUE",
        help="take from the list that the key has (may be repeated)",
    )  # fmt: skip
    put.add_argument(
        "--file", metavar="FILE.properties", help="set what is in this file: keeps secrets out of the command"
    )
    put.set_defaults(run=_set)

    unset = actions.add_parser(
        "unset",
        help="go back to the default",
        description="Delete settings, so that what is below is in effect again: of a topic the broker's"
        " setting, of a broker that of all brokers, then its file, then the default.",
    )
    unset.add_argument("keys", nargs="+", metavar="KEY", help="these settings")
    unset.set_defaults(run=_unset)
    for action in (get, put, unset):
        _add_owner(action)
        if action is not get:
            action.add_argument("--dry-run", action="store_true", help="only check that it can be done")
        add_json_option(action)
        add_bootstrap_option(action)


def _add_owner(action: argparse.ArgumentParser) -> None:
    owner = action.add_mutually_exclusive_group(required=True)
    owner.add_argument("--topic", metavar="TOPIC", help="of this topic")
    owner.add_argument("--broker", type=node_id, metavar="ID", help="of this broker")
    owner.add_argument("--broker-defaults", action="store_true", help="of all brokers")
    owner.add_argument("--group", metavar="GROUP", help="of this group")
    owner.add_argument(
        "--broker-logger", type=node_id, metavar="ID", help="of this broker's loggers: levels, by name"
    )


def _owner(args: argparse.Namespace) -> SettingsOwner:
    from service.client.admin import BROKER_RESOURCE, GROUP_RESOURCE, LOGGER_RESOURCE, TOPIC_RESOURCE
    from service.client.setting_changes import SettingsOwner

    if args.topic is not None:
        return SettingsOwner(TOPIC_RESOURCE, args.topic, f"topic {args.topic}")
    if args.broker is not None:
        return SettingsOwner(BROKER_RESOURCE, str(args.broker), f"broker {args.broker}")
    if args.group is not None:
        return SettingsOwner(GROUP_RESOURCE, args.group, f"group {args.group}")
    if args.broker_logger is not None:
        return SettingsOwner(
            LOGGER_RESOURCE, str(args.broker_logger), f"loggers of broker {args.broker_logger}"
        )
    return SettingsOwner(BROKER_RESOURCE, "", "all brokers")


def _get(args: argparse.Namespace) -> int:
    from service.client.admin import Cluster

    owner = _owner(args)
    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        entries = cluster.entries(owner.kind, owner.name)
    _print(chosen(entries, args.keys, owner.words, everything=args.all), as_json=args.json)
    return 0


def chosen(
    entries: list[ConfigEntry], keys: list[str], of: str, *, everything: bool = False
) -> list[ConfigEntry]:
    """Return the entries that are asked for. Raises `ConfigError` for an unknown key."""
    from service.base.errors import ConfigError

    if keys:
        known = {one.name: one for one in entries}
        for key in keys:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1, 0.85)
                if near:
                    raise ConfigError(f"{of}: there is no setting {key!r}; did you mean {near[0]!r}?")
                raise ConfigError(f"{of}: {key} is not set, or is no setting")
        return [known[key] for key in dict.fromkeys(keys)]
    return [one for one in entries if everything or one.source != _DEFAULT]


def _print(entries: list[ConfigEntry], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": one.name,
                "value": one.value,
                "source": _SOURCES.get(one.source, str(one.source)),
                "is_read_only": one.is_read_only,
                "is_sensitive": one.is_sensitive,
            }
            for one in entries
        ]
        print(json.dumps(rows, indent=2))
    elif entries:
        shown = [
            (
                one.name,
                _SECRET if one.is_sensitive else "-" if one.value is None else one.value or '""',
                _SOURCES.get(one.source, str(one.source)) + (", read-only" if one.is_read_only else ""),
            )
            for one in entries
        ]
        print("\n".join(aligned([("setting", "value", "from"), *shown])))


def _set(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.base.properties_file import load_properties
    from service.client.setting_changes import SettingChange, SettingOperation, sets

    values = {**(load_properties(args.file) if args.file else {}), **dict(args.values)}
    changes = [*sets(values)]
    for operation, given in (
        (SettingOperation.APPEND, args.append),
        (SettingOperation.SUBTRACT, args.subtract),
    ):
        changes += [SettingChange(key, operation, value) for key, value in given]
    if not changes:
        raise ConfigError("what is to change? KEY=VALUE, --append, --subtract or --file")
    return _change(args, changes)


def _unset(args: argparse.Namespace) -> int:
    from service.client.setting_changes import deletes

    return _change(args, [*deletes(dict.fromkeys(args.keys))])


def _change(args: argparse.Namespace, changes: list[SettingChange]) -> int:
    """Make the changes, and print what is in effect then."""
    from service.client.admin import ChangingCluster
    from service.client.setting_changes import SettingOperation, alter_settings

    owner = _owner(args)
    deleted = [one.key for one in changes if one.operation is SettingOperation.DELETE]
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        if deleted:  # which the cluster does also for a name that is no setting
            chosen(cluster.entries(owner.kind, owner.name), deleted, owner.words)
        alter_settings(cluster, owner, changes, dry_run=args.dry_run)
        entries = {one.name: one for one in cluster.entries(owner.kind, owner.name)}
    keys = dict.fromkeys(one.key for one in changes)
    now = [entries[key] for key in keys if key in entries]
    if args.json or not args.dry_run:
        _print(now, as_json=args.json)
    else:
        print(f"{owner.words} could be altered so: {', '.join(keys)}")
    return 0
