"""Life of one remote segment, from intent to the deletion of its last byte: states and legal moves. [P]

    PLANNED -> UPLOADING -> UPLOADED -> PROPOSED -> COMMITTED -> PUBLISHED -> DROPPED -> DELETED
                   |            |           |                                               ^
                   +------------+-----------+--------------------> ABANDONED ---------------+

PROPOSED: the manifest is written and the commit is not answered. Only the catalog's answer, or its entry, may
move it on, since the commit may have happened although its answer was lost. COMMITTED cannot be undone: the
object belongs to the log, and the broker that committed it must publish it (HEAD) before anything else. Local
bytes may go from PUBLISHED on. An ABANDONED object is an orphan, which the sweeper deletes.

>>> move(SegmentState.UPLOADING, SegmentState.UPLOADED)
<SegmentState.UPLOADED: 'uploaded'>
>>> move(SegmentState.UPLOADED, SegmentState.COMMITTED)
Traceback (most recent call last):
...
service.base.errors.InvariantError: T1: a remote segment cannot go from uploaded to committed
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from service.base.errors import InvariantError


class SegmentState(Enum):
    """State of a remote segment."""

    PLANNED = "planned"
    UPLOADING = "uploading"
    UPLOADED = "uploaded"
    PROPOSED = "proposed"
    COMMITTED = "committed"
    PUBLISHED = "published"
    DROPPED = "dropped"
    DELETED = "deleted"
    ABANDONED = "abandoned"


_S = SegmentState

MOVES: Final[Mapping[SegmentState, frozenset[SegmentState]]] = MappingProxyType(
    {
        _S.PLANNED: frozenset({_S.UPLOADING}),
        _S.UPLOADING: frozenset({_S.UPLOADED, _S.ABANDONED}),
        _S.UPLOADED: frozenset({_S.PROPOSED, _S.ABANDONED}),
        _S.PROPOSED: frozenset({_S.COMMITTED, _S.ABANDONED}),
        _S.COMMITTED: frozenset({_S.PUBLISHED}),
        _S.PUBLISHED: frozenset({_S.DROPPED}),
        _S.DROPPED: frozenset({_S.DELETED}),
        _S.ABANDONED: frozenset({_S.DELETED}),
        _S.DELETED: frozenset(),
    }
)


def move(state: SegmentState, to: SegmentState) -> SegmentState:
    """Return the state `to`; raise `InvariantError` when `MOVES` does not lead there from `state`."""
    if to not in MOVES[state]:
        raise InvariantError(f"T1: a remote segment cannot go from {state.value} to {to.value}")
    return to
