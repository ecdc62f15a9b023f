"""Formatting of a job's progress: records, rows per second, bytes, tasks, time left. [P]"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

_NAMED: Final = 3
_WINDOW_S: Final = 30.0


class ProgressSample(NamedTuple):
    """Progress of a job at one moment. `size` is formatted bytes; `records_left` is None if unknown."""

    records: int
    size: str = ""
    tasks_done: int = 0
    tasks: int = 0
    records_left: int | None = None


class RateEstimator:
    """Samples of a job's progress, its rate and the time left.

    Rows per second are those of the last half minute. Time left is that of the remaining records, or where
    those are unknown, of the tasks, at the rate since the first of these tasks was seen.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._tasks: tuple[int, float, int] | None = None
        """Their number, the time of their first sample, and how many of them were done then."""

    def words(self, now_s: float, sample: ProgressSample) -> str:
        """Return ``1,234 records, 56 rows/s, 7.8 MiB, 9 of 10 tasks, 11 s left``, without unknown parts."""
        if self._samples and sample.records < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now_s, sample.records))
        while now_s - self._samples[0][0] > _WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()
        then_s, before = self._samples[0]
        rate = (sample.records - before) / (now_s - then_s) if now_s > then_s else 0.0
        parts = [f"{sample.records:,} records"]
        if rate >= 1:
            parts.append(f"{rate:,.0f} rows/s")
        if sample.size:
            parts.append(sample.size)
        if sample.tasks:
            parts.append(f"{sample.tasks_done} of {sample.tasks} tasks")
        left_s = self._left_s(now_s, sample, rate)
        if left_s is not None:
            parts.append(f"{duration(left_s)} left")
        return ", ".join(parts)

    def _left_s(self, now_s: float, sample: ProgressSample, rate: float) -> float | None:
        if self._tasks is None or self._tasks[0] != sample.tasks or sample.tasks_done < self._tasks[2]:
            self._tasks = (sample.tasks, now_s, sample.tasks_done)
        if sample.records_left is not None:
            return sample.records_left / rate if rate >= 1 else None
        _, since_s, before = self._tasks
        done, left = sample.tasks_done - before, sample.tasks - sample.tasks_done
        return (now_s - since_s) / done * left if done and now_s > since_s else None


def topics_text(names: Iterable[str]) -> str:
    """Name a few topics, and how many more there are.

    >>> topics_text(["b", "a"]), topics_text("fedcba")
    ('a, b', 'a, b, c and 3 more')
    """
    ordered = sorted(set(names))
    rest = len(ordered) - _NAMED
    return ", ".join(ordered[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def duration(seconds: float) -> str:
    """Format seconds for people.

    >>> duration(4.2), duration(200), duration(7500)
    ('4 s', '3 min', '2 h 5 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
