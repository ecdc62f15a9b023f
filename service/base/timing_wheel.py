"""Deadlines in a hierarchy of timing wheels: O(1) to add and to cancel. [P]

Level n has 64 slots of 64^n ms each. A timer lies at the level of the highest group of six bits in which its
time differs from the wheel's. So all timers of a lower level are due before any of a higher one, and no slot
wraps. When the wheel's time reaches a slot of a higher level, the slot's timers move down; each timer moves
once per level at most. Levels are created as needed; an hour takes four.

The caller passes the time, in milliseconds; it never goes back. Role of Kafka's ``TimingWheel``.

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
        """True until the timer is due or cancelled."""
        return self._level >= 0


class _Level:
    """Slots of one size; `occupied` has a bit for each slot that holds a timer."""

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
        """Return the number of waiting timers."""
        return self._count

    def add(self, due_ms: int, item: object) -> Timer:
        """Add `item`, due at `due_ms`, or at the next millisecond if that is past."""
        timer = Timer(max(due_ms, self.now_ms + 1), item)
        self._place(timer)
        self._count += 1
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Cancel `timer`; return False if it was due or cancelled already."""
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
        """Return when to call `advance`: after now, by the soonest deadline; None without timers.

        The time may be before that deadline, when timers only move down; once per level at most.
        """
        for number, level in enumerate(self._levels):
            if level.occupied:
                first = (level.occupied & -level.occupied).bit_length() - 1
                return self._start_of(number, first)
        return None

    def advance(self, now_ms: int) -> list[object]:
        """Move the time to `now_ms` and return the items due by then, in order of their deadlines."""
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
        """Return the first millisecond of a slot that has not passed."""
        shift = number * _BITS
        return ((self.now_ms >> shift + _BITS) << shift + _BITS) | (slot << shift)
