"""The timing wheel and the purgatory compared with models that visit every entry."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from service.base.errors import InvariantError
from service.base.purgatory import Operation, Purgatory
from service.base.timing_wheel import Timer, TimingWheel

DELAYS = st.one_of(
    st.integers(-5, 200),
    st.integers(0, 1 << 20),
    st.integers(0, 1 << 45),
    st.sampled_from([63, 64, 4095, 4096]),
)


class WheelBesideAList(RuleBasedStateMachine):
    """Every timer is due at its millisecond: not before it, and not once it was cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_003
        self.wheel = TimingWheel(self.now)
        self.waiting: dict[int, int] = {}
        self.timers: dict[int, Timer] = {}
        self.number = 0

    @rule(delay=DELAYS)
    def add(self, delay: int) -> None:
        self.number += 1
        self.timers[self.number] = self.wheel.add(self.now + delay, self.number)
        self.waiting[self.number] = max(self.now + delay, self.now + 1)

    @rule(pick=st.integers(0, 1 << 30))
    def cancel(self, pick: int) -> None:
        if self.timers:
            number = sorted(self.timers)[pick % len(self.timers)]
            assert self.wheel.cancel(self.timers[number]) == (self.waiting.pop(number, None) is not None)

    @rule(step=DELAYS)
    def advance(self, step: int) -> None:
        self.now = max(self.now, self.now + step)
        due = sorted((at, number) for number, at in self.waiting.items() if at <= self.now)
        found = [item for item in self.wheel.advance(self.now) if isinstance(item, int)]
        assert sorted(found) == sorted(number for _, number in due)
        assert [self.waiting[number] for number in found] == [at for at, _ in due], "soonest first"
        for number in found:
            del self.waiting[number]

    @rule()
    def be_driven_by_its_own_deadlines(self) -> None:
        """A driver that only ever comes when `next_ms` says is there on the millisecond."""
        soonest = min(self.waiting.values(), default=None)
        turns = 0
        while soonest is not None and self.now < soonest:
            told = self.wheel.next_ms()
            assert told is not None
            assert self.now < told <= soonest
            self.now = told
            due = self.wheel.advance(told)
            assert bool(due) == (told == soonest)
            for number in due:
                assert isinstance(number, int)
                del self.waiting[number]
            turns += 1
            assert turns <= 10, "no more than once a level"

    @invariant()
    def counts(self) -> None:
        assert len(self.wheel) == len(self.waiting)
        assert (self.wheel.next_ms() is None) == (not self.waiting)
        for number, timer in self.timers.items():
            assert timer.is_waiting == (number in self.waiting)


TestWheelBesideAList = WheelBesideAList.TestCase


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60))
def test_timers_of_one_millisecond_keep_their_order(delays: list[int]) -> None:
    wheel = TimingWheel(77)
    for number, delay in enumerate(delays):
        wheel.add(77 + delay, (delay or 1, number))
    # Those that lay at different levels may change places; those that were added alike do not.
    found = wheel.advance(1000)
    assert sorted(found, key=lambda item: item[0]) == found  # type: ignore[index]


class Counting(Operation):
    """Waits for `missing` bytes; with `missing` None it watches and never ends."""

    def __init__(self, number: int, missing: int | None) -> None:
        super().__init__()
        self.number = number
        self.missing = missing
        self.seen = 0
        self.ended: list[bool] = []

    def happened(self, key: Hashable, amount: int) -> bool:
        self.seen += amount
        return self.missing is not None and self.seen >= self.missing

    def completed(self, *, expired: bool) -> None:
        self.ended.append(expired)


class PurgatoryBesideAList(RuleBasedStateMachine):
    """Every operation ends once: by enough events on its keys, at its time, or when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 50
        self.purgatory = Purgatory(self.now)
        self.all: list[tuple[Counting, tuple[int, ...], int | None]] = []
        self.expected: dict[int, bool | None] = {}
        """how each ended: by time or not; None: it was forgotten"""
        self.seen: dict[int, int] = {}

    def waiting(self) -> list[tuple[Counting, tuple[int, ...], int | None]]:
        return [one for one in self.all if one[0].number not in self.expected]

    @rule(
        keys=st.lists(st.integers(0, 4), max_size=4),
        delay=st.one_of(st.none(), st.integers(-3, 5000)),
        missing=st.one_of(st.none(), st.integers(1, 5)),
    )
    def watch(self, keys: list[int], delay: int | None, missing: int | None) -> None:
        one = Counting(len(self.all), missing)
        due = None if delay is None else self.now + delay
        self.purgatory.watch(one, keys, due)
        self.all.append((one, tuple(dict.fromkeys(keys)), None if due is None else max(due, self.now + 1)))
        self.seen[one.number] = 0

    @rule(pick=st.integers(0, 1 << 30), key=st.integers(0, 4))
    def watch_also(self, pick: int, key: int) -> None:
        for at in [pick % len(self.all)] if self.all else []:
            one, keys, due = self.all[at]
            if one.number in self.expected:
                with pytest.raises(InvariantError):
                    self.purgatory.watch_also(one, key)
            else:
                self.purgatory.watch_also(one, key)
                self.all[at] = one, tuple(dict.fromkeys((*keys, key))), due

    @rule(pick=st.integers(0, 1 << 30), delay=st.integers(-3, 5000))
    def set_deadline(self, pick: int, delay: int) -> None:
        for at in [pick % len(self.all)] if self.all else []:
            one, keys, due = self.all[at]
            if one.number in self.expected or due is not None:
                with pytest.raises(InvariantError):
                    self.purgatory.set_deadline(one, self.now + delay)
            else:
                self.purgatory.set_deadline(one, self.now + delay)
                self.all[at] = one, keys, self.now + max(delay, 1)

    @rule(key=st.integers(0, 5), amount=st.integers(0, 3))
    def happen(self, key: int, amount: int) -> None:
        count = 0
        for one, keys, _ in self.waiting():
            if key in keys:
                self.seen[one.number] += amount
                if one.missing is not None and self.seen[one.number] >= one.missing:
                    self.expected[one.number] = False
                    count += 1
        assert self.purgatory.happened(key, amount) == count

    @rule(pick=st.integers(0, 1 << 30), tell=st.booleans())
    def end(self, pick: int, tell: bool) -> None:
        if not self.all:
            return
        one = self.all[pick % len(self.all)][0]
        was_waiting = one.number not in self.expected
        ended = self.purgatory.complete(one) if tell else self.purgatory.forget(one)
        assert ended == was_waiting
        if was_waiting:
            self.expected[one.number] = False if tell else None

    @rule(step=st.integers(0, 6000))
    def advance(self, step: int) -> None:
        self.now += step
        due = [one for one, _, at in self.waiting() if at is not None and at <= self.now]
        self.expected.update((one.number, True) for one in due)
        assert self.purgatory.advance(self.now) == len(due)

    @invariant()
    def agree(self) -> None:
        for one, _, _ in self.all:
            how = self.expected.get(one.number)
            assert one.ended == ([] if how is None else [how])
            assert one.seen == self.seen[one.number]
            assert one.is_waiting == (one.number not in self.expected)
        assert len(self.purgatory) == len(self.waiting())
        assert len(self.purgatory.watched) == len({key for _, keys, _ in self.waiting() for key in keys})
        assert (self.purgatory.next_ms is None) == all(at is None for _, _, at in self.waiting())


TestPurgatoryBesideAList = PurgatoryBesideAList.TestCase


class Chain(Counting):
    """Ends others, or waits anew, in the middle of being told."""

    def __init__(self, purgatory: Purgatory, then: list[Operation], again: int = 0) -> None:
        super().__init__(0, 1)
        self.purgatory, self.then, self.again = purgatory, then, again

    def completed(self, *, expired: bool) -> None:
        super().completed(expired=expired)
        for one in self.then:
            self.purgatory.complete(one)
        if self.again:
            self.again -= 1
            self.purgatory.watch(self, ("k",), 10)


def test_an_operation_may_end_others_while_they_are_told_the_same() -> None:
    purgatory = Purgatory(0)
    other = Counting(1, 1)
    first = Chain(purgatory, [other])
    purgatory.watch(first, ("k",), 5)
    purgatory.watch(other, ("k",), 5)
    assert purgatory.happened("k", 1) == 1
    assert other.ended == [False]
    assert other.seen == 0
    third, fourth = Chain(purgatory, []), Counting(2, 1)
    third.then = [fourth]
    purgatory.watch(third, (), 20)
    purgatory.watch(fourth, (), 20)
    assert purgatory.advance(30) == 1
    assert third.ended == [True]
    assert fourth.ended == [False]
    assert len(purgatory) == 0


def test_an_operation_may_wait_again_when_it_is_woken() -> None:
    purgatory = Purgatory(0)
    again = Chain(purgatory, [], again=2)
    purgatory.watch(again, ("k",), 5)
    assert purgatory.happened("k", 1) == 1
    assert again.is_waiting
    assert purgatory.advance(100) == 1
    assert again.is_waiting, "it waits anew, and is not due for what it waited for before"
    assert purgatory.advance(200) == 1
    assert again.ended == [False, True, True]
