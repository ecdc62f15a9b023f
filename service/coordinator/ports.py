"""Interfaces that a coordinator needs from its callers: its log, the topics, where responses go. [P]

`serving/topic_coordinator.py` passes the implementations in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from service.base.errors import RequestError
from service.coordinator.records import StoredBatch
from service.hot.markers import Marker
from service.hot.verification import VerificationGuard


class CoordinatorTopic(NamedTuple):
    """A topic in the committed metadata."""

    topic_id: UUID
    name: str
    partitions: int


class TopicsView(Protocol):
    """Topics of the committed metadata."""

    def by_name(self, topic: str) -> CoordinatorTopic | None: ...

    def by_id(self, topic_id: UUID) -> CoordinatorTopic | None: ...

    def names(self) -> Iterable[str]: ...

    @property
    def token(self) -> object:
        """Equal to an earlier value only if no topic has changed since, nor what their names stand for."""


MarkListener = Callable[[int], None]
"""Called with each new high watermark, perhaps within an append: it records the value and acts in a later
turn.
"""


class PartitionLog(Protocol):
    """Partition of a coordinator's topic that this node leads."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def max_batch_bytes(self) -> int:
        """Size limit of a batch: the topic's ``max.message.bytes``."""

    def append(self, batch: bytearray, leader_epoch: int, guard: VerificationGuard | None = None) -> int:
        """Append one batch and return its base offset. It is committed when the high watermark passes it.
        `guard`: of a transactional batch.

        Raises, with nothing appended, `RequestError` (NOT_LEADER_OR_FOLLOWER in another epoch,
        NOT_ENOUGH_REPLICAS and others) and `StorageError` if the disk fails.
        """

    def commits_at_once(self, records: int, size: int) -> bool:
        """Return whether one batch of so many records and bytes is committed when `append_built` returns."""

    def append_built(self, batch: bytearray, records: int, now_ms: int, leader_epoch: int) -> int:
        """Append one batch as `append` does, without reading its header: all its times are `now_ms`. Only
        where `commits_at_once`; the batch is the caller's again."""

    def append_marker(self, marker: Marker, leader_epoch: int) -> int:
        """Append the end of a transaction and return its offset. Raises as `append`, and `RequestError`
        INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED."""

    def read(self, offset: int, max_bytes: int) -> Awaitable[list[StoredBatch]]:
        """Return whole batches from the one that holds `offset` on; the first may exceed `max_bytes`.

        Reads up to the log's end, not the high watermark; none at the end. Raises `CorruptionError`,
        `StorageError` and `RequestError`.
        """

    def listen(self, listener: MarkListener | None) -> None:
        """Call `listener` with each high watermark from now on, instead of the previous listener."""


class PartitionLogs(Protocol):
    """Partitions of one coordinator's topic on this node."""

    def find(self, partition: int) -> PartitionLog:
        """Return the partition's log. Raises `RequestError` and `StorageError` if it cannot be used."""


class ResponseSink(Protocol):
    """Receives the response, as a Future does. Must not submit a request from its callback."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: RequestError, /) -> None: ...
