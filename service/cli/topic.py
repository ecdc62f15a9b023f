"""`firn topic`: creates, lists, describes, alters and deletes topics, and confirms their retention."""

from __future__ import annotations

import argparse
import json

from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option, positive, replicas
from service.cli.client_properties import security_of_args
from service.cli.resolving import failure_noted, tell
from service.cli.server import setting
from service.cli.topic_changes import add_changes

RETENTION = ("retention.ms", "retention.bytes")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "topic",
        help="create, list, describe, alter and delete topics",
        description="Create, list, describe, alter and delete topics, give them partitions, and delete their"
        " oldest records.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)

    create = actions.add_parser(
        "create",
        help="create a topic",
        description="Create a topic. It is tiered with --config remote.storage.enable=true, where brokers"
        " have a cold tier (firn.remote.url).",
    )
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument(
        "--partitions", type=positive, default=-1, metavar="N", help="default: the broker's num.partitions"
    )
    create.add_argument(
        "--replication-factor", type=replicas, default=-1, metavar="N", help="default: the broker's"
    )
    create.add_argument(
        "--config", action="append", default=[], type=setting, metavar="KEY=VALUE", help="may be repeated"
    )
    create.set_defaults(run=_create)

    listing = actions.add_parser("list", help="list all topics", description="List the names of all topics.")
    listing.set_defaults(run=_list)

    describe = actions.add_parser(
        "describe",
        help="show a topic's partitions and settings",
        description="Show a topic's id, its own settings, and each partition with leader, replicas and ISR.",
    )
    describe.add_argument("topic", metavar="TOPIC")
    describe.set_defaults(run=_describe)

    delete = actions.add_parser(
        "delete",
        help="delete topics and all their data, in both tiers",
        description="Delete topics with all their records, in both tiers and for good. Exit code 1 if one"
        " cannot be deleted; the others are deleted all the same.",
    )
    delete.add_argument("topics", nargs="+", metavar="TOPIC")
    delete.set_defaults(run=_delete)

    known = actions.add_parser(
        "settings-known",
        help="let a topic's retention work after a recovery",
        description="After firn.remote.recover, topics whose settings were not known from the bucket do not"
        " expire. This command confirms the topic's retention.ms and retention.bytes as they are now; setting"
        " one of them does so, too.",
    )
    known.add_argument("topic", metavar="TOPIC")
    known.set_defaults(run=_settings_known)

    for action in (create, listing, describe, *add_changes(actions), delete, known):
        add_json_option(action)
        add_bootstrap_option(action)


def _create(args: argparse.Namespace) -> int:
    from service.client.admin import ChangingCluster
    from service.hot.log_dir import encode_uuid

    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        topic_id = cluster.create_topic(
            args.topic, args.partitions, args.replication_factor, dict(args.config)
        )
    if args.json:
        document = {"topic": args.topic, "topic_id": None if topic_id is None else str(topic_id)}
        print(json.dumps(document, indent=2))
    else:
        print(f"created {args.topic}" + (f" (id {encode_uuid(topic_id)})" if topic_id else ""))
    return 0


def _list(args: argparse.Namespace) -> int:
    from service.client.admin import Cluster

    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        topics = cluster.topics()
    if args.json:
        rows = [
            {"name": t.name, "topic_id": str(t.topic_id), "partitions": len(t.partitions)} for t in topics
        ]
        print(json.dumps(rows, indent=2))
    else:
        for topic in topics:
            print(topic.name)
    return 0


def _describe(args: argparse.Namespace) -> int:
    from service.client.admin import Cluster
    from service.hot.log_dir import encode_uuid

    with Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        (topic,) = cluster.topics([args.topic])
        overrides = cluster.topic_overrides(args.topic)
    if args.json:
        document = {
            "name": topic.name,
            "topic_id": str(topic.topic_id),
            "configs": overrides,
            "partitions": [partition._asdict() for partition in topic.partitions],
        }
        print(json.dumps(document, indent=2))
        return 0
    print(f"topic: {topic.name}")
    print(f"id: {encode_uuid(topic.topic_id)} (in the bucket: data/{topic.topic_id})")
    print("configs: " + (", ".join(f"{k}={v}" for k, v in sorted(overrides.items())) or "-"))
    for partition in topic.partitions:
        replicas, isr = (",".join(map(str, ids)) for ids in (partition.replicas, partition.isr))
        print(f"partition: {partition.partition} leader: {partition.leader} replicas: {replicas} isr: {isr}")
    return 0


def _delete(args: argparse.Namespace) -> int:
    from service.cli.report import Report
    from service.client.admin import ChangingCluster

    names = list(dict.fromkeys(args.topics))
    done: list[str] = []
    problems: list[str] = []
    report = Report(as_json=args.json)
    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        try:
            for name in names:
                with failure_noted(problems):
                    cluster.delete_topic(name)
                    done.append(name)
                    report.say(f"deleted {name}")
        finally:  # also what was done before Ctrl-C
            one = {"topic": done[0]} if len(names) == 1 and done else {}  # as before there could be several
            report.end(**one, topics=done)
    for problem in problems:
        tell("topic", problem)
    return 1 if problems else 0


def _settings_known(args: argparse.Namespace) -> int:
    from service.client.admin import ChangingCluster

    with ChangingCluster(args.bootstrap_server, security=security_of_args(args)) as cluster:
        cluster.keep_retention(args.topic)
        effective = cluster.topic_configs([args.topic], RETENTION)[args.topic]
    if args.json:
        print(json.dumps({"topic": args.topic, "configs": effective}, indent=2))
    else:
        print(f"{args.topic} expires by " + ", ".join(f"{key}={effective[key]}" for key in RETENTION))
    return 0
