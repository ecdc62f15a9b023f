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


class Asked(NamedTuple):
    """Fetch position of one partition. The logs agree up to `offset` if the leader has `last_epoch` there."""

    leader_epoch: int
    offset: int
    last_epoch: int
    start_offset: int


class FetchSessionAsked:
    """State of one session: what the leader knows once it has read all requests sent."""

    __slots__ = ("asked", "epoch", "session_id")

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self.asked: dict[TopicIdPartition, Asked] = {}
        """partitions of the session as of the last request, named in it or not"""

    @property
    def is_full(self) -> bool:
        """The next request names all partitions."""
        return self.epoch == FIRST_EPOCH

    def full(self, wanted: Mapping[TopicIdPartition, Asked]) -> None:
        """Note that the next request is a full one and names `wanted`."""
        self.asked = dict(wanted)

    def change(
        self, changed: Iterable[tuple[TopicIdPartition, Asked | None]]
    ) -> tuple[list[tuple[TopicIdPartition, Asked]], list[TopicIdPartition]]:
        """Return the partitions that the next request names and those that it forgets. `changed`: partitions
        that may differ from what the leader knows (None: no longer wanted)."""
        named: list[tuple[TopicIdPartition, Asked]] = []
        forgotten: list[TopicIdPartition] = []
        for tip, wanted in changed:
            if wanted is None:
                if self.asked.pop(tip, None) is not None:
                    forgotten.append(tip)
            elif self.asked.get(tip) != wanted:
                self.asked[tip] = wanted
                named.append((tip, wanted))
        return named, forgotten

    def answered(self, session_id: int) -> None:
        """Advance the session: the request succeeded, in session `session_id`."""
        if session_id == NO_SESSION:
            self.begin_anew(keeps=False)
        elif self.is_full:
            self.session_id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1

    def begin_anew(self, *, keeps: bool) -> None:
        """Make the next request a full one. `keeps`: the leader may still have the session; the full request
        closes it."""
        self.epoch = FIRST_EPOCH
        if not keeps:
            self.session_id = NO_SESSION
