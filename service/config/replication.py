"""Replication settings of a node: the keys of `tables.replication`, as one object. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.config.keys import Value
from service.config.tables.replication import RACK_AWARE_SELECTOR, REPLICATION


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """Settings of replication. A field is its key without ``replica.``, `_` for `.`."""

    lag_time_max_ms: int
    num_replica_fetchers: int
    fetch_max_bytes: int
    fetch_response_max_bytes: int
    fetch_wait_max_ms: int
    fetch_min_bytes: int
    fetch_backoff_ms: int
    socket_timeout_ms: int
    high_watermark_checkpoint_interval_ms: int
    selector_class: str | None
    follower_fetch_last_tiered_offset_enable: bool
    leader_replication_throttled_rate: int
    follower_replication_throttled_rate: int
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int

    @property
    def selects_by_rack(self) -> bool:
        """True if consumers are sent to a replica in their rack."""
        return self.selector_class == RACK_AWARE_SELECTOR


def read_replication(values: Mapping[str, Value]) -> ReplicationConfig:
    """Build the settings from the parsed `values` of all keys."""
    fields: dict[str, Any] = {
        one.name.removeprefix("replica.").replace(".", "_"): values[one.name] for one in REPLICATION
    }
    return ReplicationConfig(**fields)
