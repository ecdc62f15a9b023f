"""`firn topic alter`, `add-partitions` and `delete-records`: changes of topics that are there."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from service.cli.arguments import offset, positive
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned
from service.cli.places import METAVAR, named_partitions
from service.cli.resolving import tell_refused
from service.cli.server import setting
from service.client.places import place_name

if TYPE_CHECKING:
    from service.client.admin import ChangingCluster
    from service.client.admin_models import Place


def add_changes(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
) -> list[argparse.ArgumentParser]:
    """Add the actions, and return them: options that all actions have are the caller's."""
    alter = actions.add_parser(
        "alter",
        help="change settings of a topic",
        description="Set settings of a topic, or delete them, so that the broker's default is in effect"
        " again. All changes are made, or none.",
    )
    alter.add_argument("topic", metavar="TOPIC")
    alter.add_argument(
        "--config", action="append", default=[], type=setting, metavar="KEY=VALUE",
        help="set this (may be repeated)",
    )  # fmt: skip
    alter.add_argument(
        "--delete-config", action="append", default=[], metavar="KEY",
        help="delete this (may be repeated)",
    )  # fmt: skip
    alter.set_defaults(run=_alter)

    grow = actions.add_parser(
        "add-partitions",
        help="give a topic more partitions",
        description="Raise the number of partitions of a topic. It cannot be lowered again. Records that are"
        " there stay where they are, and keys may go to other partitions from then on.",
    )
    grow.add_argument("topic", metavar="TOPIC")
    grow.add_argument(
        "--partitions", type=positive, required=True, metavar="N", help="how many there are to be in all"
    )
    grow.set_defaults(run=_grow)

    trim = actions.add_parser(
        "delete-records",
        help="delete the oldest records of partitions, in both tiers",
        description="Delete the records of partitions below an offset, for good and in both tiers. Without"
        " --execute it only says what would go. Exit code 1 if a partition was refused.",
    )
    trim.add_argument(
        "partitions", nargs="*", type=named_partitions, metavar=METAVAR, help="of these partitions"
    )
    what = trim.add_mutually_exclusive_group(required=True)
    what.add_argument("--before-offset", type=offset, metavar="N", help="all records below this offset")
    what.add_argument(
        "--before-time", metavar="TIME",
        help="all records before the first of this time (2026-01-31T12:00Z, UTC without a zone) or later",
    )  # fmt: skip
    what.add_argument("--all", action="store_true", help="all that is committed")
    what.add_argument(
        "--offset-json-file",
        metavar="FILE",
        help="partitions and offsets, as kafka-delete-records reads them",
    )
    trim.add_argument("--execute", action="store_true", help="do it")
    trim.set_defaults(run=_trim)
    for action in (alter, grow):
        action.add_argument("--dry-run", action="store_true", help="only check that it can be done")
    return [alter, grow, trim]


def _alter(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.cli.config_entries import chosen
    from service.client.admin import TOPIC_RESOURCE, ChangingCluster
    from service.client.setting_changes import SettingsOwner, alter_settings, deletes, sets

    values = dict(args.config)
    if not values and not args.delete_config:
        raise ConfigError("what is to change? --config KEY=VALUE, or --delete-config KEY")
    owner = SettingsOwner(TOPIC_RESOURCE, args.topic, f"topic {args.topic}")
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        if args.delete_config:  # which the cluster does also for a name that is no setting
            chosen(cluster.entries(owner.kind, owner.name), args.delete_config, owner.words)
        changes = [*sets(values), *deletes(dict.fromkeys(args.delete_config))]
        alter_settings(cluster, owner, changes, dry_run=args.dry_run)
        overrides = cluster.topic_overrides(args.topic)
    if args.json:
        print(json.dumps({"topic": args.topic, "dry_run": args.dry_run, "configs": overrides}, indent=2))
    elif args.dry_run:
        print(f"{args.topic} could be altered so")
    else:
        shown = ", ".join(f"{key}={value}" for key, value in sorted(overrides.items()))
        print(f"altered {args.topic}: {shown or 'no settings of its own'}")
    return 0


def _grow(args: argparse.Namespace) -> int:
    from service.client.admin import ChangingCluster
    from service.client.partition_changes import add_partitions

    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        (before,) = cluster.topics([args.topic])
        add_partitions(cluster, args.topic, args.partitions, dry_run=args.dry_run)
    counts = {"before": len(before.partitions), "partitions": args.partitions}
    if args.json:
        print(json.dumps({"topic": args.topic, "dry_run": args.dry_run, **counts}, indent=2))
    else:
        verb = "could get" if args.dry_run else "has"
        print(f"{args.topic} {verb} {args.partitions} partitions, {counts['before']} before")
    return 0


def _trim(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.client.admin import EARLIEST, LATEST, ChangingCluster
    from service.client.offset_queries import list_offsets
    from service.client.partition_changes import delete_records

    if bool(args.partitions) == (args.offset_json_file is not None):
        raise ConfigError(f"which partitions? Name {METAVAR}, or --offset-json-file alone")
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        wanted = _wanted(cluster, args)
        first, last = (list_offsets(cluster, list(wanted), at) for at in (EARLIEST, LATEST))
        ends = {place: last[place].offset if offset < 0 else offset for place, offset in wanted.items()}
        refused = {
            place: answer.error
            for answers in (first, last)
            for place, answer in answers.items()
            if answer.error is not None
        }
        for place in sorted(ends.keys() - refused.keys()):
            if ends[place] > last[place].offset:
                raise ConfigError(
                    f"{place_name(place)} ends at {last[place].offset}: it has no offset {ends[place]}"
                )
        if args.execute:
            done = delete_records(cluster, {one: wanted[one] for one in wanted if one not in refused})
            refused |= {place: result.error for place, result in done.items() if result.error is not None}
    rows = [
        {
            "topic": topic,
            "partition": number,
            "log_start": first[topic, number].offset,
            "before": ends[topic, number],
            "offsets": max(ends[topic, number] - first[topic, number].offset, 0),
        }
        for topic, number in sorted(wanted.keys() - refused.keys())
    ]
    _tell_deleted(args, rows)
    return tell_refused("topic", refused)


def _tell_deleted(args: argparse.Namespace, rows: list[dict[str, object]]) -> None:
    if args.json:
        print(json.dumps({"executed": args.execute, "partitions": rows}, indent=2))
        return
    head = ("topic", "partition", "begins at", "deletes below", "offsets")
    print("\n".join(aligned([head, *([str(value) for value in row.values()] for row in rows)])))
    print("deleted" if args.execute else "nothing was deleted: --execute does it")


def _wanted(cluster: ChangingCluster, args: argparse.Namespace) -> dict[Place, int]:
    """Return for each partition the offset below which all goes; -1 for all that is committed."""
    from service.client.partition_changes import TO_HIGH_WATERMARK
    from service.client.partition_lookup import resolved

    if args.offset_json_file is not None:
        from service.cli.kafka_files import read_record_offsets

        return read_record_offsets(args.offset_json_file)
    places = resolved(cluster, args.partitions)
    if args.before_offset is not None:
        return dict.fromkeys(places, args.before_offset)
    if args.all:
        return dict.fromkeys(places, TO_HIGH_WATERMARK)
    from service.base.errors import RequestError
    from service.base.times import time_ms
    from service.client.offset_queries import list_offsets

    answers = list_offsets(cluster, places, time_ms(args.before_time))
    for place, one in answers.items():
        if one.error is not None:
            raise RequestError(one.error.code, f"{place_name(place)}: {one.error}")
    # no record of that time or later: all that is there is older
    return {place: TO_HIGH_WATERMARK if one.offset < 0 else one.offset for place, one in answers.items()}
