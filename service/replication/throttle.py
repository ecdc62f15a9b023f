"""Replication quotas: rates at which throttled replicas are sent and fetched (KIP-73). [P]

Each broker has two quotas: one for what it sends as a leader, one for what it fetches as a follower. Topic
settings say which replicas are throttled. All their bytes are counted and no transfer is split: after the
quota is exceeded, transfers wait until the average over the last windows is below it again. Only replicas
that are not in sync ever wait.

>>> quota = Quota(windows=11, window_s=1)
>>> quota.bytes_per_s = 100
>>> quota.record(250, 0)
>>> quota.is_exceeded(0), quota.is_exceeded(2_499), quota.is_exceeded(2_500)
(True, True, False)
>>> quota.free_ms(0)
2500

Apache Kafka 4.3 ``ReplicationQuotaManager``, ``SimpleRate``, ``ReplicaManager.shouldLeaderThrottle``,
``RemoteLeaderEndPoint.shouldFollowerThrottle``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from service.base.types import TopicIdPartition
from service.quotas.windows import Windows

UNLIMITED: Final = (1 << 63) - 1
EVERY_REPLICA: Final = "*"
_ALL: Final = frozenset({-1})


class Quota:
    """Byte rate over the last windows and its limit, which may change at any time. Times are monotonic.

    The rate is the sum over the time since the oldest window began, at least one window.
    """

    def __init__(self, windows: int, window_s: int) -> None:
        """Take ``replication.quota.window.num`` and ``replication.quota.window.size.seconds``."""
        self.bytes_per_s = UNLIMITED
        self.recorded = 0
        """total bytes"""
        self._windows = Windows(windows, window_s * 1000)

    def record(self, size: int, now_ms: int) -> None:
        """Count `size` bytes that were transferred, within the quota or not."""
        if size <= 0:
            return
        self._windows.record(size, now_ms)
        self.recorded += size

    def is_exceeded(self, now_ms: int) -> bool:
        """Return whether the rate is above the limit."""
        windows = self._windows
        windows.purge(now_ms)
        if not windows:
            return False
        over_ms = max(now_ms - windows.begun_ms, windows.size_ms)
        return windows.total * 1000 > self.bytes_per_s * over_ms

    def free_ms(self, now_ms: int) -> int:
        """Return the first time, from `now_ms` on, at which the limit is not exceeded if nothing more is
        recorded."""
        windows = self._windows
        windows.purge(now_ms)
        left, from_ms = windows.total, now_ms
        for window in windows:
            until_ms = window.last_ms + windows.kept_ms
            free_ms = self._below_ms(left, window.begun_ms, from_ms)
            if free_ms is not None and free_ms < until_ms:
                return free_ms
            left, from_ms = left - window.value, max(until_ms, from_ms)
        return from_ms

    def _below_ms(self, size: float, begun_ms: int, from_ms: int) -> int | None:
        """Return the time, not before `from_ms`, at which `size` bytes since `begun_ms` no longer exceed the
        limit."""
        if size * 1000 <= self.bytes_per_s * self._windows.size_ms:
            return from_ms
        if not self.bytes_per_s:
            return None
        return max(from_ms, begun_ms - int(-size * 1000 // self.bytes_per_s))


class ReplicationThrottle:
    """Quota of one side of a broker, and its throttled replicas. Owned by the event loop."""

    def __init__(self, broker_id: int, quota: Quota) -> None:
        self.quota = quota
        self._broker_id = broker_id
        self._topics: dict[str, frozenset[int]] = {}

    def mark(self, topic: str, replicas: Collection[str]) -> bool:
        """Apply the topic's ``….replication.throttled.replicas``; returns whether that changes a replica of
        this broker."""
        before = self._topics.get(topic, frozenset())
        here = _those_of(self._broker_id, replicas)
        if here:
            self._topics[topic] = here
        else:
            self._topics.pop(topic, None)
        return here != before

    def limit(self, bytes_per_s: int) -> bool:
        """Set the limit; returns whether it has changed."""
        is_other = self.quota.bytes_per_s != bytes_per_s
        self.quota.bytes_per_s = bytes_per_s
        return is_other

    def covers(self, tip: TopicIdPartition) -> bool:
        """Return whether this broker's replica of the partition is throttled."""
        found = self._topics.get(tip.topic)
        return found is not None and (found is _ALL or tip.partition in found)


def _those_of(broker_id: int, replicas: Collection[str]) -> frozenset[int]:
    """Return the partitions whose replica on the broker is named, in texts that were validated before."""
    if "".join(replicas) == EVERY_REPLICA:
        return _ALL
    named = (one.split(":") for one in replicas if one)
    return frozenset(int(partition) for partition, broker in named if int(broker) == broker_id)


class ThrottledPartitions:
    """Throttled partitions of one fetcher that are behind, and whether they wait.

    Call `update` before each fetch, and after all that may have changed; a partition that waits is not
    fetched. Its cost depends on the throttled partitions that are behind.
    """

    __slots__ = ("_behind", "_throttle", "due_ms")

    def __init__(self, throttle: ReplicationThrottle | None) -> None:
        self._throttle = throttle
        self._behind: dict[TopicIdPartition, None] = {}
        self.due_ms: int | None = None
        """time until which they wait; None if they do not"""

    def __contains__(self, tip: TopicIdPartition) -> bool:
        return self.due_ms is not None and tip in self._behind

    def note(self, tip: TopicIdPartition, lag: int | None) -> None:
        """Note the partition's lag behind the leader's high watermark; None: not known."""
        if self._throttle is None:
            return
        if lag != 0 and self._throttle.covers(tip):
            self._behind[tip] = None
        else:
            self._behind.pop(tip, None)

    def forget(self, tip: TopicIdPartition) -> None:
        self._behind.pop(tip, None)

    def record(self, tip: TopicIdPartition, size: int, now_ms: int) -> None:
        """Count `size` fetched bytes of the partition."""
        if self._throttle is not None and self._throttle.covers(tip):
            self._throttle.quota.record(size, now_ms)

    def update(self, now_ms: int) -> Iterable[TopicIdPartition]:
        """Check the quota; returns the partitions that begin or cease to wait."""
        was_due_ms, self.due_ms = self.due_ms, None
        if self._behind and self._throttle is not None and self._throttle.quota.is_exceeded(now_ms):
            self.due_ms = self._throttle.quota.free_ms(now_ms)
        return self._behind if (was_due_ms is None) is not (self.due_ms is None) else ()
