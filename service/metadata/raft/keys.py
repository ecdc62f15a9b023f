"""Names of replicas and of snapshots in the metadata quorum. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

NOBODY: Final = -1
NO_DIRECTORY: Final = UUID(int=0)
"""What Kafka's zero UUID says: the directory is not known, and any will do."""


class ReplicaKey(NamedTuple):
    """A node and the directory that its copy of the log lies in: a wiped disk makes another replica."""

    node_id: int
    directory_id: UUID = NO_DIRECTORY

    def matches(self, other: ReplicaKey) -> bool:
        """Whether `other` is this replica, as far as this key says which directory it means.

        >>> ReplicaKey(1).matches(ReplicaKey(1, UUID(int=7)))
        True
        """
        return self.node_id == other.node_id and self.directory_id in (NO_DIRECTORY, other.directory_id)


class SnapshotId(NamedTuple):
    """The snapshot holds everything below `end_offset`, whose last record is of `epoch`."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


class EpochEnd(NamedTuple):
    """The log's last record of `epoch`, or of the last one before it, lies below `end_offset`."""

    epoch: int
    end_offset: int
