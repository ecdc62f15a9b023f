"""Log of a follower that reports appended bytes and ENOSPC to its disk's watch.

Records from leaders fill a disk as those of clients do: `DiskWatch` needs both, to check the disk in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from service.base.disk import FULL, DiskError
from service.base.types import TopicIdPartition
from service.partition.follower_log import LocalFollowerLog, Logs
from service.partition.partition import Partition
from service.records.scan import BatchScan


class Room(Protocol):
    """Interface of `DiskWatch` for replication."""

    def watch_room(self, room_changed: Callable[[], None]) -> None:
        """Call `room_changed` when results of `has_room` may have changed, from now on."""

    def has_room(self, partition: Partition) -> bool:
        """Return whether the partition's directory has room for its leader's records."""

    def followed(self, size: int) -> None:
        """Count appended bytes of a follower."""

    def refused(self, tip: TopicIdPartition) -> None:
        """Note that the disk has no room for a write to the partition."""


class WatchedLog(LocalFollowerLog):
    """A `LocalFollowerLog` that reports to a `Room`."""

    __slots__ = ("_room", "_tip")

    def __init__(self, partition: Partition, logs: Logs, room: Room) -> None:
        super().__init__(partition, logs)
        self._tip = partition.tip
        self._room = room

    def append(self, data: memoryview, run: BatchScan) -> None:
        try:
            super().append(data, run)
        except DiskError as e:
            self._failed(e)
            raise
        self._room.followed(sum(run.sizes))

    async def append_on_thread(self, data: memoryview, run: BatchScan) -> bool:
        try:
            is_appended = await super().append_on_thread(data, run)
        except DiskError as e:
            self._failed(e)
            raise
        if is_appended:
            self._room.followed(sum(run.sizes))
        return is_appended

    def _failed(self, error: DiskError) -> None:
        if error.errno in FULL:
            self._room.refused(self._tip)
