"""Periodic tasks of an active controller, and when they are due. [P]

Source: Apache Kafka ``PeriodicTaskControlManager``, ``QuorumController.register*``. It sets no timer: the
caller reads `next_deadline_ms`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

NEVER: Final = 1 << 62


class PeriodicTask(Enum):
    """Periodic tasks."""

    STAY_AWAKE = "stay awake"
    """Write a no-op record, so that followers see the log advance."""
    BALANCE_LEADERS = "balance leaders"
    ELECT_UNCLEAN = "elect unclean"
    EXPIRE_TOKENS = "expire tokens"
    """Remove delegation tokens whose time is over."""


class PeriodicTaskIntervals(NamedTuple):
    """Intervals under Kafka's keys; 0 or less: never."""

    max_idle_interval_ms: int = 500
    """``metadata.max.idle.interval.ms``"""
    leader_imbalance_check_ms: int = 300_000
    """``leader.imbalance.check.interval.seconds``, where ``auto.leader.rebalance.enable``"""
    unclean_election_ms: int = 300_000
    """``unclean.leader.election.interval.ms``"""
    token_expiry_check_ms: int = 3_600_000
    """``delegation.token.expiry.check.interval.ms``"""

    def of(self, task: PeriodicTask) -> int:
        """Return the interval of `task`."""
        if task is PeriodicTask.STAY_AWAKE:
            return self.max_idle_interval_ms
        if task is PeriodicTask.BALANCE_LEADERS:
            return self.leader_imbalance_check_ms
        if task is PeriodicTask.EXPIRE_TOKENS:
            return self.token_expiry_check_ms
        return self.unclean_election_ms


class PeriodicTasks:
    """Schedule of one controller's periodic tasks.

    >>> periodic = PeriodicTasks(PeriodicTaskIntervals(500, 0, 2000))
    >>> periodic.claimed(0)
    >>> periodic.next_deadline_ms, periodic.due(600)
    (500, [<PeriodicTask.STAY_AWAKE: 'stay awake'>])
    >>> periodic.wrote(700)
    >>> periodic.next_deadline_ms
    1200
    """

    def __init__(self, times: PeriodicTaskIntervals) -> None:
        self._times = times
        self._due_ms: dict[PeriodicTask, int] = {}

    def claimed(self, now_ms: int) -> None:
        """Start all intervals."""
        self._due_ms = {
            task: now_ms + self._times.of(task) for task in PeriodicTask if self._times.of(task) > 0
        }

    def renounced(self) -> None:
        """Stop all intervals."""
        self._due_ms = {}

    def wrote(self, now_ms: int) -> None:
        """Restart the idle interval after a write to the log."""
        if PeriodicTask.STAY_AWAKE in self._due_ms:
            self._due_ms[PeriodicTask.STAY_AWAKE] = now_ms + self._times.max_idle_interval_ms

    @property
    def next_deadline_ms(self) -> int:
        """Time of the next due task; `NEVER` where there is none."""
        return min(self._due_ms.values(), default=NEVER)

    def due(self, now_ms: int) -> list[PeriodicTask]:
        """Return the tasks that are due, and restart their intervals."""
        due = [task for task, due_ms in self._due_ms.items() if due_ms <= now_ms]
        for task in due:
            self._due_ms[task] = now_ms + self._times.of(task)
        return due

    def make_due(self, task: PeriodicTask, now_ms: int) -> None:
        """Make `task` due at once: its last round reached a limit."""
        if task in self._due_ms:
            self._due_ms[task] = now_ms
