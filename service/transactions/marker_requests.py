"""Words between the markers of decided transactions (`markers`) and whoever has them written. [P]"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

TopicPartition: TypeAlias = tuple[str, int]


class PreparedTransaction(NamedTuple):
    """A decided transaction whose decision is committed."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    """epoch of the markers"""
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
    partitions: frozenset[TopicPartition]


class MarkersOfTransaction(NamedTuple):
    """Markers of one transaction in one request, by topic."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
    topics: tuple[tuple[str, tuple[int, ...]], ...]


class SendMarkers(NamedTuple):
    """Effect: have the broker, which may be this node, write markers; then call `answered` or `lost`."""

    broker: int
    markers: tuple[MarkersOfTransaction, ...]


class MarkersWritten(NamedTuple):
    """Effect: every partition has its marker, so the coordinator is to write that this is complete; then call
    `completed` or `not_completed`."""

    shard: int
    transaction: PreparedTransaction


class MarkerRefused(NamedTuple):
    """Effect: log and count that a partition refused a marker."""

    transaction: PreparedTransaction
    topic: str
    partition: int
    error: ErrorCode | int


class Disconnect(NamedTuple):
    """Effect: end the connection to a broker that leads none of the partitions of its request any more. The
    request is lost then."""

    broker: int


MarkerEffect: TypeAlias = SendMarkers | MarkersWritten | MarkerRefused | Disconnect


class MarkerMetrics:
    """Counters of sent markers."""

    def __init__(self) -> None:
        self.requests = 0
        self.retries = 0
        """markers that were sent, or are to be sent, again"""
        self.refused = 0
        """markers that a partition refused for good"""
