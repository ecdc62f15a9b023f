"""Options of a node's parts, as its settings say them."""

from __future__ import annotations

import sys

from service.config.settings import BrokerConfig
from service.hot.cleaning.cleaning import CleanerSettings
from service.metadata.controller.requests import PartitionLimit
from service.network.request import PeerLimits
from service.node.fd_budget import Budget


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """Settings of compaction."""
    return CleanerSettings(
        config.log_cleaner_enable,
        config.log_cleaner_threads,
        config.log_cleaner_dedupe_buffer_size,
        config.log_cleaner_io_buffer_size,
        config.log_cleaner_io_buffer_load_factor,
        config.log_cleaner_io_max_bytes_per_second,
        config.log_cleaner_backoff_ms,
    )


def _or_unbounded(value: int) -> int:
    """Settings say "no bound" with a negative number."""
    return sys.maxsize if value < 0 else value


def limits_of(config: BrokerConfig) -> PeerLimits:
    """Limits of what one peer may send, and of how long it may take."""
    return PeerLimits(
        max_request_bytes=config.socket_request_max_bytes,
        idle_ms=_or_unbounded(config.connections_max_idle_ms),
        request_memory_bytes=_or_unbounded(config.queued_max_request_bytes),
        read_timeout_ms=config.request_read_timeout_ms,
        send_timeout_ms=config.send_timeout_ms,
    )


def partition_limit(budget: Budget) -> PartitionLimit:
    """The number of partitions that the open files of this process allow."""
    return PartitionLimit(
        budget.partitions, f"its {budget.limit} open files (RLIMIT_NOFILE) carry {budget.partitions}"
    )
