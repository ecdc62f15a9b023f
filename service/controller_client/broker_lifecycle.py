"""State machine of a broker's registration: register, catch up, recover logs, serve, shut down. [P]

`State` moves as the table `MOVES` allows; another move raises. At most one request is pending: a registration
while the broker is not registered, heartbeats afterwards. The shell (`broker_lifecycle_manager`) runs the
effects, passes their results to `step`, and calls it with `TimePassed` when `next_deadline_ms` is reached.

    STARTING     not registered, or the image does not hold the registration yet
    RECOVERING   caught up: the logs are being opened; heartbeats ask to stay fenced
    READY        the logs are open; heartbeats ask to be unfenced
    UNFENCED     serves (a fence that the controller lifts again does not change the state)
    LEAVING      controlled shutdown: leaderships move to other brokers
    GONE         no more requests

Timing is that of Kafka 4.3.1's ``BrokerLifecycleManager``: a heartbeat per interval; 10 ms after one that
found the broker not caught up; the second of a controlled shutdown after 50 ms; a change is sent at once, or
right after the pending request. Three things differ:

- A heartbeat is also sent when the connection to the controller breaks or the controller changes, at most
  once in half a second: the controller then does not suspect a living broker.
- A failed heartbeat is sent again after half a second at most; Kafka waits for the interval.
- When the controller does not know the broker epoch, the broker registers again with the same incarnation
  id: it gets the same epoch back, or DUPLICATE_BROKER_REGISTRATION. Kafka goes on with heartbeats of the old
  epoch. A broker in LEAVING has no leadership left then, and exits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.backoff import doubled
from service.base.errors import InvariantError

_CATCHING_UP_MS: Final = 10
_BEHIND_MS: Final = 100
"""Pause between heartbeats until the image holds the registration: they only keep the session alive."""
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
    """Log directories without room: ``full`` take no records, ``resting`` ones do not replicate either."""

    full: tuple[UUID, ...] = ()
    resting: tuple[UUID, ...] = ()


NONE_IS_FULL: Final = FullDirectories()


class Timing(NamedTuple):
    """Kafka's keys in brackets."""

    heartbeat_interval_ms: int = 2_000
    """``broker.heartbeat.interval.ms``"""
    answer_timeout_ms: int = 4_500
    """Longest time of one try: half of ``broker.session.timeout.ms``, as in Kafka."""
    registration_timeout_ms: int = 60_000
    """``initial.broker.registration.timeout.ms``"""
    controlled_shutdown: bool = True
    """``controlled.shutdown.enable``"""
    shutdown_timeout_ms: int = 300_000
    """Longest controlled shutdown; Kafka's is five minutes, too."""
    directory_timeout_ms: int = 30_000
    """``log.dir.failure.timeout.ms``: the broker exits if a failed directory is not reported by then."""


# Events


@dataclass(frozen=True, slots=True)
class Start:
    """The first event."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time passed: handle the deadlines that are due."""


@dataclass(frozen=True, slots=True)
class Registered:
    """Accepted registration; its epoch is the offset of its record."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """Response to a heartbeat."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    moves_leaders: bool = False
    """whether the controller moves leaderships away from full directories"""


@dataclass(frozen=True, slots=True)
class Failed:
    """Failure of the pending request: refused with `error`, or lost or too late (None)."""

    error: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """Progress of this node: it has applied the metadata up to `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class LogsReady:
    """The logs are recovered: the broker can serve."""


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """The connection to the controller broke, or another controller was elected."""


@dataclass(frozen=True, slots=True)
class Term:
    """SIGTERM: begin a controlled shutdown."""


@dataclass(frozen=True, slots=True)
class DirectoryFailed:
    """A log directory is offline."""

    directory_id: UUID


@dataclass(frozen=True, slots=True)
class RoomChanged:
    """The set of log directories without room changed."""

    directories: FullDirectories


Event = (
    Start
    | TimePassed
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

# Effects


@dataclass(frozen=True, slots=True)
class Register:
    """Send BrokerRegistration. Its result is `Registered` or `Failed`."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send BrokerHeartbeat. Its result is `HeartbeatAnswered` or `Failed`."""

    epoch: int
    metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_directories: tuple[UUID, ...] = ()
    cordoned_directories: tuple[UUID, ...] | None = None
    """None until the broker has caught up, then always empty"""
    full_directories: FullDirectories = NONE_IS_FULL


@dataclass(frozen=True, slots=True)
class Recover:
    """Open the logs: the image has caught up. The shell reports `LogsReady` when they are open."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Begin to serve: the controller has unfenced this broker."""


@dataclass(frozen=True, slots=True)
class MoveAway:
    """Begin of a controlled shutdown: leaderships move, clients are still served."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Stop the broker. `is_failure`: it stops because of an error."""

    reason: str
    is_failure: bool = False


Effect = Register | Heartbeat | Recover | Serve | MoveAway | Exit


class Lifecycle:
    """Registration of one broker process. Times are milliseconds of a monotonic clock."""

    def __init__(self, timing: Timing = Timing()) -> None:  # noqa: B008  # immutable
        self.state = State.STARTING
        self.epoch = -1
        """broker epoch of the registration; -1 before the first one"""
        self.is_registered = False
        self.is_fenced = True
        """as in the last heartbeat response"""
        self.moves_leaders = False
        """whether the controller of the last response moves leaderships away from full directories"""
        self.metadata_offset = -1
        self._timing = timing
        self._offline: dict[UUID, int | None] = {}
        """deadline by which each failed directory must be reported; None once it is"""
        self._reported: tuple[UUID, ...] = ()
        self._full = NONE_IS_FULL
        self._is_pending = False
        self._sends_again = False
        """the next request follows the pending one at once"""
        self._failures = 0
        self._logs_ready = False
        self._asked_shut_down = False
        """the newest heartbeat asked for the shutdown"""
        self._shut_down_acknowledged = False
        self._due_ms: int | None = None
        self._sent_sooner_ms = -_HASTE_MS
        self._register_by_ms: int | None = None
        self._leave_by_ms: int | None = None

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when `step` needs a `TimePassed`, at the latest; None for never."""
        if self.state is State.GONE:
            return None
        due = None if self._is_pending else self._due_ms
        deadlines = (due, self._register_by_ms, self._leave_by_ms, *self._offline.values())
        return min((one for one in deadlines if one is not None), default=None)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle `event` and return its effects in order; none in `State.GONE`."""
        if self.state is State.GONE:
            return []
        effects = self._handle(event, now_ms)
        effects += self._check_deadlines(now_ms)
        return effects

    def _handle(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Start():
                self._register_by_ms = now_ms + self._timing.registration_timeout_ms
                self._due_ms = now_ms
            case Registered(epoch):
                self._registered(epoch, now_ms)
            case HeartbeatAnswered():
                return self._heartbeat_answered(event, now_ms)
            case Failed(error):
                return self._failed(error, now_ms)
            case Published(offset):
                self._published(offset, now_ms)
            case LogsReady():
                self._logs_ready = True
                if self.state is State.RECOVERING:
                    self._move(State.READY)
                    self._send_soon(now_ms)
            case ControllerChanged():
                self._send_sooner(now_ms)
            case Term():
                return self._term(now_ms)
            case DirectoryFailed(directory_id):
                if directory_id not in self._offline:
                    self._offline[directory_id] = now_ms + self._timing.directory_timeout_ms
                    if self.is_registered:
                        self._send_soon(now_ms)
            case RoomChanged(directories):
                if directories != self._full:
                    self._full = directories
                    if self.is_registered:
                        self._send_soon(now_ms)
            case TimePassed():
                pass
        return []

    def abandon(self) -> None:
        """Go to `State.GONE` without an effect."""
        self.state = State.GONE

    # -- events

    def _registered(self, epoch: int, now_ms: int) -> None:
        self._request_ended()
        self._failures = 0
        self.epoch = epoch
        self.is_registered = True
        self._register_by_ms = None
        self._send_in(0, now_ms)

    def _heartbeat_answered(self, answer: HeartbeatAnswered, now_ms: int) -> list[Effect]:
        self._request_ended()
        self._failures = 0
        self.is_fenced = answer.is_fenced
        self.moves_leaders = answer.moves_leaders
        for directory_id in self._reported:
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
            if self._asked_shut_down:
                interval_ms = interval_ms if self._shut_down_acknowledged else _FIRST_LEAVING_MS
                self._shut_down_acknowledged = True
        self._send_in(interval_ms, now_ms)
        return effects

    def _failed(self, error: ErrorCode | None, now_ms: int) -> list[Effect]:
        was_heartbeat = self.is_registered
        self._request_ended()
        self._sends_again = False  # a failure is followed by a pause, also if a change waits to be sent
        if was_heartbeat and error in _UNKNOWN:
            self.is_registered = False
            if self.state is State.LEAVING:
                return [self._exit("the controller does not know this broker any more")]
        self._failures += 1
        # A new controller waits one second for heartbeats before a refused connection fences a broker.
        longest_ms = _HASTE_MS if self.is_registered else self._timing.heartbeat_interval_ms
        self._send_in(doubled(self._failures, _FIRST_RETRY_MS, longest_ms), now_ms)
        return []

    def _published(self, offset: int, now_ms: int) -> None:
        before, self.metadata_offset = self.metadata_offset, max(offset, self.metadata_offset)
        is_waiting = self.state in (State.STARTING, State.READY)
        if is_waiting and self.is_registered and before < self.epoch <= self.metadata_offset:
            self._send_soon(now_ms)

    def _term(self, now_ms: int) -> list[Effect]:
        if self.state is State.LEAVING:
            return []
        if self.state is not State.UNFENCED or not self.is_registered:
            return [self._exit(f"nothing to move away: {self.state.value}")]
        if not self._timing.controlled_shutdown:
            return [self._exit("without a controlled shutdown, as configured")]
        self._move(State.LEAVING)
        self._leave_by_ms = now_ms + self._timing.shutdown_timeout_ms
        self._send_soon(now_ms)
        return [MoveAway()]

    def _send_sooner(self, now_ms: int) -> None:
        """Send the next heartbeat sooner. A pending request goes to the new controller by itself."""
        if self.is_registered and not self._is_pending and self._due_ms is not None:
            self._due_ms = min(self._due_ms, max(now_ms, self._sent_sooner_ms + _HASTE_MS))
            self._sent_sooner_ms = max(now_ms, self._sent_sooner_ms)

    # -- requests

    def _check_deadlines(self, now_ms: int) -> list[Effect]:
        if self.state is State.GONE:
            return []
        if self._register_by_ms is not None and now_ms >= self._register_by_ms:
            seconds = self._timing.registration_timeout_ms / 1000
            return [self._exit(f"no controller has registered this broker within {seconds:g} s", failed=True)]
        if self._leave_by_ms is not None and now_ms >= self._leave_by_ms:
            return [self._exit("the controlled shutdown took too long")]
        for directory_id, by_ms in self._offline.items():
            if by_ms is not None and now_ms >= by_ms:
                reason = f"no controller has taken the report that directory {directory_id} is offline"
                return [self._exit(reason, failed=True)]
        if self._is_pending or self._due_ms is None or now_ms < self._due_ms:
            return []
        self._is_pending, self._due_ms = True, None
        if not self.is_registered:
            return [Register()]
        self._reported = tuple(self._offline)
        self._asked_shut_down = self.state is State.LEAVING
        return [
            Heartbeat(
                self.epoch,
                self.metadata_offset,
                want_fence=self.state in (State.STARTING, State.RECOVERING),
                want_shut_down=self._asked_shut_down,
                offline_directories=self._reported,
                cordoned_directories=None if self.state is State.STARTING else (),
                full_directories=self._full,
            )
        ]

    def _request_ended(self) -> None:
        if not self._is_pending:
            raise InvariantError("a response without a pending request")
        self._is_pending = False

    def _send_soon(self, now_ms: int) -> None:
        """Send the next request now, or right after the pending one."""
        if self._is_pending:
            self._sends_again = True
        else:
            self._due_ms = now_ms

    def _send_in(self, pause_ms: int, now_ms: int) -> None:
        self._due_ms = now_ms + (0 if self._sends_again else pause_ms)
        self._sends_again = False

    # -- states

    def _move(self, state: State) -> None:
        if state not in MOVES[self.state]:
            raise InvariantError(f"a broker does not go from {self.state.value} to {state.value}")
        self.state = state

    def _exit(self, reason: str, *, failed: bool = False) -> Exit:
        self._move(State.GONE)
        return Exit(reason, failed)
