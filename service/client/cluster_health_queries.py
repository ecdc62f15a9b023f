"""What commands and the console ask to know how a cluster stands. Blocking; nothing is changed by it.

Raises `RequestError`, `StorageError` and `OSError`. Partitions come a page at a time, and settings are asked
of those topics alone that have replicas out of sync.
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
    DirectoryRefusal,
    MetadataReplica,
    Partitions,
    PartitionState,
    QuorumInfo,
    Reassignment,
    Standing,
    Tally,
    is_alone,
    nodes_of,
    strange_prefixes,
    with_all,
)
from service.client.readiness_queries import ask_health
from service.wire.api import ApiKey, request_module
from service.wire.errors import MalformedMessage

T = TypeVar("T")

METADATA_TOPIC: Final = "__cluster_metadata"
MIN_ISR_KEY: Final = "min.insync.replicas"
URL_KEY: Final = "firn.remote.url"
HTTP_KEY: Final = "firn.http.listener"
AT_ONCE: Final = 2_000
CONTROLLER_WAIT_S: Final = 10.0
"""So long is waited for what a controller has to answer: there may be none."""
DIRECTORY_WAIT_S: Final = 5.0
"""So long is waited for one broker: it may hang"""
Page = list[tuple[str, PartitionState]]


def ask_quorum(cluster: Cluster, controller: int | None = None) -> QuorumInfo | None:
    """The quorum, by way of any broker, or of the leading `controller`; None where a node is alone."""
    module = request_module(ApiKey.DESCRIBE_QUORUM)
    topic = module.TopicData(topic_name=METADATA_TOPIC, partitions=(module.PartitionData(partition_index=0),))
    client = cluster.first if controller is None else cluster.client(controller)
    if not client.serves(ApiKey.DESCRIBE_QUORUM):
        return None
    answer = client.request(ApiKey.DESCRIBE_QUORUM, module.DescribeQuorumRequest(topics=(topic,)))
    raise_for(answer.error_code, answer.error_message, "the quorum")
    if not answer.topics or not answer.topics[0].partitions:
        raise MalformedMessage("an answer about the quorum without it")
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


def _replica(told: Any) -> MetadataReplica:
    directory = told.replica_directory_id
    return MetadataReplica(
        told.replica_id,
        str(directory) if directory is not None and directory.int else None,
        _known(told.log_end_offset),
        _known(told.last_fetch_timestamp),
        _known(told.last_caught_up_timestamp),
    )


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def ask_moving(cluster: Cluster) -> tuple[Reassignment, ...]:
    """All reassignments under way, by topic and partition; a node that is alone has none."""
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
            Reassignment(
                topic.name, one.partition_index, tuple(one.replicas), tuple(one.adding_replicas),
                tuple(one.removing_replicas),
            )
            for topic in answer.topics
            for one in topic.partitions
        )
    )  # fmt: skip


def ask_partitions(
    cluster: Cluster, moving: Sequence[Reassignment], most: int, at_once: int = AT_ONCE
) -> Partitions:
    """All partitions, counted; `most` of those that are not whole."""
    tally = Tally(moving, most)
    known: dict[str, int] = {}
    for page in partition_pages(cluster, (), at_once):
        short = {topic for topic, one in page if len(one.isr) < len(one.replicas)}
        known = {topic: value for topic, value in known.items() if topic == page[0][0]}
        known.update(_min_isrs(cluster, sorted(short - known.keys())))
        for topic, one in page:
            # The setting of a topic that is being deleted may be gone before the topic is.
            tally.add(topic, one, known.get(topic, 1))
    return tally.found()


def partition_pages(cluster: Cluster, topics: Sequence[str], at_once: int = AT_ONCE) -> Iterator[Page]:
    """Partitions of these topics, as far as they are there, or of all: sorted, and no page is empty."""
    for found in cluster.described(topics, at_once):
        page = [
            (topic.name, _partition(one))
            for topic in found
            if topic.error_code == ErrorCode.none
            for one in topic.partitions
        ]
        if page:
            yield page


def _partition(told: Any) -> PartitionState:
    return PartitionState(
        told.partition_index, told.leader_id, told.leader_epoch, tuple(told.replica_nodes),
        tuple(told.isr_nodes), tuple(told.eligible_leader_replicas or ()), tuple(told.last_known_elr or ()),
        tuple(told.offline_replicas),
    )  # fmt: skip


def _min_isrs(cluster: Cluster, names: Sequence[str]) -> dict[str, int]:
    """`min.insync.replicas` by topic; nothing of those that are not there any more."""
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


def ask_directories(bootstrap: str, brokers: Sequence[NodeInfo]) -> list[DirectoryRefusal]:
    """The log directories that take no records, of all brokers that are not fenced."""
    module = request_module(ApiKey.DESCRIBE_LOG_DIRS)
    found = []
    with Cluster(bootstrap, timeout_s=DIRECTORY_WAIT_S) as cluster:
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


def ask_prefixes(bootstrap: str, brokers: Sequence[NodeInfo]) -> list[str]:
    """What is wrong with the prefixes of object storage that brokers have, and with how they use them: those
    that are not fenced."""
    with Cluster(bootstrap, timeout_s=DIRECTORY_WAIT_S) as cluster:
        found = {
            one: cluster.broker_configs(one.node_id, (URL_KEY, HTTP_KEY))
            for one in brokers
            if not one.is_fenced
        }
    urls = {one.node_id: configs.get(URL_KEY) for one, configs in found.items()}
    listeners = {
        one.node_id: (one.host, listener)
        for one, configs in found.items()
        if (listener := configs.get(HTTP_KEY)) and configs.get(URL_KEY)
    }
    return strange_prefixes(urls) + ask_health(listeners)


def look(bootstrap: str, most: int) -> Standing:
    """The whole cluster, asked by way of a broker. What controllers have to answer may be missing."""
    problems: list[str] = []
    with Cluster(bootstrap) as cluster:
        info = cluster.describe()
        moving = _tried(problems, "reassignments", lambda: ask_moving(cluster))
    # Each on a connection of its own: what comes too late would be taken for the next answer.
    with Cluster(bootstrap) as cluster:
        partitions = with_all(ask_partitions(cluster, moving or (), most), info.nodes)
    with Cluster(bootstrap, timeout_s=CONTROLLER_WAIT_S) as cluster:
        quorum = _tried(problems, "the quorum", lambda: ask_quorum(cluster))
    refusals = _tried(problems, "log directories", lambda: ask_directories(bootstrap, info.nodes))
    controllers = info.nodes if quorum is None and not problems and is_alone(info) else ()
    nodes = nodes_of(info.nodes, quorum, controllers)
    problems += _tried(problems, "firn.remote.url", lambda: ask_prefixes(bootstrap, info.nodes)) or ()
    return Standing(
        info.cluster_id, nodes, quorum, partitions, moving, tuple(problems), tuple(refusals or ())
    )


def look_at_controllers(bootstrap: str) -> Standing:
    """What controllers tell by themselves, where no broker may be left: no partitions, no brokers."""
    problems: list[str] = []
    with Cluster(bootstrap, timeout_s=CONTROLLER_WAIT_S) as cluster:
        info = cluster.describe(controllers=True)
        quorum = None
        if info.controller < 0:
            problems.append("the quorum: nobody leads it")
        else:
            quorum = _tried(problems, "the quorum", lambda: ask_quorum(cluster, info.controller))
        moving = _tried(problems, "reassignments", lambda: ask_moving(cluster))
    return Standing(info.cluster_id, nodes_of((), quorum, info.nodes), quorum, None, moving, tuple(problems))


def _tried(problems: list[str], what: str, question: Callable[[], T]) -> T | None:
    """The answer; None where there is none, and why."""
    try:
        return question()
    except TimeoutError:
        problems.append(f"{what}: no answer in time: is there a majority of the controllers?")
    except RequestError as e:
        problems.append(str(e))
    except (FirnError, OSError) as e:
        problems.append(f"{what}: {e}")
    return None
