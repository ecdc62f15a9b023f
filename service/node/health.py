"""Facts of a node's parts, from which `service/health` judges for `/readyz`, metrics and DescribeHealth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from service.health import kinds
from service.health.facts import (
    BrokerFacts,
    ClusterFacts,
    CutFacts,
    DirectoryFacts,
    ErasureFacts,
    HeldBackFacts,
    NodeFacts,
    OrderFacts,
    PartitionFacts,
    RecoveryFacts,
    RestoreFacts,
    StoreFacts,
    UploadFacts,
    ViewFacts,
    VoterFacts,
)
from service.health.judge import AWAY_MS
from service.hot.disk_watermarks import Step, describe
from service.metadata.image import MetadataImage
from service.metadata.partition_index import NO_LEADER_SHELF, UNDER_REPLICATED_SHELF

if TYPE_CHECKING:
    from service.hot.manager import LogManager
    from service.metadata.publisher import Publisher
    from service.metadata.raft.leading import VoterSilence
    from service.network.jwks.key_sets import KeySets
    from service.network.tls.node_tls import NodeTls
    from service.node.cold_tier import ColdTier
    from service.serving.request_host import Broker
    from service.tiering.metrics import TieringMetrics

FAILED: Final = "failed"
_JUDGED: Final = 1000
"""Partitions whose settings are looked up at once: so many take a millisecond."""


class ObservedParts(NamedTuple):
    """Parts of a node as far as they have started; None: it has not, or the node has none."""

    node_id: int
    session_ms: int
    is_broker: bool
    is_serving: bool
    failure: BaseException | None = None
    broker: Broker | None = None
    logs: LogManager | None = None
    cold: ColdTier | None = None
    tls: NodeTls | None = None
    key_sets: KeySets | None = None
    metadata: Publisher | None = None


def parts_of(node: ObservedParts) -> tuple[str, ...]:
    """Return the parts that the node has, as checks of `/readyz` in their order."""
    found = [kinds.NODE]
    if node.tls is not None and node.tls.handshakes is not None:
        found.append(kinds.TLS)
    if node.key_sets is not None:
        found.append(kinds.TOKENS)
    if node.is_broker:
        found += [kinds.LOGS, kinds.DISKS]
    found.append(kinds.METADATA)
    if node.cold is not None:
        found.append(kinds.STORE)
    if node.broker is not None and (node.broker.image.life or node.broker.image.restored_tails):
        found.append(kinds.RECOVERY)
    if node.is_broker:
        found.append(kinds.COORDINATORS)
    return (*found, kinds.CLUSTER)


def facts_of(node: ObservedParts) -> NodeFacts:
    """Return what is known of all parts."""
    view = cluster = None
    if node.metadata is not None:
        view = ViewFacts(node.node_id, node.metadata.confirmed_age_ms, node.session_ms)
        cluster = _cluster(node.metadata.image, None if node.is_serving else node.node_id)
        standing = node.metadata.quorum_status
        if standing is not None and standing.is_leader:
            cluster = cluster._replace(voters=tuple(_voters(standing.voter_silences)))
    facts = NodeFacts(
        node.node_id,
        is_serving=node.is_serving,
        stops=None if node.failure is None else str(node.failure),
        view=view,
        certificates=() if node.tls is None else tuple(_certificates(node.tls)),
        key_sets=() if node.key_sets is None else tuple(_key_sets(node.key_sets)),
        cluster=cluster,
    )
    if not node.is_broker:
        return facts
    if node.broker is None or node.logs is None:
        return facts._replace(waits=("metadata and logs are being opened",))
    broker = node.broker
    facts = facts._replace(
        offline_partitions=broker.replicas.closed_count + broker.replicas.failed_count,
        directories=tuple(_directories(node.node_id, broker, node.logs)),
        under_min_isr=_under_min_isr(node.node_id, broker),
        failed_shards=_failed_shards(broker),
        recovery=_recovery(broker.image) if broker.image.life else None,
        restore=_restore(broker.image, node.cold) if broker.image.restored_tails else None,
        erasures=_erasures(node.logs),
    )
    return facts if node.cold is None else _with_store(facts, node.cold)


def _voters(silences: Mapping[int, VoterSilence]) -> Iterator[VoterFacts]:
    """Report the other voters of a quorum that this node leads, in the words of clients: those do not know
    since when it leads."""
    for node_id, (ms, has_fetched) in silences.items():
        yield VoterFacts(node_id, ms if has_fetched or ms <= AWAY_MS else None, is_leader=False)


def _certificates(tls: NodeTls) -> Iterator[str]:
    """Report whether stores that have changed could not be used, and which certificates end soon."""
    from service.security.certificates import ending  # a node without TLS does not load it

    if tls.handshakes is None:
        return
    for name, why in tls.problems.items():
        yield f"listener {name} keeps its old certificates: {why}"
    for name, days in tls.days_left().items():
        if (words := ending(days)) is not None:
            yield f"the certificate of listener {name} {words}"


def _key_sets(key_sets: KeySets) -> Iterator[str]:
    """Report which keys of issuers of tokens are missing or old."""
    for place, why in key_sets.problems.items():
        yield f"the keys of {place}: {why}"


def _directories(node_id: int, broker: Broker, logs: LogManager) -> Iterator[DirectoryFacts]:
    """Report the log directories that are offline, and those that run out of space."""
    for path, standing in broker.disks.standings().items():
        if standing.step is not Step.FREE:
            refuses = standing.step >= Step.THROTTLE
            yield DirectoryFacts(node_id, str(path), fullness=describe(standing), refuses=refuses)
    for path in broker.config.log_dirs:
        if not logs.is_online(path):
            yield DirectoryFacts(node_id, str(path), is_offline=True)


def _under_min_isr(node_id: int, broker: Broker) -> int:
    """Count the partitions led here that refuse records with acks=all, among the first `_JUDGED` of the
    cluster that lack replicas."""
    image, count = broker.image, 0
    for topic_id, number in islice(image.index.partitions(UNDER_REPLICATED_SHELF), _JUDGED):
        state, one = image.partition(topic_id, number), broker.replicas.get(topic_id, number)
        if state is not None and one is not None and state.leader == node_id:
            count += len(state.isr) < min(one.config.min_insync_replicas, len(state.replicas))
    return count


def _failed_shards(broker: Broker) -> int:
    failed = broker.groups.partition_states().get(FAILED, 0)
    if broker.transactions is not None:
        failed += broker.transactions.partition_states().get(FAILED, 0)
    return failed


def _cluster(image: MetadataImage, except_id: int | None) -> ClusterFacts:
    """Return the cluster by this node's metadata. `except_id`: a broker that is not judged by them."""
    brokers = (one for one in image.brokers.values() if one.id != except_id)
    return ClusterFacts(
        brokers=tuple(BrokerFacts(one.id, one.fenced) for one in brokers),
        partitions=PartitionFacts(
            offline=image.index.count(NO_LEADER_SHELF),
            under_replicated=image.index.count(UNDER_REPLICATED_SHELF),
        ),
    )


def _recovery(image: MetadataImage) -> RecoveryFacts:
    """Return the work that a recovery from the bucket has left: unknown settings, logs not compared yet."""
    waiting = sorted(
        image.topics_by_id[topic_id].name
        for topic_id, state in image.recovered.items()
        if state.settings_unknown
    )
    unchecked = sum(len(state.unchecked_partitions) for state in image.recovered.values())
    return RecoveryFacts(tuple(waiting), unchecked)


def _erasures(logs: LogManager) -> ErasureFacts | None:
    """Return what keeps orders of erasure open here; None where nothing does."""
    problems = logs.metrics.erasure_problems
    first = min(problems, default=None)
    return None if first is None else ErasureFacts(len(problems), first, problems[first])


def _restore(image: MetadataImage, cold: ColdTier | None) -> RestoreFacts:
    """Return the work that a restore has left, and what this node cannot do of it."""
    unloaded = len(image.restored_tails)
    if cold is None:
        return RestoreFacts(unloaded)
    problems = cold.tail_loads.problems
    first = min(problems, default="")
    return RestoreFacts(unloaded, len(problems), first, problems.get(first, ""))


def _unpublished(metrics: TieringMetrics) -> Iterator[HeldBackFacts]:
    """Report the partitions whose committed manifest cannot be published: it is gone, damaged or refused."""
    from service.tiering.tasks import Task  # a node without a store does not load its code

    failing = [(str(tip), why) for (task, tip), why in metrics.failing.items() if task is Task.PUBLISH]
    if failing:
        tip, why = min(failing)
        yield HeldBackFacts(f"nothing is copied of {len(failing)} partitions, {tip} first: {why}")


def _cuts(metrics: TieringMetrics, now_ms: int) -> CutFacts | None:
    """Report how old the newest complete cut is; None where this node takes none."""
    from service.tiering.tasks import Task  # a node without a store does not load its code

    cuts = metrics.cut_keeper
    if (age_ms := cuts.age_ms(now_ms)) is None:
        return None
    lacking = next((f"{tip}: {why}" for tip, why in cuts.lacking.items()), "")
    return CutFacts(age_ms, cuts.interval_ms, metrics.failing.get((Task.CUT, None), lacking))


def _orders(metrics: TieringMetrics) -> Iterator[OrderFacts]:
    for order_id, one in metrics.orders.items():
        since_ms = one.started_ms if one.is_open else one.grace_until_ms
        yield OrderFacts(str(order_id), since_ms, one.is_open, one.why)


def _with_store(facts: NodeFacts, cold: ColdTier) -> NodeFacts:
    asleep = cold.reader.stats().downloads.asleep
    stores = tuple(
        StoreFacts(client, why, one.since_ms)
        for client, one in cold.metrics.items()
        if (why := one.problem) is not None
    )
    held: list[HeldBackFacts] = []
    uploads: UploadFacts | None = None
    if (metrics := cold.tiering) is not None:
        held += (HeldBackFacts(why) for why in (metrics.displaced, metrics.topics_file) if why is not None)
        held += _unpublished(metrics)
        if (oldest_ms := metrics.oldest_sealed_ms) is not None:
            reasons = Counter(metrics.reasons.values()).most_common(1)
            uploads = UploadFacts(oldest_ms, reasons[0][0] if reasons else "")
        if metrics.waits is not None:
            words = f"nothing is copied, expired or swept {metrics.waits}"
            held.append(HeldBackFacts(words, metrics.waits_since_ms))
    return facts._replace(
        cuts=None if metrics is None else _cuts(metrics, cold.now_ms()),
        orders=() if metrics is None else tuple(_orders(metrics)),
        stores=stores,
        held_back=tuple(held),
        uploads=uploads,
        is_owner_unknown=cold.tiering is None and not stores,
        asleep=(len(asleep), asleep[0]) if asleep else None,
    )
