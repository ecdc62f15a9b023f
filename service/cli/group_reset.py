"""`firn group reset-offsets`: moves what groups have committed, with `--execute`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from service.cli.arguments import offset
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned
from service.cli.group_changes import NOT_DONE, add_execute, add_groups, groups_of, known_group
from service.cli.patience import patience
from service.cli.places import METAVAR, named_partitions, place_name
from service.cli.resolving import failure_noted, resolved, tell, words_of

if TYPE_CHECKING:
    from service.client.admin import ChangingCluster, Cluster
    from service.client.admin_models import Place
    from service.client.offset_resets import ChosenOffsets, LogSpan
    from service.groups.admin_models import Listing


class _Reset(NamedTuple):
    """Result for one group: offsets by partition, and what it had."""

    group: str
    offsets: Mapping[Place, int]
    committed: Mapping[Place, int]
    notes: tuple[str, ...]


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
    from service.groups.admin_queries import list_groups

    ways = bool(args.topics) + args.all_topics + (args.from_file is not None)
    if ways != 1:
        raise ConfigError("of which topics? --topic, --all-topics, or --from-file alone")
    if args.export and args.json:
        raise ConfigError("--export prints CSV, --json JSON: one of them")
    args.at_ms = _time_ms(args)
    problems: list[str] = []
    done: list[_Reset] = []
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        found = list_groups(cluster)
        groups = groups_of(args, found)
        plans = _file_plans(args, groups)
        try:
            for group in groups:
                with failure_noted(problems):
                    chosen = _planned(cluster, found, group, args, plans)
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


def _planned(
    cluster: ChangingCluster,
    found: Listing,
    group: str,
    args: argparse.Namespace,
    plans: dict[str, dict[Place, int]],
) -> _Reset:
    """Return what the group would get. Raises `RequestError` for one with members."""
    from kio.schema.errors import ErrorCode

    from service.base.errors import ConfigError, RequestError
    from service.client.group_changes import is_without_members
    from service.groups.admin_queries import committed_offsets

    row = known_group(found, group)
    if row is not None and not is_without_members(row.state):
        raise RequestError(
            ErrorCode.non_empty_group,
            f"group {group} is {row.state}: only a group without members can be reset",
        )
    committed = {} if row is None else committed_offsets(cluster, row.node, group)
    if args.from_file is not None:
        places = sorted(plans[group])
    elif args.all_topics:
        places = sorted(committed)
    else:
        places = resolved(cluster, args.topics)
    if not places:
        raise RequestError(ErrorCode.invalid_request, f"group {group} has committed nothing")
    try:
        chosen = _chosen(cluster, places, committed, args, plans.get(group, {}))
    except ConfigError as e:
        raise ConfigError(f"group {group}: {e}") from None
    notes = chosen.notes if row is not None else ("there is no such group yet", *chosen.notes)
    return _Reset(group, chosen.offsets, committed, notes)


def _chosen(
    cluster: Cluster,
    places: list[Place],
    committed: Mapping[Place, int],
    args: argparse.Namespace,
    plan: Mapping[Place, int],
) -> ChosenOffsets:
    from service.client import offset_resets as resets

    bounds = _bounds(cluster, places)
    if args.from_file is not None:
        return resets.within(plan, bounds)
    if args.to_offset is not None:
        return resets.within(dict.fromkeys(places, args.to_offset), bounds)
    if args.shift_by is not None:
        return resets.shifted(places, committed, args.shift_by, bounds)
    if args.to_current:
        return resets.current(places, committed, bounds)
    if args.to_earliest:
        return resets.ChosenOffsets({place: bounds[place].first for place in places})
    if args.to_latest:
        return resets.ChosenOffsets({place: bounds[place].end for place in places})
    return resets.at_time(_told(cluster, places, args.at_ms), bounds)


def _time_ms(args: argparse.Namespace) -> int | None:
    """Return the time of which offsets are wanted, None where none is."""
    from service.base.world import system_world
    from service.cli.times import duration_ms, time_ms

    if args.to_datetime is not None:
        return time_ms(args.to_datetime)
    if args.by_duration is None:
        return None
    return max(system_world().clock.now_ms() - duration_ms(args.by_duration), 0)


def _bounds(cluster: Cluster, places: list[Place]) -> dict[Place, LogSpan]:
    from service.client.admin import EARLIEST, LATEST
    from service.client.offset_resets import LogSpan

    first, last = (_told(cluster, places, at) for at in (EARLIEST, LATEST))
    return {place: LogSpan(first[place], last[place]) for place in places}


def _told(cluster: Cluster, places: list[Place], timestamp: int) -> dict[Place, int]:
    """Return the offset of each partition. Raises `RequestError` if one is not told."""
    from service.base.errors import RequestError
    from service.client.offset_queries import list_offsets

    answers = list_offsets(cluster, places, timestamp)
    for place, one in sorted(answers.items()):
        if one.error is not None:
            raise RequestError(one.error.code, f"{place_name(place)}: {one.error}")
    return {place: one.offset for place, one in answers.items()}


def _carried_out(cluster: ChangingCluster, wanted: _Reset, problems: list[str]) -> _Reset:
    """Commit the offsets; return those that were taken, and add the others to `problems`."""
    from service.client.group_changes import commit_offsets

    results = commit_offsets(cluster, patience(), wanted.group, wanted.offsets)
    refused = {place: error for place, error in results.items() if error is not None}
    problems += [
        f"{wanted.group}: {place_name(place)}: {words_of(error)}" for place, error in sorted(refused.items())
    ]
    taken = {place: offset for place, offset in wanted.offsets.items() if place not in refused}
    return wanted._replace(offsets=taken)


def _print(args: argparse.Namespace, done: list[_Reset]) -> None:
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
