"""A broker's life with the controller, event by event (Kafka's ``BrokerLifecycleManager``)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError
from service.controller_client.broker_lifecycle import (
    ControllerChanged,
    DirectoryFailed,
    Effect,
    Event,
    Exit,
    Failed,
    FullDirectories,
    Heartbeat,
    HeartbeatAnswered,
    Lifecycle,
    LogsReady,
    MoveAway,
    Published,
    Recover,
    Register,
    Registered,
    RoomChanged,
    Serve,
    Start,
    State,
    Term,
    TimePassed,
    Timing,
)

BEHIND = HeartbeatAnswered(is_caught_up=False, is_fenced=True, should_shut_down=False)
FENCED = HeartbeatAnswered(is_caught_up=True, is_fenced=True, should_shut_down=False)
UNFENCED = HeartbeatAnswered(is_caught_up=True, is_fenced=False, should_shut_down=False)
MAY_GO = HeartbeatAnswered(is_caught_up=True, is_fenced=True, should_shut_down=True)
DIRECTORY = UUID(int=5)
INTERVAL_MS = 2_000


class Life:
    """A machine and its clock."""

    def __init__(self, timing: Timing = Timing()) -> None:  # noqa: B008
        self.machine = Lifecycle(timing)
        self.now_ms = 1_000_000

    def do(self, event: Event, after_ms: int = 0) -> list[Effect]:
        self.now_ms += after_ms
        return [self._without_cordoned(one) for one in self.machine.step(event, self.now_ms)]

    def _without_cordoned(self, effect: Effect) -> Effect:
        """Remove the empty list of cordoned directories, which is sent from catching up on."""
        if not isinstance(effect, Heartbeat):
            return effect
        assert effect.cordoned_directories == (None if self.machine.state is State.STARTING else ())
        return replace(effect, cordoned_directories=None)

    def next(self) -> tuple[int, list[Effect]]:
        """Jump to the next deadline: (ms until then, what is done)."""
        due_ms = self.machine.next_deadline_ms
        assert due_ms is not None
        waited_ms = due_ms - self.now_ms
        return waited_ms, self.do(TimePassed(), waited_ms)

    def starts(self, epoch: int = 40) -> Life:
        assert self.do(Start()) == [Register()]
        assert self.do(Registered(epoch)) == [beat(epoch, -1, fence=True)]
        return self

    def serves(self) -> Life:
        self.starts()
        self.do(Published(50))
        assert self.do(FENCED) == [Recover(), beat(40, 50, fence=True)]
        assert self.do(FENCED) == []
        assert self.do(LogsReady()) == [beat(40, 50)]
        assert self.do(UNFENCED) == [Serve()]
        return self


def beat(
    epoch: int, offset: int, *, fence: bool = False, leave: bool = False, offline: tuple[UUID, ...] = ()
) -> Heartbeat:
    return Heartbeat(epoch, offset, fence, leave, offline)


def test_a_broker_registers_catches_up_recovers_and_serves() -> None:
    life = Life().starts()
    assert life.do(BEHIND) == []
    assert life.machine.state is State.STARTING
    assert life.next() == (100, [beat(40, -1, fence=True)])  # alive, but behind its own registration
    assert life.do(Published(39)) == []
    assert life.do(BEHIND) == []
    assert life.do(Published(41), 3) == [beat(40, 41, fence=True)]  # at once
    assert life.do(BEHIND) == []
    assert life.next() == (10, [beat(40, 41, fence=True)])
    assert life.do(FENCED) == [Recover()]
    assert life.machine.state is State.RECOVERING
    assert life.next() == (10, [beat(40, 41, fence=True)])
    assert life.do(FENCED) == []
    assert life.next() == (INTERVAL_MS, [beat(40, 41, fence=True)])
    assert life.do(LogsReady()) == []  # one at a time
    assert life.do(FENCED) == [beat(40, 41)]
    assert life.do(UNFENCED) == [Serve()]
    assert life.machine.state is State.UNFENCED
    assert not life.machine.is_fenced
    assert life.next() == (INTERVAL_MS, [beat(40, 41)])


def test_the_second_heartbeat_of_a_start_comes_soon() -> None:
    """Kafka: 10 ms, so that a node with nothing to recover starts quicker."""
    life = Life().starts()
    life.do(Published(40))
    life.do(LogsReady())
    assert life.do(FENCED) == [Recover(), beat(40, 40)]  # ready before it had caught up
    assert life.do(UNFENCED) == [Serve()]


def test_a_registration_is_tried_again_ever_later_until_its_time_is_up() -> None:
    life = Life()
    assert life.do(Start()) == [Register()]
    waits = []
    for error in (None, ErrorCode.duplicate_broker_registration, None, None, None, None, None):
        assert life.do(Failed(error)) == []
        waited_ms, effects = life.next()
        waits.append(waited_ms)
        assert effects == [Register()]
    assert waits == [100, 200, 400, 800, 1600, 2000, 2000]
    assert life.next()[1] == [Exit("no controller has registered this broker within 60 s", is_failure=True)]
    assert life.machine.state is State.GONE
    assert life.do(Registered(3)) == []
    assert life.machine.next_deadline_ms is None


def test_the_registration_timeout_counts_for_the_first_one_alone() -> None:
    life = Life().serves()
    life.next()
    life.do(Failed(ErrorCode.stale_broker_epoch))
    for _ in range(100):
        _, effects = life.next()
        assert effects == [Register()]
        assert life.do(Failed()) == []
    assert life.machine.state is State.UNFENCED


@pytest.mark.parametrize("error", [ErrorCode.stale_broker_epoch, ErrorCode.broker_id_not_registered])
def test_an_unknown_broker_registers_again(error: ErrorCode) -> None:
    life = Life().serves()
    assert life.next()[1] == [beat(40, 50)]
    assert life.do(Failed(error)) == []
    assert life.next() == (100, [Register()])
    assert life.do(Registered(70)) == [beat(70, 50)]
    assert life.do(FENCED) == []  # not published yet
    assert life.machine.is_fenced
    life.do(Published(71))
    assert life.next()[1] == [beat(70, 71)]
    assert life.do(UNFENCED) == []  # it serves already
    assert life.machine.state is State.UNFENCED


def test_other_failures_of_heartbeats_repeat_them() -> None:
    life = Life().serves()
    life.next()
    # A new controller fences a broker that it does not hear within a second, if its address refuses.
    for wait_ms in (100, 200, 400, 500, 500):
        assert life.do(Failed(ErrorCode.unknown_server_error if wait_ms == 200 else None)) == []
        assert life.next() == (wait_ms, [beat(40, 50)])
    assert life.do(UNFENCED) == []
    assert life.next() == (INTERVAL_MS, [beat(40, 50)])


def test_a_fenced_broker_goes_on_and_asks_to_be_unfenced() -> None:
    life = Life().serves()
    life.next()
    assert life.do(FENCED) == []
    assert (life.machine.state, life.machine.is_fenced) == (State.UNFENCED, True)
    assert life.next() == (INTERVAL_MS, [beat(40, 50)])


def test_a_controlled_shutdown_moves_leaderships_and_then_ends() -> None:
    life = Life().serves()
    assert life.do(Term()) == [MoveAway(), beat(40, 50, leave=True)]
    assert life.do(Term()) == []
    assert life.do(UNFENCED) == []
    assert life.next() == (50, [beat(40, 50, leave=True)])
    assert life.do(UNFENCED) == []
    life.do(Published(60))
    assert life.next() == (INTERVAL_MS, [beat(40, 60, leave=True)])
    assert life.do(MAY_GO) == [Exit("the controller has moved all leaderships away")]


def test_term_while_a_heartbeat_is_under_way_is_said_right_after_it() -> None:
    life = Life().serves()
    life.next()
    assert life.do(Term()) == [MoveAway()]
    assert life.do(UNFENCED) == [beat(40, 50, leave=True)]
    assert life.do(UNFENCED) == []
    assert life.next()[0] == 50


def test_leaving_ends_in_time_though_no_controller_answers() -> None:
    life = Life(Timing(shutdown_timeout_ms=5_000)).serves()
    life.do(Term())
    assert life.next() == (5_000, [Exit("the controlled shutdown took too long")])


def test_leaving_unknown_to_the_controller_is_over() -> None:
    life = Life().serves()
    life.do(Term())
    assert life.do(Failed(ErrorCode.stale_broker_epoch)) == [
        Exit("the controller does not know this broker any more")
    ]


@pytest.mark.parametrize("steps", range(4))
def test_term_before_it_serves_ends_it_at_once(steps: int) -> None:
    life = Life()
    events: list[Event] = [Start(), Registered(40), FENCED, LogsReady()]
    for event in events[: steps + 1]:
        life.do(event)
    [ending] = life.do(Term())
    assert isinstance(ending, Exit)
    assert not ending.is_failure


def test_without_controlled_shutdown_term_ends_it_at_once() -> None:
    life = Life(Timing(controlled_shutdown=False)).serves()
    assert life.do(Term()) == [Exit("without a controlled shutdown, as configured")]


def test_a_failed_directory_is_told_at_once_and_with_every_heartbeat() -> None:
    life = Life().serves()
    assert life.do(DirectoryFailed(DIRECTORY), 30) == [beat(40, 50, offline=(DIRECTORY,))]
    assert life.do(DirectoryFailed(DIRECTORY)) == []
    assert life.do(UNFENCED) == []
    assert life.next() == (INTERVAL_MS, [beat(40, 50, offline=(DIRECTORY,))])


def test_directories_without_room_are_told_at_once_and_with_every_heartbeat_until_there_is_room() -> None:
    life = Life().serves()
    full = FullDirectories((DIRECTORY,), (DIRECTORY,))
    said = replace(beat(40, 50), full_directories=full)
    assert life.do(RoomChanged(full), 30) == [said]
    assert life.do(RoomChanged(full)) == []
    assert life.do(HeartbeatAnswered(True, False, False, moves_leaders=True)) == []
    assert life.machine.moves_leaders
    assert life.next() == (INTERVAL_MS, [said])
    assert life.do(RoomChanged(FullDirectories())) == []
    assert life.do(UNFENCED) == [beat(40, 50)], "what changed while one was under way is said right after it"
    assert not life.machine.moves_leaders, "this controller did not say so"


def test_an_unreported_failed_directory_stops_the_broker() -> None:
    life = Life(Timing(directory_timeout_ms=3_000)).serves()
    life.next()
    assert life.do(DirectoryFailed(DIRECTORY)) == []
    assert life.do(UNFENCED) == [beat(40, 50, offline=(DIRECTORY,))]  # the one under way did not say it
    life.do(Failed())
    while life.machine.state is not State.GONE:
        _, effects = life.next()
        if effects == [beat(40, 50, offline=(DIRECTORY,))]:
            life.do(Failed())
    assert isinstance(effects[0], Exit)
    assert effects[0].is_failure


def test_an_answer_that_was_not_asked_for_is_our_bug() -> None:
    life = Life().serves()
    with pytest.raises(InvariantError):
        life.do(UNFENCED)


def test_another_controller_is_told_at_once_that_the_broker_lives() -> None:
    life = Life().serves()
    assert life.do(ControllerChanged(), 700) == [beat(40, 50)]
    assert life.do(ControllerChanged()) == [], "what is under way goes there by itself"
    assert life.do(UNFENCED) == []
    assert life.do(ControllerChanged(), 10) == [], "a controller that ends each connection is not besieged"
    assert life.next() == (490, [beat(40, 50)])
    assert life.do(UNFENCED) == []
    assert life.next() == (INTERVAL_MS, [beat(40, 50)])


def test_an_unregistered_broker_sends_no_heartbeat() -> None:
    life = Life()
    assert life.do(ControllerChanged()) == []
    assert life.do(Start()) == [Register()]
    assert life.do(ControllerChanged()) == []
