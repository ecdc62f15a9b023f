"""`firn cluster reassign`: moves replicas between brokers, with kafka-reassign-partitions' files."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option, positive, replicas
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned
from service.cli.places import METAVAR, named_partitions, whole_numbers
from service.cli.resolving import tell
from service.client.places import place_name

if TYPE_CHECKING:
    from service.client.admin import ChangingCluster, Cluster
    from service.client.admin_models import NodeInfo, Place

_LOOK_S: Final = 0.2
_SETTLE_S: Final = 2.0
"""Time for the asked broker to learn that the controller has ended a reassignment."""
_DONE, _MOVING, _OTHER = "done", "moving", "other replicas"


def add_reassign(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `reassign` with its own actions."""
    parser = actions.add_parser(
        "reassign",
        help="move replicas to other brokers",
        description="Move replicas of partitions to other brokers, and change how many there are. The files"
        " are those of kafka-reassign-partitions.",
    )
    below = parser.add_subparsers(metavar="ACTION", dest="reassign_action", required=True)
    generate = below.add_parser(
        "generate",
        help="print a plan for topics and brokers",
        description="Print a plan that has the replicas of topics on the named brokers alone, as a file for"
        " execute, verify and cancel. It moves as few replicas as can be, over racks, and spreads the"
        " preferred leaders. It changes nothing.",
    )
    generate.add_argument(
        "--topics-to-move-json-file", metavar="FILE", help="the topics, as kafka-reassign-partitions reads"
    )
    _add_moved(generate, of_file=False)
    generate.add_argument("--save-current", metavar="FILE", help="write how it is now, to go back")
    generate.set_defaults(run=_generate)

    execute = below.add_parser(
        "execute",
        help="start to move replicas",
        description="Start the reassignments of a file, or of topics to brokers as 'generate' would plan it."
        " They go on by themselves; 'verify' says when they are done. Exit code 1 if one was refused.",
    )
    _add_file(execute)
    _add_moved(execute, of_file=True)
    execute.add_argument(
        "--throttle", type=positive, metavar="BYTES",
        help="bound what moves to so many bytes a second for each broker, until 'verify' or 'cancel'",
    )  # fmt: skip
    execute.add_argument(
        "--additional", action="store_true", help="also while others are under way, or to change a throttle"
    )
    execute.add_argument("--dry-run", action="store_true", help="only print what would move")
    execute.add_argument("--save-current", metavar="FILE", help="write how it is now, to go back")
    execute.set_defaults(run=_execute)

    verify = below.add_parser(
        "verify",
        help="say whether replicas have moved, and remove the throttle",
        description="Say of each partition whether it has moved. Once no reassignment is under way in the"
        " whole cluster, the throttle is removed. Exit code 1 as long as something moves, or is not where"
        " the file says.",
    )
    _add_file(verify)
    _add_topics(verify)
    verify.add_argument("--wait", type=positive, metavar="SECONDS", help="wait so long until all have moved")
    verify.set_defaults(run=_verify)

    cancel = below.add_parser(
        "cancel",
        help="go back to the replicas of before",
        description="Cancel reassignments that are under way, and remove the throttle.",
    )
    _add_file(cancel)
    _add_topics(cancel)
    cancel.add_argument("--all", action="store_true", help="all that are under way")
    cancel.set_defaults(run=_cancel)
    for action in (verify, cancel):
        action.add_argument("--preserve-throttles", action="store_true", help="leave the throttle in place")

    listing = below.add_parser(
        "list", help="list reassignments under way", description="List reassignments that are under way."
    )
    listing.set_defaults(run=_list)
    for action in (generate, execute, verify, cancel, listing):
        add_json_option(action)
        add_bootstrap_option(action)


def _add_file(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "file", nargs="?", metavar="FILE", help="a plan, as 'generate' or kafka-reassign-partitions prints it"
    )


def _add_topics(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--topic", action="append", default=[], type=named_partitions, metavar=METAVAR, dest="topics",
        help="a topic, or some of its partitions, instead of a file (may be repeated)",
    )  # fmt: skip


def _add_moved(action: argparse.ArgumentParser, *, of_file: bool) -> None:
    _add_topics(action)
    action.add_argument(
        "--to", type=whole_numbers, required=not of_file, metavar="ID,…", help="the brokers that may have it"
    )
    action.add_argument(
        "--replication-factor",
        type=replicas,
        metavar="N",
        help="replicas of each partition (default: as now)",
    )
    action.add_argument("--disable-rack-aware", action="store_true", help="do not look at broker.rack")


# -- plans


def _generate(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.cli.kafka_files import read_topics_to_move, reassignment_json
    from service.client.admin import Cluster
    from service.client.partition_lookup import resolved
    from service.client.places import NamedPartitions

    if bool(args.topics) == (args.topics_to_move_json_file is not None):
        raise ConfigError("which topics? --topic, or --topics-to-move-json-file")
    if args.topics_to_move_json_file is not None:
        names = read_topics_to_move(args.topics_to_move_json_file)
        args.topics = [NamedPartitions(name, None) for name in names]
    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        present, proposed = _spread(cluster, resolved(cluster, args.topics), args)
    _save(args.save_current, present)
    document = reassignment_json(proposed)
    if args.json:
        document = {"current": reassignment_json(present), "proposed": document}
    print(json.dumps(document, indent=2 if args.json else None))
    return 0


def _present(cluster: Cluster, places: Sequence[Place]) -> dict[Place, tuple[int, ...]]:
    """Return the replicas of partitions. Raises `RequestError` for one that is not there."""
    from kio.schema.errors import ErrorCode

    from service.base.errors import RequestError
    from service.client.cluster_health_queries import partition_pages

    topics = sorted({topic for topic, _ in places})
    there = {
        (topic, one.partition): one.replicas
        for page in partition_pages(cluster, topics)
        for topic, one in page
    }
    if missing := sorted(set(places) - there.keys()):
        names = ", no ".join(map(place_name, missing))
        raise RequestError(ErrorCode.unknown_topic_or_partition, f"there is no {names}")
    return {place: there[place] for place in sorted(places)}


def _spread(
    cluster: Cluster, places: Sequence[Place], args: argparse.Namespace
) -> tuple[dict[Place, tuple[int, ...]], dict[Place, tuple[int, ...]]]:
    """Return the replicas of partitions as they are, and as the arguments want them."""
    from service.client.cluster_health_queries import ask_moving
    from service.client.reassignments import spread

    brokers = _checked_brokers(cluster, args.to)
    removing = {(one.topic, one.partition): one.removing for one in ask_moving(cluster)}
    present = _present(cluster, places)
    # what moves has old and new replicas for now: the new ones are meant
    meant = {
        place: [one for one in replicas if one not in removing.get(place, ())]
        for place, replicas in present.items()
    }
    return present, spread(meant, brokers, args.replication_factor, rack_aware=not args.disable_rack_aware)


def _checked_brokers(cluster: Cluster, ids: Sequence[int]) -> list[NodeInfo]:
    from service.base.errors import ConfigError

    there = {one.node_id: one for one in cluster.describe().nodes}
    if unknown := [str(one) for one in sorted(set(ids)) if one not in there]:
        known = ", ".join(map(str, sorted(there)))
        raise ConfigError(f"there is no broker {', no '.join(unknown)}; there are {known}")
    return [there[one] for one in ids]


def _save(path: str | None, present: Mapping[Place, Sequence[int]]) -> None:
    from service.cli.kafka_files import reassignment_json

    if path is not None:
        Path(path).write_text(json.dumps(reassignment_json(present)) + "\n", encoding="utf-8")


def _wanted(cluster: Cluster, args: argparse.Namespace) -> dict[Place, tuple[int, ...]]:
    """Return the replicas that the arguments of `execute` want."""
    from service.base.errors import ConfigError
    from service.cli.kafka_files import read_reassignment
    from service.client.partition_lookup import resolved

    if (args.file is not None) == bool(args.topics and args.to):
        raise ConfigError("what is to move where? A FILE, or --topic with --to")
    if args.file is None:
        return _spread(cluster, resolved(cluster, args.topics), args)[1]
    if args.topics or args.to or args.replication_factor:
        raise ConfigError("the FILE says what moves where: --topic, --to and --replication-factor do not")
    wanted = read_reassignment(args.file)
    _checked_brokers(cluster, sorted({one for replicas in wanted.values() for one in replicas}))
    return wanted


# -- execute


def _execute(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.client.admin import ChangingCluster
    from service.client.cluster_changes import set_throttle
    from service.client.cluster_health_queries import ask_moving
    from service.client.reassignments import changes_of, throttle

    problems: list[str] = []
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        wanted = _wanted(cluster, args)
        moving = ask_moving(cluster)
        if moving and not args.additional:
            raise ConfigError(
                f"{len(moving)} reassignments are under way: wait for them ('firn cluster reassign list'),"
                " or add to them with --additional"
            )
        present = _present(cluster, list(wanted))
        _save(args.save_current, present)
        # with a throttle all of them, as then the same ones are given another bound
        changed = dict(wanted) if args.additional else changes_of(wanted, present)
        refused: dict[Place, str] = {}
        if changed and not args.dry_run:
            if args.throttle is not None:
                problems += set_throttle(cluster, throttle(changed, present, moving), args.throttle)
            if problems:  # what would move without its bound stays where it is
                changed = {}
                problems.append("nothing was started: not all brokers have the throttle")
            else:
                refused = cluster.reassign(changed)
    problems += [f"{place_name(place)}: {why}" for place, why in sorted(refused.items())]
    started = {place: to for place, to in changed.items() if place not in refused}
    _tell_started(args, started, present, is_whole=not problems)
    for problem in problems:
        tell("cluster", problem)
    return 1 if problems else 0


def _tell_started(
    args: argparse.Namespace,
    started: Mapping[Place, Sequence[int]],
    present: Mapping[Place, Sequence[int]],
    *,
    is_whole: bool,
) -> None:
    if args.json:
        rows = [
            {"topic": place[0], "partition": place[1], "from": list(present[place]), "to": list(to)}
            for place, to in sorted(started.items())
        ]
        print(json.dumps({"dry_run": args.dry_run, "throttle": args.throttle, "moves": rows}, indent=2))
        return
    if not started:
        if is_whole:
            print("nothing is to move: all replicas are there")
        return
    shown = [
        (place[0], str(place[1]), _ids(present[place]), _ids(to)) for place, to in sorted(started.items())
    ]
    print("\n".join(aligned([("topic", "partition", "from", "to"), *shown])))
    if args.dry_run:
        print("nothing was changed: without --dry-run it is")
    else:
        throttled = "" if args.throttle is None else " and removes the throttle then"
        print(f"started {len(started)}: 'firn cluster reassign verify' says when they are done{throttled}")


def _ids(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


# -- verify, cancel, list


def _verify(args: argparse.Namespace) -> int:
    from service.client.admin import ChangingCluster

    now = time.monotonic()
    deadline, settled = now + (args.wait or 0), now + (args.wait or 0) + _SETTLE_S
    problems: list[str] = []
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        while True:
            states, is_quiet = _states(cluster, args)
            left = settled if _OTHER in states.values() else deadline
            if all(state == _DONE for state in states.values()) or time.monotonic() >= left:
                break
            time.sleep(_LOOK_S)
        if is_quiet and not args.preserve_throttles:
            problems = _cleared(cluster, states)
    if args.json:
        rows = [{"topic": t, "partition": p, "state": state} for (t, p), state in sorted(states.items())]
        print(json.dumps({"moving": not is_quiet, "partitions": rows}, indent=2))
    else:
        shown = [(topic, str(number), state) for (topic, number), state in sorted(states.items())]
        print("\n".join(aligned([("topic", "partition", "state"), *shown])))
    for problem in problems:
        tell("cluster", problem)
    return 1 if problems or any(state != _DONE for state in states.values()) else 0


def _states(cluster: Cluster, args: argparse.Namespace) -> tuple[dict[Place, str], bool]:
    """Return the state of each partition, and whether nothing moves in the whole cluster."""
    from service.base.errors import ConfigError
    from service.cli.kafka_files import read_reassignment
    from service.client.cluster_health_queries import ask_moving
    from service.client.partition_lookup import resolved

    if (args.file is not None) == bool(args.topics):
        raise ConfigError("which partitions? A FILE, or --topic")
    moving = {(one.topic, one.partition) for one in ask_moving(cluster)}
    if args.file is None:
        places = resolved(cluster, args.topics)
        return {place: _MOVING if place in moving else _DONE for place in places}, not moving
    wanted = read_reassignment(args.file)
    present = _present(cluster, list(wanted))
    return {
        place: _MOVING if place in moving else _DONE if present[place] == to else _OTHER
        for place, to in wanted.items()
    }, not moving


def _cleared(cluster: ChangingCluster, places: Mapping[Place, object]) -> list[str]:
    from service.client.cluster_changes import clear_throttle

    return clear_throttle(cluster, sorted({topic for topic, _ in places}))


def _cancel(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.cli.kafka_files import read_reassignment
    from service.client.admin import ChangingCluster
    from service.client.cluster_health_queries import ask_moving
    from service.client.partition_lookup import resolved

    if (args.file is not None) + bool(args.topics) + args.all != 1:
        raise ConfigError("which reassignments? A FILE, --topic, or --all")
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        moving = {(one.topic, one.partition) for one in ask_moving(cluster)}
        if args.all:
            named = moving
        else:
            named = set(read_reassignment(args.file) if args.file else resolved(cluster, args.topics))
        chosen = sorted(moving & named)
        refused = cluster.reassign(dict.fromkeys(chosen)) if chosen else {}
        problems = [f"{place_name(place)}: {why}" for place, why in sorted(refused.items())]
        if not args.preserve_throttles and moving == set(chosen) and not refused:
            problems += _cleared(cluster, dict.fromkeys(named))
    done = [place for place in chosen if place not in refused]
    if args.json:
        rows = [{"topic": topic, "partition": number} for topic, number in done]
        print(json.dumps({"cancelled": rows}, indent=2))
    else:
        print(f"cancelled {', '.join(map(place_name, done))}" if done else "none of them is under way")
    for problem in problems:
        tell("cluster", problem)
    return 1 if problems else 0


def _list(args: argparse.Namespace) -> int:
    from service.client.admin import Cluster
    from service.client.cluster_health_queries import ask_moving

    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        moving = ask_moving(cluster)
    if args.json:
        print(json.dumps([one._asdict() for one in moving], indent=2))
    elif moving:
        rows = [
            (one.topic, str(one.partition), _ids(one.replicas), _ids(one.adding), _ids(one.removing))
            for one in moving
        ]
        print("\n".join(aligned([("topic", "partition", "replicas", "adding", "removing"), *rows])))
    return 0
