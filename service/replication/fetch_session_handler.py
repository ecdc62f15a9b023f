"""Fetch session as the follower has it: what the leader remembers, and what to send next. [P]

A full fetch names all wanted partitions and may open a session. In a session, a fetch names only partitions
that changed, and forgets those that are no longer wanted. KIP-227; Apache Kafka ``FetchSessionHandler``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from service.base.types import TopicIdPartition

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
_LAST_EPOCH: Final = 2**31 - 1


class FetchPartitionData(NamedTuple):
    """Fetch position of one partition. The logs agree up to `offset` if the leader has `last_epoch` there."""

    leader_epoch: int
    offset: int
    last_epoch: int
    start_offset: int


class FetchSessionHandler:
    """State of one session: what the leader knows once it has read all requests sent."""

    __slots__ = ("epoch", "partitions", "session_id")

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self.partitions: dict[TopicIdPartition, FetchPartitionData] = {}
        """partitions of the session as of the last request, named in it or not"""

    @property
    def is_full(self) -> bool:
        """The next request names all partitions."""
        return self.epoch == FIRST_EPOCH

    def full(self, wanted: Mapping[TopicIdPartition, FetchPartitionData]) -> None:
        """Note that the next request is a full one and names `wanted`."""
        self.partitions = dict(wanted)

    def change(
        self, changed: Iterable[tuple[TopicIdPartition, FetchPartitionData | None]]
    ) -> tuple[list[tuple[TopicIdPartition, FetchPartitionData]], list[TopicIdPartition]]:
        """Return the partitions that the next request names and those that it forgets. `changed`: partitions
        that may differ from what the leader knows (None: no longer wanted)."""
        named: list[tuple[TopicIdPartition, FetchPartitionData]] = []
        forgotten: list[TopicIdPartition] = []
        for tip, wanted in changed:
            if wanted is None:
                if self.partitions.pop(tip, None) is not None:
                    forgotten.append(tip)
            elif self.partitions.get(tip) != wanted:
                self.partitions[tip] = wanted
                named.append((tip, wanted))
        return named, forgotten

    def answered(self, session_id: int) -> None:
        """Advance the session: the request succeeded, in session `session_id`."""
        if session_id == NO_SESSION:
            self.reset(keeps=False)
        elif self.is_full:
            self.session_id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1

    def reset(self, *, keeps: bool) -> None:
        """Make the next request a full one. `keeps`: the leader may still have the session; the full request
        closes it."""
        self.epoch = FIRST_EPOCH
        if not keeps:
            self.session_id = NO_SESSION
