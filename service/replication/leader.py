"""Leader of one partition: its followers' offsets, and from these the high watermark and the ISR. [P]

A follower's fetch from an offset says that it has all records below it. The high watermark is the least end
offset of the replicas that count: the in-sync replicas (ISR), those of a proposed ISR, and any that may join
and is caught up, so that it is able to join. It does not move while the ISR is below ``min.insync.replicas``,
and never falls.

A replica that the controller removes from the ISR, or refuses to add, does not count until it has fetched
again from the high watermark on: it may be one that replicates nothing for want of disk space, and is silent.

Only the controller changes the ISR. The leader proposes, one proposal at a time; until the metadata image
says what became of it, the old and the proposed set both count. A proposal whose outcome is unknown is sent
again.

Fetch times are kept by session, not by partition: a fetch that does not name a partition confirms the offset
of the last one that did, so it need not touch the partition. An append notes the log's end at each follower's
last fetch; these two numbers give the time until which the follower had everything.

Methods that may change something return flags: `MOVED` (then call `passed`), `PROPOSES` (then read
`proposal`), `AGAIN`. Apache Kafka 4.3 ``Partition``, ``Replica``; KIP-497, KIP-903, KIP-966.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.types import NO_OFFSET
from service.replication.ack_queue import AckQueue, Waiter
from service.replication.replica_fetch import (
    NO_BROKER_EPOCH,
    FetchVerdict,
    LeaderLog,
    ReplicaFetch,
    judge_epoch,
    judge_log,
)

NOTHING: Final = 0
MOVED: Final = 1
"""the high watermark has changed"""
PROPOSES: Final = 2
"""there is a new `LeaderState.proposal`"""
AGAIN: Final = 4
"""the same proposal is to be sent again later"""

_UNHEARD: Final = -2
_LONG_AGO: Final = -(2**62)
_IMAGE_WILL_TELL: Final = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.invalid_update_version,
    ErrorCode.invalid_request,
    ErrorCode.new_leader_elected,
)
"""After these errors the controller's state is newer than ours."""
_NOT_DONE: Final = (ErrorCode.ineligible_replica, ErrorCode.operation_not_attempted)
"""After these errors our partition epoch is the newest and the controller has changed nothing."""


class LeaderSettings(NamedTuple):
    lag_time_max_ms: int = 30_000
    """``replica.lag.time.max.ms``"""
    settle_ms: int = 2_000
    """time after an unknown outcome within which the controller may still decide on an earlier copy of the
    proposal"""


class BrokerStatus(NamedTuple):
    """Registration of a broker in the metadata image."""

    epoch: int
    is_active: bool
    """neither fenced nor in a controlled shutdown"""
    is_fenced: bool = False


class Leadership(NamedTuple):
    """Metadata image of a partition that this node leads."""

    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class IsrMember(NamedTuple):
    broker_id: int
    broker_epoch: int


class IsrProposal(NamedTuple):
    """ISR that the leader proposes in AlterPartition; the partition counts as recovered once it is accepted.
    `number` is unique at its leader."""

    number: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]


class Accepted(NamedTuple):
    """The controller has made the change; the image will contain it."""

    leader_epoch: int
    partition_epoch: int


class Unknown(NamedTuple):
    """The controller may have decided on the proposal, or may do so yet."""


Outcome = Accepted | ErrorCode | Unknown


class ReplicaSession:
    """Time of one follower's last fetch from this node, of any partition. All its partitions share it; the
    fetch handler sets it before it reads any partition."""

    __slots__ = ("last_fetch_ms",)

    def __init__(self, last_fetch_ms: int = _LONG_AGO) -> None:
        self.last_fetch_ms = last_fetch_ms


class FollowerProgress:
    """State of one follower in one leader epoch."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "end_offset",
        "mark_end",
        "mark_ms",
        "removed_ms",
        "session",
        "start_offset",
    )

    def __init__(self, broker_id: int, caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.end_offset = NO_OFFSET
        self.start_offset = NO_OFFSET
        self.broker_epoch = _UNHEARD
        self.caught_up_ms = caught_up_ms
        """latest time at which it is known to have had all records of the leader"""
        self.mark_ms = _LONG_AGO
        self.mark_end = NO_OFFSET
        """`mark_ms`: its last fetch before the newest append; `mark_end`: the log's end at that time"""
        self.removed_ms = _LONG_AGO
        """when the controller removed it from the ISR or refused to add it; `_LONG_AGO` once it has fetched
        since"""
        self.session: ReplicaSession | None = None

    def note(self, end: int) -> None:
        """Note that the log ended at `end` at the session's last fetch; the log may be about to grow."""
        session = self.session
        if session is not None and session.last_fetch_ms > self.mark_ms:
            self.mark_ms, self.mark_end = session.last_fetch_ms, end
            if self.end_offset >= end and self.mark_ms > self.caught_up_ms:
                self.caught_up_ms = self.mark_ms

    def fetched(self, asked: ReplicaFetch, session: ReplicaSession | None, end: int, now_ms: int) -> None:
        """Apply a fetch: the follower is caught up now, or was at its previous fetch, or neither."""
        if asked.offset >= end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif asked.offset >= self.mark_end:
            self.caught_up_ms = max(self.caught_up_ms, self.mark_ms)
        self.mark_ms, self.mark_end = now_ms, end
        self.end_offset, self.start_offset = asked.offset, asked.start_offset
        self.broker_epoch, self.session = asked.broker_epoch, session

    @property
    def last_fetch_ms(self) -> int:
        """Time of its last fetch that named the partition or was in its session."""
        return self.mark_ms if self.session is None else max(self.mark_ms, self.session.last_fetch_ms)

    def last_caught_up_ms(self, end: int) -> int:
        """Return the time at which it was caught up last, as of its last fetch: for reports of how far it is
        behind."""
        if self.session is not None and self.end_offset >= end:
            return max(self.caught_up_ms, self.session.last_fetch_ms)
        return self.caught_up_ms


class LeaderState:
    """One partition that this node leads, from its election on. Owned by the event loop."""

    __slots__ = (
        "_acks",
        "_brokers",
        "_log",
        "_me",
        "_numbers",
        "_settings",
        "_unknown_ms",
        "counted",
        "end_offset",
        "epoch_start",
        "followers",
        "high_watermark",
        "in_sync",
        "least_in_sync",
        "proposal",
        "shape",
    )

    def __init__(
        self,
        me: int,
        settings: LeaderSettings,
        brokers: Mapping[int, BrokerStatus],
        log: LeaderLog,
        shape: Leadership,
        *,
        high_watermark: int,
        min_insync_replicas: int,
        now_ms: int,
    ) -> None:
        """`brokers` belongs to the caller, who updates it from the image and then calls `reevaluate`. The
        epoch starts at the end of `log`; the caller has written that beside the log before any client learns
        of it."""
        self._me = me
        self._settings = settings
        self._brokers = brokers
        self._log = log
        self._acks: AckQueue | None = None
        self._numbers = 0
        self._unknown_ms = _LONG_AGO
        self.end_offset = log.log_end_offset
        self.high_watermark = min(max(high_watermark, log.log_start_offset), self.end_offset)
        self.least_in_sync = min_insync_replicas
        self.shape = shape
        self.followers: tuple[FollowerProgress, ...] = ()
        self._begin_epoch(shape, now_ms)
        self._apply_isr(shape)

    # -- state

    @property
    def min_isr(self) -> int:
        """Least size of the ISR with which records are committed (``Partition.effectiveMinIsr``)."""
        return min(self.least_in_sync, len(self.shape.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.in_sync) < self.min_isr

    @property
    def has_reached_its_epoch(self) -> bool:
        """The high watermark covers all that earlier leaders may have committed. Until then consumers may see
        a lower end than before (ListOffsets: OFFSET_NOT_AVAILABLE)."""
        return self.high_watermark >= self.epoch_start

    def follower(self, broker_id: int) -> FollowerProgress | None:
        for one in self.followers:
            if one.broker_id == broker_id:
                return one
        return None

    def low_watermark(self) -> int:
        """Return the least start offset of the live replicas: what DeleteRecords waits for. A replica in a
        controlled shutdown counts as live (Kafka `Partition.lowWatermarkIfLeader`)."""
        low = self._log.log_start_offset
        for one in self.followers:
            known = self._brokers.get(one.broker_id)
            if known is not None and not known.is_fenced:
                low = min(low, one.start_offset)
        return low

    # -- the log and acks=all

    def check_replicas(self) -> ErrorCode:
        """Return the error of an acks=all batch before it is appended."""
        return ErrorCode.not_enough_replicas if self.is_under_min_isr else ErrorCode.none

    def appended(self, now_ms: int) -> int:
        """Advance the high watermark after an append."""
        end_before, self.end_offset = self.end_offset, self._log.log_end_offset
        for one in self.followers:
            one.note(end_before)
        return self._advance(now_ms)

    def wait(self, key: object, offset: int) -> Waiter | ErrorCode:
        """Queue `key`, which `passed` returns once all records below `offset` are committed (invariant P6);
        returns the final error code if they are already."""
        if self.high_watermark >= offset:
            return self._after_append()
        if self._acks is None:
            self._acks = AckQueue()
        return self._acks.wait(key, offset)

    def give_up(self, waiter: Waiter) -> bool:
        """Remove a request that has timed out; returns False if it has had its response."""
        return self._acks is not None and self._acks.give_up(waiter)

    def passed(self) -> tuple[list[Waiter], ErrorCode]:
        """Pop the waiters whose records are committed, with the error code for all of them."""
        if self._acks is None:
            return [], ErrorCode.none
        return self._acks.passed(self.high_watermark), self._after_append()

    def deposed(self) -> list[Waiter]:
        """Pop all waiters: this node no longer leads, and each gets NOT_LEADER_OR_FOLLOWER."""
        return [] if self._acks is None else self._acks.dismiss()

    def _after_append(self) -> ErrorCode:
        enough = len(self.counted) >= self.min_isr
        return ErrorCode.none if enough else ErrorCode.not_enough_replicas_after_append

    # -- followers

    def judge(self, asked: ReplicaFetch) -> FetchVerdict:
        """Check a replica's fetch, in Kafka's order. Changes nothing, so it also serves a delayed fetch that
        is checked again."""
        error = judge_epoch(asked.leader_epoch, self.shape.leader_epoch)
        if error is not ErrorCode.none:
            return FetchVerdict(
                error, f"leader epoch {asked.leader_epoch}, ours is {self.shape.leader_epoch}"
            )
        if self.follower(asked.replica_id) is None:
            is_current = asked.leader_epoch == self.shape.leader_epoch
            return FetchVerdict(
                ErrorCode.unknown_leader_epoch if is_current else ErrorCode.not_leader_or_follower,
                f"{asked.replica_id} is no replica",
            )
        return judge_log(asked, self._log)

    def fetched(
        self, asked: ReplicaFetch, session: ReplicaSession | None, now_ms: int
    ) -> tuple[FetchVerdict, int]:
        """Apply a follower's fetch; returns its check and the flags of what it changed.

        `session`: confirms this offset with each later fetch that does not name the partition; None if there
        is none.
        """
        verdict = self.judge(asked)
        if verdict.error is not ErrorCode.none or verdict.diverging is not None:
            return verdict, NOTHING
        known = self._brokers.get(asked.replica_id)
        # Invariant P11: a fetch of an earlier process of the replica's broker does not count.
        if asked.broker_epoch != NO_BROKER_EPOCH and known is not None and asked.broker_epoch < known.epoch:
            why = f"broker epoch {asked.broker_epoch} of {asked.replica_id}, it is {known.epoch}"
            return FetchVerdict(ErrorCode.not_leader_or_follower, why), NOTHING
        one = self.follower(asked.replica_id)
        assert one is not None, "a verdict was given"
        has_moved = one.end_offset != asked.offset or one.broker_epoch != asked.broker_epoch
        one.fetched(asked, session, self.end_offset, now_ms)
        if one.removed_ms != _LONG_AGO:
            one.removed_ms = _LONG_AGO if one.end_offset >= self._least_to_join else now_ms
        happened = NOTHING
        if asked.replica_id not in self.in_sync:
            happened |= self._expand(now_ms)
        if has_moved:
            happened |= self._advance(now_ms)
        return verdict, happened

    def counts(self, asked: ReplicaFetch, session: ReplicaSession | None, *, is_named: bool) -> bool:
        """Return whether a fetch of `session` may update a replica that another session updated before.

        A late fetch of a session that the replica has abandoned must not: it may neither repeat an offset nor
        name a lower one than is known of the same process. A session that is silent for long loses the
        replica to the other.
        """
        one = self.follower(asked.replica_id)
        if one is None or session is None or one.session is None or one.session is session:
            return True
        if is_named and (asked.broker_epoch > one.broker_epoch or asked.offset >= one.end_offset):
            return True
        return self._is_silent(one.session, session)

    def is_left_to(self, broker_id: int, session: ReplicaSession) -> bool:
        """Return whether `session` takes over the replica, because the previous session has ended or is
        silent."""
        one = self.follower(broker_id)
        if one is None or one.session is session:
            return False
        return one.session is None or self._is_silent(one.session, session)

    def _is_silent(self, one: ReplicaSession, other: ReplicaSession) -> bool:
        return other.last_fetch_ms - one.last_fetch_ms > self._settings.lag_time_max_ms // 2

    def detach(self, broker_id: int, session: ReplicaSession) -> None:
        """Note that `session` has ended or forgot the partition: its fetches no longer confirm its offset
        here."""
        one = self.follower(broker_id)
        if one is not None and one.session is session:
            one.note(self.end_offset)
            one.session = None

    # -- changes of metadata, settings and time

    def reevaluate(self, now_ms: int) -> int:
        """Re-evaluate after a broker that has a replica was fenced, unfenced or registered again: it may join
        the ISR, and the high watermark may wait for other replicas."""
        return self._advance(now_ms) | self._expand(now_ms)

    def tick(self, now_ms: int) -> int:
        """Shrink the ISR by replicas that lag for ``replica.lag.time.max.ms``; called every half of that
        time."""
        return self._shrink(now_ms) or self.reevaluate(now_ms)

    def configure(self, min_insync_replicas: int, now_ms: int) -> int:
        self.least_in_sync = min_insync_replicas
        return self._advance(now_ms)

    def image(self, shape: Leadership, now_ms: int) -> int:
        """Apply the metadata image's `shape`, in which this node still leads; one that is not newer changes
        nothing."""
        ours = self.shape
        if shape.leader_epoch < ours.leader_epoch or shape.partition_epoch <= ours.partition_epoch:
            return NOTHING
        if shape.leader_epoch > ours.leader_epoch:
            self._begin_epoch(shape, now_ms)
        else:
            self._apply_replicas(shape)
            self._mark_removed(self.in_sync.difference(shape.isr), now_ms)
        self._apply_isr(shape)
        return self._advance(now_ms) | self._expand(now_ms)

    def _begin_epoch(self, shape: Leadership, now_ms: int) -> None:
        """Reset the followers: their offsets of another epoch do not count, as others may have led in
        between."""
        self.epoch_start = self.end_offset
        self.followers = tuple(
            FollowerProgress(one, now_ms if one in shape.isr else _LONG_AGO)
            for one in shape.replicas
            if one != self._me
        )

    def _apply_replicas(self, shape: Leadership) -> None:
        if shape.replicas != self.shape.replicas:
            self.followers = tuple(
                self.follower(one) or FollowerProgress(one, _LONG_AGO)
                for one in shape.replicas
                if one != self._me
            )

    def _apply_isr(self, shape: Leadership) -> None:
        """Apply the image's ISR and drop the proposal: the controller can no longer accept it at this
        partition epoch."""
        self.shape = shape
        self.in_sync = self.counted = frozenset(shape.isr)
        self.proposal: IsrProposal | None = None

    def _mark_removed(self, replicas: frozenset[int], now_ms: int) -> None:
        for one in self.followers:
            if one.broker_id in replicas:
                one.removed_ms = now_ms

    # -- the high watermark

    def _is_caught_up(self, one: FollowerProgress, now_ms: int) -> bool:
        if one.end_offset >= self.end_offset:
            return True
        return now_ms - one.caught_up_ms <= self._settings.lag_time_max_ms

    def _may_join(self, one: FollowerProgress) -> bool:
        """Return whether the follower is alive, has fetched since the controller removed it, and is the
        process that is registered (KIP-903)."""
        known = self._brokers.get(one.broker_id)
        if known is None or not known.is_active or one.last_fetch_ms <= one.removed_ms:
            return False
        return one.broker_epoch in (known.epoch, NO_BROKER_EPOCH)

    def _advance(self, now_ms: int) -> int:
        """Raise the high watermark to the lowest end of the replicas that count, if there are enough of them;
        it never falls (invariants P1, P2)."""
        if self.is_under_min_isr:
            return NOTHING
        mark = self.end_offset
        for one in self.followers:
            if one.end_offset < mark and (
                one.broker_id in self.counted or (self._is_caught_up(one, now_ms) and self._may_join(one))
            ):
                mark = one.end_offset
        if mark <= self.high_watermark:
            return NOTHING
        self.high_watermark = mark
        return MOVED

    # -- the in-sync replicas

    @property
    def _least_to_join(self) -> int:
        return max(self.high_watermark, self.epoch_start)

    def _expand(self, now_ms: int) -> int:
        """Propose to add the followers that reached both the high watermark and the epoch's start offset
        (invariant P4), and fetched within ``replica.lag.time.max.ms``."""
        if self.proposal is not None:
            return NOTHING
        least, earliest = self._least_to_join, now_ms - self._settings.lag_time_max_ms
        joining = [
            one.broker_id
            for one in self.followers
            if one.end_offset >= least
            and one.broker_id not in self.in_sync
            and one.last_fetch_ms >= earliest
            and self._may_join(one)
        ]
        if not joining:
            return NOTHING
        return self._propose(self.in_sync.union(joining))

    def _shrink(self, now_ms: int) -> int:
        if self.proposal is not None:
            return NOTHING
        staying = {one.broker_id for one in self.followers if self._is_caught_up(one, now_ms)} | {self._me}
        if self.in_sync <= staying:
            return NOTHING
        return self._propose(self.in_sync & staying)

    def _propose(self, isr: frozenset[int]) -> int:
        self._numbers += 1
        members = tuple(IsrMember(one, self._epoch_of(one)) for one in self.shape.replicas if one in isr)
        self.proposal = IsrProposal(
            self._numbers, self.shape.leader_epoch, self.shape.partition_epoch, members
        )
        self._unknown_ms = _LONG_AGO
        self.counted = self.in_sync | isr
        return PROPOSES

    def _epoch_of(self, broker_id: int) -> int:
        """Return the broker epoch to send for an ISR member; -1 if it has not fetched from this leader yet.
        If that broker dies, the controller bumps the partition epoch and rejects this proposal."""
        if broker_id == self._me:
            known = self._brokers.get(broker_id)
            return NO_BROKER_EPOCH if known is None else known.epoch
        one = self.follower(broker_id)
        return NO_BROKER_EPOCH if one is None or one.broker_epoch == _UNHEARD else one.broker_epoch

    def answered(self, number: int, outcome: Outcome, sent_ms: int, now_ms: int) -> int:
        """Apply the outcome of the proposal `number`, of which a copy was sent at `sent_ms`.

        A success ends the proposal's retries only: the ISR is what the image says. Two errors say that
        nothing was changed and restore the old set; if an earlier copy may still be on its way, only once
        that is settled. After other errors the proposal stands until the image changes.
        """
        proposal = self.proposal
        if proposal is None or proposal.number != number:
            return NOTHING
        if isinstance(outcome, Accepted):
            is_made = outcome.partition_epoch > proposal.partition_epoch
            return NOTHING if is_made or outcome.leader_epoch != proposal.leader_epoch else AGAIN
        if isinstance(outcome, ErrorCode) and outcome in _IMAGE_WILL_TELL:
            return NOTHING
        if isinstance(outcome, ErrorCode) and outcome in _NOT_DONE:
            if sent_ms < self._unknown_ms + self._settings.settle_ms:
                return AGAIN
            if outcome is ErrorCode.ineligible_replica:
                self._mark_removed(self.counted - self.in_sync, now_ms)
            self.proposal, self.counted = None, self.in_sync
            return self._advance(now_ms)
        self._unknown_ms = max(self._unknown_ms, now_ms)
        return AGAIN
