"""What a coordinator needs of the rooms beside it: its log, and the topics that there are. [P]

`serving/group_coordinators.py` passes the objects in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol
from uuid import UUID

from service.coordinator.records import StoredBatch


class Topic(NamedTuple):
    """A topic as the committed metadata has it."""

    topic_id: UUID
    name: str
    partitions: int


class TopicsView(Protocol):
    """The topics of the committed metadata."""

    def by_name(self, topic: str) -> Topic | None: ...

    def by_id(self, topic_id: UUID) -> Topic | None: ...

    def names(self) -> Iterable[str]: ...


MarkListener = Callable[[int], None]
"""Told each new high watermark, perhaps from within an append: it takes note, and acts in a later turn."""


class PartitionLog(Protocol):
    """One partition of a coordinator's topic that this node leads."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def max_batch_bytes(self) -> int:
        """No batch may be larger: the topic's ``max.message.bytes``."""

    def append(self, batch: bytearray, leader_epoch: int) -> int:
        """Append one batch; returns its base offset. It is committed when the high watermark passes it.

        `RequestError` NOT_LEADER_OR_FOLLOWER in another epoch, NOT_ENOUGH_REPLICAS and the like,
        `StorageError` where the disk refuses: nothing is appended then.
        """

    def read(self, offset: int, max_bytes: int) -> Awaitable[list[StoredBatch]]:
        """Whole batches from the one that holds `offset` on, the first however large it is.

        Up to the log's end, not to the high watermark; none there. Raises `CorruptionError`, `StorageError`
        and `RequestError`.
        """

    def listen(self, listener: MarkListener | None) -> None:
        """Tell `listener` of the high watermark from now on, and whoever was told before no more."""


class PartitionLogs(Protocol):
    """The partitions of one coordinator's topic on this node."""

    def find(self, partition: int) -> PartitionLog:
        """Raises `RequestError` and `StorageError` where it cannot be used."""
