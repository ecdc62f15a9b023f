"""Figures of a node's transactions, for its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from service.base.metrics import Histogram, HistogramSnapshot

if TYPE_CHECKING:
    from service.coordinator.runtime import Runtime
    from service.serving.transaction_marker_sender import TransactionMarkerSender
    from service.serving.transaction_verifier import TransactionVerifier
    from service.transactions.metrics import TransactionMetrics
    from service.transactions.shard import TransactionShard

_NONE = Histogram().snapshot()


class TransactionFigures(NamedTuple):
    """Figures at one moment; all 0 before the first transaction."""

    loads: HistogramSnapshot
    """of partitions of ``__transaction_state``"""
    ids: int = 0
    open: int = 0
    """ids with a transaction that is not complete"""
    oldest_s: float = 0.0
    """age of the oldest of those that are open"""
    ends: HistogramSnapshot = _NONE
    timeouts: int = 0
    markers_waiting: int = 0
    markers_without_leader: int = 0
    marker_requests: int = 0
    marker_retries: int = 0
    markers_refused: int = 0
    completions_to_retry: int = 0
    verifications: HistogramSnapshot = _NONE
    verification_requests: int = 0
    verification_failures: int = 0


def figures_of(
    runtime: Runtime[TransactionShard],
    metrics: TransactionMetrics | None,
    sender: TransactionMarkerSender | None,
    verifier: TransactionVerifier | None,
    now_ms: int,
) -> TransactionFigures:
    """Return the figures of a node's coordinator, and of what it sends and asks; None: it has not begun."""
    figures = TransactionFigures(runtime.metrics.load.snapshot())
    if metrics is not None:
        shards = runtime.shards()
        starts = [one.start_ms for shard in shards for one in shard.ids.open.values() if one.start_ms > 0]
        figures = figures._replace(
            ids=sum(len(shard.ids) for shard in shards),
            open=sum(len(shard.ids.open) for shard in shards),
            oldest_s=max(now_ms - min(starts, default=now_ms), 0) / 1000,
            ends=metrics.end.snapshot(),
            timeouts=metrics.timeouts,
        )
    if sender is not None:
        machine = sender.machine
        figures = figures._replace(
            markers_waiting=machine.waiting,
            markers_without_leader=machine.without_leader,
            marker_requests=machine.metrics.requests,
            marker_retries=machine.metrics.retries,
            markers_refused=machine.metrics.refused,
            completions_to_retry=machine.completions_to_retry,
        )
    if verifier is not None:
        asked = verifier.machine.metrics
        figures = figures._replace(
            verifications=asked.seconds.snapshot(),
            verification_requests=asked.requests,
            verification_failures=asked.failures,
        )
    return figures
