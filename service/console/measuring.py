"""Samples of the metric families from a node's counters.

Everything here is quick: a few hundred numbers, whatever the number of partitions. `PartitionTotals` and
`of_partitions` are per partition, for callers that run in slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from service.base.metrics import Histogram, HistogramSnapshot
from service.base.node_identity import NodeIdentity
from service.base.printable import printable
from service.base.release import Release
from service.base.turns import TurnTimes
from service.console.ports import ObservedColdTier, ObservedNode, ObservedTransactions
from service.console.sample import Sample
from service.hot.metrics import HotMetrics
from service.metadata.partition_index import MOVING_SHELF, NO_LEADER_SHELF, NOT_PREFERRED_SHELF
from service.metadata.publisher import Publisher
from service.network.metrics import (
    QUOTA_NAMES,
    AuthenticationMetrics,
    ChannelMetrics,
    NetworkMetrics,
)
from service.network.request_meter import RequestQuotas
from service.partition.fetch_sessions import FetchSessions
from service.partition.metrics import ServingMetrics
from service.partition.partition import Partition
from service.partition.traffic import TopicTraffic
from service.remote.catalog import RewriteKind
from service.remote.metrics import StoreMetrics
from service.tiering.cuts.cut_metrics import CutMetrics
from service.tiering.cuts.keeper_metrics import CutKeeperMetrics
from service.tiering.metrics import TieringMetrics
from service.tiering.rewriting.rewrite_metrics import RewriteMetrics
from service.tiering.tasks import Task
from service.wire.api import ApiKey

if TYPE_CHECKING:
    from service.network.tls.node_tls import NodeTls
    from service.security.authorizer import Authorizer


MOST_REASONS: Final = 20
_REASON_CHARACTERS: Final = 120


_LATE_MS: Final = 300_000
"""How long after its longest timeout an open transaction is late (Kafka ``LATE_TRANSACTION_BUFFER_MS``)."""


class PartitionTotals:
    """Sums over partitions."""

    __slots__ = (
        "_late_since_ms", "_now_ms", "bucket_bytes", "bucket_segments", "failed", "late", "local_bytes",
        "local_segments", "oldest_transaction_ms", "online",
    )  # fmt: skip

    def __init__(self, now_ms: int, transaction_max_timeout_ms: int) -> None:
        self._now_ms = now_ms
        self._late_since_ms = now_ms - transaction_max_timeout_ms - _LATE_MS
        self.online = self.failed = self.local_segments = self.local_bytes = 0
        self.bucket_segments = self.bucket_bytes = 0
        self.late = self.oldest_transaction_ms = 0

    def add(self, partition: Partition) -> None:
        log, remote = partition.log, partition.unified.remote
        if log.failure is None:
            self.online += 1
        else:
            self.failed += 1
        self.local_segments += len(log.state.segments)
        self.local_bytes += log.size
        if remote is not None:
            self.bucket_segments += remote.segments
            self.bucket_bytes += remote.size_bytes
        if (oldest := log.oldest_open) is not None:
            self._add_open(oldest[2])

    def _add_open(self, last_ms: int) -> None:
        """Add a partition whose oldest open transaction wrote last at `last_ms`."""
        if last_ms > 0:
            self.late += last_ms < self._late_since_ms
            self.oldest_transaction_ms = max(self.oldest_transaction_ms, self._now_ms - last_ms)

    def samples(self, closed: int) -> Iterator[Sample]:
        """Yield the samples; `closed` is the number of partitions that cannot be added."""
        yield Sample("firn_partitions", self.online, ("online",))
        yield Sample("firn_partitions", self.failed + closed, ("offline",))
        yield Sample("firn_segments", self.local_segments, ("local",))
        yield Sample("firn_segments", self.bucket_segments, ("bucket",))
        yield Sample("firn_log_bytes", self.local_bytes, ("local",))
        yield Sample("firn_log_bytes", self.bucket_bytes, ("bucket",))
        yield Sample("firn_partitions_with_late_transactions", self.late)
        yield Sample("firn_log_oldest_transaction_seconds", self.oldest_transaction_ms / 1000)


OF_PARTITION: Final[Mapping[str, Callable[[Partition], int | None]]] = MappingProxyType(
    {
        "firn_partition_start_offset": lambda one: one.unified.start_offset,
        "firn_partition_local_start_offset": lambda one: one.unified.local_start_offset,
        "firn_partition_end_offset": lambda one: one.unified.end_offset,
        "firn_partition_bucket_end_offset": lambda one: one.unified.remote and one.unified.remote.end_offset,
        "firn_partition_last_stable_offset_lag": lambda one: one.high_watermark - one.last_stable_offset,
        "firn_partition_local_bytes": lambda one: one.log.size,
        "firn_partition_bucket_bytes": lambda one: one.unified.remote and one.unified.remote.size_bytes,
        "firn_partition_replica_lag": lambda one: _replica_lag(one),
    }
)
"""Value of each family for one partition, None for none."""


def _replica_lag(partition: Partition) -> int | None:
    leading = partition.leading
    if leading is None:
        return None
    start = partition.start_offset
    return leading.end_offset - min(
        (max(one.end_offset, start) for one in leading.followers), default=leading.end_offset
    )


def of_partitions(name: str, partitions: Sequence[Partition]) -> Iterator[Sample]:
    """Yield the samples of one family for `partitions`."""
    value_of = OF_PARTITION[name]
    for partition in partitions:
        if (value := value_of(partition)) is not None:
            yield Sample(name, value, (partition.tip.topic, str(partition.tip.partition)))


def of_build(release: Release, identity: NodeIdentity) -> Iterator[Sample]:
    """Yield the sample that names the running software and the node, once it knows its cluster."""
    if identity.cluster_id:
        labels = (*release, str(identity.node_id), identity.cluster_id, identity.rack)
        yield Sample("firn_build_info", 1, labels)


def of_replicas(counts: Mapping[str, int], lags: Mapping[int, int]) -> Iterator[Sample]:
    """Yield the samples of `ObservedNode.replica_counts`."""
    for kind, count in counts.items():
        yield Sample(f"firn_replicas_{kind}", count)
    for broker, behind in sorted(lags.items()):
        yield Sample("firn_replicas_lag", behind, (str(broker),))


def of_node(node: ObservedNode, now_ms: int) -> Iterator[Sample]:
    """Yield all samples but those of partitions, replicas and groups; `now_ms` is the wall clock."""
    yield from _loop(node.turns)
    yield from _network(node.network)
    yield from (Sample("firn_connections", n, (name,)) for name, n in node.connections().items())
    if node.tls is not None:
        yield from _tls(node.tls)
    yield from (Sample("firn_memory_bytes", size, (owner,)) for owner, size in node.memory().items())
    replicated = node.replicated()
    yield Sample("firn_replication_received_bytes", replicated.received_bytes)
    yield Sample("firn_replication_cuts_below_high_watermark", replicated.cuts_below_high_watermark)
    yield Sample("firn_isr_shrinks", replicated.isr_shrinks)
    yield Sample("firn_isr_expands", replicated.isr_expands)
    for side, size in node.throttled_bytes().items():
        yield Sample("firn_replication_throttled_bytes", size, (side,))
    yield from _quotas(node.quotas)
    if node.serving is not None:
        yield from _serving(node.serving)
    for topic, traffic in node.traffic().items():
        yield from _traffic(topic, traffic)
    if node.authorizer is not None:
        yield from _authorization(node.authorizer)
    if node.fetch_sessions is not None:
        yield from _fetch_sessions(node.fetch_sessions)
    if node.implicit_sessions is not None:
        yield Sample("firn_implicit_fetch_sessions", len(node.implicit_sessions))
        yield Sample("firn_implicit_fetch_session_partitions", node.implicit_sessions.partition_count)
    if node.logs is not None:
        yield from _logs(node.logs.metrics)
    if node.metadata is not None:
        yield from _metadata(node.metadata)
    if node.cold is not None:
        yield from _cold(node.cold)
        if node.cold.tiering is not None:
            yield from _tiering(node.cold.tiering, now_ms)
            yield from _cuts(node.cold.tiering.cut_keeper, now_ms)
            yield from _tails(node.cold.tiering.cuts)
            yield from _rewrites(node.cold.tiering.rewrites)
            yield from _orders(node.cold.tiering, now_ms)


def _loop(turns: TurnTimes) -> Iterator[Sample]:
    yield Sample("firn_loop_turn_seconds", turns.histogram.snapshot())
    longest = turns.longest
    yield Sample("firn_loop_longest_turn_seconds", longest[0].took_s if longest else 0)


def _network(metrics: NetworkMetrics) -> Iterator[Sample]:
    for key, api in metrics.apis.items():
        labels = (_api_name(key),)
        yield Sample("firn_request_queue_seconds", api.queued.snapshot(), labels)
        yield Sample("firn_request_handling_seconds", api.handling(), labels)
        yield Sample("firn_request_later_seconds", api.later.snapshot(), labels)
        yield Sample("firn_request_seconds", api.total(), labels)
        yield Sample("firn_request_received_bytes", api.received_bytes, labels)
        yield Sample("firn_request_sent_bytes", api.sent_bytes, labels)
    yield Sample("firn_connections_accepted", metrics.accepted)
    yield Sample("firn_connections_waited", metrics.waited)
    yield Sample("firn_connections_idle_closed", metrics.idle_closed)
    yield Sample("firn_connections_late_requests", metrics.late_requests)
    yield Sample("firn_connections_late_responses", metrics.late_responses)
    yield Sample("firn_device_reads", metrics.device_reads)
    yield Sample("firn_connections_ended_for_memory", metrics.ended_for_memory)
    yield Sample("firn_connections_malformed", metrics.wire_errors)
    yield Sample("firn_handler_failures", metrics.handler_errors)
    for listener, one in tuple(metrics.arrivals.items()):
        yield Sample("firn_connections_refused", one.too_many_of_address, (listener, "count"))
        of_address = one.throttled_of_address.snapshot()
        yield Sample("firn_connections_refused", of_address.observed, (listener, "rate"))
        yield Sample("firn_connections_throttle_seconds", of_address, (listener, "ip"))
        yield Sample("firn_connections_throttle_seconds", one.delayed.snapshot(), (listener, "listener"))
    for listener, logins in tuple(metrics.logins.items()):
        yield from _logins(listener, logins)
    for purpose, channel in tuple(metrics.channels.items()):
        yield from _channel(purpose, channel)


def _tls(tls: NodeTls) -> Iterator[Sample]:
    for listener, days in tls.days_left().items():
        yield Sample("firn_tls_certificate_days", days, (listener,))
    if (handshakes := tls.handshakes) is not None:
        yield Sample("firn_tls_handshakes", handshakes.under_way, ("under_way",))
        yield Sample("firn_tls_handshakes", handshakes.waiting, ("waiting",))


def _quotas(quotas: Sequence[RequestQuotas]) -> Iterator[Sample]:
    """Yield the samples of quotas: of the broker and of the controller of this process."""
    for name in QUOTA_NAMES if quotas else ():
        yield Sample("firn_quota_throttle_seconds", _sum(one.throttles[name] for one in quotas), (name,))
        yield Sample("firn_quota_clients", sum(one.active_clients()[name] for one in quotas), (name,))


def _sum(histograms: Iterable[Histogram]) -> HistogramSnapshot:
    found = [one.snapshot() for one in histograms]
    counts = tuple(map(sum, zip(*[one.counts for one in found], strict=True)))
    return HistogramSnapshot(found[0].bounds, counts, sum(one.total for one in found))


def _logins(listener: str, metrics: AuthenticationMetrics) -> Iterator[Sample]:
    labels = (listener,)
    yield Sample("firn_successful_authentication", metrics.succeeded, labels)
    yield Sample("firn_failed_authentication", metrics.failed, labels)
    yield Sample("firn_successful_reauthentication", metrics.succeeded_again, labels)
    yield Sample("firn_failed_reauthentication", metrics.failed_again, labels)
    yield Sample("firn_reauthentication_latency_seconds", metrics.reauthentication.snapshot(), labels)
    yield Sample("firn_expired_connections_killed", metrics.expired, labels)
    yield Sample("firn_late_authentication", metrics.late, labels)


def _channel(purpose: str, metrics: ChannelMetrics) -> Iterator[Sample]:
    yield Sample("firn_peer_requests", metrics.calls, (purpose,))
    yield Sample("firn_peer_sent_bytes", metrics.sent_bytes, (purpose,))
    yield Sample("firn_peer_received_bytes", metrics.received_bytes, (purpose,))
    yield Sample("firn_peer_connections", metrics.connected, (purpose,))
    failures = {
        "refused": metrics.refused, "timed_out": metrics.timed_out, "lost": metrics.lost,
        "malformed": metrics.garbage,
    }  # fmt: skip
    for failure, count in failures.items():
        yield Sample("firn_peer_failures", count, (purpose, failure))


def _api_name(key: int) -> str:
    try:
        return ApiKey(key).name
    except ValueError:
        return str(key)


def _logs(metrics: HotMetrics) -> Iterator[Sample]:
    yield Sample("firn_log_flush_seconds", metrics.flush_time.snapshot())
    yield Sample("firn_log_flush_errors", metrics.flush_errors)
    yield Sample("firn_log_cleanings", metrics.cleanings)
    yield Sample("firn_log_cleaning_errors", metrics.cleaning_errors)
    yield Sample("firn_log_cleaned_bytes_read", metrics.cleaned_bytes_read)
    yield Sample("firn_log_cleaned_bytes_written", metrics.cleaned_bytes_written)
    yield Sample("firn_log_uncleanable", metrics.uncleanable_logs)
    yield Sample("firn_erasure_open_replicas", metrics.unerased_replicas)
    yield Sample("firn_erasure_failures", metrics.erasure_failures)
    yield Sample("firn_erased_records", metrics.erased_records)
    yield Sample("firn_erasure_bytes_read", metrics.erasure_bytes_read)
    yield Sample("firn_erasure_bytes_written", metrics.erasure_bytes_written)
    for path, standing in tuple(metrics.disks.items()):
        directory = (printable(path),)
        yield Sample("firn_log_dir_free_bytes", standing.usable, directory)
        yield Sample("firn_log_dir_size_bytes", standing.total, directory)
        yield Sample("firn_disk_step", standing.step.value, directory)
        yield Sample("firn_disk_led_without_room", standing.led, directory)
    yield Sample("firn_disk_freed_segments", metrics.disk_freed_segments)
    yield Sample("firn_disk_freed_bytes", metrics.disk_freed_bytes)
    yield Sample("firn_disk_sealed_segments", metrics.disk_sealed_segments)
    yield Sample("firn_disk_throttle_seconds", metrics.disk_throttle_time.snapshot())
    yield Sample("firn_disk_refused_batches", metrics.disk_refused_batches)


def _serving(metrics: ServingMetrics) -> Iterator[Sample]:
    yield Sample("firn_produced_batches", metrics.appended_batches)
    yield Sample("firn_produced_records", metrics.appended_records)
    yield Sample("firn_produced_bytes", metrics.appended_bytes)
    yield Sample("firn_fetched_partitions", metrics.hot_reads, ("local",))
    yield Sample("firn_fetched_partitions", metrics.cold_reads, ("bucket",))
    yield Sample("firn_fetched_bytes", metrics.hot_bytes, ("local",))
    yield Sample("firn_fetched_bytes", metrics.cold_bytes, ("bucket",))
    yield Sample("firn_replication_sent_bytes", metrics.replica_bytes)
    yield Sample("firn_fetches_waiting", metrics.waiting)
    yield Sample("firn_produces_waiting", metrics.produces_waiting)
    yield Sample("firn_fetch_wait_seconds", metrics.wait.snapshot(), ("records",))
    yield Sample("firn_fetch_wait_seconds", metrics.cold_wait.snapshot(), ("bucket",))
    yield Sample("firn_fetch_wait_seconds", metrics.seek_wait.snapshot(), ("device",))
    for (api, code), count in tuple(metrics.errors.items()):
        yield Sample("firn_request_errors", count, (api, code.name))


def _traffic(topic: str, traffic: TopicTraffic) -> Iterator[Sample]:
    yield Sample("firn_topic_produced_bytes", traffic.produced_bytes, (topic,))
    yield Sample("firn_topic_produced_records", traffic.produced_records, (topic,))
    yield Sample("firn_topic_fetched_bytes", traffic.fetched_bytes, (topic,))
    yield Sample("firn_topic_fetched_records", traffic.fetched_records, (topic,))


def _authorization(authorizer: Authorizer) -> Iterator[Sample]:
    metrics = authorizer.metrics
    for key, count in tuple(metrics.allowed.items()):
        yield Sample("firn_authorizations", count, (_api_name(key), "allowed"))
    for key, count in tuple(metrics.denied.items()):
        yield Sample("firn_authorizations", count, (_api_name(key), "denied"))
    yield Sample("firn_authorization_failures", metrics.failed)
    yield Sample("firn_acls", authorizer.acl_count)


def _fetch_sessions(sessions: FetchSessions) -> Iterator[Sample]:
    yield Sample("firn_fetch_sessions", len(sessions))
    yield Sample("firn_fetch_session_partitions", sessions.partition_count)
    yield Sample("firn_fetch_session_evictions", sessions.evictions)


def _metadata(metadata: Publisher) -> Iterator[Sample]:
    metrics, image = metadata.metrics, metadata.image
    yield Sample("firn_metadata_offset", image.offset)
    yield Sample("firn_metadata_topics", len(image.topics_by_name))
    yield Sample("firn_metadata_batches", metrics.batches)
    yield Sample("firn_metadata_appended_bytes", metrics.appended_bytes)
    yield Sample("firn_metadata_snapshot_seconds", metrics.snapshot_time.snapshot())
    yield Sample("firn_metadata_snapshot_errors", metrics.snapshot_errors)
    yield Sample("firn_health_metadata_age_seconds", (metadata.confirmed_age_ms or 0) / 1000)
    standing = metadata.quorum_status
    if standing is not None:
        yield Sample("firn_quorum_is_leader", int(standing.is_leader))
        yield Sample("firn_quorum_leader_id", standing.leader_id)
        yield Sample("firn_quorum_epoch", standing.epoch)
        yield Sample("firn_quorum_high_watermark", standing.high_watermark)
        for voter, behind in sorted(standing.voter_lags.items()):
            yield Sample("firn_quorum_voter_lag", behind, (str(voter),))
    fenced = sum(one.fenced for one in image.brokers.values())
    yield Sample("firn_cluster_brokers", len(image.brokers) - fenced, ("active",))
    yield Sample("firn_cluster_brokers", fenced, ("fenced",))
    yield Sample("firn_cluster_partitions_without_leader", image.index.count(NO_LEADER_SHELF))
    yield Sample("firn_cluster_preferred_imbalance", image.index.count(NOT_PREFERRED_SHELF))
    yield Sample("firn_cluster_partitions_reassigning", image.index.count(MOVING_SHELF))
    yield Sample("firn_cluster_unloaded_tails", len(image.restored_tails))
    yield Sample("firn_cluster_leader_elections", metrics.elections)
    yield Sample("firn_cluster_unclean_elections", metrics.unclean_elections)


def of_transactions(found: ObservedTransactions) -> Iterator[Sample]:
    """Yield the samples of transactions."""
    yield Sample("firn_transaction_ids", found.ids)
    yield Sample("firn_transaction_open", found.open)
    yield Sample("firn_transaction_oldest_seconds", found.oldest_s)
    yield Sample("firn_transaction_ends", found.ends.observed)
    yield Sample("firn_transaction_end_seconds", found.ends)
    yield Sample("firn_transaction_timeouts", found.timeouts)
    yield Sample("firn_transaction_partition_load_seconds", found.loads)
    yield Sample("firn_transaction_markers_waiting", found.markers_waiting)
    yield Sample("firn_transaction_markers_without_leader", found.markers_without_leader)
    yield Sample("firn_transaction_marker_requests", found.marker_requests)
    yield Sample("firn_transaction_marker_retries", found.marker_retries)
    yield Sample("firn_transaction_markers_refused", found.markers_refused)
    yield Sample("firn_transaction_completions_to_retry", found.completions_to_retry)
    yield Sample("firn_transaction_verifications", found.verifications.observed)
    yield Sample("firn_transaction_verification_seconds", found.verifications)
    yield Sample("firn_transaction_verification_requests", found.verification_requests)
    yield Sample("firn_transaction_verification_failures", found.verification_failures)


def _cold(cold: ObservedColdTier) -> Iterator[Sample]:
    for client, metrics in cold.metrics.items():
        yield from _store(client, metrics)
    stats = cold.reader.stats()
    found = stats.downloads
    yield Sample("firn_cache_streams", stats.streams)
    yield Sample("firn_cache_hits", found.hits)
    yield Sample("firn_cache_misses", found.misses)
    yield Sample("firn_cache_read_ahead", found.read_ahead)
    yield Sample("firn_cache_downloaded_bytes", found.downloaded_bytes)
    yield Sample("firn_cache_disk_hits", found.disk_hits)
    yield Sample("firn_cache_retries", found.retries)
    yield Sample("firn_cache_second_tries", found.hedges)
    yield Sample("firn_cache_second_tries_won", found.hedges_won)
    yield Sample("firn_cache_refused", found.refused)
    yield Sample("firn_cache_asleep", len(found.asleep))
    yield Sample("firn_cache_failures", found.failures)
    yield Sample("firn_cache_downloads", found.in_flight)
    yield Sample("firn_tail_loaded_bytes", cold.tail_loads.bytes)
    yield Sample("firn_tail_load_failures", cold.tail_loads.failures)


def _store(client: str, metrics: StoreMetrics) -> Iterator[Sample]:
    yield Sample("firn_store_reachable", int(metrics.problem is None), (client,))
    for kind, call in metrics.calls.items():
        time = call.time.snapshot()
        if not time.observed:
            continue
        yield Sample("firn_store_call_seconds", time, (client, kind))
        yield Sample("firn_store_sent_bytes", call.sent_bytes, (client, kind))
        yield Sample("firn_store_received_bytes", call.received_bytes, (client, kind))
        for error, count in tuple(call.errors.items()):
            yield Sample("firn_store_errors", count, (client, kind, error))


def _tiering(metrics: TieringMetrics, now_ms: int) -> Iterator[Sample]:
    yield Sample("firn_tiering_copied_segments", metrics.segments_copied)
    yield Sample("firn_tiering_copied_bytes", metrics.bytes_copied)
    yield Sample("firn_tiering_written_manifests", metrics.manifests_written)
    yield Sample("firn_tiering_store_pauses", metrics.store_opened)
    yield Sample("firn_tiering_dropped_segments", metrics.segments_dropped)
    yield Sample("firn_tiering_dropped_bytes", metrics.bytes_dropped)
    yield Sample("firn_tiering_deleted_objects", metrics.objects_deleted)
    yield Sample("firn_tiering_lag_segments", metrics.lag_segments)
    yield Sample("firn_tiering_lag_bytes", metrics.lag_bytes)
    oldest_ms = metrics.oldest_sealed_ms
    yield Sample("firn_tiering_lag_seconds", 0 if oldest_ms is None else max(now_ms - oldest_ms, 0) / 1000)
    for reason, count in reasons(metrics).items():
        yield Sample("firn_tiering_blocked_partitions", count, (reason,))
    failing = Counter(task for task, _ in tuple(metrics.failing))
    for task in Task:
        yield Sample("firn_tiering_errors", metrics.task_errors[task], (task.value,))
        yield Sample("firn_tiering_failing", failing[task], (task.value,))
    yield Sample("firn_tiering_fenced_commits", metrics.fenced_commits)
    yield Sample("firn_tiering_stalled_calls", metrics.stalled_calls)
    yield Sample("firn_tiering_repaired_heads", metrics.heads_repaired)
    yield Sample("firn_tiering_held_deletions", metrics.held_deletions)
    yield Sample("firn_tiering_swept_orphans", metrics.orphans_swept)
    yield Sample("firn_tiering_unknown_topics", metrics.unknown_topics)
    yield Sample("firn_tiering_displaced", int(metrics.displaced is not None))
    since_ms = metrics.waits_since_ms
    yield Sample("firn_tiering_waits_seconds", 0 if since_ms is None else max(now_ms - since_ms, 0) / 1000)
    yield Sample("firn_tiering_clock_skew_seconds", metrics.clock_skew_ms / 1000)


def _cuts(metrics: CutKeeperMetrics, now_ms: int) -> Iterator[Sample]:
    if (age_ms := metrics.age_ms(now_ms)) is not None:
        yield Sample("firn_cut_age_seconds", age_ms / 1000)
    for is_exact, kind in ((True, "exact"), (False, "loose")):
        yield Sample("firn_cut_written", metrics.made[is_exact], (kind,))
    yield Sample("firn_cut_void", metrics.void)
    yield Sample("firn_cut_hold_max_seconds", metrics.hold_ms / 1000)
    yield Sample("firn_cut_lacking_partitions", metrics.lacking_count)


def _tails(metrics: CutMetrics) -> Iterator[Sample]:
    yield Sample("firn_cut_hold_seconds", metrics.hold.snapshot())
    yield Sample("firn_tail_lag_bytes", metrics.lag_bytes)
    yield Sample("firn_tails_written", metrics.tails_written)
    yield Sample("firn_tail_written_bytes", metrics.tail_bytes)
    yield Sample("firn_tail_partitions_left_out", len(metrics.left_out))


def _rewrites(metrics: RewriteMetrics) -> Iterator[Sample]:
    for kind in RewriteKind:
        rule = (kind.name.lower(),)
        yield Sample("firn_rewrite_runs", metrics.runs[kind], rule)
        yield Sample("firn_rewrite_objects_before", metrics.objects_before[kind], rule)
        yield Sample("firn_rewrite_objects_after", metrics.objects_after[kind], rule)
        yield Sample("firn_rewrite_before_bytes", metrics.bytes_before[kind], rule)
        yield Sample("firn_rewrite_after_bytes", metrics.bytes_after[kind], rule)
    yield Sample("firn_rewrite_read_bytes", metrics.bytes_read)
    yield Sample("firn_rewrite_failures", metrics.failures)
    yield Sample("firn_rewrite_refused", metrics.refused)
    yield Sample("firn_rewrite_given_up", metrics.given_up)
    yield Sample("firn_rewrite_running", metrics.running)


def _orders(metrics: TieringMetrics, now_ms: int) -> Iterator[Sample]:
    orders = tuple(metrics.orders.values())
    is_open = [one for one in orders if one.is_open]
    done = [one for one in orders if not one.is_open]
    yield Sample("firn_erasure_orders", len(is_open), ("open",))
    yield Sample("firn_erasure_orders", len(done), ("done",))
    open_ms = max((now_ms - one.started_ms for one in is_open), default=0)
    left_ms = max((now_ms - one.grace_until_ms for one in done), default=0)
    yield Sample("firn_erasure_open_seconds", max(open_ms, 0) / 1000)
    yield Sample("firn_erasure_left_seconds", max(left_ms, 0) / 1000)
    places = [one.left for one in is_open]
    for name, all_of, left in (
        ("replicas", sum(one.all_replicas for one in places), sum(one.replicas for one in places)),
        ("archives", sum(one.all_chains for one in places), sum(one.chains for one in places)),
    ):
        yield Sample(f"firn_erasure_{name}", left, ("left",))
        yield Sample(f"firn_erasure_{name}", all_of - left, ("done",))
    yield Sample("firn_erasure_cuts_left", max((len(one.cuts) for one in is_open), default=0))
    remains = [one.remains for one in done if one.remains is not None]
    yield Sample("firn_erasure_remaining_objects", sum(one.objects for one in remains))
    yield Sample("firn_erasure_versions_left", sum(one.versions.left for one in remains))
    yield Sample("firn_erasure_locked_objects", sum(one.versions.locked_count for one in remains))
    work = metrics.all_archive_work()
    for state, objects, size in (
        ("left", work.left, work.left_size),
        ("looked_at", work.looked, work.looked_size),
        ("rewritten", work.rewritten, work.rewritten_size),
    ):
        yield Sample("firn_erasure_objects", objects, (state,))
        yield Sample("firn_erasure_object_bytes", size, (state,))


def reasons(metrics: TieringMetrics) -> Mapping[str, int]:
    """Return the reasons why partitions do not tier, with their number, the most frequent first.

    Digits are replaced, so that equal reasons count as one; reasons beyond `MOST_REASONS` are `other`.
    """
    counted: Counter[str] = Counter()
    for why, count in Counter(metrics.reasons.values()).items():
        counted[_general(why)] += count
    others = sum(tip not in metrics.reasons for tip in metrics.waiting)
    if metrics.store is not None and others:
        counted[_general(metrics.store)] += others
    most = dict(counted.most_common(MOST_REASONS))
    if rest := counted.total() - sum(most.values()):
        most["other"] = rest
    return most


def _general(why: str) -> str:
    text = "".join("N" if c.isdigit() else c for c in printable(why, _REASON_CHARACTERS))
    while "NN" in text:
        text = text.replace("NN", "N")
    return text
