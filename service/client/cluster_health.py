"""Health of a cluster: nodes, quorum, partitions without a leader or with too few in-sync replicas. [P]

Partitions are counted one by one and only the worst are kept, so a hundred thousand take no more memory than
ten. A replica that is being added does not count as missing from the ISR before its reassignment is done, as
in Kafka's ``TopicCommand``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from service.client.admin_models import ClusterInfo, NodeInfo
from service.health.facts import BrokerFacts, ClusterFacts, PartitionFacts, VoterFacts
from service.health.findings import Finding, Severity
from service.health.findings import as_json as finding_as_json
from service.health.judge import AWAY, AWAY_MS, OK, UNKNOWN, state_of

BROKER: Final = "broker"
CONTROLLER: Final = "controller"


class MetadataReplica(NamedTuple):
    """One replica of the metadata log, as the quorum's leader reports it. None: it has not fetched from this
    leader."""

    node_id: int
    directory_id: str | None
    end: int | None
    fetched_ms: int | None
    caught_up_ms: int | None


class QuorumInfo(NamedTuple):
    """The quorum, as its leader reports it. `listeners`: (name, host, port) of voters, by node id."""

    leader: int
    epoch: int
    high_watermark: int
    voters: tuple[MetadataReplica, ...]
    observers: tuple[MetadataReplica, ...]
    listeners: Mapping[int, tuple[tuple[str, str, int], ...]] = {}

    def _of_leader(self) -> MetadataReplica | None:
        return next((one for one in self.voters if one.node_id == self.leader), None)

    def lag(self, one: MetadataReplica) -> int | None:
        """Return how many records the replica has not fetched yet."""
        leader = self._of_leader()
        if leader is None or leader.end is None or one.end is None:
            return None
        return max(leader.end - one.end, 0)

    def behind_ms(self, one: MetadataReplica) -> int | None:
        """Return the milliseconds since the replica was caught up, by the leader's clock."""
        leader = self._of_leader()
        return None if leader is None else _between(one.caught_up_ms, leader.caught_up_ms)

    def silent_ms(self, one: MetadataReplica) -> int | None:
        """Return the milliseconds since the replica fetched, by the leader's clock."""
        leader = self._of_leader()
        return None if leader is None else _between(one.fetched_ms, leader.fetched_ms)

    def is_away(self, one: MetadataReplica) -> bool:
        silent = self.silent_ms(one)
        return one.node_id != self.leader and (silent is None or silent > AWAY_MS)


def _between(then_ms: int | None, now_ms: int | None) -> int | None:
    return None if then_ms is None or now_ms is None else max(now_ms - then_ms, 0)


class NodeState(NamedTuple):
    """A node of the cluster. `is_fenced` is None where it is no broker; `state` is that of the broker, or of
    a controller alone."""

    node_id: int
    roles: tuple[str, ...]
    rack: str | None
    listeners: tuple[str, ...]
    is_fenced: bool | None
    state: str = ""


def nodes_of(
    brokers: Sequence[NodeInfo], quorum: QuorumInfo | None, controllers: Sequence[NodeInfo] = ()
) -> tuple[NodeState, ...]:
    """Return all nodes, by id.

    An observer that is no broker is a controller without a vote. An observer that is a broker may be one,
    too: no API says so.
    """
    by_id = {one.node_id: one for one in brokers}
    named = {one.node_id: one for one in controllers}
    voters = {one.node_id for one in quorum.voters} if quorum is not None else set()
    observers = {one.node_id for one in quorum.observers} if quorum is not None else set()
    found = []
    for node_id in sorted(by_id.keys() | named.keys() | voters | observers):
        broker = by_id.get(node_id)
        listeners = [] if broker is None else [_address(broker.host, broker.port)]
        endpoints = quorum.listeners.get(node_id, ()) if quorum is not None else ()
        listeners += [f"{name}://{_address(host, port)}" for name, host, port in endpoints]
        if not listeners and (one := named.get(node_id)) is not None:
            listeners.append(_address(one.host, one.port))
        is_controller = node_id in voters or node_id in named or (broker is None and node_id in observers)
        roles = ((BROKER,) if broker is not None else ()) + ((CONTROLLER,) if is_controller else ())
        rack, is_fenced = (None, None) if broker is None else (broker.rack, broker.is_fenced)
        found.append(NodeState(node_id, roles, rack, tuple(listeners), is_fenced))
    return tuple(found)


def with_states(
    nodes: Sequence[NodeState], facts: ClusterFacts, quorum: QuorumInfo | None
) -> tuple[NodeState, ...]:
    """Return the nodes with their states: none is `ok` by metadata that nobody has confirmed. A node that is
    no broker has that of its replica of the metadata log, by what the quorum's leader says."""
    known = {one.node_id: one for one in facts.brokers}
    replicas = {one.node_id: one for one in (*quorum.voters, *quorum.observers)} if quorum is not None else {}

    def state(one: NodeState) -> str:
        if one.is_fenced is not None:
            broker = known.get(one.node_id, BrokerFacts(one.node_id, one.is_fenced))
            return state_of(broker, is_stale=facts.is_stale)
        replica = replicas.get(one.node_id)
        if quorum is None or replica is None or facts.is_stale:
            return UNKNOWN
        return AWAY if quorum.is_away(replica) else OK

    return tuple(one._replace(state=state(one)) for one in nodes)


def voters_of(quorum: QuorumInfo | None) -> tuple[VoterFacts, ...] | None:
    """Return the facts of the quorum's voters."""
    if quorum is None:
        return None
    return tuple(
        VoterFacts(one.node_id, quorum.silent_ms(one), one.node_id == quorum.leader) for one in quorum.voters
    )


def partitions_of(counted: PartitionSummary | None) -> PartitionFacts | None:
    """Return the facts of the partitions."""
    if counted is None:
        return None
    return PartitionFacts(counted.offline, counted.under_min_isr, counted.under_replicated)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PartitionState(NamedTuple):
    """One partition, as DescribeTopicPartitions reports it; `leader` is -1 where it has none."""

    partition: int
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


class ReassignmentInfo(NamedTuple):
    """A reassignment under way: `replicas` are all replicas for now, with those being added and removed."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class PartitionProblem(IntEnum):
    """Problem of a partition, the worst first."""

    OFFLINE = 0
    """it has no leader"""
    UNDER_MIN_ISR = 1
    """it refuses produce requests with acks=all"""
    UNDER_REPLICATED = 2


class UnhealthyPartition(NamedTuple):
    """A partition with a problem. Instances sort by severity."""

    what: PartitionProblem
    topic: str
    state: PartitionState
    min_isr: int


class BrokerLoad(NamedTuple):
    """Load of one broker: partitions that it leads, of which it is the preferred leader, and of which it has
    a replica; its replicas that are out of sync, and that are offline."""

    leads: int = 0
    preferred: int = 0
    replicas: int = 0
    out_of_sync: int = 0
    offline: int = 0

    @property
    def follows(self) -> int:
        """Number of its replicas that it does not lead."""
        return self.replicas - self.leads


class PartitionSummary(NamedTuple):
    """Counts over all partitions. `ill` are the worst of those with a problem, `ill_in_all` is how many there
    are."""

    topics: int
    partitions: int
    offline: int
    under_min_isr: int
    under_replicated: int
    with_elr: int
    not_preferred: int
    ill_in_all: int
    shares: Mapping[int, BrokerLoad]
    ill: tuple[UnhealthyPartition, ...]


class PartitionCounter:
    """Counts partitions, topic by topic, and keeps the `most` worst of those with a problem."""

    def __init__(self, moving: Collection[ReassignmentInfo], most: int) -> None:
        self._adding = {(one.topic, one.partition): frozenset(one.adding) for one in moving if one.adding}
        self._most = most
        self._topic: str | None = None
        self._topics = 0
        self._partitions = self._with_elr = self._not_preferred = 0
        self._counts = dict.fromkeys(PartitionProblem, 0)
        self._in_all = 0
        self._shares: dict[int, list[int]] = {}
        self._ill: list[UnhealthyPartition] = []

    def add(self, topic: str, one: PartitionState, min_isr: int) -> None:
        """Count a partition. `min_isr` is the topic's setting; it is used only if replicas are out of
        sync."""
        if topic != self._topic:
            self._topic = topic
            self._topics += 1
        self._partitions += 1
        self._with_elr += bool(one.elr)
        preferred = one.replicas[0] if one.replicas else -1
        self._not_preferred += one.leader != preferred
        for node in one.replicas:
            share = self._share(node)
            share[2] += 1
            share[3] += node not in one.isr
        for node in one.offline:
            self._share(node)[4] += 1
        if preferred >= 0:
            self._share(preferred)[1] += 1
        if one.leader >= 0:
            self._share(one.leader)[0] += 1
        self._judge(topic, one, min_isr)

    def _share(self, node: int) -> list[int]:
        found = self._shares.get(node)
        if found is None:
            found = self._shares[node] = [0] * len(BrokerLoad._fields)
        return found

    def _judge(self, topic: str, one: PartitionState, min_isr: int) -> None:
        found: list[PartitionProblem] = []
        coming = self._adding.get((topic, one.partition), frozenset())
        if one.leader < 0:
            found.append(PartitionProblem.OFFLINE)
        if len(one.isr) < min(min_isr, len(one.replicas)):
            found.append(PartitionProblem.UNDER_MIN_ISR)
        if len(one.isr) < sum(node not in coming for node in one.replicas):
            found.append(PartitionProblem.UNDER_REPLICATED)
        for what in found:
            self._counts[what] += 1
        if found:
            self._in_all += 1
            self._ill.append(UnhealthyPartition(found[0], topic, one, min_isr))
            if len(self._ill) >= 2 * self._most + 100:
                self._cut()

    def _cut(self) -> None:
        self._ill.sort()
        del self._ill[self._most :]

    def found(self) -> PartitionSummary:
        self._cut()
        return PartitionSummary(
            self._topics, self._partitions, self._counts[PartitionProblem.OFFLINE],
            self._counts[PartitionProblem.UNDER_MIN_ISR], self._counts[PartitionProblem.UNDER_REPLICATED],
            self._with_elr, self._not_preferred, self._in_all, {node: BrokerLoad(*counts) for node, counts in
            sorted(self._shares.items())}, tuple(self._ill),
        )  # fmt: skip


def with_idle_brokers(found: PartitionSummary, brokers: Sequence[NodeInfo]) -> PartitionSummary:
    """Return `found` with a load of zero for brokers without partitions."""
    shares = {one.node_id: BrokerLoad() for one in brokers} | dict(found.shares)
    return found._replace(shares=dict(sorted(shares.items())))


class ClusterHealth(NamedTuple):
    """Health of a cluster. None: unknown; `findings` say why, unless the node that answered never knows
    it."""

    cluster_id: str
    nodes: tuple[NodeState, ...]
    quorum: QuorumInfo | None
    partitions: PartitionSummary | None
    moving: tuple[ReassignmentInfo, ...] | None
    findings: tuple[Finding, ...] = ()
    is_alone: bool = False

    @property
    def is_well(self) -> bool:
        """Return whether there is nothing but notices."""
        return not any(one.severity > Severity.NOTICE for one in self.findings)


def is_alone(info: ClusterInfo) -> bool:
    """Return whether the cluster is one node that is its own controller."""
    return [one.node_id for one in info.nodes] == [info.controller]


def as_json(found: ClusterHealth) -> Mapping[str, object]:
    """Return the JSON of `firn cluster describe`; times in milliseconds."""
    return {
        "cluster_id": found.cluster_id,
        "nodes": [one._asdict() for one in found.nodes],
        "quorum": None if found.quorum is None else _quorum_as_json(found.quorum),
        "partitions": None if found.partitions is None else _partitions_as_json(found.partitions),
        "reassignments": None if found.moving is None else [one._asdict() for one in found.moving],
        "wrong": [one.words for one in found.findings if one.severity > Severity.NOTICE],
        "findings": [finding_as_json(one) for one in found.findings],
    }


def _quorum_as_json(quorum: QuorumInfo) -> Mapping[str, object]:
    def replica_as_json(one: MetadataReplica) -> Mapping[str, object]:
        return {**one._asdict(), "lag": quorum.lag(one), "behind_ms": quorum.behind_ms(one)}

    return {
        "leader": quorum.leader,
        "epoch": quorum.epoch,
        "high_watermark": quorum.high_watermark,
        "voters": [replica_as_json(one) for one in quorum.voters],
        "observers": [replica_as_json(one) for one in quorum.observers],
    }


def _partitions_as_json(found: PartitionSummary) -> Mapping[str, object]:
    return {
        **found._asdict(),
        "shares": [
            {"node_id": node, **share._asdict(), "follows": share.follows}
            for node, share in found.shares.items()
        ],
        "ill": [
            {
                "what": one.what.name.lower(),
                "topic": one.topic,
                **one.state._asdict(),
                "min_isr": one.min_isr,
            }
            for one in found.ill
        ],
    }
