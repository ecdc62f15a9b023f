"""How a cluster stands, out of what it told: nodes, quorum, and the partitions that are not whole. [P]

Counts are kept while partitions go by, and only the worst of those that are not whole are kept themselves: a
walk over a hundred thousand partitions takes no more memory than one over ten. A replica that is being added
is not missed among the in-sync ones until its reassignment is done, as in Kafka's ``TopicCommand``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from service.client.admin_models import ClusterInfo, NodeInfo

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
AWAY_MS: Final = 10_000
"""A voter that has not fetched for so long is said to be away."""


class MetadataReplica(NamedTuple):
    """One replica of the metadata log, as the quorum's leader knows it; None: it has not fetched since."""

    node_id: int
    directory_id: str | None
    end: int | None
    fetched_ms: int | None
    caught_up_ms: int | None


class QuorumInfo(NamedTuple):
    """The quorum, as its leader tells it. `listeners`: (name, host, port) of voters, by node."""

    leader: int
    epoch: int
    high_watermark: int
    voters: tuple[MetadataReplica, ...]
    observers: tuple[MetadataReplica, ...]
    listeners: Mapping[int, tuple[tuple[str, str, int], ...]] = {}

    def _of_leader(self) -> MetadataReplica | None:
        return next((one for one in self.voters if one.node_id == self.leader), None)

    def lag(self, one: MetadataReplica) -> int | None:
        """Records that it has not fetched yet."""
        leader = self._of_leader()
        if leader is None or leader.end is None or one.end is None:
            return None
        return max(leader.end - one.end, 0)

    def behind_ms(self, one: MetadataReplica) -> int | None:
        """How long ago it had all there was, by the leader's clock."""
        leader = self._of_leader()
        return None if leader is None else _between(one.caught_up_ms, leader.caught_up_ms)

    def silent_ms(self, one: MetadataReplica) -> int | None:
        """How long ago it fetched, by the leader's clock."""
        leader = self._of_leader()
        return None if leader is None else _between(one.fetched_ms, leader.fetched_ms)

    def is_away(self, one: MetadataReplica) -> bool:
        silent = self.silent_ms(one)
        return one.node_id != self.leader and (silent is None or silent > AWAY_MS)


def _between(then_ms: int | None, now_ms: int | None) -> int | None:
    return None if then_ms is None or now_ms is None else max(now_ms - then_ms, 0)


class NodeState(NamedTuple):
    """A node and all that is known of it. `is_fenced` is None where it is no broker."""

    node_id: int
    roles: tuple[str, ...]
    rack: str | None
    listeners: tuple[str, ...]
    is_fenced: bool | None


def nodes_of(
    brokers: Sequence[NodeInfo], quorum: QuorumInfo | None, controllers: Sequence[NodeInfo] = ()
) -> tuple[NodeState, ...]:
    """Nodes by id. An observer that is no broker is a controller without a vote; of one that is a broker,
    too, nobody tells whether it could have one."""
    by_id = {one.node_id: one for one in brokers}
    named = {one.node_id: one for one in controllers}
    voters = {one.node_id for one in quorum.voters} if quorum is not None else set()
    observers = {one.node_id for one in quorum.observers} if quorum is not None else set()
    found = []
    for node_id in sorted(by_id.keys() | named.keys() | voters | observers):
        broker = by_id.get(node_id)
        listeners = [] if broker is None else [_address(broker.host, broker.port)]
        told = quorum.listeners.get(node_id, ()) if quorum is not None else ()
        listeners += [f"{name}://{_address(host, port)}" for name, host, port in told]
        if not listeners and (one := named.get(node_id)) is not None:
            listeners.append(_address(one.host, one.port))
        is_controller = node_id in voters or node_id in named or (broker is None and node_id in observers)
        roles = ((BROKER,) if broker is not None else ()) + ((CONTROLLER,) if is_controller else ())
        rack, is_fenced = (None, None) if broker is None else (broker.rack, broker.is_fenced)
        found.append(NodeState(node_id, roles, rack, tuple(listeners), is_fenced))
    return tuple(found)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PartitionState(NamedTuple):
    """One partition, as DescribeTopicPartitions tells it; `leader` is -1 where it has none."""

    partition: int
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


class Reassignment(NamedTuple):
    """Replicas that move: `replicas` are all for now, those that come and those that go among them."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Ill(IntEnum):
    """What is the matter with a partition, the worst first."""

    OFFLINE = 0
    """nobody leads it"""
    UNDER_MIN_ISR = 1
    """it takes no records with acks=all"""
    UNDER_REPLICATED = 2


class IllPartition(NamedTuple):
    """A partition that is not whole; they sort by how bad it is."""

    what: Ill
    topic: str
    state: PartitionState
    min_isr: int


class Share(NamedTuple):
    """What one broker has: partitions that it leads, would lead as the preferred one, and holds at all;
    replicas of it that are not in sync, and that are offline."""

    leads: int = 0
    preferred: int = 0
    replicas: int = 0
    out_of_sync: int = 0
    offline: int = 0

    @property
    def follows(self) -> int:
        return self.replicas - self.leads


class Partitions(NamedTuple):
    """All partitions in numbers. `ill` are the worst of those that are not whole."""

    topics: int
    partitions: int
    offline: int
    under_min_isr: int
    under_replicated: int
    with_elr: int
    not_preferred: int
    ill_in_all: int
    shares: Mapping[int, Share]
    ill: tuple[IllPartition, ...]


class Tally:
    """Counts partitions as they come, topic after topic; keeps `most` of those that are not whole."""

    def __init__(self, moving: Collection[Reassignment], most: int) -> None:
        self._adding = {(one.topic, one.partition): frozenset(one.adding) for one in moving if one.adding}
        self._most = most
        self._topic: str | None = None
        self._topics = 0
        self._partitions = self._with_elr = self._not_preferred = 0
        self._counts = dict.fromkeys(Ill, 0)
        self._in_all = 0
        self._shares: dict[int, list[int]] = {}
        self._ill: list[IllPartition] = []

    def add(self, topic: str, one: PartitionState, min_isr: int) -> None:
        """`min_isr` is the topic's setting: it matters where fewer replicas are in sync than there are."""
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
            found = self._shares[node] = [0] * len(Share._fields)
        return found

    def _judge(self, topic: str, one: PartitionState, min_isr: int) -> None:
        found: list[Ill] = []
        coming = self._adding.get((topic, one.partition), frozenset())
        if one.leader < 0:
            found.append(Ill.OFFLINE)
        if len(one.isr) < min(min_isr, len(one.replicas)):
            found.append(Ill.UNDER_MIN_ISR)
        if len(one.isr) < sum(node not in coming for node in one.replicas):
            found.append(Ill.UNDER_REPLICATED)
        for what in found:
            self._counts[what] += 1
        if found:
            self._in_all += 1
            self._ill.append(IllPartition(found[0], topic, one, min_isr))
            if len(self._ill) >= 2 * self._most + 100:
                self._cut()

    def _cut(self) -> None:
        self._ill.sort()
        del self._ill[self._most :]

    def found(self) -> Partitions:
        self._cut()
        return Partitions(
            self._topics, self._partitions, self._counts[Ill.OFFLINE], self._counts[Ill.UNDER_MIN_ISR],
            self._counts[Ill.UNDER_REPLICATED], self._with_elr, self._not_preferred, self._in_all,
            {node: Share(*counts) for node, counts in sorted(self._shares.items())}, tuple(self._ill),
        )  # fmt: skip


def with_all(found: Partitions, brokers: Sequence[NodeInfo]) -> Partitions:
    """The same, with a share for those, too, who have nothing."""
    shares = {one.node_id: Share() for one in brokers} | dict(found.shares)
    return found._replace(shares=dict(sorted(shares.items())))


class DirectoryRefusal(NamedTuple):
    """A log directory of a broker that takes no records, or nothing at all, and why."""

    node_id: int
    path: str
    why: str


class Standing(NamedTuple):
    """A cluster. None: not told, and `problems` says why, but for what the one who was asked never tells."""

    cluster_id: str
    nodes: tuple[NodeState, ...]
    quorum: QuorumInfo | None
    partitions: Partitions | None
    moving: tuple[Reassignment, ...] | None
    problems: tuple[str, ...] = ()
    refusals: tuple[DirectoryRefusal, ...] = ()


def strange_prefixes(urls: Mapping[int, str | None]) -> list[str]:
    """Brokers whose `firn.remote.url` is not what most have, in words.

    >>> strange_prefixes({1: "s3://b/other", 2: "s3://b/p", 3: "s3://b/p/"})
    ['broker 1: firn.remote.url is s3://b/other, most brokers have s3://b/p']
    >>> strange_prefixes({1: None, 2: "s3://b/p"})
    ['firn.remote.url differs: broker 1 has none, broker 2 has s3://b/p']
    """
    plain = {broker: None if url is None else url.rstrip("/") for broker, url in sorted(urls.items())}
    counted = Counter(plain.values()).most_common()
    if len(counted) < 2:
        return []
    usual, most = counted[0]
    if 2 * most <= len(plain):
        said = ", ".join(f"broker {broker} has {url or 'none'}" for broker, url in plain.items())
        return [f"firn.remote.url differs: {said}"]
    return [
        f"broker {broker}: firn.remote.url is {url or 'not set'}, most brokers have {usual or 'none'}"
        for broker, url in plain.items()
        if url != usual
    ]


def is_alone(info: ClusterInfo) -> bool:
    """Whether it is one node, which is its own controller."""
    return [one.node_id for one in info.nodes] == [info.controller]


def wrongs(found: Standing) -> list[str]:
    """What somebody should look at, in words; nothing where all is as it should be."""
    said = list(found.problems)
    said += [f"node {one.node_id} is fenced" for one in found.nodes if one.is_fenced]
    said += [f"broker {one.node_id}: log directory {one.path} is {one.why}" for one in found.refusals]
    if (quorum := found.quorum) is not None:
        for one in quorum.voters:
            if quorum.is_away(one):
                silent = quorum.silent_ms(one)
                since = "at all" if silent is None else f"for {silent // 1000} s"
                said.append(f"voter {one.node_id} has not fetched {since}")
    if (counted := found.partitions) is not None:
        for count, what in (
            (counted.offline, "without a leader"),
            (counted.under_min_isr, "under min ISR"),
            (counted.under_replicated, "under-replicated"),
        ):
            if count:
                said.append(f"{count} partition{'s' if count > 1 else ''} {what}")
    return said


def as_json(found: Standing) -> Mapping[str, object]:
    """A cluster as programs are told it; times in milliseconds."""
    return {
        "cluster_id": found.cluster_id,
        "nodes": [one._asdict() for one in found.nodes],
        "quorum": None if found.quorum is None else _quorum_as_json(found.quorum),
        "partitions": None if found.partitions is None else _partitions_as_json(found.partitions),
        "reassignments": None if found.moving is None else [one._asdict() for one in found.moving],
        "problems": list(found.problems),
        "refusals": [one._asdict() for one in found.refusals],
        "wrong": wrongs(found),
    }


def _quorum_as_json(quorum: QuorumInfo) -> Mapping[str, object]:
    def told(one: MetadataReplica) -> Mapping[str, object]:
        return {**one._asdict(), "lag": quorum.lag(one), "behind_ms": quorum.behind_ms(one)}

    return {
        "leader": quorum.leader,
        "epoch": quorum.epoch,
        "high_watermark": quorum.high_watermark,
        "voters": [told(one) for one in quorum.voters],
        "observers": [told(one) for one in quorum.observers],
    }


def _partitions_as_json(found: Partitions) -> Mapping[str, object]:
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
