"""Metrics of transactions: the coordinator's, its markers' and its verifications'. [P]"""

from __future__ import annotations

from typing import Final

from service.console.family import counter as _counter
from service.console.family import gauge as _gauge
from service.console.family import histogram as _histogram

_MARKERS: Final = "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name={}"
_VERIFICATION: Final = "kafka.server:type=AddPartitionsToTxnManager,name={}"

TRANSACTIONS: Final = (
    _gauge("transaction_ids", "Transactional ids that this node coordinates."),
    _gauge("transaction_open", "Transactional ids with a transaction that is not complete."),
    _gauge("transaction_oldest_seconds", "Age of the oldest transaction that is not complete."),
    _counter("transaction_ends", "Transactions that were completed: all their markers are written."),
    _histogram("transaction_end_seconds", "From the decision about a transaction to its completion."),
    _counter("transaction_timeouts", "Transactions aborted because they were open for too long."),
    _histogram(
        "transaction_partition_load_seconds", "Load times of partitions of `__transaction_state`.",
        kafka="kafka.server:type=transaction-coordinator-metrics,attribute=partition-load-time-avg",
    ),
    _gauge("transaction_markers_waiting", "Partitions that have to get a marker."),
    _gauge(
        "transaction_markers_without_leader", "Markers that wait because their partition has no leader.",
        kafka=_MARKERS.format("UnknownDestinationQueueSize"),
    ),
    _counter("transaction_marker_requests", "Requests with markers, also to this node."),
    _counter("transaction_marker_retries", "Markers that were sent again."),
    _counter(
        "transaction_markers_refused",
        "Markers that a partition refused for good: what they should have ended may hang "
        "(`firn transaction hanging`).",
    ),
    _gauge(
        "transaction_completions_to_retry", "Completed transactions whose record could not be written yet.",
        kafka=_MARKERS.format("LogAppendRetryQueueSize"),
    ),
    _counter(
        "transaction_verifications",
        "Questions to coordinators, whether partitions are part of a transaction, or to add them.",
    ),
    _histogram(
        "transaction_verification_seconds", "From such a question to its answer.",
        kafka=_VERIFICATION.format("VerificationTimeMs"),
    ),
    _counter("transaction_verification_requests", "Requests with such questions to other nodes."),
    _counter(
        "transaction_verification_failures", "Partitions that got an error for an answer.",
        kafka=_VERIFICATION.format("VerificationFailureRate"),
    ),
)  # fmt: skip
