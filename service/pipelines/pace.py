"""How a job gets on, in words: records, rows per second, bytes, tasks, time left. [P]"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

_NAMED: Final = 3
_WINDOW_S: Final = 30.0


class Seen(NamedTuple):
    """What has been done by now. `size` is bytes in words; `records_left` is None where nobody knows."""

    records: int
    size: str = ""
    tasks_done: int = 0
    tasks: int = 0
    records_left: int | None = None


class Pace:
    """Looks at a job again and again, and tells how fast it is and how long it will take.

    Rows per second are those of the last half minute. Time left is that of the records that are left, or
    where those are not known, of the tasks: as many a second as since the first of these tasks began.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()
        self._tasks: tuple[int, float, int] | None = None
        """How many there are, when they were first seen, and how many of them were done then."""

    def words(self, now_s: float, seen: Seen) -> str:
        """``1,234 records, 56 rows/s, 7.8 MiB, 9 of 10 tasks, 11 s left``; what is not known is left out."""
        if self._looks and seen.records < self._looks[-1][1]:
            self._looks.clear()
        self._looks.append((now_s, seen.records))
        while now_s - self._looks[0][0] > _WINDOW_S and len(self._looks) > 2:
            self._looks.popleft()
        then_s, before = self._looks[0]
        rate = (seen.records - before) / (now_s - then_s) if now_s > then_s else 0.0
        parts = [f"{seen.records:,} records"]
        if rate >= 1:
            parts.append(f"{rate:,.0f} rows/s")
        if seen.size:
            parts.append(seen.size)
        if seen.tasks:
            parts.append(f"{seen.tasks_done} of {seen.tasks} tasks")
        left_s = self._left_s(now_s, seen, rate)
        if left_s is not None:
            parts.append(f"{duration(left_s)} left")
        return ", ".join(parts)

    def _left_s(self, now_s: float, seen: Seen, rate: float) -> float | None:
        if self._tasks is None or self._tasks[0] != seen.tasks or seen.tasks_done < self._tasks[2]:
            self._tasks = (seen.tasks, now_s, seen.tasks_done)
        if seen.records_left is not None:
            return seen.records_left / rate if rate >= 1 else None
        _, since_s, before = self._tasks
        done = seen.tasks_done - before
        return (now_s - since_s) / done * (seen.tasks - seen.tasks_done) if done and now_s > since_s else None


def topics_text(names: Iterable[str]) -> str:
    """A few names and how many more.

    >>> topics_text(["b", "a"]), topics_text("fedcba")
    ('a, b', 'a, b, c and 3 more')
    """
    ordered = sorted(set(names))
    rest = len(ordered) - _NAMED
    return ", ".join(ordered[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(4.2), duration(200), duration(7500)
    ('4 s', '3 min', '2 h 5 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
