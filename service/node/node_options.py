"""Options of a node's parts, from its settings."""

from __future__ import annotations

import sys

from service.base.errors import ConfigError
from service.config.settings import BrokerConfig
from service.hot.cleaning.log_rewrite import CleanerSettings
from service.metadata.controller.requests import PartitionLimit
from service.network.request import PeerLimits
from service.node.fd_budget import Budget


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """Return the settings of compaction."""
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
    """Return `value`, or the largest int for a negative one, which means "no bound" in settings."""
    return sys.maxsize if value < 0 else value


def limits_of(config: BrokerConfig) -> PeerLimits:
    """Return the limits of a peer's requests: sizes and timeouts."""
    return PeerLimits(
        max_request_bytes=config.socket_request_max_bytes,
        idle_ms=_or_unbounded(config.connections_max_idle_ms),
        request_memory_bytes=_or_unbounded(config.queued_max_request_bytes),
        read_timeout_ms=config.request_read_timeout_ms,
        send_timeout_ms=config.send_timeout_ms,
    )


def partition_limit(budget: Budget) -> PartitionLimit:
    """Return the number of partitions that the limit of open files allows."""
    return PartitionLimit(
        budget.partitions, f"its {budget.limit} open files (RLIMIT_NOFILE) allow {budget.partitions}"
    )


def check_cluster(config: BrokerConfig) -> None:
    """Raise `ConfigError` for settings that a node in a cluster cannot have."""
    if config.remote_recover and not config.cluster.is_alone:
        raise ConfigError("firn.remote.recover: a node recovers an archive while it is its whole cluster")
    for one in config.cluster.controller_listeners:
        if not one.port:
            raise ConfigError(f"{one}: a controller's listener needs a port, as other nodes connect to it")
