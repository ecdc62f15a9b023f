"""A followed log that tells its disk's watch what was appended, and what the disk refused.

What leaders elsewhere send fills a disk like what clients produce: `DiskWatch` has to know of both, or it
would look too late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from service.base.disk import FULL, DiskError
from service.base.types import TopicIdPartition
from service.partition.followed import FollowedLog, Logs
from service.partition.partition import Partition
from service.records.scan import BatchScan


class Room(Protocol):
    """`DiskWatch`, as far as replication goes."""

    def watch_room(self, room_changed: Callable[[], None]) -> None:
        """Call `room_changed` when `has_room` says another thing, from now on."""

    def has_room(self, partition: Partition) -> bool:
        """Whether the partition's directory has room for what its leader sends."""

    def followed(self, size: int) -> None:
        """Note that so many bytes of a leader elsewhere were appended."""

    def refused(self, tip: TopicIdPartition) -> None:
        """Note that the disk has refused a write to the partition for want of room."""


class WatchedLog(FollowedLog):
    """`FollowedLog`, watched."""

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
