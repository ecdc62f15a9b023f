"""Settings of groups and offsets, as the coordinators use them. [P]

Names are those of the keys, without dots; defaults and meaning are Kafka's (``GroupCoordinatorConfig``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

UNBOUNDED: Final = 2**31 - 1


class GroupsConfig(NamedTuple):
    """Times in ms unless the name says otherwise."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = UNBOUNDED
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 7 * 24 * 60
    offsets_retention_check_interval_ms: int = 600_000

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000


NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""Most time that a new member may wait for its first rebalance to end; it has no session until then."""
EXPIRY_RETRY_MS: Final = 500
"""Delay before an expiry whose write failed is tried again."""
