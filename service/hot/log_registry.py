"""The logs in use on a node, and the log directory of each. Owned by the loop."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from service.base.types import TopicIdPartition
from service.hot.checkpoints import Name
from service.hot.log import LocalLog
from service.hot.log_dir import LogDir

LogKey = tuple[UUID, int]
"""(topic id, partition)"""


class LogRegistry:
    """Logs in use, also offline ones: a partition has one log at most, and so has a name.

    ``logs``: by topic id and partition. ``homes``: the directory of each. ``counts``: logs of each directory,
    with those that are being made.
    """

    def __init__(self) -> None:
        self.logs: dict[LogKey, LocalLog] = {}
        self.homes: dict[LocalLog, LogDir] = {}
        self.counts: Counter[LogDir] = Counter()
        self._by_name: dict[Name, LocalLog] = {}

    def get(self, topic_id: UUID, partition: int) -> LocalLog | None:
        return self.logs.get((topic_id, partition))

    def named(self, name: Name) -> LocalLog | None:
        """Return the log with this name, whatever its topic id."""
        return self._by_name.get(name)

    def home_of(self, tip: TopicIdPartition) -> LogDir | None:
        """Return the log directory of a partition, None if it has no log here."""
        log = self.logs.get((tip.topic_id, tip.partition))
        return self.homes.get(log) if log else None

    def logs_in(self, home: LogDir) -> list[LocalLog]:
        return [log for log, at in self.homes.items() if at is home]

    def add(self, log: LocalLog, home: LogDir) -> None:
        tip = log.tip
        self.logs[tip.topic_id, tip.partition] = log
        self.homes[log] = home
        self._by_name[tip.topic, tip.partition] = log
        self.counts[home] += 1

    def remove(self, log: LocalLog) -> LogDir:
        """Remove a log that goes out of use; returns its directory."""
        tip = log.tip
        del self.logs[tip.topic_id, tip.partition]
        home = self.homes.pop(log)
        self._by_name.pop((tip.topic, tip.partition), None)
        self.counts[home] -= 1
        return home
