"""Says what a cluster lacks, in one line of JSON: brokers, replicas, leaders, voters. Changes nothing.

Run on a machine of the cluster by the Python of its package, which brings the protocol:

    /opt/firn/current/bin/python - --bootstrap HOST:PORT --brokers 1,2,3 --controllers 901,902,903 <whole.py

`--without IDS`: what it lacks besides these nodes, which are to be away. `--about IDS`: the partitions that
no other nodes have. `--command-config FILE`: how to log in, as of any command of `firn`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from service.base.errors import FirnError
from service.client.admin import Cluster
from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module

CLIENT_ID = "firn-roll"
BEHIND_MS = 5_000
"""A voter that lives asks for more, and so catches up, twice a second."""
SAID = 20
"""That many of a kind are named."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Say what a cluster lacks.")
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    for name in ("--brokers", "--controllers", "--without", "--about"):
        parser.add_argument(name, type=numbers, default=set(), metavar="IDS")
    parser.add_argument("--command-config", metavar="FILE")
    asked = parser.parse_args()
    try:
        login = login_of(asked.command_config)
        told = look(asked.bootstrap, asked.brokers, asked.controllers, asked.without, asked.about, login)
    except (OSError, FirnError) as error:
        print(f"{asked.bootstrap}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(told))
    return 0


def numbers(text: str) -> set[int]:
    return {int(one) for one in text.split(",") if one}


def login_of(file: str | None) -> dict[str, Any]:
    """Return the arguments of a client that logs in as `file` says."""
    if file is None:
        return {}
    # The package of a machine that is still to be upgraded may not have it.
    from service.cli.client_properties import read_security_file

    return {"security": read_security_file(file)}


def look(
    bootstrap: str,
    brokers: set[int],
    controllers: set[int],
    without: set[int],
    about: set[int],
    login: dict[str, Any],
) -> dict[str, Any]:
    """Return the cluster's faults, the quorum's leader, and the partitions that only `about` has."""
    with Cluster(bootstrap, CLIENT_ID, **login) as cluster:
        lacks = list(broken_brokers(cluster, brokers, without))
        behind: list[str] = []
        only: list[str] = []
        for topic in cluster.every_topic():
            for one in topic.partitions:
                name, replicas = f"{topic.name}-{one.partition}", {*one.replicas}
                if replicas <= about:
                    only.append(name)
                if replicas <= without:
                    continue
                if one.leader < 0:
                    behind.append(f"{name} has no leader")
                elif missing := replicas - {*one.isr} - without:
                    behind.append(f"{name} is not in sync on {', '.join(map(str, sorted(missing)))}")
    host, _, port = bootstrap.rpartition(":")
    with BlockingClient(host.strip("[]"), int(port), CLIENT_ID, **login) as client:
        leader, voters = quorum(client)
    lacks += [*some(behind), *broken_quorum(leader, voters, controllers, without)]
    return {"lacks": lacks, "leader": leader, "only": some(only)}


def some(found: list[str]) -> list[str]:
    rest = len(found) - SAID
    return found if rest <= 0 else [*found[:SAID], f"and {rest} partitions more"]


def broken_brokers(cluster: Cluster, brokers: set[int], without: set[int]) -> Iterator[str]:
    there = {node.node_id: node for node in cluster.describe().nodes}
    for broker in sorted(brokers):
        serves = broker in there and not there[broker].is_fenced
        if broker in without and serves:
            yield f"broker {broker} still serves"
        elif broker not in without and not serves:
            yield f"broker {broker} is {'fenced' if broker in there else 'not registered'}"


def quorum(client: BlockingClient) -> tuple[int, list[Any]]:
    module = request_module(ApiKey.DESCRIBE_QUORUM)
    partition = module.PartitionData(partition_index=0)
    topic = module.TopicData(topic_name="__cluster_metadata", partitions=(partition,))
    answer = client.request(ApiKey.DESCRIBE_QUORUM, module.DescribeQuorumRequest(topics=(topic,)))
    if answer.error_code or not answer.topics or answer.topics[0].partitions[0].error_code:
        return -1, []
    found = answer.topics[0].partitions[0]
    return found.leader_id, list(found.current_voters)


def broken_quorum(leader: int, voters: list[Any], controllers: set[int], without: set[int]) -> Iterator[str]:
    if leader < 0:
        yield "nobody leads the metadata quorum"
        return
    ids = sorted(one.replica_id for one in voters)
    if ids != sorted(controllers):
        yield f"the voters are {ids}, not {sorted(controllers)}"
    now = next((one.last_caught_up_timestamp for one in voters if one.replica_id == leader), 0)
    for one in voters:
        behind = now - one.last_caught_up_timestamp
        if one.replica_id not in without and behind > BEHIND_MS:
            yield f"controller {one.replica_id} is behind"


if __name__ == "__main__":
    sys.exit(main())
