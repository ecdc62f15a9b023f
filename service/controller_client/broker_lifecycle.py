"""A broker's life with the controller, as a machine: register, catch up, recover logs, serve, move away. [P]

`State` moves as the table `MOVES` says; an illegal move raises. One request at a time is under way: a
registration while the broker is not registered, heartbeats afterwards. The shell (`membership`) does the
effects, tells what came of them, and calls `step` with a `Tick` when `next_deadline_ms` is reached.

    STARTING     not registered, or behind its own registration in the metadata
    RECOVERING   caught up: the logs are opened; it wants to stay fenced
    READY        the logs are there; it wants to be unfenced
    UNFENCED     it serves (and goes on where the controller fences it for a while)
    LEAVING      controlled shutdown: its leaderships move to others
    GONE         nothing more is said

Timing is Kafka 4.3.1's ``BrokerLifecycleManager``: a heartbeat per interval; 10 ms after one that found it
not caught up; the second of a controlled shutdown after 50 ms; a change is reported at once, or right after
the request under way. So is a heartbeat once the connection to the controller broke or another controller is
known, though not twice within half a second: the controller hears that the broker lives, and does not suspect
it. Where Kafka waits for the interval after a failed request, this tries again sooner: a heartbeat after half
a second at most. Where Kafka goes on with heartbeats of an epoch that the controller does not know (any
more), this registers again, as the same incarnation: that gives the same epoch back, or says who took the id.
A broker that is leaving and is not known has nothing to move, and goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError

_CATCHING_UP_MS: Final = 10
_BEHIND_MS: Final = 100
"""Heartbeats while its own registration was not published yet: they say that it is alive, no more."""
_FIRST_LEAVING_MS: Final = 50
_FIRST_RETRY_MS: Final = 100
_HASTE_MS: Final = 500
_UNKNOWN: Final = frozenset({ErrorCode.stale_broker_epoch, ErrorCode.broker_id_not_registered})


class State(Enum):
    STARTING = "starting"
    RECOVERING = "recovering"
    READY = "ready"
    UNFENCED = "unfenced"
    LEAVING = "leaving"
    GONE = "gone"


MOVES: Final = {
    State.STARTING: frozenset({State.RECOVERING, State.GONE}),
    State.RECOVERING: frozenset({State.READY, State.GONE}),
    State.READY: frozenset({State.UNFENCED, State.GONE}),
    State.UNFENCED: frozenset({State.LEAVING, State.GONE}),
    State.LEAVING: frozenset({State.GONE}),
    State.GONE: frozenset[State](),
}


class FullDirectories(NamedTuple):
    """Log directories without room: ``full`` take no records, ``resting`` of them do not replicate either."""

    full: tuple[UUID, ...] = ()
    resting: tuple[UUID, ...] = ()


NONE_IS_FULL: Final = FullDirectories()


class Timing(NamedTuple):
    """Kafka's keys in brackets."""

    heartbeat_interval_ms: int = 2_000
    """``broker.heartbeat.interval.ms``"""
    answer_timeout_ms: int = 4_500
    """So long one try may take: half of ``broker.session.timeout.ms``, as in Kafka."""
    registration_timeout_ms: int = 60_000
    """``initial.broker.registration.timeout.ms``"""
    controlled_shutdown: bool = True
    """``controlled.shutdown.enable``"""
    shutdown_timeout_ms: int = 300_000
    """The most that a controlled shutdown takes; Kafka's is five minutes, too."""
    directory_timeout_ms: int = 30_000
    """``log.dir.failure.timeout.ms``: a failed directory that the controller does not hear of ends us."""


# What happens


@dataclass(frozen=True, slots=True)
class Start:
    """The first event."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went on."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The registration was taken; its epoch is the offset of its record."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    moves_leaders: bool = False
    """the controller moves leaderships away from full directories"""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request under way failed: refused with `error`, or lost or too late (None)."""

    error: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The node is what the metadata says up to `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class LogsReady:
    """The logs are recovered: it can serve."""


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """The connection to the controller broke, or there is another controller, which has not heard of us."""


@dataclass(frozen=True, slots=True)
class Term:
    """The process is to end."""


@dataclass(frozen=True, slots=True)
class DirectoryFailed:
    """A log directory is offline."""

    directory_id: UUID


@dataclass(frozen=True, slots=True)
class RoomChanged:
    """Other log directories than before are without room."""

    directories: FullDirectories


Event = (
    Start
    | Tick
    | Registered
    | HeartbeatAnswered
    | Failed
    | Published
    | LogsReady
    | ControllerChanged
    | Term
    | DirectoryFailed
    | RoomChanged
)

# What is to be done


@dataclass(frozen=True, slots=True)
class Register:
    """Ask to be registered. Answer with `Registered` or `Failed`."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Say how it is. Answer with `HeartbeatAnswered` or `Failed`."""

    epoch: int
    metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_directories: tuple[UUID, ...] = ()
    cordoned_directories: tuple[UUID, ...] | None = None
    """None until it has caught up; none ever are"""
    full_directories: FullDirectories = NONE_IS_FULL


@dataclass(frozen=True, slots=True)
class Recover:
    """It knows what it holds: open the logs, and tell `LogsReady`."""


@dataclass(frozen=True, slots=True)
class Serve:
    """It is unfenced."""


@dataclass(frozen=True, slots=True)
class MoveAway:
    """A controlled shutdown begins: leaderships move, clients are still served."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Close down. `is_failure`: it could not do what it was started for."""

    reason: str
    is_failure: bool = False


Effect = Register | Heartbeat | Recover | Serve | MoveAway | Exit


class Lifecycle:
    """One process's life as a broker. Times are milliseconds of a clock that never goes back."""

    def __init__(self, timing: Timing = Timing()) -> None:  # noqa: B008  # immutable
        self.state = State.STARTING
        self.epoch = -1
        """of the registration; -1 before the first one"""
        self.is_registered = False
        self.is_fenced = True
        """as the controller said last"""
        self.moves_leaders = False
        """whether the controller that answered last moves leaderships away from full directories"""
        self.metadata_offset = -1
        self._timing = timing
        self._offline: dict[UUID, int | None] = {}
        """failed directories: when the controller must have heard of it; None once it has"""
        self._telling: tuple[UUID, ...] = ()
        self._full = NONE_IS_FULL
        self._is_asking = False
        self._hurries = False
        """what is under way is to be followed by another request at once"""
        self._failures = 0
        self._logs_ready = False
        self._said_leaving = False
        """the request under way, or the last one, said that it is leaving"""
        self._heard_leaving = False
        self._due_ms: int | None = None
        self._hastened_ms = -_HASTE_MS
        self._register_by_ms: int | None = None
        self._leave_by_ms: int | None = None

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when a `Tick` is wanted, at the latest."""
        if self.state is State.GONE:
            return None
        due = None if self._is_asking else self._due_ms
        told = [by_ms for by_ms in self._offline.values() if by_ms is not None]
        deadlines = [one for one in (due, self._register_by_ms, self._leave_by_ms, *told) if one is not None]
        return min(deadlines, default=None)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """What is to be done about `event`, in order. Nothing once it is gone."""
        if self.state is State.GONE:
            return []
        effects = self._handle(event, now_ms)
        effects += self._look_at_the_clock(now_ms)
        return effects

    def _handle(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Start():
                self._register_by_ms = now_ms + self._timing.registration_timeout_ms
                self._due_ms = now_ms
            case Registered(epoch):
                self._registered(epoch, now_ms)
            case HeartbeatAnswered():
                return self._answered(event, now_ms)
            case Failed(error):
                return self._failed(error, now_ms)
            case Published(offset):
                self._published(offset, now_ms)
            case LogsReady():
                self._logs_ready = True
                if self.state is State.RECOVERING:
                    self._move(State.READY)
                    self._soon(now_ms)
            case ControllerChanged():
                self._hasten(now_ms)
            case Term():
                return self._term(now_ms)
            case DirectoryFailed(directory_id):
                if directory_id not in self._offline:
                    self._offline[directory_id] = now_ms + self._timing.directory_timeout_ms
                    if self.is_registered:
                        self._soon(now_ms)
            case RoomChanged(directories):
                if directories != self._full:
                    self._full = directories
                    if self.is_registered:
                        self._soon(now_ms)
            case Tick():
                pass
        return []

    def abandon(self) -> None:
        """Nothing is to be done any more."""
        self.state = State.GONE

    # -- events

    def _registered(self, epoch: int, now_ms: int) -> None:
        self._asked()
        self._failures = 0
        self.epoch = epoch
        self.is_registered = True
        self._register_by_ms = None
        self._in(0, now_ms)

    def _answered(self, answer: HeartbeatAnswered, now_ms: int) -> list[Effect]:
        self._asked()
        self._failures = 0
        self.is_fenced = answer.is_fenced
        self.moves_leaders = answer.moves_leaders
        for directory_id in self._telling:
            self._offline[directory_id] = None
        interval_ms = self._timing.heartbeat_interval_ms
        effects: list[Effect] = []
        if self.state is State.STARTING:
            interval_ms = _CATCHING_UP_MS if self.metadata_offset >= self.epoch else _BEHIND_MS
            if answer.is_caught_up:
                self._move(State.RECOVERING)
                effects.append(Recover())
                if self._logs_ready:
                    self._move(State.READY)
        elif self.state is State.READY and not answer.is_fenced:
            self._move(State.UNFENCED)
            effects.append(Serve())
        elif self.state is State.LEAVING:
            if answer.should_shut_down:
                return [self._exit("the controller has moved all leaderships away")]
            if self._said_leaving:
                interval_ms = interval_ms if self._heard_leaving else _FIRST_LEAVING_MS
                self._heard_leaving = True
        self._in(interval_ms, now_ms)
        return effects

    def _failed(self, error: ErrorCode | None, now_ms: int) -> list[Effect]:
        was_heartbeat = self.is_registered
        self._asked()
        self._hurries = False  # nobody is asked again at once who has just failed
        if was_heartbeat and error in _UNKNOWN:
            self.is_registered = False
            if self.state is State.LEAVING:
                return [self._exit("the controller does not know this broker any more")]
        self._failures += 1
        pause_ms = _FIRST_RETRY_MS << min(self._failures - 1, 20)
        # A controller that was just elected waits a second for heartbeats before a refusal fences.
        longest_ms = _HASTE_MS if self.is_registered else self._timing.heartbeat_interval_ms
        self._in(min(pause_ms, longest_ms), now_ms)
        return []

    def _published(self, offset: int, now_ms: int) -> None:
        before, self.metadata_offset = self.metadata_offset, max(offset, self.metadata_offset)
        waits = self.state in (State.STARTING, State.READY)
        if waits and self.is_registered and before < self.epoch <= self.metadata_offset:
            self._soon(now_ms)

    def _term(self, now_ms: int) -> list[Effect]:
        if self.state is State.LEAVING:
            return []
        if self.state is not State.UNFENCED or not self.is_registered:
            return [self._exit(f"nothing to move away: {self.state.value}")]
        if not self._timing.controlled_shutdown:
            return [self._exit("without a controlled shutdown, as configured")]
        self._move(State.LEAVING)
        self._leave_by_ms = now_ms + self._timing.shutdown_timeout_ms
        self._soon(now_ms)
        return [MoveAway()]

    def _hasten(self, now_ms: int) -> None:
        """A request that is under way goes on to the new controller by itself."""
        if self.is_registered and not self._is_asking and self._due_ms is not None:
            self._due_ms = min(self._due_ms, max(now_ms, self._hastened_ms + _HASTE_MS))
            self._hastened_ms = max(now_ms, self._hastened_ms)

    # -- requests

    def _look_at_the_clock(self, now_ms: int) -> list[Effect]:
        if self.state is State.GONE:
            return []
        if self._register_by_ms is not None and now_ms >= self._register_by_ms:
            seconds = self._timing.registration_timeout_ms / 1000
            return [self._exit(f"no controller has registered this broker within {seconds:g} s", failed=True)]
        if self._leave_by_ms is not None and now_ms >= self._leave_by_ms:
            return [self._exit("the controlled shutdown took too long")]
        for directory_id, by_ms in self._offline.items():
            if by_ms is not None and now_ms >= by_ms:
                what = f"the controller could not be told that directory {directory_id} is offline"
                return [self._exit(what, failed=True)]
        if self._is_asking or self._due_ms is None or now_ms < self._due_ms:
            return []
        self._is_asking, self._due_ms = True, None
        if not self.is_registered:
            return [Register()]
        self._telling = tuple(self._offline)
        self._said_leaving = self.state is State.LEAVING
        return [
            Heartbeat(
                self.epoch,
                self.metadata_offset,
                want_fence=self.state in (State.STARTING, State.RECOVERING),
                want_shut_down=self._said_leaving,
                offline_directories=self._telling,
                cordoned_directories=None if self.state is State.STARTING else (),
                full_directories=self._full,
            )
        ]

    def _asked(self) -> None:
        if not self._is_asking:
            raise InvariantError("an answer to nothing that was asked")
        self._is_asking = False

    def _soon(self, now_ms: int) -> None:
        """The next request at once, or as soon as the one under way is answered."""
        if self._is_asking:
            self._hurries = True
        else:
            self._due_ms = now_ms

    def _in(self, pause_ms: int, now_ms: int) -> None:
        self._due_ms = now_ms + (0 if self._hurries else pause_ms)
        self._hurries = False

    # -- states

    def _move(self, state: State) -> None:
        if state not in MOVES[self.state]:
            raise InvariantError(f"a broker does not go from {self.state.value} to {state.value}")
        self.state = state

    def _exit(self, reason: str, *, failed: bool = False) -> Exit:
        self._move(State.GONE)
        return Exit(reason, failed)
