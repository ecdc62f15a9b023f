"""`firn cluster elect` and `unregister`: leaders of partitions, brokers that are gone."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option, node_id
from service.cli.client_properties import security_of_args
from service.cli.columns import aligned
from service.cli.places import METAVAR, named_partitions
from service.cli.resolving import tell_refused

if TYPE_CHECKING:
    from service.base.errors import RequestError
    from service.client.admin_models import Place


def add_elect(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `elect`."""
    elect = actions.add_parser(
        "elect",
        help="elect leaders of partitions",
        description="Elect leaders of partitions: 'preferred' the first of their replicas, where it is in"
        " sync; 'unclean' any replica that is alive, of partitions without a leader. Records that an unclean"
        " leader has not are lost, also committed ones. Exit code 1 if a partition was refused.",
    )
    elect.add_argument("kind", choices=("preferred", "unclean"), help="who may be elected")
    which = elect.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--topic", action="append", type=named_partitions, metavar=METAVAR, dest="topics",
        help="of a topic, or of some of its partitions (may be repeated)",
    )  # fmt: skip
    which.add_argument("--all", action="store_true", help="of all partitions")
    which.add_argument(
        "--path-to-json-file", metavar="FILE", help="of the partitions that kafka-leader-election would read"
    )
    add_json_option(elect)
    elect.set_defaults(run=_elect)
    add_bootstrap_option(elect)


def add_unregister(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `unregister`."""
    unregister = actions.add_parser(
        "unregister",
        help="forget a broker that is gone for good",
        description="Take a broker out of the metadata that is gone for good. One that is alive is refused:"
        " stop it first. Its replicas are missing until they are reassigned.",
    )
    unregister.add_argument("broker", type=node_id, metavar="ID", help="the broker's node.id")
    unregister.add_argument("--force", action="store_true", help="also one that is alive")
    add_json_option(unregister)
    unregister.set_defaults(run=_unregister)
    add_bootstrap_option(unregister)


def _elect(args: argparse.Namespace) -> int:
    from service.cli.kafka_files import read_election
    from service.client.admin import ChangingCluster
    from service.client.partition_changes import PREFERRED, UNCLEAN, elect_leaders
    from service.client.partition_lookup import resolved

    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        places: list[Place] | None = None
        if args.path_to_json_file is not None:
            places = read_election(args.path_to_json_file)
        elif not args.all:
            places = resolved(cluster, args.topics)
        kind = UNCLEAN if args.kind == "unclean" else PREFERRED
        results = elect_leaders(cluster, kind, places)
    states = {place: _state(error) for place, error in sorted(results.items())}
    refused = {
        place: error for place, error in results.items() if error is not None and states[place] == "refused"
    }
    rows = [(topic, number, state) for (topic, number), state in states.items()]
    if args.json:
        head = ("topic", "partition", "state")
        print(json.dumps([dict(zip(head, row, strict=True)) for row in rows], indent=2))
    elif rows:
        shown = [(topic, str(number), state) for topic, number, state in rows]
        print("\n".join(aligned([("topic", "partition", "state"), *shown])))
    else:
        print("no partition needs another leader")
    return tell_refused("cluster", refused)


def _state(error: RequestError | None) -> str:
    from kio.schema.errors import ErrorCode

    if error is None:
        return "elected"
    return "has that leader" if error.code == ErrorCode.election_not_needed else "refused"


def _unregister(args: argparse.Namespace) -> int:
    from kio.schema.errors import ErrorCode

    from service.base.errors import ConfigError, RequestError
    from service.client.admin import ChangingCluster
    from service.client.cluster_changes import unregister_broker

    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        known = {one.node_id: one for one in cluster.describe().nodes}
        if args.broker not in known:
            raise RequestError(
                ErrorCode.broker_id_not_registered, f"broker {args.broker}: BROKER_ID_NOT_REGISTERED"
            )
        if not known[args.broker].is_fenced and not args.force:
            raise ConfigError(f"broker {args.broker} is alive: stop it first, or say --force")
        unregister_broker(cluster, args.broker)
    if args.json:
        print(json.dumps({"unregistered": args.broker}, indent=2))
    else:
        print(f"unregistered broker {args.broker}")
    return 0
