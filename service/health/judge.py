"""Judge of facts: what is wrong with a node or a cluster, in words. [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from service.health import kinds
from service.health.facts import (
    BrokerFacts,
    ClusterFacts,
    DirectoryFacts,
    ErasureFacts,
    NodeFacts,
    OrderFacts,
    PartitionFacts,
    RecoveryFacts,
    RestoreFacts,
    ViewFacts,
    VoterFacts,
)
from service.health.findings import Finding, Severity, worst_first

LATE_UPLOAD_MS: Final = 600_000
"""Age of the oldest segment that waits for its upload, above which uploads are behind."""
LATE_ORDER_MS: Final = 86_400_000
"""Time for which an order to erase keys may be open."""
LATE_REMAINS_MS: Final = 3_600_000
"""Time after the grace in which what an order has dropped is looked for and found gone."""
AWAY_MS: Final = 10_000
"""A voter that has not fetched for this long is away."""
CLUSTER: Final = "cluster"
OK: Final = "ok"
"""State of a node that nothing is wrong with."""
UNKNOWN: Final = "unknown"
AWAY: Final = "does not fetch"
"""State of a controller that does not fetch from the quorum's leader."""
_NAMED_AT_MOST: Final = 5


def judge(facts: ClusterFacts | NodeFacts, now_ms: int) -> tuple[Finding, ...]:
    """Return the findings, the most severe first. `now_ms`: wall clock."""
    if isinstance(facts, NodeFacts):
        found = [*_node(facts, now_ms)]
        if facts.cluster is not None:
            found += _cluster(facts.cluster, now_ms)
    else:
        found = [*_cluster(facts, now_ms)]
    return worst_first(found)


def state_of(broker: BrokerFacts, *, is_stale: bool) -> str:
    """Return the state of a broker in one word or three: only one that fresh metadata call alive is `ok`."""
    if broker.silence is not None and not broker.is_fenced:
        return "does not answer"
    if is_stale:
        return UNKNOWN
    return "fenced" if broker.is_fenced else OK


# -- a cluster


def _cluster(facts: ClusterFacts, now_ms: int) -> Iterator[Finding]:
    if facts.silence is not None:
        yield kinds.CLUSTER_SILENT.found(CLUSTER, f"the cluster does not answer: {facts.silence}")
    stale = () if facts.view is None else tuple(_view(facts.view, now_ms))
    yield from stale
    known = {(one.anchor, one.subject) for one in stale}  # the node has told the same, some seconds ago
    yield from (one for one in facts.told if (one.anchor, one.subject) not in known)
    if facts.quorum_silence is not None:
        yield kinds.QUORUM_SILENT.found(CLUSTER, f"the quorum does not answer: {facts.quorum_silence}")
    for voter in facts.voters or ():
        yield from _voter(voter, now_ms)
    for broker in facts.brokers:
        yield from _broker(broker)
    if facts.partitions is not None:
        yield from _partitions(facts.partitions)
    for directory in facts.directories:
        yield _directory(directory)
    # Where none of several answers, it is rather the way to them.
    severity = None if facts.listening or len(facts.listeners) == 1 else Severity.NOTICE
    for listener in facts.listeners:
        subject = f"node {listener.node_id}"
        words = f"{subject}: its HTTP listener {listener.address} does not answer: {listener.why}"
        yield kinds.HTTP_SILENT.found(subject, words, severity=severity)
    for question in facts.unanswered:
        yield kinds.UNANSWERED.found(CLUSTER, f"{question.what}: {question.why}")
    for sentence in strange_prefixes(facts.urls):
        yield kinds.PREFIXES_DIFFER.found(CLUSTER, sentence)


def _view(view: ViewFacts, now_ms: int) -> Iterator[Finding]:
    if view.is_stale and view.age_ms is not None:
        subject = f"node {view.node_id}"
        yield kinds.METADATA_STALE.found(
            subject,
            f"{subject}: no controller has confirmed its metadata for {seconds(view.age_ms)}: they are stale",
            now_ms - view.age_ms,
        )


def _voter(voter: VoterFacts, now_ms: int) -> Iterator[Finding]:
    silent_ms = voter.silent_ms
    if voter.is_leader or (silent_ms is not None and silent_ms <= AWAY_MS):
        return
    subject = f"node {voter.node_id}"
    if silent_ms is None:
        yield kinds.VOTER_SILENT.found(subject, f"voter {voter.node_id} has not fetched at all")
        return
    words = f"voter {voter.node_id} has not fetched for {seconds(silent_ms)}"
    yield kinds.VOTER_SILENT.found(subject, words, now_ms - silent_ms)


def _broker(broker: BrokerFacts) -> Iterator[Finding]:
    subject = f"node {broker.node_id}"
    if broker.is_fenced:
        yield kinds.BROKER_DOWN.found(
            subject, f"broker {broker.node_id} is down: the controller has fenced it"
        )
    elif broker.silence is not None:
        words = f"broker {broker.node_id} does not answer: {broker.silence}"
        yield kinds.BROKER_SILENT.found(subject, words)


def _partitions(counted: PartitionFacts) -> Iterator[Finding]:
    for count, what, kind in (
        (counted.offline, "without a leader", kinds.PARTITIONS_OFFLINE),
        (counted.under_min_isr, "under min ISR", kinds.UNDER_MIN_ISR),
        (counted.under_replicated, "under-replicated", kinds.UNDER_REPLICATED),
    ):
        if count:
            yield kind.found(CLUSTER, f"{_partitions_as_text(count)} {what}")


def _partitions_as_text(count: int) -> str:
    return f"{count} partition{'s' if count > 1 else ''}"


def strange_prefixes(urls: Mapping[int, str | None]) -> list[str]:
    """Return a sentence for each broker whose `firn.remote.url` is not what most have.

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


# -- a node


def _node(facts: NodeFacts, now_ms: int) -> Iterator[Finding]:
    subject = f"node {facts.node_id}"
    if facts.stops is not None:
        yield kinds.NODE_NOT_SERVING.found(subject, f"{subject} ends: {facts.stops}")
    elif not facts.is_serving:
        yield kinds.NODE_NOT_SERVING.found(subject, f"{subject} is starting or stopping")
    for words in facts.waits:
        yield kinds.PART_NOT_OPEN.found(subject, f"{subject}: {words}")
    if facts.view is not None:
        yield from _view(facts.view, now_ms)
    if facts.offline_partitions:
        count = facts.offline_partitions
        words = f"{subject}: {_partitions_as_text(count)} {'are' if count > 1 else 'is'} offline on it"
        yield kinds.REPLICAS_OFFLINE.found(subject, words)
    if facts.under_min_isr:
        words = f"{subject}: {_partitions_as_text(facts.under_min_isr)} that it leads under min ISR"
        yield kinds.UNDER_MIN_ISR.found(subject, words)
    for directory in facts.directories:
        yield _directory(directory)
    yield from _store(facts, now_ms)
    if facts.failed_shards:
        words = f"{subject}: {_partitions_as_text(facts.failed_shards)} of coordinators could not be loaded"
        yield kinds.SHARDS_FAILED.found(subject, words)
    if facts.recovery is not None:
        yield from _recovery(subject, facts.recovery)
    if facts.restore is not None:
        yield from _restore(subject, facts.restore)
    if facts.erasures is not None:
        yield _erasures(subject, facts.erasures)
    for words in facts.certificates:
        yield kinds.TLS_PROBLEM.found(subject, f"{subject}: {words}")
    for words in facts.key_sets:
        yield kinds.KEYS_PROBLEM.found(subject, f"{subject}: {words}")


def _directory(directory: DirectoryFacts) -> Finding:
    subject = f"node {directory.node_id}"
    if directory.is_offline:
        return kinds.DIRECTORY_OFFLINE.found(subject, f"{subject}: log directory {directory.path} is offline")
    kind = kinds.DISK_FULL if directory.refuses else kinds.DISK_FILLING
    return kind.found(subject, f"{subject}: log directory {directory.path} is {directory.fullness}")


def _store(facts: NodeFacts, now_ms: int) -> Iterator[Finding]:
    subject = f"node {facts.node_id}"
    for store in facts.stores:
        words = f"{subject}: the store does not answer ({store.client}): {store.why}"
        yield kinds.STORE_FAILS.found(subject, words, store.since_ms)
    for held in facts.held_back:
        yield kinds.TIERING_HELD_BACK.found(subject, f"{subject}: {held.words}", held.since_ms)
    if facts.uploads is not None and (late_ms := now_ms - facts.uploads.oldest_ms) > LATE_UPLOAD_MS:
        why = f": {facts.uploads.why}" if facts.uploads.why else ""
        words = f"{subject}: a sealed segment has waited for its upload for {seconds(late_ms)}{why}"
        yield kinds.UPLOADS_BEHIND.found(subject, words, facts.uploads.oldest_ms + LATE_UPLOAD_MS)
    if (cuts := facts.cuts) is not None and cuts.is_late:
        why = f": {cuts.why}" if cuts.why else ""
        words = f"{subject}: the bucket has had no newer cut of the cluster for {seconds(cuts.age_ms)}{why}"
        yield kinds.CUTS_LATE.found(subject, words, now_ms - cuts.age_ms)
    yield from _orders(subject, facts.orders, now_ms)
    if facts.is_owner_unknown:
        yield kinds.OWNER_UNKNOWN.found(subject, f"{subject}: the owner of the prefix is not known yet")
    if facts.asleep is not None:
        count, first = facts.asleep
        words = (
            f"{subject}: read: {count} objects are in an archive class and have to be restored, {first} first"
        )
        yield kinds.OBJECTS_ASLEEP.found(subject, words)


def _orders(subject: str, orders: Iterable[OrderFacts], now_ms: int) -> Iterator[Finding]:
    for one in orders:
        lasts_ms, name = now_ms - one.since_ms, f"{subject}: order {one.order_id} to erase keys"
        if one.is_open and lasts_ms > LATE_ORDER_MS:
            words = f"{name} has been open for {seconds(lasts_ms)}: {one.why}"
            yield kinds.ORDER_OPEN.found(subject, words, one.since_ms + LATE_ORDER_MS)
        elif not one.is_open and lasts_ms > LATE_REMAINS_MS:
            words = f"{name} is done, and {seconds(lasts_ms)} after the grace: {one.why}"
            yield kinds.ORDER_LEFT.found(subject, words, one.since_ms + LATE_REMAINS_MS)


def _recovery(subject: str, left: RecoveryFacts) -> Iterator[Finding]:
    if waiting := left.unknown_topics:
        named = ", ".join(waiting[:_NAMED_AT_MOST])
        words = (
            f"nothing expires of {len(waiting)} topics whose settings are not known ({named}): firn topic"
            " settings-known"
        )
        yield kinds.RECOVERY_WAITS.found(subject, f"{subject}: {words}")
    if left.unchecked_logs:
        words = f"{left.unchecked_logs} local logs were not compared with their archives yet"
        yield kinds.RECOVERY_WAITS.found(subject, f"{subject}: {words}")


def _erasures(subject: str, held: ErasureFacts) -> Finding:
    others = f", and {held.problems - 1} more" if held.problems > 1 else ""
    words = f"{subject}: erasure {held.first} is not carried out{others}: {held.why}"
    return kinds.ERASURE_HELD.found(subject, words)


def _restore(subject: str, left: RestoreFacts) -> Iterator[Finding]:
    if left.unloaded:
        words = f"{_partitions_as_text(left.unloaded)} of a restored cluster not loaded yet"
        yield kinds.TAILS_LOADING.found(CLUSTER, words)
    if left.failed:
        words = f"{_partitions_as_text(left.failed)} cannot be loaded, {left.first_failed} first: {left.why}"
        yield kinds.TAIL_NOT_LOADED.found(subject, f"{subject}: {words}")


def seconds(ms: int) -> str:
    """Return a time span as whole seconds, minutes or hours.

    >>> seconds(9_999), seconds(150_000), seconds(7_300_000)
    ('9 s', '2 min 30 s', '2 h 1 min')
    """
    total = max(ms, 0) // 1000
    if total < 120:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
