"""Sets of voters, and their history in the log. [P]

A KRaftVotersRecord takes effect when it is appended, and is undone when the log is truncated below it. Under
kraft.version 0 there is no such record, and the voters come from the configuration (KIP-853; Apache Kafka
``VoterSet``, ``KRaftControlRecordStateMachine``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from service.metadata.endpoint import Endpoint
from service.metadata.raft.keys import NO_DIRECTORY, ReplicaKey

VoterEndpoints = tuple[Endpoint, ...]
_T = TypeVar("_T")

MAX_KRAFT_VERSION: Final = 1
RECONFIGURABLE: Final = 1
"""First kraft.version with dynamic voters."""


class VoterNode(NamedTuple):
    """Voter, its endpoints, and the kraft.versions that it supports."""

    key: ReplicaKey
    endpoints: VoterEndpoints = ()
    min_version: int = 0
    max_version: int = MAX_KRAFT_VERSION

    @property
    def node_id(self) -> int:
        return self.key.node_id


class VoterSet:
    """Voters in the order of their ids. Immutable."""

    __slots__ = ("_by_id", "voters")

    def __init__(self, voters: Iterable[VoterNode] = ()) -> None:
        self.voters = tuple(sorted(voters, key=lambda voter: voter.node_id))
        self._by_id = {voter.node_id: voter for voter in self.voters}

    def __iter__(self) -> Iterator[VoterNode]:
        return iter(self.voters)

    def __len__(self) -> int:
        return len(self.voters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self.voters == other.voters

    def __hash__(self) -> int:
        return hash(self.voters)

    def __repr__(self) -> str:
        return f"VoterSet({', '.join(str(voter.node_id) for voter in self.voters)})"

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._by_id)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def get(self, node_id: int) -> VoterNode | None:
        return self._by_id.get(node_id)

    def has(self, key: ReplicaKey) -> bool:
        """Return whether the replica `key` is a voter."""
        voter = self._by_id.get(key.node_id)
        return voter is not None and voter.key.matches(key)

    def with_voter(self, voter: VoterNode) -> VoterSet:
        """Return this set with `voter` added, or replacing the one with its id."""
        return VoterSet((*(one for one in self.voters if one.node_id != voter.node_id), voter))

    def without(self, key: ReplicaKey) -> VoterSet:
        """Return this set without `key`."""
        return VoterSet(one for one in self.voters if not one.key.matches(key))

    def differences(self, other: VoterSet) -> int:
        """Count the voters that are in only one of the two sets.

        A voter whose directory id becomes known is the same voter.
        """
        mine = {voter.key for voter in self.voters}
        theirs = {voter.key for voter in other.voters}
        loose = {key.node_id for key in mine | theirs if key.directory_id == NO_DIRECTORY}
        mine = {key for key in mine if key.node_id not in loose} | {
            ReplicaKey(key.node_id) for key in mine if key.node_id in loose
        }
        theirs = {key for key in theirs if key.node_id not in loose} | {
            ReplicaKey(key.node_id) for key in theirs if key.node_id in loose
        }
        return len(mine ^ theirs)


class VoterHistory:
    """Voter sets and kraft.versions by the offset of the log at which they take effect.

    The offset of a set from the bootstrap snapshot is -1; that of a set from another snapshot is the offset
    of the last record that the snapshot covers.
    """

    def __init__(self, static: VoterSet) -> None:
        self._static = static
        self._sets: list[tuple[int, VoterSet]] = []
        self._versions: list[tuple[int, int]] = []

    @property
    def latest(self) -> VoterSet:
        return self._sets[-1][1] if self._sets else self._static

    @property
    def previous(self) -> VoterSet | None:
        """Set before the latest one, where the log still has it."""
        return self._sets[-2][1] if len(self._sets) > 1 else None

    @property
    def latest_offset(self) -> int | None:
        """Offset of the latest set; None for the set of the configuration."""
        return self._sets[-1][0] if self._sets else None

    @property
    def version(self) -> int:
        """The kraft.version."""
        return self._versions[-1][1] if self._versions else 0

    def at(self, end_offset: int) -> tuple[VoterSet | None, int]:
        """Return the voter set and the kraft.version in the log below `end_offset`; the set is None where the
        log has none."""
        sets = [voters for offset, voters in self._sets if offset < end_offset]
        versions = [version for offset, version in self._versions if offset < end_offset]
        return sets[-1] if sets else None, versions[-1] if versions else 0

    def add(self, offset: int, voters: VoterSet) -> None:
        self._sets.append((offset, voters))

    def add_version(self, offset: int, version: int) -> None:
        self._versions.append((offset, version))

    def truncate(self, end_offset: int) -> None:
        """Drop entries at or beyond `end_offset`."""
        self._sets = [one for one in self._sets if one[0] < end_offset]
        self._versions = [one for one in self._versions if one[0] < end_offset]

    def restart(self, end_offset: int, voters: VoterSet | None, version: int) -> None:
        """Replace the history by the content of a snapshot that ends at `end_offset`."""
        self._sets = [] if voters is None else [(end_offset - 1, voters)]
        self._versions = [(end_offset - 1, version)] if version else []

    def forget_before(self, offset: int) -> None:
        """Drop entries below `offset`, the log's new start, except the last of them."""
        self._sets = _since(self._sets, offset)
        self._versions = _since(self._versions, offset)


def _since(entries: list[tuple[int, _T]], offset: int) -> list[tuple[int, _T]]:
    kept = [i for i, one in enumerate(entries) if one[0] < offset]
    return entries[kept[-1] :] if kept else entries
