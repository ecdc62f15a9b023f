"""Choice of the replica that a consumer reads from (KIP-392). [P]

Apache Kafka 4.3 ``RackAwareReplicaSelector``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from service.replication.leader import FollowerProgress, LeaderState


class ReplicaView(NamedTuple):
    """A replica that the consumer can reach and that has the offset it asks for."""

    broker_id: int
    rack: str | None
    end_offset: int
    behind_ms: int
    """time since it is known to have had all records of the leader"""


Selector = Callable[[str, ReplicaView, Sequence[ReplicaView]], ReplicaView]
"""Called with the consumer's rack, the leader, and all candidates, the leader among them."""


def of_the_rack(rack: str, leader: ReplicaView, candidates: Sequence[ReplicaView]) -> ReplicaView:
    """Return the replica of the consumer's rack that has most; the leader if it is one of these, or none
    is."""
    near = [one for one in candidates if rack and one.rack == rack]
    if not near or leader in near:
        return leader
    return max(near, key=lambda one: (one.end_offset, -one.behind_ms, one.broker_id))


def in_sync_with(leading: LeaderState, offset: int) -> list[FollowerProgress]:
    """Return the in-sync followers that have `offset`, or end there."""
    in_sync = leading.in_sync
    return [
        one
        for one in leading.followers
        if one.broker_id in in_sync and one.start_offset <= offset <= one.end_offset
    ]
