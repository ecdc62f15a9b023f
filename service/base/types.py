"""Names for the quantities that every room uses. [P]

Offsets, epochs and ids are plain integers: arithmetic on a ``NewType`` falls back to ``int``, so wrapping
each sum again would cost readers more than the distinction gives. Names carry the role instead
(``base_offset``, ``leader_epoch``, ``position``).
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

Buffer = bytes | bytearray | memoryview

NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_EPOCH = -1
NO_LEADER_EPOCH = -1

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics of coordinators, which no client writes to."""

MAX_INFLATED_BATCH_BYTES = 256 << 20
"""Largest inflated size of a batch that is accepted from a producer or read from a log."""


class TimestampedOffset(NamedTuple):
    """A record found by timestamp: its offset, its timestamp (ms) and the leader epoch of its batch.

    -1 stands for none in each field, as in ListOffsets.
    """

    offset: int
    timestamp: int
    leader_epoch: int


class TopicIdPartition(NamedTuple):
    """One partition: ``topic_id`` identifies the topic for life, ``topic`` is the name that clients use."""

    topic_id: UUID
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
