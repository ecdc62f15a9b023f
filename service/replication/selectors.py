"""Which replica a consumer had better read from (KIP-392). [P]

Apache Kafka 4.3 ``LeaderSelector``, ``RackAwareReplicaSelector``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A replica that the consumer can reach and that has what it asks for."""

    broker_id: int
    rack: str | None
    end_offset: int
    behind_ms: int
    """since it is known to have had all that the leader had"""


Selector = Callable[[str, Candidate, Sequence[Candidate]], Candidate]
"""Called with the consumer's rack, the leader, and all candidates, the leader among them."""


def leader_always(rack: str, leader: Candidate, candidates: Sequence[Candidate]) -> Candidate:
    """The leader, wherever the consumer is."""
    return leader


def of_the_rack(rack: str, leader: Candidate, candidates: Sequence[Candidate]) -> Candidate:
    """The one of the consumer's rack that has most; the leader where it is one of them, or there is none."""
    near = [one for one in candidates if rack and one.rack == rack]
    if not near or leader in near:
        return leader
    return max(near, key=lambda one: (one.end_offset, -one.behind_ms, one.broker_id))
