"""`firn group reset-offsets`: moves what groups have committed, with `--execute`."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from service.base.patience import patience
from service.cli.arguments import offset
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned
from service.cli.group_changes import NOT_DONE, add_execute, add_groups, groups_of
from service.cli.places import METAVAR, named_partitions
from service.cli.resolving import failure_noted, tell, words_of
from service.client.places import place_name

if TYPE_CHECKING:
    from service.client.admin import ChangingCluster
    from service.client.admin_models import Place
    from service.groups.admin_changes import PlannedReset, ResetTarget


def add_reset(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the action, and return it."""
    reset = actions.add_parser(
        "reset-offsets",
        help="move the committed offsets of groups",
        description="Commit other offsets for groups that have no members: one way to say which, for topics,"
        " partitions, or all that the group has committed. A group that is not there yet may be given"
        " offsets, too. Without --execute it only says what would be committed. Exit code 1 if a group or a"
        " partition was refused; a group with members is, as its consumers go on from where they are.",
    )
    add_groups(reset)
    reset.add_argument(
        "--topic", action="append", default=[], type=named_partitions, metavar=METAVAR, dest="topics",
        help="a topic, or some of its partitions (may be repeated)",
    )  # fmt: skip
    reset.add_argument("--all-topics", action="store_true", help="all that the group has committed")
    mode = reset.add_mutually_exclusive_group(required=True)
    mode.add_argument("--to-earliest", action="store_true", help="where the log begins, in either tier")
    mode.add_argument("--to-latest", action="store_true", help="where the log ends")
    mode.add_argument("--to-current", action="store_true", help="what is committed; the end where nothing is")
    mode.add_argument("--to-offset", type=offset, metavar="N", help="this offset")
    mode.add_argument("--shift-by", type=_shift, metavar="N", help="so many further, or back: -100")
    mode.add_argument(
        "--to-datetime", metavar="TIME",
        help="the first record of this time or later (2026-01-31T12:00Z, UTC without a zone)",
    )  # fmt: skip
    mode.add_argument("--by-duration", metavar="DURATION", help="so long ago: P7D, PT1H30M")
    mode.add_argument("--from-file", metavar="FILE", help="what --export wrote, of Kafka's tool, too")
    add_execute(reset)
    reset.add_argument(
        "--export",
        action="store_true",
        help="print CSV, in the form of kafka-consumer-groups and --from-file",
    )
    reset.set_defaults(run=_reset)
    return reset


def _shift(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 2**63
    if abs(number) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected a number of records, found {text!r}")
    return number


def _reset(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.client.admin import ChangingCluster
    from service.groups.admin_changes import plan_reset
    from service.groups.admin_queries import list_groups

    ways = bool(args.topics) + args.all_topics + (args.from_file is not None)
    if ways != 1:
        raise ConfigError("of which topics? --topic, --all-topics, or --from-file alone")
    if args.export and args.json:
        raise ConfigError("--export prints CSV, --json JSON: one of them")
    at_ms = _time_ms(args)
    problems: list[str] = []
    done: list[PlannedReset] = []
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        found = list_groups(cluster)
        groups = groups_of(args, found)
        plans = _file_plans(args, groups)
        try:
            for group in groups:
                with failure_noted(problems):
                    target = _target(args, plans.get(group, {}), at_ms)
                    chosen = plan_reset(cluster, found, group, args.topics or None, target)
                    done.append(_carried_out(cluster, chosen, problems) if args.execute else chosen)
        finally:  # also what was done before Ctrl-C
            _print(args, done)
    for one in done:
        for note in one.notes:
            tell("group", f"{one.group}: {note}")
    for problem in problems:
        tell("group", problem)
    return 1 if problems else 0


def _file_plans(args: argparse.Namespace, groups: list[str]) -> dict[str, dict[Place, int]]:
    from service.base.errors import ConfigError
    from service.cli.kafka_files import read_group_offsets

    if args.from_file is None:
        return {}
    plans = read_group_offsets(args.from_file, groups)
    if missing := [group for group in groups if group not in plans]:
        raise ConfigError(f"{args.from_file} has no offsets of {', '.join(missing)}")
    return plans


def _target(args: argparse.Namespace, plan: dict[Place, int], at_ms: int | None) -> ResetTarget:
    from service.groups.admin_changes import ResetMode, ResetTarget

    if at_ms is not None:
        return ResetTarget(ResetMode.TIME, at_ms)
    if args.from_file is not None:
        return ResetTarget(ResetMode.PLAN, plan=plan)
    if args.to_offset is not None:
        return ResetTarget(ResetMode.OFFSET, args.to_offset)
    if args.shift_by is not None:
        return ResetTarget(ResetMode.SHIFT, args.shift_by)
    if args.to_current:
        return ResetTarget(ResetMode.CURRENT)
    if args.to_latest:
        return ResetTarget(ResetMode.LATEST)
    return ResetTarget(ResetMode.EARLIEST)


def _time_ms(args: argparse.Namespace) -> int | None:
    """Return the time of which offsets are wanted, None where none is."""
    from service.base.times import duration_ms, time_ms
    from service.base.world import system_world

    if args.to_datetime is not None:
        return time_ms(args.to_datetime)
    if args.by_duration is None:
        return None
    return max(system_world().clock.now_ms() - duration_ms(args.by_duration), 0)


def _carried_out(cluster: ChangingCluster, wanted: PlannedReset, problems: list[str]) -> PlannedReset:
    """Commit the offsets; return those that were taken, and add the others to `problems`."""
    from service.client.group_changes import commit_offsets

    results = commit_offsets(cluster, patience(), wanted.group, wanted.offsets)
    refused = {place: error for place, error in results.items() if error is not None}
    problems += [
        f"{wanted.group}: {place_name(place)}: {words_of(error)}" for place, error in sorted(refused.items())
    ]
    taken = {place: offset for place, offset in wanted.offsets.items() if place not in refused}
    return wanted._replace(offsets=taken)


def _print(args: argparse.Namespace, done: list[PlannedReset]) -> None:
    if args.export:
        from service.cli.kafka_files import group_offsets_csv

        is_one = len(args.groups) == 1
        print(group_offsets_csv({one.group: one.offsets for one in done}, has_group=not is_one), end="")
        return
    rows = [
        {"group": one.group, "topic": topic, "partition": number,
         "committed": one.committed.get((topic, number)), "new_offset": offset}
        for one in done
        for (topic, number), offset in sorted(one.offsets.items())
    ]  # fmt: skip
    if args.json:
        print(json.dumps({"executed": args.execute, "offsets": rows}, indent=2))
        return
    if rows:
        head = ("group", "topic", "partition", "committed", "new offset")
        shown = (["-" if cell is None else str(cell) for cell in row.values()] for row in rows)
        print("\n".join(aligned([head, *shown])))
    print(f"committed {len(rows)}" if args.execute else NOT_DONE)
