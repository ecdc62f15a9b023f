"""Identifiers of replicas, snapshots and epoch ends in the metadata quorum. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

NOBODY: Final = -1
NO_DIRECTORY: Final = UUID(int=0)
"""Kafka's zero UUID: the directory id is unknown, and matches any directory."""


class ReplicaKey(NamedTuple):
    """Node id and the directory id of its log. A new disk gets a new directory id: another replica."""

    node_id: int
    directory_id: UUID = NO_DIRECTORY

    def matches(self, other: ReplicaKey) -> bool:
        """Return whether `other` is the same replica; a key without a directory id matches every directory.

        >>> ReplicaKey(1).matches(ReplicaKey(1, UUID(int=7)))
        True
        """
        return self.node_id == other.node_id and self.directory_id in (NO_DIRECTORY, other.directory_id)


class SnapshotId(NamedTuple):
    """Snapshot of all records below `end_offset`; the last of them is of `epoch`."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


class EpochEnd(NamedTuple):
    """End offset of `epoch`, or of the greatest epoch before it that has records."""

    epoch: int
    end_offset: int
