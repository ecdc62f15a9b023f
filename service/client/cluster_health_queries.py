"""Requests that describe a cluster's health, for commands and the console. Blocking; they change nothing.

Raises `RequestError`, `StorageError` and `OSError`. Partitions come a page at a time; settings are requested
only for topics with replicas out of sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait
from datetime import timedelta
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import FirnError, RequestError
from service.client.admin import TOPIC_RESOURCE, Cluster, raise_for
from service.client.broker_health_queries import ask_broker, ask_view, with_answers
from service.client.cluster_health import (
    ClusterHealth,
    MetadataReplica,
    PartitionCounter,
    PartitionState,
    PartitionSummary,
    QuorumInfo,
    ReassignmentInfo,
    is_alone,
    nodes_of,
    partitions_of,
    voters_of,
    with_idle_brokers,
    with_states,
)
from service.client.node_http import PLAIN_HTTP, NodeHttp
from service.client.security import PLAINTEXT, Security
from service.health.facts import ClusterFacts, UnansweredFacts, ViewFacts
from service.health.judge import judge
from service.wire.api import ApiKey, request_module
from service.wire.errors import MalformedMessage

T = TypeVar("T")

METADATA_TOPIC: Final = "__cluster_metadata"
MIN_ISR_KEY: Final = "min.insync.replicas"
AT_ONCE: Final = 2_000
CONTROLLER_WAIT_S: Final = 5.0
"""Time-out of requests that a controller answers: there may be none."""
LOOK_S: Final = 0.5
"""Time between two looks at the age of the metadata, while the quorum is waited for."""
_VIEW: Final = "the age of the metadata"
_NO_LEADER: Final = frozenset(
    (ErrorCode.request_timed_out, ErrorCode.not_controller, ErrorCode.not_leader_or_follower)
)
Page = list[tuple[str, PartitionState]]


def ask_quorum(cluster: Cluster, controller: int | None = None) -> QuorumInfo | None:
    """Describe the quorum through any broker, or through the active `controller`; None for a standalone
    node."""
    module = request_module(ApiKey.DESCRIBE_QUORUM)
    topic = module.TopicData(topic_name=METADATA_TOPIC, partitions=(module.PartitionData(partition_index=0),))
    client = cluster.first if controller is None else cluster.client(controller)
    if not client.serves(ApiKey.DESCRIBE_QUORUM):
        return None
    request = module.DescribeQuorumRequest(topics=(topic,))
    answer = client.request(ApiKey.DESCRIBE_QUORUM, request, timeout_s=CONTROLLER_WAIT_S)
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
    answer = cluster.first.request(ApiKey.LIST_PARTITION_REASSIGNMENTS, request, timeout_s=CONTROLLER_WAIT_S)
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


def describe_health(
    bootstrap: str,
    most: int,
    pool: Executor,
    clock: Clock,
    security: Security = PLAINTEXT,
    http: NodeHttp = PLAIN_HTTP,
) -> ClusterHealth:
    """Describe the whole cluster through a broker. What only a controller can answer may be missing."""
    tries = _Tries()
    with Cluster(bootstrap, timeout_s=CONTROLLER_WAIT_S, security=security) as cluster:
        info = cluster.describe()
        view = tries.ask(_VIEW, lambda: ask_view(cluster.first))
        asked = [pool.submit(ask_broker, cluster, one, http) for one in info.nodes if not one.is_fenced]
        moving: tuple[ReassignmentInfo, ...] | None = None
        quorum: QuorumInfo | None = None
        # One that hangs is not waited for again.
        bootstrap = f"{cluster.first_address},{bootstrap}"
        if _is_fresh(view):  # else nobody answers, and this would only wait
            with Cluster(bootstrap, timeout_s=CONTROLLER_WAIT_S, security=security) as other:
                view, quorum = _ask_leader(cluster, other, view, tries, pool)
        is_led = _is_fresh(view) and tries.quorum_silence is None
        answers = [one.result() for one in asked]
    # On a new connection: after a time-out a connection is of no use.
    with Cluster(bootstrap, timeout_s=CONTROLLER_WAIT_S, security=security) as cluster:
        if is_led:
            moving = tries.ask("reassignments", lambda: ask_moving(cluster))
        elif view is not None:
            view = tries.ask(_VIEW, lambda: ask_view(cluster.first))  # it is older now
    with Cluster(bootstrap, security=security) as cluster:
        if any(one.silence is not None for one in answers):
            info = cluster.describe()  # it may be fenced by now
        partitions = with_idle_brokers(ask_partitions(cluster, moving or (), most), info.nodes)
    facts = ClusterFacts(
        view,
        voters=voters_of(quorum),
        quorum_silence=tries.quorum_silence,
        partitions=partitions_of(partitions),
        unanswered=tuple(tries.unanswered),
    )
    facts = with_answers(facts, info.nodes, answers)
    alone = quorum is None and is_led and is_alone(info)
    nodes = with_states(nodes_of(info.nodes, quorum, info.nodes if alone else ()), facts, quorum)
    return ClusterHealth(
        info.cluster_id, nodes, quorum, partitions, moving, judge(facts, clock.now_ms()), alone
    )


def _is_fresh(view: ViewFacts | None) -> bool:
    """Return whether metadata may have been confirmed: brokers of others tell nothing of it."""
    return view is None or not view.is_stale


def _ask_leader(
    cluster: Cluster, other: Cluster, view: ViewFacts | None, tries: _Tries, pool: Executor
) -> tuple[ViewFacts | None, QuorumInfo | None]:
    """Describe the quorum through `other`, and look meanwhile at the age of the metadata of `cluster`: once
    they are stale, nobody leads, and no answer comes."""
    asking = pool.submit(ask_quorum, other)
    while not wait([asking], LOOK_S).done and _is_fresh(view):
        if view is not None:
            view = tries.ask(_VIEW, lambda: ask_view(cluster.first))
    if _is_fresh(view):
        return view, tries.ask("the quorum", asking.result)
    other.first.abort()
    wait([asking])
    return view, None


def describe_controllers(bootstrap: str, clock: Clock, security: Security = PLAINTEXT) -> ClusterHealth:
    """Describe quorum and reassignments through a controller, for a cluster without brokers."""
    tries = _Tries()
    with Cluster(bootstrap, timeout_s=CONTROLLER_WAIT_S, security=security) as cluster:
        info = cluster.describe(controllers=True)
        quorum = None
        if info.controller < 0:
            tries.quorum_silence = "nobody leads it"
        else:
            quorum = tries.ask("the quorum", lambda: ask_quorum(cluster, info.controller))
        moving = tries.ask("reassignments", lambda: ask_moving(cluster))
    facts = ClusterFacts(
        voters=voters_of(quorum),
        quorum_silence=tries.quorum_silence,
        unanswered=tuple(tries.unanswered),
    )
    nodes = with_states(nodes_of((), quorum, info.nodes), facts, quorum)
    return ClusterHealth(info.cluster_id, nodes, quorum, None, moving, judge(facts, clock.now_ms()))


class _Tries:
    """Questions of which some are not answered."""

    def __init__(self) -> None:
        self.unanswered: list[UnansweredFacts] = []
        self.quorum_silence: str | None = None

    def ask(self, what: str, question: Callable[[], T]) -> T | None:
        """Return the answer, or None, and remember the reason."""
        try:
            return question()
        except (FirnError, OSError) as e:
            why = why_unanswered(e)
            if is_without_leader(e) and what == "the quorum":
                self.quorum_silence = why
            else:
                self.unanswered.append(UnansweredFacts(what, why))
        return None


def is_without_leader(error: BaseException) -> bool:
    """Return whether a question to the quorum's leader failed as there may be none: not for a refusal."""
    if isinstance(error, RequestError):
        return error.code in _NO_LEADER
    return isinstance(error, TimeoutError)


def why_unanswered(error: BaseException) -> str:
    """Return why a question was not answered, in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time: is there a majority of the controllers?"
    return str(error)
