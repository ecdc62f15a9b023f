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
from heapq import heappop, heappush
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.types import NO_LEADER_EPOCH, NO_OFFSET, TopicIdPartition
from service.replication.fetch_session_handler import NO_SESSION, Asked, FetchSessionAsked
from service.replication.follower_events import (
    Append,
    AskOffsets,
    BuildLocalStart,
    CaughtUp,
    Done,
    Effect,
    Fetch,
    FetchAnswer,
    Flush,
    Follow,
    Hold,
    Offsets,
    PartitionAnswer,
    Restart,
    Truncate,
    Warn,
)
from service.replication.partition_fetch_state import NOTHING_TOLD, Followed, FollowerLog, State
from service.replication.throttle import HeldBack, Throttle

MOST_NAMED: Final = 1_000
"""partitions in one fetch, so that neither it nor its response blocks the event loop for long"""
_NOT_YET: Final = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
)
"""errors of a leader whose image is older than ours"""
_DOUBLINGS: Final = 10
_Said = tuple[list[tuple[TopicIdPartition, Asked]], list[TopicIdPartition]]
"""partitions that a fetch names, and those that it forgets"""


class FollowerSettings(NamedTuple):
    backoff_ms: int = 1_000
    """``replica.fetch.backoff.ms``"""
    early_ms: int = 20
    """first retry delay while the leader has not applied its own election; doubles per retry"""


class FollowerMachine:
    """All partitions that one fetcher of this node fetches from one leader. Owned by the event loop."""

    def __init__(self, settings: FollowerSettings, throttle: Throttle | None = None) -> None:
        """`throttle` is shared by all fetchers of the node."""
        self._settings = settings
        self._held_back = HeldBack(throttle)
        self._partitions: dict[TopicIdPartition, Followed] = {}
        """those that received records last are at the end"""
        self._changed: dict[TopicIdPartition, None] = {}
        """partitions that may differ from what the leader knows, in order"""
        self._unheard: dict[TopicIdPartition, None] = {}
        """partitions whose last response was discarded; re-added to the session so that the leader resends
        their marks"""
        self._session = FetchSessionAsked()
        self._delays: list[tuple[int, int, Followed]] = []
        self._numbers = 0
        self._in_flight = 0
        """number of the fetch that awaits a response; 0 if none does"""
        self._under_way: dict[int, Followed] = {}
        """effects in progress, by number"""
        self._working = 0
        """how many of them change a log"""
        self._not_before_ms = 0

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, tip: TopicIdPartition) -> bool:
        return tip in self._partitions

    @property
    def has_news(self) -> bool:
        """Some partition differs from what the leader knows."""
        return bool(self._changed)

    def state_of(self, tip: TopicIdPartition) -> State:
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
            if followed.state is not State.HELD:
                return ()
        if followed is not None:
            self._over(followed)
        followed = Followed(tip, log, leader_epoch, is_clean)
        self._partitions[tip] = followed
        self._changed[tip] = None
        followed.lag = 0 if is_in_sync else None
        self._held_back.note(tip, followed.lag)
        if builds_first and log.log_end_offset == log.log_start_offset:
            return (self._build(followed, NO_OFFSET),)
        if flushes_first:
            return (self._flush(followed, 0),)
        return ()

    def remove(self, tip: TopicIdPartition) -> None:
        """Stop following `tip`. Effects already returned for it must be ignored."""
        followed = self._partitions.pop(tip, None)
        self._unheard.pop(tip, None)
        if followed is not None:
            self._over(followed)
            self._changed[tip] = None
            self._held_back.forget(tip)

    def throttled(self, tip: TopicIdPartition) -> None:
        """Apply a change of whether `tip` is throttled."""
        if tip in self._partitions:
            self._held_back.note(tip, self._partitions[tip].lag)
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
        self._changed.update(dict.fromkeys(self._held_back.look(now_ms)))
        named, forgotten = self._first() if self._session.is_full else self._next()
        if not self._session.asked and not forgotten:
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

    def _first(self) -> _Said:
        """Return what a full fetch names. Partitions beyond `MOST_NAMED` go with the next fetches; if the
        leader opens no session, they come first in the next full fetch."""
        self._changed.clear()
        self._unheard.clear()
        wanted: dict[TopicIdPartition, Asked] = {}
        for tip, one in self._partitions.items():
            if one.state is State.READY and tip not in self._held_back:
                if len(wanted) < MOST_NAMED:
                    wanted[tip] = one.asked
                else:
                    self._changed[tip] = None
        if self._changed:
            for tip in wanted:
                self._partitions[tip] = self._partitions.pop(tip)
        self._session.full(wanted)
        return list(wanted.items()), []

    def _next(self) -> _Said:
        """Return what the next fetch of a session names and forgets."""
        changed: list[tuple[TopicIdPartition, Asked | None]] = []
        again: dict[TopicIdPartition, None] = {}
        while self._changed and len(changed) < MOST_NAMED:
            tip = next(iter(self._changed))
            del self._changed[tip]
            wanted = self._wanted(tip)
            if tip in self._unheard:
                del self._unheard[tip]
                wanted, again[tip] = None, None
            changed.append((tip, wanted))
        self._changed.update(again)
        return self._session.change(changed)

    def _wanted(self, tip: TopicIdPartition) -> Asked | None:
        one = self._partitions.get(tip)
        if one is None or one.state is not State.READY or tip in self._held_back:
            return None
        return one.asked

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `next_fetch` may have a fetch, if no event comes before."""
        if self._in_flight or self._working:
            return None
        if self._not_before_ms:
            return self._not_before_ms
        return self._due_ms()

    def _due_ms(self) -> int | None:
        """Return the time at which the first delayed or throttled partition may be fetched."""
        due_ms, free_ms = self._delays[0][0] if self._delays else None, self._held_back.due_ms
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
        self._begin_anew(now_ms, keeps=True)

    def _begin_anew(self, now_ms: int, *, keeps: bool) -> None:
        self._session.begin_anew(keeps=keeps)
        self._not_before_ms = now_ms + self._settings.backoff_ms

    def answered(self, number: int, answer: FetchAnswer, now_ms: int) -> tuple[Effect, ...]:
        """Apply the leader's response to the fetch of that number; the response to an older fetch is
        discarded."""
        if number != self._in_flight:
            return ()
        self._in_flight = 0
        self._not_before_ms = 0
        session = self._session
        if answer.error is not ErrorCode.none:
            is_gone = answer.error is ErrorCode.fetch_session_id_not_found
            was_full = session.is_full
            self._begin_anew(now_ms, keeps=not is_gone)
            if is_gone and not was_full:
                self._not_before_ms = 0  # the leader evicted the session, or has restarted
            return ()
        why = self._nonsense(answer)
        if why:
            self._begin_anew(now_ms, keeps=not session.is_full)
            return (Warn(why),)
        session.answered(answer.session_id)
        effects: list[Effect] = []
        for index, told in enumerate(answer.partitions):
            effects += self._told(index, told, now_ms)
        return tuple(effects)

    def _nonsense(self, answer: FetchAnswer) -> str:
        """Return why the response as a whole is malformed; empty if it is not."""
        asked = self._session.asked
        seen = dict.fromkeys(told.tip for told in answer.partitions)
        if len(seen) != len(answer.partitions):
            return "the leader answers for a partition twice"
        stranger = next((tip for tip in seen if tip not in asked), None)
        if stranger is not None:
            return f"the leader answers for {stranger}, which was not asked for"
        if self._session.is_full and len(seen) < len(asked):
            return f"the leader answers for {len(seen)} of {len(asked)} partitions"
        other = answer.session_id not in (NO_SESSION, self._session.session_id)
        if not self._session.is_full and other:
            return f"the leader answers in session {answer.session_id}, not {self._session.session_id}"
        return ""

    def _told(self, index: int, told: PartitionAnswer, now_ms: int) -> Iterable[Effect]:
        """Apply the response for one partition; discard it if the log has changed since the fetch."""
        followed = self._partitions.get(told.tip)
        if followed is None:
            return ()
        is_current = self._session.asked.get(told.tip, followed.asked)[:3] == followed.asked[:3]
        if followed.state is not State.READY or not is_current:
            self._unheard[told.tip] = self._changed[told.tip] = None
            return ()
        error = told.error
        if error is ErrorCode.none:
            if told.diverging is not None:
                return self._part(followed, *told.diverging, now_ms)
            if told.size:
                self._held_back.record(told.tip, told.size, now_ms)
                followed.told = told.high_watermark, told.start_offset
                number = self._begin(followed, State.WORKING)
                return (Append(number, followed.tip, followed.leader_epoch, index, told.start_offset),)
            news = self._lags(followed, told.high_watermark) if followed.lag is None else ()
            return (*self._follow(followed, told.high_watermark, told.start_offset), *news)
        if error is ErrorCode.offset_out_of_range:
            number = self._begin(followed, State.ASKING)
            return (AskOffsets(number, followed.tip, followed.leader_epoch),)
        if error is ErrorCode.offset_moved_to_tiered_storage:
            return (self._build(followed, told.start_offset),)
        self._refused(followed, error, now_ms)
        return ()

    def _refused(self, followed: Followed, error: ErrorCode, now_ms: int) -> None:
        """Hold the partition on FENCED_LEADER_EPOCH, as the image will name a newer leader. Delay it on other
        errors; those of a leader that has not applied its election yet pass soon."""
        if error is ErrorCode.fenced_leader_epoch:
            followed.move(State.HELD)
            self._changed[followed.tip] = None
        elif error in _NOT_YET:
            followed.early += 1
            self._delay(followed, now_ms, self._settings.early_ms << min(followed.early - 1, _DOUBLINGS))
        else:
            self._delay(followed, now_ms)

    def _follow(self, followed: Followed, high_watermark: int, start: int) -> Iterable[Effect]:
        """Raise the high watermark to the leader's, up to our log's end. A new leader may report a lower
        one."""
        log = followed.log
        mark = max(log.high_watermark, min(high_watermark, log.log_end_offset))
        start = max(log.log_start_offset, min(start, mark))
        if mark == log.high_watermark and start == log.log_start_offset:
            return ()
        if start != log.log_start_offset:
            self._changed[followed.tip] = None
        return (Follow(followed.tip, mark, start),)

    def _lags(self, followed: Followed, high_watermark: int) -> Iterable[Effect]:
        """Update the lag behind the leader's high watermark, and report when it reaches 0."""
        before, is_told = followed.lag, high_watermark != NO_OFFSET
        followed.lag = max(high_watermark - followed.log.log_end_offset, 0) if is_told else None
        self._held_back.note(followed.tip, followed.lag)
        return (CaughtUp(followed.tip, followed.leader_epoch),) if followed.lag == 0 != before else ()

    # -- divergence

    def _part(self, followed: Followed, epoch: int, end: int, now_ms: int) -> Iterable[Effect]:
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
        return self._cut(followed, min(offset, log.log_end_offset))

    def _cut(self, followed: Followed, offset: int) -> Iterable[Effect]:
        log = followed.log
        is_below = offset < log.high_watermark
        if is_below and followed.is_clean:
            followed.move(State.HELD)
            self._changed[followed.tip] = None
            why = (
                f"the leader of epoch {followed.leader_epoch} asks to truncate committed records, to {offset}"
            )
            return (Hold(followed.tip, f"{why} from the high watermark {log.high_watermark}"),)
        return (Truncate(self._begin(followed, State.WORKING), followed.tip, offset, is_below),)

    def offsets(self, number: int, told: Offsets | ErrorCode, now_ms: int) -> tuple[Effect, ...]:
        """Apply the response to `AskOffsets`; an error code if the request failed."""
        followed = self._under_way.get(number)
        if followed is None:
            return ()
        self._over(followed)
        self._changed[followed.tip] = None
        end = followed.log.log_end_offset
        if isinstance(told, ErrorCode):
            self._refused(followed, told, now_ms)
        elif 0 <= told.end < end:
            return tuple(self._cut(followed, told.end))
        elif told.start > end:
            return (Restart(self._begin(followed, State.WORKING), followed.tip, told.start),)
        else:
            self._delay(followed, now_ms)
        return ()

    # -- effects in progress

    def is_wanted(self, number: int) -> bool:
        """Return whether the effect of that number is still to be carried out."""
        return number in self._under_way

    def done(self, number: int, outcome: Done, now_ms: int) -> tuple[Effect, ...]:
        """Apply the outcome of an `Append`, `Truncate`, `Restart`, `BuildLocalStart` or `Flush`."""
        followed = self._under_way.get(number)
        if followed is None:
            return ()
        self._over(followed)
        self._changed[followed.tip] = None
        if outcome is Done.UNFLUSHED:
            return (self._flush(followed, self._settings.backoff_ms),)
        told, followed.told = followed.told, NOTHING_TOLD
        is_idle = followed.asked == followed.before and followed.state is not State.FLUSHING
        if outcome is Done.OFFLINE:
            followed.move(State.HELD)
        elif outcome is not Done.DONE or is_idle:
            self._delay(followed, now_ms)
        else:
            followed.move(State.READY)
            news = self._lags(followed, told[0])
            self._partitions[followed.tip] = self._partitions.pop(followed.tip)
            return (*self._follow(followed, *told), *news)
        return ()

    def _build(self, followed: Followed, start_offset: int) -> BuildLocalStart:
        number = self._begin(followed, State.BUILDING)
        return BuildLocalStart(number, followed.tip, followed.leader_epoch, start_offset)

    def _flush(self, followed: Followed, after_ms: int) -> Flush:
        return Flush(self._begin(followed, State.FLUSHING), followed.tip, after_ms)

    def _begin(self, followed: Followed, state: State) -> int:
        """Begin an effect of the partition and return its number."""
        followed.move(state)
        followed.number, followed.before = self._next_number(), followed.asked
        self._under_way[followed.number] = followed
        self._working += state is State.WORKING
        self._changed[followed.tip] = None
        return followed.number

    def _over(self, followed: Followed) -> None:
        """End the partition's effect in progress, if there is one."""
        if self._under_way.pop(followed.number, None) is not None:
            self._working -= followed.state is State.WORKING
        followed.number = 0

    def _delay(self, followed: Followed, now_ms: int, most_ms: int | None = None) -> None:
        backoff_ms = self._settings.backoff_ms
        followed.move(State.DELAYED)
        followed.due_ms = now_ms + (backoff_ms if most_ms is None else min(most_ms, backoff_ms))
        heappush(self._delays, (followed.due_ms, self._next_number(), followed))
        self._changed[followed.tip] = None

    def _wake(self, now_ms: int) -> None:
        """Make delayed partitions ready whose delay has passed."""
        delays = self._delays
        while delays and delays[0][0] <= now_ms:
            followed = heappop(delays)[2]
            if followed.state is State.DELAYED and self._partitions.get(followed.tip) is followed:
                followed.move(State.READY)
                self._changed[followed.tip] = None
