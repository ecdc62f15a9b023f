"""Tasks of tiering: each fails, backs off and is retried on its own. [P]

Kafka copies and expires in two tasks of a partition (`RLMCopyTask`, `RLMExpirationTask`), so that a failure
of one does not stop the other. The same holds here, although a partition runs one task at a time, and for the
tasks that one broker does for the whole prefix. A task waits for another only where it needs its result:
nothing is copied or expired before HEAD was compared with the metadata and names the last commit.

>>> retries = Retries()
>>> retries.failed(Task.EXPIRE, "page gone", now_ms=100, wait_ms=50, wall_ms=7)
1
>>> retries.waits_until(Task.EXPIRE, 120), retries.waits_until(Task.EXPIRE, 150)
(150, None)
>>> retries.waits_until(Task.COPY, 120) is None, retries.reason
(True, 'expire: page gone')
>>> retries.succeeded(Task.EXPIRE), retries.reason is None
(True, True)
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


def is_worth_a_line(in_a_row: int) -> bool:
    """Return whether the last failure of a row is logged: an outage must not fill the disk with log lines."""
    return in_a_row & (in_a_row - 1) == 0


def lasts(in_a_row: int) -> bool:
    """Return whether a row of failures is worth a warning: what failed once is tried again in a moment."""
    return in_a_row > 1


class Task(Enum):
    """Kind of work, by its name in metrics, log lines and `firn tiers`."""

    PLAN = "plan"
    """find out what a partition has to do; fails where its log is offline"""
    COMPARE_HEAD = "compare HEAD"
    PUBLISH = "publish"
    """settle a commit whose outcome is unknown, and write HEAD"""
    EXPIRE = "expire"
    """drop what retention, DeleteRecords or the end of tiering removed from the log"""
    COPY = "copy"
    REWRITE = "publish a rewrite"
    """replace objects of the chain by those that a worker has made of them"""
    MERGE = "merge"
    """make one object of small neighbours"""
    KEEP_PREFIX = "keep the prefix"
    """become or stay the prefix's keeper, or be named as a writer by it"""
    DELETE = "delete"
    """delete objects that this broker's own commits dropped"""
    DELETE_TOPICS = "delete topics"
    WRITE_TOPICS = "write topics.json"
    COMPARE_TOPICS = "compare topics.json"
    COPY_METADATA = "copy metadata"
    SWEEP = "sweep"
    CUT = "take a cut"


KEEPER_TASKS: Final = (
    Task.DELETE_TOPICS,
    Task.WRITE_TOPICS,
    Task.COMPARE_TOPICS,
    Task.COPY_METADATA,
    Task.SWEEP,
)


class TaskFailure(NamedTuple):
    """Last of `in_a_row` failures of a task, which is not retried before `not_before_ms`."""

    in_a_row: int
    why: str
    not_before_ms: int
    wall_ms: int
    """time of the failure by the wall clock"""


class Retries:
    """Failing tasks of one partition, or of the prefix. Times are monotonic except `wall_ms`."""

    def __init__(self) -> None:
        self._failures: dict[Task, TaskFailure] = {}

    def failed(self, task: Task, why: str, *, now_ms: int, wait_ms: int, wall_ms: int) -> int:
        """Record that `task` failed and waits; return how often it has failed in a row."""
        count = self.count(task) + 1
        self._failures[task] = TaskFailure(count, why, now_ms + wait_ms, wall_ms)
        return count

    def succeeded(self, task: Task) -> bool:
        """Record that `task` succeeded; return True when it had failed before."""
        return self._failures.pop(task, None) is not None

    def get(self, task: Task) -> TaskFailure | None:
        """Return the last failure of `task`; None when its last run did not fail."""
        return self._failures.get(task)

    def count(self, task: Task) -> int:
        """Return how often `task` has failed in a row."""
        failure = self._failures.get(task)
        return failure.in_a_row if failure is not None else 0

    def waits_until(self, task: Task, now_ms: int) -> int | None:
        """Return when `task` may be retried; None where it may be now."""
        failure = self._failures.get(task)
        return failure.not_before_ms if failure is not None and failure.not_before_ms > now_ms else None

    @property
    def reason(self) -> str | None:
        """Each failing task with its last error, in one line; None where none fails."""
        return "; ".join(f"{task.value}: {one.why}" for task, one in self._failures.items()) or None
