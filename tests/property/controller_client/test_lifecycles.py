"""Brokers' lives under any events and any controller. A falsifying example is a seed."""

from __future__ import annotations

from random import Random
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from service.controller_client.broker_lifecycle import (
    MOVES,
    DirectoryFailed,
    Effect,
    Event,
    Exit,
    Failed,
    Heartbeat,
    HeartbeatAnswered,
    Lifecycle,
    LogsReady,
    Published,
    Recover,
    Register,
    Registered,
    Serve,
    Start,
    State,
    Term,
    TimePassed,
    Timing,
)

ERRORS = (
    None,
    None,
    ErrorCode.stale_broker_epoch,
    ErrorCode.broker_id_not_registered,
    ErrorCode.duplicate_broker_registration,
    ErrorCode.not_controller,
)


class Watched:
    """A machine whose every step is held against what must always be so."""

    def __init__(self, timing: Timing) -> None:
        self.machine = Lifecycle(timing)
        self.now_ms = 0
        self.asking: Effect | None = None
        self.is_registered = False
        self.logs_ready = self.has_recovered = self.serves = self.gone = self.was_told_to_go = False
        self.last_offset = -1

    def do(self, event: Event) -> None:
        if isinstance(event, Registered | HeartbeatAnswered | Failed):
            self.asking = None
        if isinstance(event, Registered):
            self.is_registered = True
        self.logs_ready |= isinstance(event, LogsReady)
        self.was_told_to_go |= isinstance(event, Term)
        before = self.machine.state
        effects = self.machine.step(event, self.now_ms)
        assert not (self.gone and effects), "something after the end"
        after = self.machine.state
        for effect in effects:
            self.check(effect)
        reached = {before}
        for _ in range(3):
            reached |= {state for one in reached for state in MOVES[one]}
        assert after in reached
        assert self.gone == (after is State.GONE)
        due_ms = self.machine.next_deadline_ms
        assert (due_ms is None) == self.gone or self.asking is not None
        assert due_ms is None or due_ms > self.now_ms, "a deadline that is over"

    def check(self, effect: Effect) -> None:
        match effect:
            case Register():
                assert self.asking is None
                self.is_registered = False
                self.asking = effect
            case Heartbeat():
                assert self.asking is None
                assert self.is_registered, "a heartbeat of nobody"
                assert effect.metadata_offset >= self.last_offset
                self.last_offset = effect.metadata_offset
                assert effect.want_fence or self.logs_ready
                assert not effect.want_shut_down or self.was_told_to_go
                self.asking = effect
            case Recover():
                assert not self.has_recovered
                self.has_recovered = True
            case Serve():
                assert not self.serves
                assert self.has_recovered
                assert self.logs_ready
                self.serves = True
            case Exit():
                assert not self.gone
                self.gone = True

    def jump(self, random: Random) -> None:
        due_ms = self.machine.next_deadline_ms
        if due_ms is not None:
            self.now_ms += random.choice((0, 1, 50, max(0, due_ms - self.now_ms), 3_000))
        self.do(TimePassed())


def live(seed: int) -> Watched:
    random = Random(seed)
    timing = Timing(
        controlled_shutdown=random.random() < 0.8, registration_timeout_ms=random.choice((500, 60_000))
    )
    life = Watched(timing)
    life.do(Start())
    offset = -1
    for _ in range(random.randrange(5, 120)):
        choice = random.random()
        if choice < 0.35 and life.asking is not None:
            answer: Event
            if random.random() < 0.2:
                answer = Failed(random.choice(ERRORS))
            elif isinstance(life.asking, Register):
                answer = Registered(offset + random.randrange(1, 5))
            else:
                answer = HeartbeatAnswered(
                    random.random() < 0.5, random.random() < 0.5, random.random() < 0.1
                )
            life.do(answer)
        elif choice < 0.6:
            offset += random.randrange(4)
            life.do(Published(offset))
        elif choice < 0.65:
            life.do(LogsReady())
        elif choice < 0.67:
            life.do(Term())
        elif choice < 0.69:
            life.do(DirectoryFailed(UUID(int=random.randrange(1, 4))))
        else:
            life.jump(random)
    return life


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_order_of_events_breaks_a_rule(seed: int) -> None:
    live(seed)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_controller_that_works_again_lets_it_serve_and_go(seed: int) -> None:
    """From wherever the faults left it: serving within two intervals, gone within one more."""
    life = live(seed)
    if life.gone or life.was_told_to_go:
        return
    sound(life, life.now_ms + 5_000, until=State.UNFENCED)
    assert life.machine.state is State.UNFENCED
    life.do(Term())
    sound(life, life.now_ms + 5_000, until=State.GONE)
    assert life.gone


def sound(life: Watched, end_ms: int, until: State) -> None:
    life.do(LogsReady())
    published = 1_000
    while life.now_ms <= end_ms and life.machine.state is not until:
        asking = life.asking
        if isinstance(asking, Register):
            life.do(Registered(published))
        elif isinstance(asking, Heartbeat):
            caught_up = asking.metadata_offset >= asking.epoch
            fenced = asking.want_fence or not caught_up
            life.do(HeartbeatAnswered(caught_up, fenced, asking.want_shut_down))
        elif life.machine.metadata_offset < life.machine.epoch:
            life.do(Published(life.machine.epoch))
        else:
            life.now_ms = life.machine.next_deadline_ms or life.now_ms
            life.do(TimePassed())
