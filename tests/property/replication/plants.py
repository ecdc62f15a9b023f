"""Bugs that are planted in a history's machines: each is a machine of which one method is another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.replication.ack_queue import Waiter
from service.replication.fetch_session_handler import FetchPartitionData
from service.replication.follower import FollowerMachine
from service.replication.follower_append_check import AppendablePrefix, appendable_prefix
from service.replication.follower_events import AdvanceMarks, Effect, PartitionFetchResponse
from service.replication.leader import (
    MOVED,
    NOTHING,
    Accepted,
    FollowerProgress,
    Leadership,
    LeaderState,
    Outcome,
    ReplicaSession,
)
from service.replication.partition_fetch_state import PartitionFetchState
from service.replication.replica_fetch import FetchVerdict, ReplicaFetch


class Plant(NamedTuple):
    leader: type[LeaderState] = LeaderState
    follower: type[FollowerMachine] = FollowerMachine
    fits: Callable[..., AppendablePrefix] = appendable_prefix


class ProposedSetNotCounted(LeaderState):
    """While it grows, the old set alone counts."""

    __slots__ = ()

    def _propose(self, isr: frozenset[int]) -> int:
        happened = super()._propose(isr)
        self.counted = self.in_sync
        return happened

    def _may_join(self, one: FollowerProgress) -> bool:
        return self.proposal is None and super()._may_join(one)


class ShrinksAtOnce(LeaderState):
    """Those who are to leave are waited for no more."""

    __slots__ = ()

    def _propose(self, isr: frozenset[int]) -> int:
        happened = super()._propose(isr)
        self.counted = isr
        return happened


class EveryRefusalRestores(LeaderState):
    __slots__ = ()

    def answered(self, number: int, outcome: Outcome, sent_ms: int, now_ms: int) -> int:
        if not isinstance(outcome, Accepted):
            outcome, self._unknown_ms = ErrorCode.ineligible_replica, -(2**62)
        return super().answered(number, outcome, sent_ms, now_ms)


class RestoresThoughACopyIsOnItsWay(LeaderState):
    __slots__ = ()

    def answered(self, number: int, outcome: Outcome, sent_ms: int, now_ms: int) -> int:
        self._unknown_ms = -(2**62)
        return super().answered(number, outcome, sent_ms, now_ms)


class DivergedFetchesCount(LeaderState):
    __slots__ = ()

    def fetched(
        self, asked: ReplicaFetch, session: ReplicaSession | None, now_ms: int
    ) -> tuple[FetchVerdict, int]:
        verdict, happened = super().fetched(asked, session, now_ms)
        one = self.follower(asked.replica_id)
        if verdict.diverging is not None and one is not None:
            one.fetched(asked, session, self.end_offset, now_ms)
            happened |= self._expand(now_ms) | self._advance(now_ms)
        return verdict, happened


class ProcessesAreNotToldApart(LeaderState):
    """Broker epochs are ignored, and not said to the controller either (KIP-903)."""

    __slots__ = ()

    def fetched(
        self, asked: ReplicaFetch, session: ReplicaSession | None, now_ms: int
    ) -> tuple[FetchVerdict, int]:
        return super().fetched(asked._replace(broker_epoch=-1), session, now_ms)

    def _mark_removed(self, replicas: frozenset[int], now_ms: int) -> None:
        """What the process before said counts on, though the controller took it out of the ISR."""


class CommitsBelowMinIsr(LeaderState):
    __slots__ = ()

    @property
    def is_under_min_isr(self) -> bool:
        return False


class JoinsBeforeTheEpochsStart(LeaderState):
    __slots__ = ()

    def _expand(self, now_ms: int) -> int:
        start, self.epoch_start = self.epoch_start, 0
        happened = super()._expand(now_ms)
        self.epoch_start = start
        return happened


class JoinsBelowTheHighWatermark(LeaderState):
    __slots__ = ()

    def _expand(self, now_ms: int) -> int:
        before = self.high_watermark, self.epoch_start
        self.high_watermark = self.epoch_start = 0
        happened = super()._expand(now_ms)
        self.high_watermark, self.epoch_start = before
        return happened


class MarkFalls(LeaderState):
    __slots__ = ()

    def _advance(self, now_ms: int) -> int:
        before = self.high_watermark
        self.high_watermark = 0
        happened = super()._advance(now_ms)
        if not happened:
            self.high_watermark = before
        return MOVED if self.high_watermark != before else NOTHING


class EndsOfAnotherEpoch(LeaderState):
    """What followers said in an earlier epoch of this leader counts in the next."""

    __slots__ = ()

    def _begin_epoch(self, shape: Leadership, now_ms: int) -> None:
        before = self.followers
        super()._begin_epoch(shape, now_ms)
        self.followers = tuple(
            next((old for old in before if old.broker_id == one.broker_id), one) for one in self.followers
        )


class AcksWaitForNobody(LeaderState):
    __slots__ = ()

    def wait(self, key: object, offset: int) -> Waiter | ErrorCode:
        return ErrorCode.none


class CutsAtTheLeadersEnd(FollowerMachine):
    """The greater of the two ends counts."""

    def _diverged(self, followed: PartitionFetchState, epoch: int, end: int, now_ms: int) -> Iterable[Effect]:
        return self._truncate(followed, min(end, followed.log.log_end_offset))


class CutsTooLittle(FollowerMachine):
    def _truncate(self, followed: PartitionFetchState, offset: int) -> Iterable[Effect]:
        return super()._truncate(followed, min(offset + 1, followed.log.log_end_offset))


class MarkBeyondItsEnd(FollowerMachine):
    def _advance_marks(
        self, followed: PartitionFetchState, high_watermark: int, start: int
    ) -> Iterable[Effect]:
        if high_watermark <= followed.log.high_watermark:
            return super()._advance_marks(followed, high_watermark, start)
        return (AdvanceMarks(followed.tip, high_watermark, followed.log.log_start_offset),)


class OldAnswersCount(FollowerMachine):
    """Whatever was asked when, an answer is an answer."""

    def _apply_partition(self, index: int, response: PartitionFetchResponse, now_ms: int) -> Iterable[Effect]:
        followed = self._partitions.get(response.tip)
        if followed is not None:
            self._session.partitions[response.tip] = followed.position
        return super()._apply_partition(index, response, now_ms)


class _Epochless(PartitionFetchState):
    __slots__ = ()

    @property
    def position(self) -> FetchPartitionData:
        return super().position._replace(last_epoch=-1)


class LastEpochNotSaid(FollowerMachine):
    """The leader cannot tell whether the logs agree."""

    def assign(self, tip: Any, *args: Any, **options: Any) -> tuple[Effect, ...]:
        effects = super().assign(tip, *args, **options)
        self._partitions[tip].__class__ = _Epochless
        return effects


class WorksOnForAnotherLeader(FollowerMachine):
    """What was begun is gone on with, whoever leads since."""

    def is_wanted(self, number: int) -> bool:
        return True


def later_epochs_fit(headers: Any, **options: Any) -> AppendablePrefix:
    return appendable_prefix(headers, **{**options, "leader_epoch": 2**31 - 1})


PLANTS: Final[dict[str, Plant]] = {
    one.__name__: Plant(leader=one)
    for one in (
        ProposedSetNotCounted,
        ShrinksAtOnce,
        EveryRefusalRestores,
        RestoresThoughACopyIsOnItsWay,
        DivergedFetchesCount,
        ProcessesAreNotToldApart,
        CommitsBelowMinIsr,
        JoinsBeforeTheEpochsStart,
        JoinsBelowTheHighWatermark,
        MarkFalls,
        EndsOfAnotherEpoch,
        AcksWaitForNobody,
    )
} | {
    one.__name__: Plant(follower=one)
    for one in (
        CutsAtTheLeadersEnd,
        CutsTooLittle,
        MarkBeyondItsEnd,
        OldAnswersCount,
        LastEpochNotSaid,
        WorksOnForAnotherLeader,
    )
}
PLANTS["later_epochs_fit"] = Plant(fits=later_epochs_fit)
SELDOM_SHOW: Final = (
    "RestoresThoughACopyIsOnItsWay",
    "EndsOfAnotherEpoch",
    "OldAnswersCount",
    "WorksOnForAnotherLeader",
    "later_epochs_fit",
)
"""Not found within some thousand histories: the moments are short, or something else forbids it, too (offsets
that must follow on each other, numbers of fetches). `test_seldom_moments` has a scenario of each."""
