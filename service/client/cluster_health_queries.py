"""Requests that describe a cluster's health, for commands and the console. Blocking; they change nothing.

Raises `RequestError`, `StorageError` and `OSError`. Partitions come a page at a time; settings are requested
only for topics with replicas out of sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from service.base.errors import FirnError, RequestError
from service.client.admin import TOPIC_RESOURCE, Cluster, raise_for
from service.client.admin_models import NodeInfo
from service.client.cluster_health import (
    ClusterHealth,
    DirectoryRefusal,
    MetadataReplica,
    PartitionCounter,
    PartitionState,
    PartitionSummary,
    QuorumInfo,
    ReassignmentInfo,
    is_alone,
    nodes_of,
    strange_prefixes,
    with_idle_brokers,
)
from service.client.node_http import HTTP_KEYS, PLAIN_HTTP, NodeHttp, http_url
from service.client.readiness_queries import ask_health
from service.client.security import PLAINTEXT, Security
from service.wire.api import ApiKey, request_module
from service.wire.errors import MalformedMessage

T = TypeVar("T")

METADATA_TOPIC: Final = "__cluster_metadata"
MIN_ISR_KEY: Final = "min.insync.replicas"
URL_KEY: Final = "firn.remote.url"
AT_ONCE: Final = 2_000
CONTROLLER_WAIT_S: Final = 10.0
"""Time-out of requests that a controller answers: there may be none."""
DIRECTORY_WAIT_S: Final = 5.0
"""Time-out of requests to one broker: it may hang."""
Page = list[tuple[str, PartitionState]]


def ask_quorum(cluster: Cluster, controller: int | None = None) -> QuorumInfo | None:
    """Describe the quorum through any broker, or through the active `controller`; None for a standalone
    node."""
    module = request_module(ApiKey.DESCRIBE_QUORUM)
    topic = module.TopicData(topic_name=METADATA_TOPIC, partitions=(module.PartitionData(partition_index=0),))
    client = cluster.first if controller is None else cluster.client(controller)
    if not client.serves(ApiKey.DESCRIBE_QUORUM):
        return None
    answer = client.request(ApiKey.DESCRIBE_QUORUM, module.DescribeQuorumRequest(topics=(topic,)))
    raise_for(answer.error_code, answer.error_message, "the quorum")
    if not answer.topics or not answer.topics[0].partitions:
        raise MalformedMessage("DescribeQuorum was answered without the quorum")
    found = answer.topics[0].partitions[0]
    raise_for(found.error_code, found.error_message, "the quorum")
    return QuorumInfo(
        found.leader_id,
        found.leader_epoch,
        found.high_watermark,
        tuple(sorted(map(_replica, found.current_voters))),
        tuple(sorted(map(_replica, found.observers))),
        {one.node_id: tuple((at.name, at.host, at.port) for at in one.listeners) for one in answer.nodes},
    )


def _replica(found: Any) -> MetadataReplica:
    directory = found.replica_directory_id
    return MetadataReplica(
        found.replica_id,
        str(directory) if directory is not None and directory.int else None,
        _known(found.log_end_offset),
        _known(found.last_fetch_timestamp),
        _known(found.last_caught_up_timestamp),
    )


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def ask_moving(cluster: Cluster) -> tuple[ReassignmentInfo, ...]:
    """Return all reassignments under way, by topic and partition; a standalone node has none."""
    if not cluster.first.serves(ApiKey.LIST_PARTITION_REASSIGNMENTS):
        return ()
    module = request_module(ApiKey.LIST_PARTITION_REASSIGNMENTS)
    request = module.ListPartitionReassignmentsRequest(
        timeout=timedelta(seconds=CONTROLLER_WAIT_S), topics=None
    )
    answer = cluster.first.request(ApiKey.LIST_PARTITION_REASSIGNMENTS, request)
    raise_for(answer.error_code, answer.error_message, "reassignments")
    return tuple(
        sorted(
            ReassignmentInfo(
                topic.name, one.partition_index, tuple(one.replicas), tuple(one.adding_replicas),
                tuple(one.removing_replicas),
            )
            for topic in answer.topics
            for one in topic.partitions
        )
    )  # fmt: skip


def ask_partitions(
    cluster: Cluster, moving: Sequence[ReassignmentInfo], most: int, at_once: int = AT_ONCE
) -> PartitionSummary:
    """Count all partitions; keep the `most` worst of those with a problem."""
    tally = PartitionCounter(moving, most)
    known: dict[str, int] = {}
    for page in partition_pages(cluster, (), at_once):
        short = {topic for topic, one in page if len(one.isr) < len(one.replicas)}
        known = {topic: value for topic, value in known.items() if topic == page[0][0]}
        known.update(_min_isrs(cluster, sorted(short - known.keys())))
        for topic, one in page:
            # The settings of a topic that is being deleted may be gone before the topic.
            tally.add(topic, one, known.get(topic, 1))
    return tally.found()


def partition_pages(cluster: Cluster, topics: Sequence[str], at_once: int = AT_ONCE) -> Iterator[Page]:
    """Yield partitions of these topics, or of all, sorted; topics that do not exist are left out, no page is
    empty."""
    for found in cluster.described(topics, at_once):
        page = [
            (topic.name, _partition(one))
            for topic in found
            if topic.error_code == ErrorCode.none
            for one in topic.partitions
        ]
        if page:
            yield page


def _partition(found: Any) -> PartitionState:
    return PartitionState(
        found.partition_index, found.leader_id, found.leader_epoch, tuple(found.replica_nodes),
        tuple(found.isr_nodes), tuple(found.eligible_leader_replicas or ()), tuple(found.last_known_elr or
        ()), tuple(found.offline_replicas),
    )  # fmt: skip


def _min_isrs(cluster: Cluster, names: Sequence[str]) -> dict[str, int]:
    """Return `min.insync.replicas` by topic, leaving out topics that do not exist any more."""
    if not names:
        return {}
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    resources = tuple(
        module.DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=(MIN_ISR_KEY,)
        )
        for name in names
    )
    request = module.DescribeConfigsRequest(
        resources=resources, include_documentation=False, include_synonyms=False
    )
    return {
        result.resource_name: int(one.value)
        for result in cluster.first.request(ApiKey.DESCRIBE_CONFIGS, request).results
        if result.error_code == ErrorCode.none
        for one in result.configs
        if one.name == MIN_ISR_KEY and one.value is not None and one.value.isdecimal()
    }


def ask_directories(
    bootstrap: str, brokers: Sequence[NodeInfo], security: Security = PLAINTEXT
) -> list[DirectoryRefusal]:
    """Return the log directories of unfenced brokers that refuse records or are offline."""
    module = request_module(ApiKey.DESCRIBE_LOG_DIRS)
    found = []
    with Cluster(bootstrap, timeout_s=DIRECTORY_WAIT_S, security=security) as cluster:
        cluster.describe()
        for broker in brokers:
            if broker.is_fenced:
                continue
            answer = cluster.client(broker.node_id).request(
                ApiKey.DESCRIBE_LOG_DIRS, module.DescribeLogDirsRequest(topics=())
            )
            for one in answer.results:
                why = "offline" if one.error_code != ErrorCode.none else one.refusal
                if why:
                    found.append(DirectoryRefusal(broker.node_id, one.log_dir, why))
    return found


def ask_prefixes(
    bootstrap: str,
    brokers: Sequence[NodeInfo],
    security: Security = PLAINTEXT,
    http: NodeHttp = PLAIN_HTTP,
) -> list[str]:
    """Return problems of unfenced brokers with their prefix of object storage: one that differs, a store that
    fails, a recovery that waits."""
    with Cluster(bootstrap, timeout_s=DIRECTORY_WAIT_S, security=security) as cluster:
        found = {
            one: cluster.broker_configs(one.node_id, (URL_KEY, *HTTP_KEYS))
            for one in brokers
            if not one.is_fenced
        }
    urls = {one.node_id: configs.get(URL_KEY) for one, configs in found.items()}
    listeners = {
        one.node_id: url
        for one, configs in found.items()
        if (url := http_url(configs, one.host)) and configs.get(URL_KEY)
    }
    return strange_prefixes(urls) + ask_health(listeners, http)


def describe_health(
    bootstrap: str, most: int, security: Security = PLAINTEXT, http: NodeHttp = PLAIN_HTTP
) -> ClusterHealth:
    """Describe the whole cluster through a broker. What only a controller can answer may be missing."""
    problems: list[str] = []
    with Cluster(bootstrap, security=security) as cluster:
        info = cluster.describe()
        moving = _tried(problems, "reassignments", lambda: ask_moving(cluster))
    # Each on its own connection: after a time-out a connection is of no use.
    with Cluster(bootstrap, security=security) as cluster:
        partitions = with_idle_brokers(ask_partitions(cluster, moving or (), most), info.nodes)
    with Cluster(bootstrap, timeout_s=CONTROLLER_WAIT_S, security=security) as cluster:
        quorum = _tried(problems, "the quorum", lambda: ask_quorum(cluster))
    refusals = _tried(problems, "log directories", lambda: ask_directories(bootstrap, info.nodes, security))
    controllers = info.nodes if quorum is None and not problems and is_alone(info) else ()
    nodes = nodes_of(info.nodes, quorum, controllers)
    problems += (
        _tried(problems, "firn.remote.url", lambda: ask_prefixes(bootstrap, info.nodes, security, http)) or ()
    )
    return ClusterHealth(
        info.cluster_id, nodes, quorum, partitions, moving, tuple(problems), tuple(refusals or ())
    )


def describe_controllers(bootstrap: str, security: Security = PLAINTEXT) -> ClusterHealth:
    """Describe quorum and reassignments through a controller, for a cluster without brokers."""
    problems: list[str] = []
    with Cluster(bootstrap, timeout_s=CONTROLLER_WAIT_S, security=security) as cluster:
        info = cluster.describe(controllers=True)
        quorum = None
        if info.controller < 0:
            problems.append("the quorum: nobody leads it")
        else:
            quorum = _tried(problems, "the quorum", lambda: ask_quorum(cluster, info.controller))
        moving = _tried(problems, "reassignments", lambda: ask_moving(cluster))
    return ClusterHealth(
        info.cluster_id, nodes_of((), quorum, info.nodes), quorum, None, moving, tuple(problems)
    )


def _tried(problems: list[str], what: str, question: Callable[[], T]) -> T | None:
    """Return the answer, or None, with the reason in `problems`."""
    try:
        return question()
    except TimeoutError:
        problems.append(f"{what}: no answer in time: is there a majority of the controllers?")
    except RequestError as e:
        problems.append(str(e))
    except (FirnError, OSError) as e:
        problems.append(f"{what}: {e}")
    return None
