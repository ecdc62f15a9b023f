"""Deadlines in a hierarchy of wheels: O(1) to add and to cancel, however many there are. [P]

Level n has 64 slots of 64^n ms each. A timer lies at the level of the highest group of six bits in which its
time differs from the wheel's, so all of a lower level come due before any of a higher one, and no slot ever
wraps. When the wheel's time comes to a slot of a higher level its timers move down: each does so at most once
per level. Levels are made as they are needed; an hour takes four.

Time is given, in milliseconds, and never goes back. Role of Kafka's ``TimingWheel``.

>>> wheel = TimingWheel(now_ms=1000)
>>> later, sooner = wheel.add(1500, "later"), wheel.add(1200, "sooner")
>>> wheel.next_ms() <= 1200
True
>>> wheel.cancel(later)
True
>>> wheel.advance(5000), len(wheel)
(['sooner'], 0)
"""

from __future__ import annotations

from typing import Final

_BITS: Final = 6
_LAST_SLOT: Final = (1 << _BITS) - 1


class Timer:
    """One deadline; made by `TimingWheel.add`."""

    __slots__ = ("_level", "_slot", "due_ms", "item")

    def __init__(self, due_ms: int, item: object) -> None:
        self.due_ms = due_ms
        self.item = item
        self._level = -1
        self._slot = 0

    @property
    def is_waiting(self) -> bool:
        """Neither due yet nor cancelled."""
        return self._level >= 0


class _Level:
    """Slots of one size; `occupied` has a bit for each that holds a timer."""

    __slots__ = ("occupied", "slots")

    def __init__(self) -> None:
        self.occupied = 0
        self.slots: list[dict[Timer, None]] = [{} for _ in range(_LAST_SLOT + 1)]


class TimingWheel:
    """Timers by the millisecond at which they are due."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._levels: list[_Level] = []
        self._count = 0

    def __len__(self) -> int:
        """Timers that are waiting."""
        return self._count

    def add(self, due_ms: int, item: object) -> Timer:
        """`item` is due at `due_ms`; what lies in the past is due at the next millisecond."""
        timer = Timer(max(due_ms, self.now_ms + 1), item)
        self._place(timer)
        self._count += 1
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Forget `timer`; False when it was due or cancelled already."""
        if timer._level < 0:
            return False
        level = self._levels[timer._level]
        slot = level.slots[timer._slot]
        del slot[timer]
        if not slot:
            level.occupied &= ~(1 << timer._slot)
        timer._level = -1
        self._count -= 1
        return True

    def next_ms(self) -> int | None:
        """When to call `advance`: at or before the soonest deadline, and after now; None while nothing waits.

        It may lie before that deadline, where timers only move down a level; no more often than once a level.
        """
        for number, level in enumerate(self._levels):
            if level.occupied:
                first = (level.occupied & -level.occupied).bit_length() - 1
                return self._start_of(number, first)
        return None

    def advance(self, now_ms: int) -> list[object]:
        """The items due by `now_ms`, by their times."""
        due: list[object] = []
        while (soonest := self.next_ms()) is not None and soonest <= now_ms:
            self.now_ms = soonest
            number = next(n for n, level in enumerate(self._levels) if level.occupied)
            level = self._levels[number]
            first = (level.occupied & -level.occupied).bit_length() - 1
            timers, level.slots[first] = level.slots[first], {}
            level.occupied &= level.occupied - 1
            for timer in timers:
                if timer.due_ms <= soonest:
                    timer._level = -1
                    self._count -= 1
                    due.append(timer.item)
                else:
                    self._place(timer)
        self.now_ms = max(self.now_ms, now_ms)
        return due

    def _place(self, timer: Timer) -> None:
        number = ((timer.due_ms ^ self.now_ms).bit_length() - 1) // _BITS
        while len(self._levels) <= number:
            self._levels.append(_Level())
        level, slot = self._levels[number], (timer.due_ms >> number * _BITS) & _LAST_SLOT
        timer._level, timer._slot = number, slot
        level.slots[slot][timer] = None
        level.occupied |= 1 << slot

    def _start_of(self, number: int, slot: int) -> int:
        """The first millisecond of a slot, which is not over."""
        shift = number * _BITS
        return ((self.now_ms >> shift + _BITS) << shift + _BITS) | (slot << shift)
