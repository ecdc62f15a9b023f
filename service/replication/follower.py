"""One fetcher: what is asked of one leader, and what its answers make of the logs that follow it. [P]

One fetch at a time, in one session. A partition is asked for at its log's end with the latest epoch it knows,
so the leader finds out where the logs have parted; it is cut there, and asked for again until they agree.
What an answer makes necessary are effects: plain values, done by the shell in their order. Those that have a
number are told with it when they are done (`done`, `offsets`); one that is no longer wanted (`is_wanted`), as
the partition has another leader since, is not begun, and not gone on with.

Of logs the machine sees offsets and epochs, never a byte, and nothing of time but what it is told. What it
costs goes with what changes, not with the partitions it has. Apache Kafka 4.3 ``AbstractFetcherThread``,
``ReplicaFetcherThread``, ``TierStateMachine``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from heapq import heappop, heappush
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.types import NO_LEADER_EPOCH, NO_OFFSET, TopicIdPartition
from service.replication.asking import FIRST_EPOCH, NO_SESSION, Asked, FetchSessionAsked
from service.replication.followed import NOTHING_TOLD, Followed, FollowerLog, State
from service.replication.throttle import HeldBack, Throttle

# -- answers


class PartitionAnswer(NamedTuple):
    """What a leader says of one partition; `size` is that of the records that came with it."""

    tip: TopicIdPartition
    error: ErrorCode = ErrorCode.none
    high_watermark: int = NO_OFFSET
    start_offset: int = NO_OFFSET
    size: int = 0
    diverging: tuple[int, int] | None = None
    """(epoch, end offset)"""


class FetchAnswer(NamedTuple):
    error: ErrorCode
    session_id: int
    partitions: Sequence[PartitionAnswer]


class Offsets(NamedTuple):
    """Where the leader's log begins and ends."""

    start: int
    end: int


class Done(Enum):
    """What became of an effect."""

    DONE = "done"
    CORRUPT = "corrupt"
    """the bytes are not what they should be, or nothing of them fits: the partition rests, and asks again"""
    NOT_NOW = "not now"
    """it may work later"""
    UNFLUSHED = "unflushed"
    """the log has grown, but is not on the device as its settings ask; the disk may do that later"""
    OFFLINE = "offline"
    """the log's files cannot be relied on: the partition is left alone until it is assigned anew"""


# -- effects


class Fetch(NamedTuple):
    """Ask the leader: for `partitions` in a new session, where the epoch is 0, else these have changed."""

    number: int
    session_id: int
    session_epoch: int
    partitions: Sequence[tuple[TopicIdPartition, Asked]]
    forgotten: Sequence[TopicIdPartition]
    is_whole: bool = True
    """All that is wanted has been said by this. Else the next fetch says more, so this one is not to wait."""
    most_wait_ms: int | None = None
    """Then partitions that rest, or wait for the quota, may be asked for again."""

    @property
    def begins_session(self) -> bool:
        """Whether the leader knows of nothing but what is named here."""
        return self.session_epoch == FIRST_EPOCH


class Append(NamedTuple):
    """Append the records of the answer's partition `at`, as far as `arriving.fit` and checksums say."""

    number: int
    tip: TopicIdPartition
    leader_epoch: int
    at: int
    start_offset: int
    """where the leader's log begins"""


class Truncate(NamedTuple):
    """Cut the log to `offset`, with all epochs that begin there or later, and its high watermark with it."""

    number: int
    tip: TopicIdPartition
    offset: int
    is_below_high_watermark: bool
    """records that were committed go: an unclean election made it so"""


class Restart(NamedTuple):
    """All of the log goes; it begins anew, empty, at `offset`, and so does its high watermark."""

    number: int
    tip: TopicIdPartition
    offset: int


class AskOffsets(NamedTuple):
    """Ask the leader where its log begins and ends (ListOffsets as a replica), and tell `offsets`."""

    number: int
    tip: TopicIdPartition
    leader_epoch: int


class BuildLocalStart(NamedTuple):
    """What the leader has locally begins above our end: begin anew there, with start offset, epochs and
    producers out of the archive, as the metadata image has it."""

    number: int
    tip: TopicIdPartition
    leader_epoch: int
    start_offset: int
    """of the leader's log as a whole"""


class Flush(NamedTuple):
    """Have what was appended on the device, as the topic's settings ask, in `after_ms`: the next fetch would
    tell the leader that we have it. Others are fetched meanwhile."""

    number: int
    tip: TopicIdPartition
    after_ms: int


class Follow(NamedTuple):
    """The log's high watermark and start are these now: they rise, never above its end."""

    tip: TopicIdPartition
    high_watermark: int
    start_offset: int


class CaughtUp(NamedTuple):
    """The log has all that its leader has told to be committed, for the first time since it lacked some."""

    tip: TopicIdPartition
    leader_epoch: int


class Hold(NamedTuple):
    """The partition is left alone until it is assigned anew, for a reason that somebody should know."""

    tip: TopicIdPartition
    why: str


class Warn(NamedTuple):
    """The leader does what none should."""

    why: str


Effect = Append | Truncate | Restart | AskOffsets | BuildLocalStart | Flush | Follow | CaughtUp | Hold | Warn

MOST_NAMED: Final = 1_000
"""partitions in one fetch, so that neither it nor its answer holds the loop"""
_NOT_YET: Final = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
)
"""A leader says so whose image is behind ours."""
_DOUBLINGS: Final = 10
_Said = tuple[list[tuple[TopicIdPartition, Asked]], list[TopicIdPartition]]
"""what a fetch names, and what it forgets"""


class FollowerSettings(NamedTuple):
    backoff_ms: int = 1_000
    """``replica.fetch.backoff.ms``"""
    early_ms: int = 20
    """the first time, where a leader does not know of its office yet; then twice as long each time"""


class FollowerMachine:
    """All partitions that one fetcher of this node fetches from one leader. Owned by the event loop."""

    def __init__(self, settings: FollowerSettings, throttle: Throttle | None = None) -> None:
        """`throttle`: that of all fetchers of the node."""
        self._settings = settings
        self._held_back = HeldBack(throttle)
        self._partitions: dict[TopicIdPartition, Followed] = {}
        """those that got records last are the last"""
        self._changed: dict[TopicIdPartition, None] = {}
        """what may differ from what the leader knows, in order"""
        self._unheard: dict[TopicIdPartition, None] = {}
        """of which an answer was dropped: the leader holds its marks for known, unless that is forgotten"""
        self._session = FetchSessionAsked()
        self._delays: list[tuple[int, int, Followed]] = []
        self._numbers = 0
        self._in_flight = 0
        """number of the fetch that is not answered; 0 where there is none"""
        self._under_way: dict[int, Followed] = {}
        """effects that are not done, by their numbers"""
        self._working = 0
        """how many of them change a log"""
        self._not_before_ms = 0

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, tip: TopicIdPartition) -> bool:
        return tip in self._partitions

    @property
    def has_news(self) -> bool:
        """Whether the leader is to be told something else than it was."""
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
        """Follow the leader of `leader_epoch` from now on, at the end that `log` has now. The same epoch
        again changes nothing, but for a partition that was held.

        `is_clean`: no committed record can be missing at the leader, so nothing below our high watermark is
        ever cut off. `builds_first`: an empty log begins at the end of the archive (KIP-1023).
        `flushes_first`: an earlier leader's records are not on the device yet, and are to be.
        `is_in_sync`: what is committed is here, so a throttle does not hold it back.
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
        """It has another leader, or none, or is gone from here. Effects of it are not wanted any more."""
        followed = self._partitions.pop(tip, None)
        self._unheard.pop(tip, None)
        if followed is not None:
            self._over(followed)
            self._changed[tip] = None
            self._held_back.forget(tip)

    def throttled(self, tip: TopicIdPartition) -> None:
        """It is throttled now, or is no more."""
        if tip in self._partitions:
            self._held_back.note(tip, self._partitions[tip].lag)
            self._changed[tip] = None

    def start_moved(self, tip: TopicIdPartition) -> None:
        """The start of its log has moved by itself."""
        if tip in self._partitions:
            self._changed[tip] = None

    # -- asking

    def next_fetch(self, now_ms: int) -> Fetch | None:
        """What is to be asked now; None while a fetch is in flight, an answer is worked off, or nothing is
        to be had."""
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
        """What a full fetch names; where that is much, the next ones name the rest, and had the leader no
        session for us, those come first in the next full one."""
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
        """What the next fetch of a session says."""
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
        """When `next_fetch` may have something to ask though nothing has happened until then."""
        if self._in_flight or self._working:
            return None
        if self._not_before_ms:
            return self._not_before_ms
        return self._due_ms()

    def _due_ms(self) -> int | None:
        """When the first of those that rest, or that wait for the quota, is to be asked for."""
        due_ms, free_ms = self._delays[0][0] if self._delays else None, self._held_back.due_ms
        return free_ms if due_ms is None or (free_ms is not None and free_ms < due_ms) else due_ms

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- answers

    def failed(self, number: int, now_ms: int) -> None:
        """The fetch was not answered: no connection, no time left, or nonsense. It may have been read."""
        if number != self._in_flight:
            return
        self._in_flight = 0
        self._begin_anew(now_ms, keeps=True)

    def _begin_anew(self, now_ms: int, *, keeps: bool) -> None:
        self._session.begin_anew(keeps=keeps)
        self._not_before_ms = now_ms + self._settings.backoff_ms

    def answered(self, number: int, answer: FetchAnswer, now_ms: int) -> tuple[Effect, ...]:
        """The leader's answer to the fetch of that number; an older one is dropped."""
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
                self._not_before_ms = 0  # it was evicted, or its leader has started anew
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
        """What is wrong with the answer as a whole."""
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
        """An answer that does not fit what the log is now says nothing."""
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
        """FENCED_LEADER_EPOCH: there is a newer leader, of whom the image will tell. All else may pass; what
        a leader says that has not applied its election yet mostly passes at once."""
        if error is ErrorCode.fenced_leader_epoch:
            followed.move(State.HELD)
            self._changed[followed.tip] = None
        elif error in _NOT_YET:
            followed.early += 1
            self._delay(followed, now_ms, self._settings.early_ms << min(followed.early - 1, _DOUBLINGS))
        else:
            self._delay(followed, now_ms)

    def _follow(self, followed: Followed, high_watermark: int, start: int) -> Iterable[Effect]:
        """The leader's high watermark is ours as far as our log goes; it does not fall by a leader that does
        not know better yet."""
        log = followed.log
        mark = max(log.high_watermark, min(high_watermark, log.log_end_offset))
        start = max(log.log_start_offset, min(start, mark))
        if mark == log.high_watermark and start == log.log_start_offset:
            return ()
        if start != log.log_start_offset:
            self._changed[followed.tip] = None
        return (Follow(followed.tip, mark, start),)

    def _lags(self, followed: Followed, high_watermark: int) -> Iterable[Effect]:
        """How much it lacks of what the leader tells to be committed."""
        before, is_told = followed.lag, high_watermark != NO_OFFSET
        followed.lag = max(high_watermark - followed.log.log_end_offset, 0) if is_told else None
        self._held_back.note(followed.tip, followed.lag)
        return (CaughtUp(followed.tip, followed.leader_epoch),) if followed.lag == 0 != before else ()

    # -- where the logs part

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
            why = f"the leader of epoch {followed.leader_epoch} would have us cut at {offset}, and all below"
            return (Hold(followed.tip, f"{why} {log.high_watermark} is committed"),)
        return (Truncate(self._begin(followed, State.WORKING), followed.tip, offset, is_below),)

    def offsets(self, number: int, told: Offsets | ErrorCode, now_ms: int) -> tuple[Effect, ...]:
        """The answer to `AskOffsets`; any error where there was none."""
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

    # -- what is under way

    def is_wanted(self, number: int) -> bool:
        """Whether the effect of that number is to be begun, or gone on with."""
        return number in self._under_way

    def done(self, number: int, outcome: Done, now_ms: int) -> tuple[Effect, ...]:
        """What became of an `Append`, `Truncate`, `Restart`, `BuildLocalStart` or `Flush`."""
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
        """An effect of the partition begins."""
        followed.move(state)
        followed.number, followed.before = self._next_number(), followed.asked
        self._under_way[followed.number] = followed
        self._working += state is State.WORKING
        self._changed[followed.tip] = None
        return followed.number

    def _over(self, followed: Followed) -> None:
        """Whatever was under way of the partition is no more."""
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
        """Those whose time has come are asked for again."""
        delays = self._delays
        while delays and delays[0][0] <= now_ms:
            followed = heappop(delays)[2]
            if followed.state is State.DELAYED and self._partitions.get(followed.tip) is followed:
                followed.move(State.READY)
                self._changed[followed.tip] = None
