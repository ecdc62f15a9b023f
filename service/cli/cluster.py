"""`firn cluster`: health of a cluster, replicas, leaders, brokers and controllers, internal topics."""

from __future__ import annotations

import argparse
import json
import sys

from service.cli.address import add_bootstrap_option, add_bootstrap_options
from service.cli.arguments import add_json_option, positive, replicas
from service.cli.client_properties import node_http_of_args, security_of_args
from service.cli.cluster_brokers import add_elect, add_unregister
from service.cli.cluster_controllers import add_features, add_quorum
from service.cli.cluster_reassign import add_reassign

MOST_ILL = 50
AT_ONCE = 10
FACTOR = 3
PATIENCE_S = 300


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "cluster",
        help="show the health of a cluster, move replicas and leaders, change brokers and controllers",
        description="Show the health of a cluster, move replicas and leaders, change levels of features,"
        " voters and brokers, and add missing replicas to internal topics.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    _add_describe(actions)
    add_reassign(actions)
    add_elect(actions)
    add_unregister(actions)
    add_features(actions)
    add_quorum(actions)
    _add_repair(actions)


def _add_describe(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    describe = actions.add_parser(
        "describe",
        help="show nodes, quorum, missing replicas and reassignments",
        description="Show the nodes with their roles, racks and addresses, the quorum and the progress of"
        " each of its replicas, unhealthy partitions, the leaders of each broker, and reassignments under"
        " way, and what is wrong. It asks every broker over Kafka's protocol, and whether their HTTP"
        " listeners (firn.http.listener) answer. It changes nothing.",
    )
    add_json_option(describe)
    describe.add_argument(
        "--format", choices=("text", "json"), default="text", help="json is another name of --json"
    )
    describe.add_argument(
        "--most", type=positive, default=MOST_ILL, metavar="N",
        help=f"most unhealthy partitions to list, the worst first (default: {MOST_ILL})",
    )  # fmt: skip
    add_bootstrap_options(
        describe, "controllers instead: shows the quorum and reassignments, even without a live broker"
    )
    describe.set_defaults(run=_describe)


def _add_repair(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    repair = actions.add_parser(
        "repair-internal",
        help="add missing replicas to internal topics",
        description="Add the missing replicas of each partition of internal topics (__consumer_offsets) that"
        " has fewer than it should (three, or the number of brokers if that is less): in other racks first,"
        " and after the present ones, so that no leadership moves. A few at a time; returns once all are"
        " copied. It can be ended and run again; it continues where it was.",
    )
    repair.add_argument("--dry-run", action="store_true", help="print the changes without making them")
    repair.add_argument(
        "--replication-factor", type=replicas, default=FACTOR, metavar="N",
        help=f"replicas of each partition (default: {FACTOR})",
    )  # fmt: skip
    repair.add_argument(
        "--at-once", type=positive, default=AT_ONCE, metavar="N",
        help=f"partitions that are copied at the same time (default: {AT_ONCE})",
    )  # fmt: skip
    repair.add_argument(
        "--patience", type=positive, default=PATIENCE_S, metavar="SECONDS",
        help=f"give up after this long without a completed partition (default: {PATIENCE_S})",
    )  # fmt: skip
    repair.set_defaults(run=_repair)
    add_json_option(repair)
    add_bootstrap_option(repair)


def _describe(args: argparse.Namespace) -> int:
    from service.base.world import system_world
    from service.cli.cluster_words import format_cluster
    from service.client.cluster_health import as_json
    from service.client.cluster_health_queries import describe_controllers, describe_health

    security, world = security_of_args(args), system_world()
    if args.bootstrap_controller is not None:
        found = describe_controllers(args.bootstrap_controller, world.clock, security)
    else:
        with world.threads.pool("describe", AT_ONCE) as pool:
            found = describe_health(
                args.bootstrap_server, args.most, pool, world.clock, security, node_http_of_args(args)
            )
    if args.json or args.format == "json":
        print(json.dumps(as_json(found), indent=2))
    else:
        print("\n".join(format_cluster(found)))
    return 0 if found.is_well else 1


def _repair(args: argparse.Namespace) -> int:
    from service.base.types import INTERNAL_TOPICS
    from service.base.world import system_world
    from service.cli.cluster_repair import Repair
    from service.cli.report import Report
    from service.client.admin import ChangingCluster

    report = Report("waited_for", "partitions", as_json=args.json)
    clock = system_world().clock
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        repair = Repair(cluster, sorted(INTERNAL_TOPICS), args.replication_factor, clock, report)
        problems = repair.rehearse() if args.dry_run else repair.run(args.at_once, args.patience)
    report.end(dry_run=args.dry_run)
    for problem in problems:
        print(f"firn cluster: {problem}", file=sys.stderr)
    return 1 if problems else 0
