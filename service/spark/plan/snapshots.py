"""Partitions as committed when a read was planned, and the offset ranges to read of them. [P]"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from service.remote.format.manifest import Manifest
from service.spark.options import ReadOptions
from service.spark.selection import EVERYTHING, Window


class ChosenPartition(NamedTuple):
    """A partition to read: `topic` is its name, `asked` the user's name of the topic, which may be its id."""

    topic: str
    topic_id: UUID
    partition: int
    asked: str


class LogBounds(NamedTuple):
    """The bounds of a whole log as brokers of this cluster reported them; the end is exclusive."""

    start_offset: int
    end_offset: int
    cluster_id: str


class PartitionSnapshot(NamedTuple):
    """One partition as committed when it was planned; `manifest` is None where none was ever committed.

    `stable_end` is the last stable offset of the archive, None where undecided transactions are read, too.
    `live` holds the bounds that brokers reported of the whole log, where they were asked.
    """

    chosen: ChosenPartition
    manifest: Manifest | None
    live: LogBounds | None = None
    stable_end: int | None = None

    @property
    def start_offset(self) -> int:
        start = self.manifest.start_offset if self.manifest else 0
        return self.live.start_offset if self.live and start == self.archived_end else start

    @property
    def archived_end(self) -> int:
        """The end of the sealed and archived part of the partition, exclusive."""
        return self.manifest.end_offset if self.manifest else 0

    @property
    def border(self) -> int:
        """The end of what is read from the bucket, exclusive; later offsets come from brokers, if at all."""
        return self.archived_end if self.stable_end is None else self.stable_end

    @property
    def end_offset(self) -> int:
        """The end of what can be read, exclusive; without brokers that is the border."""
        return max(self.border, self.live.end_offset) if self.live else self.border


class OffsetRange(NamedTuple):
    """The offsets to read of one partition: `begin_offset` to before `end_offset`."""

    snapshot: PartitionSnapshot
    begin_offset: int
    end_offset: int


def windows(options: ReadOptions) -> Callable[[str, int], Window]:
    """Return the window that ``where=`` leaves of a partition, as a function of its topic and its number."""
    return options.where.window() if options.where is not None else lambda _topic, _partition: EVERYTHING
