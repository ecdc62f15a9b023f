"""A fetch session as the one who asks has it: what the leader remembers, and what is to be said next. [P]

A full fetch names all that is wanted and may open a session; in one, only what differs is named, and what is
no longer wanted is forgotten. KIP-227; Apache Kafka ``FetchSessionHandler``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from service.base.types import TopicIdPartition

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
_LAST_EPOCH: Final = 2**31 - 1


class Asked(NamedTuple):
    """One partition as it is asked for; its log agrees with the leader's if `last_epoch` does at `offset`."""

    leader_epoch: int
    offset: int
    last_epoch: int
    start_offset: int


class FetchSessionAsked:
    """What the leader of one session knows, once it has read all that was sent."""

    __slots__ = ("asked", "epoch", "session_id")

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self.asked: dict[TopicIdPartition, Asked] = {}
        """partitions of the request that was sent last, named in it or not"""

    @property
    def is_full(self) -> bool:
        """Whether the next request names all partitions."""
        return self.epoch == FIRST_EPOCH

    def full(self, wanted: Mapping[TopicIdPartition, Asked]) -> None:
        self.asked = dict(wanted)

    def change(
        self, changed: Iterable[tuple[TopicIdPartition, Asked | None]]
    ) -> tuple[list[tuple[TopicIdPartition, Asked]], list[TopicIdPartition]]:
        """What the next request of a session names and forgets, where `changed` (None: not wanted) may differ
        from what the leader knows."""
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
        """The request was answered well, in session `session_id`."""
        if session_id == NO_SESSION:
            self.begin_anew(keeps=False)
        elif self.is_full:
            self.session_id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1

    def begin_anew(self, *, keeps: bool) -> None:
        """The next request is a full one. `keeps`: the leader may still have the session, and shall close
        it by that."""
        self.epoch = FIRST_EPOCH
        if not keeps:
            self.session_id = NO_SESSION
