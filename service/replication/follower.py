"""State machine of one fetcher: what it asks of one leader, and what the responses change in its logs. [P]

One fetch at a time, in one session. A fetch names a partition's log end and latest epoch, so the leader can
tell where the logs diverge; the follower truncates there and fetches again until the logs agree. Responses
result in effects: plain values that the shell carries out in order. It reports the outcome of an effect that
has a number (`done`, `offsets`), and drops one that is not wanted any more (`is_wanted`): the partition has
changed leaders since.

The machine sees offsets and epochs of logs, never bytes, and gets the time from its caller. Its cost depends
on the partitions that change, not on those it has. Apache Kafka 4.3 ``AbstractFetcherThread``,
``ReplicaFetcherThread``, ``TierStateMachine``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.backoff import doubled
from service.base.types import NO_LEADER_EPOCH, NO_OFFSET, TopicIdPartition
from service.replication.fetch_session_handler import NO_SESSION, FetchPartitionData, FetchSessionHandler
from service.replication.follower_events import (
    AdvanceMarks,
    Append,
    AskOffsets,
    BuildLocalStart,
    CaughtUp,
    Done,
    Effect,
    Fetch,
    FlushAppended,
    FollowerFetchResponse,
    HoldPartition,
    LeaderOffsets,
    PartitionFetchResponse,
    Restart,
    Truncate,
    Warn,
)
from service.replication.partition_fetch_state import (
    NO_MARKS,
    FetchState,
    FollowerLog,
    PartitionFetchState,
    RetryDelays,
)
from service.replication.throttle import ReplicationThrottle, ThrottledPartitions

MOST_NAMED: Final = 1_000
"""partitions in one fetch, so that neither it nor its response blocks the event loop for long"""
_NOT_YET: Final = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
)
"""errors of a leader whose image is older than ours"""
_LONGEST_EARLY: Final = 1024
"""longest pause after such errors, in times of the first one"""
_FetchChanges = tuple[list[tuple[TopicIdPartition, FetchPartitionData]], list[TopicIdPartition]]
"""partitions that a fetch names, and those that it forgets"""


class FollowerSettings(NamedTuple):
    """Delays before retries, in ms."""

    backoff_ms: int = 1_000
    """``replica.fetch.backoff.ms``"""
    early_ms: int = 20
    """first retry delay while the leader has not applied its own election; doubles per retry"""


class FollowerMachine:
    """All partitions that one fetcher of this node fetches from one leader. Owned by the event loop."""

    def __init__(self, settings: FollowerSettings, throttle: ReplicationThrottle | None = None) -> None:
        """`throttle` is shared by all fetchers of the node."""
        self._settings = settings
        self._throttled = ThrottledPartitions(throttle)
        self._partitions: dict[TopicIdPartition, PartitionFetchState] = {}
        """those that received records last are at the end"""
        self._changed: dict[TopicIdPartition, None] = {}
        """partitions that may differ from what the leader knows, in order"""
        self._discarded: dict[TopicIdPartition, None] = {}
        """partitions whose last response was discarded; re-added to the session so that the leader resends
        their marks"""
        self._session = FetchSessionHandler()
        self._delays = RetryDelays()
        self._numbers = 0
        self._in_flight = 0
        """number of the fetch that awaits a response; 0 if none does"""
        self._under_way: dict[int, PartitionFetchState] = {}
        """effects in progress, by number"""
        self._working = 0
        """how many of them change a log"""
        self._not_before_ms = 0

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, tip: TopicIdPartition) -> bool:
        return tip in self._partitions

    @property
    def has_changes(self) -> bool:
        """Some partition differs from what the leader knows."""
        return bool(self._changed)

    def state_of(self, tip: TopicIdPartition) -> FetchState:
        return self._partitions[tip].state

    # -- partitions

    def assign(
        self,
        tip: TopicIdPartition,
        log: FollowerLog,
        leader_epoch: int,
        now_ms: int,
        *,
        is_clean: bool,
        builds_first: bool = False,
        flushes_first: bool = False,
        is_in_sync: bool = False,
    ) -> tuple[Effect, ...]:
        """Follow the leader of `leader_epoch`, from the present end of `log`. Assigning the same epoch again
        changes nothing, except for a partition that is held.

        `is_clean`: the leader has all committed records, so nothing below our high watermark is ever
        truncated. `builds_first`: an empty log begins at the end of the archive (KIP-1023). `flushes_first`:
        records of an earlier leader are not synced yet, and must be. `is_in_sync`: this replica is in the
        ISR, so it is not throttled.
        """
        followed = self._partitions.get(tip)
        if followed is not None and followed.leader_epoch == leader_epoch and followed.log is log:
            followed.is_clean = is_clean
            if followed.state is not FetchState.HELD:
                return ()
        if followed is not None:
            self._end(followed)
        followed = PartitionFetchState(tip, log, leader_epoch, is_clean)
        self._partitions[tip] = followed
        self._changed[tip] = None
        followed.lag = 0 if is_in_sync else None
        self._throttled.note(tip, followed.lag)
        if builds_first and log.log_end_offset == log.log_start_offset:
            return (self._build(followed, NO_OFFSET),)
        if flushes_first:
            return (self._flush(followed, 0),)
        return ()

    def remove(self, tip: TopicIdPartition) -> None:
        """Stop following `tip`. Effects already returned for it must be ignored."""
        followed = self._partitions.pop(tip, None)
        self._discarded.pop(tip, None)
        if followed is not None:
            self._end(followed)
            self._changed[tip] = None
            self._throttled.forget(tip)

    def throttled(self, tip: TopicIdPartition) -> None:
        """Apply a change of whether `tip` is throttled."""
        if tip in self._partitions:
            self._throttled.note(tip, self._partitions[tip].lag)
            self._changed[tip] = None

    def start_moved(self, tip: TopicIdPartition) -> None:
        """Note that the start of the partition's log has moved without an effect."""
        if tip in self._partitions:
            self._changed[tip] = None

    # -- fetches

    def next_fetch(self, now_ms: int) -> Fetch | None:
        """Return the fetch to send now; None while one is in flight, a log is being changed, or nothing is
        ready."""
        self._wake(now_ms)
        if self._in_flight or self._working or now_ms < self._not_before_ms:
            return None
        self._not_before_ms = 0
        self._changed.update(dict.fromkeys(self._throttled.update(now_ms)))
        named, forgotten = self._full_fetch() if self._session.is_full else self._incremental_fetch()
        if not self._session.partitions and not forgotten:
            return None
        self._in_flight = self._next_number()
        session_id, epoch = self._session.session_id, self._session.epoch
        free_ms = self._due_ms()
        return Fetch(
            self._in_flight,
            session_id,
            epoch,
            named,
            forgotten,
            is_whole=not self._changed,
            most_wait_ms=None if free_ms is None else max(free_ms - now_ms, 0),
        )

    def _full_fetch(self) -> _FetchChanges:
        """Return what a full fetch names. Partitions beyond `MOST_NAMED` go with the next fetches; if the
        leader opens no session, they come first in the next full fetch."""
        self._changed.clear()
        self._discarded.clear()
        wanted: dict[TopicIdPartition, FetchPartitionData] = {}
        for tip, one in self._partitions.items():
            if one.state is FetchState.READY and tip not in self._throttled:
                if len(wanted) < MOST_NAMED:
                    wanted[tip] = one.position
                else:
                    self._changed[tip] = None
        if self._changed:
            for tip in wanted:
                self._partitions[tip] = self._partitions.pop(tip)
        self._session.full(wanted)
        return list(wanted.items()), []

    def _incremental_fetch(self) -> _FetchChanges:
        """Return what the next fetch of a session names and forgets."""
        changed: list[tuple[TopicIdPartition, FetchPartitionData | None]] = []
        again: dict[TopicIdPartition, None] = {}
        while self._changed and len(changed) < MOST_NAMED:
            tip = next(iter(self._changed))
            del self._changed[tip]
            wanted = self._wanted(tip)
            if tip in self._discarded:
                del self._discarded[tip]
                wanted, again[tip] = None, None
            changed.append((tip, wanted))
        self._changed.update(again)
        return self._session.change(changed)

    def _wanted(self, tip: TopicIdPartition) -> FetchPartitionData | None:
        one = self._partitions.get(tip)
        if one is None or one.state is not FetchState.READY or tip in self._throttled:
            return None
        return one.position

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `next_fetch` may have a fetch, if no event comes before."""
        if self._in_flight or self._working:
            return None
        if self._not_before_ms:
            return self._not_before_ms
        return self._due_ms()

    def _due_ms(self) -> int | None:
        """Return the time at which the first delayed or throttled partition may be fetched."""
        due_ms, free_ms = self._delays.due_ms, self._throttled.due_ms
        return free_ms if due_ms is None or (free_ms is not None and free_ms < due_ms) else due_ms

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- responses

    def failed(self, number: int, now_ms: int) -> None:
        """Note that the fetch failed: no connection, a timeout, or a malformed response. The leader may have
        read it."""
        if number != self._in_flight:
            return
        self._in_flight = 0
        self._reset_session(now_ms, keeps=True)

    def _reset_session(self, now_ms: int, *, keeps: bool) -> None:
        self._session.reset(keeps=keeps)
        self._not_before_ms = now_ms + self._settings.backoff_ms

    def answered(self, number: int, response: FollowerFetchResponse, now_ms: int) -> tuple[Effect, ...]:
        """Apply the leader's response to the fetch of that number; the response to an older fetch is
        discarded."""
        if number != self._in_flight:
            return ()
        self._in_flight = 0
        self._not_before_ms = 0
        session = self._session
        if response.error is not ErrorCode.none:
            is_gone = response.error is ErrorCode.fetch_session_id_not_found
            was_full = session.is_full
            self._reset_session(now_ms, keeps=not is_gone)
            if is_gone and not was_full:
                self._not_before_ms = 0  # the leader evicted the session, or has restarted
            return ()
        why = self._malformed(response)
        if why:
            self._reset_session(now_ms, keeps=not session.is_full)
            return (Warn(why),)
        session.answered(response.session_id)
        effects: list[Effect] = []
        for index, partition in enumerate(response.partitions):
            effects += self._apply_partition(index, partition, now_ms)
        return tuple(effects)

    def _malformed(self, response: FollowerFetchResponse) -> str:
        """Return why the response as a whole is malformed; empty if it is not."""
        wanted = self._session.partitions
        named = dict.fromkeys(partition.tip for partition in response.partitions)
        if len(named) != len(response.partitions):
            return "the leader answers for a partition twice"
        unknown = next((tip for tip in named if tip not in wanted), None)
        if unknown is not None:
            return f"the leader answers for {unknown}, which was not asked for"
        if self._session.is_full and len(named) < len(wanted):
            return f"the leader answers for {len(named)} of {len(wanted)} partitions"
        other = response.session_id not in (NO_SESSION, self._session.session_id)
        if not self._session.is_full and other:
            return f"the leader answers in session {response.session_id}, not {self._session.session_id}"
        return ""

    def _apply_partition(self, index: int, response: PartitionFetchResponse, now_ms: int) -> Iterable[Effect]:
        """Apply the response for one partition; discard it if the log has changed since the fetch."""
        followed = self._partitions.get(response.tip)
        if followed is None:
            return ()
        position = followed.position
        is_current = self._session.partitions.get(response.tip, position)[:3] == position[:3]
        if followed.state is not FetchState.READY or not is_current:
            self._discarded[response.tip] = self._changed[response.tip] = None
            return ()
        error = response.error
        if error is ErrorCode.none:
            if response.diverging is not None:
                return self._diverged(followed, *response.diverging, now_ms)
            if response.size:
                self._throttled.record(response.tip, response.size, now_ms)
                followed.leader_marks = response.high_watermark, response.start_offset
                number = self._begin(followed, FetchState.WORKING)
                return (Append(number, followed.tip, followed.leader_epoch, index, response.start_offset),)
            caught_up = self._update_lag(followed, response.high_watermark) if followed.lag is None else ()
            return (
                *self._advance_marks(followed, response.high_watermark, response.start_offset),
                *caught_up,
            )
        if error is ErrorCode.offset_out_of_range:
            number = self._begin(followed, FetchState.ASKING)
            return (AskOffsets(number, followed.tip, followed.leader_epoch),)
        if error is ErrorCode.offset_moved_to_tiered_storage:
            return (self._build(followed, response.start_offset),)
        self._apply_error(followed, error, now_ms)
        return ()

    def _apply_error(self, followed: PartitionFetchState, error: ErrorCode, now_ms: int) -> None:
        """Hold the partition on FENCED_LEADER_EPOCH, as the image will name a newer leader. Delay it on other
        errors; those of a leader that has not applied its election yet pass soon."""
        if error is ErrorCode.fenced_leader_epoch:
            followed.move(FetchState.HELD)
            self._changed[followed.tip] = None
        elif error in _NOT_YET:
            followed.early_errors += 1
            early_ms = self._settings.early_ms
            self._delay(followed, now_ms, doubled(followed.early_errors, early_ms, early_ms * _LONGEST_EARLY))
        else:
            self._delay(followed, now_ms)

    def _advance_marks(
        self, followed: PartitionFetchState, high_watermark: int, start: int
    ) -> Iterable[Effect]:
        """Raise the high watermark to the leader's, up to our log's end. A new leader may report a lower
        one."""
        log = followed.log
        mark = max(log.high_watermark, min(high_watermark, log.log_end_offset))
        start = max(log.log_start_offset, min(start, mark))
        if mark == log.high_watermark and start == log.log_start_offset:
            return ()
        if start != log.log_start_offset:
            self._changed[followed.tip] = None
        return (AdvanceMarks(followed.tip, mark, start),)

    def _update_lag(self, followed: PartitionFetchState, high_watermark: int) -> Iterable[Effect]:
        """Update the lag behind the leader's high watermark, and report when it reaches 0."""
        before, is_told = followed.lag, high_watermark != NO_OFFSET
        followed.lag = max(high_watermark - followed.log.log_end_offset, 0) if is_told else None
        self._throttled.note(followed.tip, followed.lag)
        return (CaughtUp(followed.tip, followed.leader_epoch),) if followed.lag == 0 != before else ()

    # -- divergence

    def _diverged(self, followed: PartitionFetchState, epoch: int, end: int, now_ms: int) -> Iterable[Effect]:
        log = followed.log
        if epoch < 0 or end < 0:
            self._delay(followed, now_ms)
            return (Warn(f"{followed.tip} diverges from epoch {epoch}, which ends at {end}"),)
        our_epoch, our_end = log.end_offset_of_epoch(epoch)
        if our_epoch == NO_LEADER_EPOCH:
            offset = end
        elif our_epoch == epoch:
            offset = min(our_end, end)
        else:
            offset = our_end
        return self._truncate(followed, min(offset, log.log_end_offset))

    def _truncate(self, followed: PartitionFetchState, offset: int) -> Iterable[Effect]:
        log = followed.log
        is_below = offset < log.high_watermark
        if is_below and followed.is_clean:
            followed.move(FetchState.HELD)
            self._changed[followed.tip] = None
            why = (
                f"the leader of epoch {followed.leader_epoch} asks to truncate committed records, to {offset}"
            )
            return (HoldPartition(followed.tip, f"{why} from the high watermark {log.high_watermark}"),)
        return (Truncate(self._begin(followed, FetchState.WORKING), followed.tip, offset, is_below),)

    def offsets(self, number: int, response: LeaderOffsets | ErrorCode, now_ms: int) -> tuple[Effect, ...]:
        """Apply the response to `AskOffsets`; an error code if the request failed."""
        followed = self._under_way.get(number)
        if followed is None:
            return ()
        self._end(followed)
        self._changed[followed.tip] = None
        end = followed.log.log_end_offset
        if isinstance(response, ErrorCode):
            self._apply_error(followed, response, now_ms)
        elif 0 <= response.end < end:
            return tuple(self._truncate(followed, response.end))
        elif response.start > end:
            return (Restart(self._begin(followed, FetchState.WORKING), followed.tip, response.start),)
        else:
            self._delay(followed, now_ms)
        return ()

    # -- effects in progress

    def is_wanted(self, number: int) -> bool:
        """Return whether the effect of that number is still to be carried out."""
        return number in self._under_way

    def done(self, number: int, outcome: Done, now_ms: int) -> tuple[Effect, ...]:
        """Apply the outcome of an `Append`, `Truncate`, `Restart`, `BuildLocalStart` or `FlushAppended`."""
        followed = self._under_way.get(number)
        if followed is None:
            return ()
        self._end(followed)
        self._changed[followed.tip] = None
        if outcome is Done.UNFLUSHED:
            return (self._flush(followed, self._settings.backoff_ms),)
        marks, followed.leader_marks = followed.leader_marks, NO_MARKS
        is_idle = followed.position == followed.before and followed.state is not FetchState.FLUSHING
        if outcome is Done.OFFLINE:
            followed.move(FetchState.HELD)
        elif outcome is not Done.DONE or is_idle:
            self._delay(followed, now_ms)
        else:
            followed.move(FetchState.READY)
            caught_up = self._update_lag(followed, marks[0])
            self._partitions[followed.tip] = self._partitions.pop(followed.tip)
            return (*self._advance_marks(followed, *marks), *caught_up)
        return ()

    def _build(self, followed: PartitionFetchState, start_offset: int) -> BuildLocalStart:
        number = self._begin(followed, FetchState.BUILDING)
        return BuildLocalStart(number, followed.tip, followed.leader_epoch, start_offset)

    def _flush(self, followed: PartitionFetchState, after_ms: int) -> FlushAppended:
        return FlushAppended(self._begin(followed, FetchState.FLUSHING), followed.tip, after_ms)

    def _begin(self, followed: PartitionFetchState, state: FetchState) -> int:
        """Begin an effect of the partition and return its number."""
        followed.move(state)
        followed.number, followed.before = self._next_number(), followed.position
        self._under_way[followed.number] = followed
        self._working += state is FetchState.WORKING
        self._changed[followed.tip] = None
        return followed.number

    def _end(self, followed: PartitionFetchState) -> None:
        """End the partition's effect in progress, if there is one."""
        if self._under_way.pop(followed.number, None) is not None:
            self._working -= followed.state is FetchState.WORKING
        followed.number = 0

    def _delay(self, followed: PartitionFetchState, now_ms: int, most_ms: int | None = None) -> None:
        backoff_ms = self._settings.backoff_ms
        due_ms = now_ms + (backoff_ms if most_ms is None else min(most_ms, backoff_ms))
        self._delays.add(followed, due_ms, self._next_number())
        self._changed[followed.tip] = None

    def _wake(self, now_ms: int) -> None:
        """Make delayed partitions ready whose delay has passed."""
        for followed in self._delays.pop_due(now_ms):
            if self._partitions.get(followed.tip) is followed:
                followed.move(FetchState.READY)
                self._changed[followed.tip] = None
