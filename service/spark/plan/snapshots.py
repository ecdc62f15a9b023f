"""Partitions as they were committed when a read was planned, and what of them is to be read. [P]"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from service.remote.format.manifest import Manifest
from service.spark.options import ReadOptions
from service.spark.selection import EVERYTHING, Window


class ChosenPartition(NamedTuple):
    """A partition to read: `topic` is its name, `asked` what the user called the topic."""

    topic: str
    topic_id: UUID
    partition: int
    asked: str


class Live(NamedTuple):
    """A whole log as brokers of this cluster told of it: its start, and its end (exclusive)."""

    start_offset: int
    end_offset: int
    cluster_id: str


class PartitionSnapshot(NamedTuple):
    """One partition as committed when it was planned; `manifest` is None where nothing ever was.

    `stable_end` is the last stable offset of the archive, None where undecided transactions are read, too.
    `live` is what brokers said of the whole log, where they were asked.
    """

    chosen: ChosenPartition
    manifest: Manifest | None
    live: Live | None = None
    stable_end: int | None = None

    @property
    def start_offset(self) -> int:
        start = self.manifest.start_offset if self.manifest else 0
        return self.live.start_offset if self.live and start == self.archived_end else start

    @property
    def archived_end(self) -> int:
        """Exclusive: where the sealed and archived part of the partition ends."""
        return self.manifest.end_offset if self.manifest else 0

    @property
    def border(self) -> int:
        """Exclusive: up to here records are read from the bucket, from here on, if at all, from brokers."""
        return self.archived_end if self.stable_end is None else self.stable_end

    @property
    def end_offset(self) -> int:
        """Exclusive: where what can be read ends; without brokers that is the border."""
        return max(self.border, self.live.end_offset) if self.live else self.border


class OffsetRange(NamedTuple):
    """What to read of one partition: `begin_offset` to before `end_offset`, all of it in the archive."""

    snapshot: PartitionSnapshot
    begin_offset: int
    end_offset: int


def windows(options: ReadOptions) -> Callable[[str, int], Window]:
    """What ``where=`` leaves of a partition, given its topic and its number."""
    return options.where.window() if options.where is not None else lambda _topic, _partition: EVERYTHING
