"""`firn cluster`: how a cluster stands, and internal topics that have too few replicas."""

from __future__ import annotations

import argparse
import json
import sys

from service.cli.topic import DEFAULT_BOOTSTRAP, add_bootstrap_option, positive

MOST_ILL = 50
AT_ONCE = 10
FACTOR = 3
PATIENCE_S = 300


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "cluster",
        help="show how a cluster stands, and widen its internal topics",
        description="Show how a cluster stands, and give internal topics the replicas that they lack.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    _add_describe(actions)
    _add_repair(actions)


def _add_describe(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    describe = actions.add_parser(
        "describe",
        help="show nodes, quorum, replicas that are missing, and reassignments",
        description="Show the nodes with their roles, racks and addresses, the quorum and how far each of its"
        " replicas is, which partitions are not whole, what each broker leads, and reassignments under way."
        " It asks over Kafka's protocol, and at brokers' firn.http.listener what is wrong with their stores."
        " It changes nothing.",
    )
    asked = describe.add_mutually_exclusive_group()
    asked.add_argument(
        "--bootstrap-server", default=DEFAULT_BOOTSTRAP, metavar="HOST:PORT",
        help=f"a broker, or several with commas between (default: {DEFAULT_BOOTSTRAP})",
    )  # fmt: skip
    asked.add_argument(
        "--bootstrap-controller", metavar="HOST:PORT",
        help="a controller instead: it tells the quorum and reassignments, also where no broker is left",
    )  # fmt: skip
    describe.add_argument(
        "--format", choices=("text", "json"), default="text", help="for people, or one JSON document"
    )
    describe.add_argument(
        "--most", type=positive, default=MOST_ILL, metavar="N",
        help=f"name so many partitions that are not whole, the worst first (default: {MOST_ILL})",
    )  # fmt: skip
    describe.set_defaults(run=_describe)


def _add_repair(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    repair = actions.add_parser(
        "repair-internal",
        help="give internal topics as many replicas as they should have",
        description="Give each partition of internal topics (__consumer_offsets) that has fewer replicas than"
        " it should (three, or one for each broker where there are fewer) the ones that it lacks: of other"
        " racks first, behind those that it has, so that nobody's leadership moves. A few at a time; returns"
        " once all are copied. May be ended and run again: it goes on where it was.",
    )
    repair.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    repair.add_argument(
        "--replication-factor", type=positive, default=FACTOR, metavar="N",
        help=f"how many replicas each should have (default: {FACTOR})",
    )  # fmt: skip
    repair.add_argument(
        "--at-once", type=positive, default=AT_ONCE, metavar="N",
        help=f"partitions that are copied at a time (default: {AT_ONCE})",
    )  # fmt: skip
    repair.add_argument(
        "--patience", type=positive, default=PATIENCE_S, metavar="SECONDS",
        help=f"give up waiting once none has been done for so long (default: {PATIENCE_S})",
    )  # fmt: skip
    repair.set_defaults(run=_repair)
    add_bootstrap_option(repair)


def _describe(args: argparse.Namespace) -> int:
    from service.cli.cluster_words import described
    from service.client.cluster_health import as_json, problems_of
    from service.client.cluster_health_queries import describe_controllers, describe_health

    if args.bootstrap_controller is not None:
        found = describe_controllers(args.bootstrap_controller)
    else:
        found = describe_health(args.bootstrap_server, args.most)
    if args.format == "json":
        print(json.dumps(as_json(found), indent=2))
    else:
        print("\n".join(described(found)))
    return 1 if problems_of(found) else 0


def _repair(args: argparse.Namespace) -> int:
    from service.base.world import system_world
    from service.cli.cluster_repair import Repair
    from service.client.admin import ChangingCluster
    from service.serving.internal_topics import INTERNAL_TOPICS

    with ChangingCluster(args.bootstrap_server) as cluster:
        repair = Repair(cluster, sorted(INTERNAL_TOPICS), args.replication_factor, system_world().clock)
        problems = repair.rehearse() if args.dry_run else repair.run(args.at_once, args.patience)
    for problem in problems:
        print(f"firn cluster: {problem}", file=sys.stderr)
    return 1 if problems else 0
