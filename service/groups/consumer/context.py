"""Dependencies and intermediate results of decisions about KIP-848 groups. [P]"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Hashable
from enum import StrEnum
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.timeline import Journal, Timeline
from service.coordinator.ports import TopicsView
from service.coordinator.shard import BackgroundWork, Cancel, CoordinatorRecord, Effect, Schedule
from service.groups.consumer.group import ConsumerGroup
from service.groups.consumer_config import (
    ASSIGNMENT_INTERVAL,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    ConsumerConfig,
    GroupSettings,
)
from service.groups.metrics import GroupMetrics


class TimerKind(StrEnum):
    """Timers of members. Each ends a membership."""

    SESSION = "consumer session"
    REBALANCE = "consumer rebalance"
    """a member has not revoked partitions"""
    JOIN = "consumer join"
    """a classic member had to rejoin and has not"""
    SYNC = "consumer sync"
    """a classic member has joined and not sent SyncGroup"""


class ConsumerTimer(NamedTuple):
    """Name of a member's timer."""

    kind: TimerKind
    group_id: str
    member_id: str


class WorkKind(StrEnum):
    """Kinds of long work for a group."""

    TARGET = "consumer target"
    REGEX = "consumer regex"


class ConsumerWork(NamedTuple):
    """Name of long work."""

    kind: WorkKind
    group_id: str


class Opened(NamedTuple):
    """A group that a member joins, with the records that convert it if it was classic.

    `end_classic` is called after the last check that may reject the join: it ends the classic group's
    rebalance.
    """

    group: ConsumerGroup
    records: tuple[CoordinatorRecord, ...] = ()
    end_classic: Callable[[], tuple[Effect, ...]] | None = None
    event: Hashable | None = None


class Downgrade(NamedTuple):
    """Decision that converts a group to the classic protocol."""

    records: tuple[CoordinatorRecord, ...]
    effects: tuple[Effect, ...]
    event: Hashable


class Migration(Protocol):
    """Interface of `groups/migration.py` to this room."""

    def upgraded(self, group_id: str, now_ms: int) -> Opened:
        """Return a classic group, or a new one, as a KIP-848 group. Raises `RequestError` if it cannot be
        upgraded."""

    def downgraded(self, group: ConsumerGroup, leaving: frozenset[str], now_ms: int) -> Downgrade | None:
        """Return the downgrade of a group once these members are gone; None if it is not to be downgraded."""


class ConsumerGroupContext:
    """Dependencies of one shard's KIP-848 groups. Topic versions count calls of `topics_changed` since the
    shard's start."""

    def __init__(
        self,
        journal: Journal,
        groups: Timeline[str, Any],
        topics: TopicsView,
        config: Callable[[], ConsumerConfig],
        settings: GroupSettings,
        metrics: GroupMetrics,
        new_uuid: Callable[[], UUID],
    ) -> None:
        self.journal = journal
        self.groups = groups
        self.topics = topics
        self.config = config
        self.settings = settings
        self.metrics = metrics
        self.topics_version = 0
        self.new_topics_version = 0
        self._new_uuid = new_uuid

    def group(self, group_id: str) -> ConsumerGroup:
        """Return the group. Raises `RequestError` GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        raise RequestError(
            ErrorCode.group_id_not_found,
            f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group.",
        )

    def new_member_id(self) -> str:
        """Return an id in the format of Kafka's ``Uuid.randomUuid()``; a leading dash would look like an
        option to tools."""
        while True:
            text = urlsafe_b64encode(self._new_uuid().bytes)[:22].decode()
            if not text.startswith("-"):
                return text

    def session_timeout_ms(self, group_id: str) -> int:
        return self.config().effective(SESSION_TIMEOUT, self.settings(group_id))

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self.config().effective(HEARTBEAT_INTERVAL, self.settings(group_id))

    def assignment_interval_ms(self, group_id: str) -> int:
        return self.config().effective(ASSIGNMENT_INTERVAL, self.settings(group_id))


def schedule(kind: TimerKind, group_id: str, member_id: str, due_ms: int) -> Schedule:
    return Schedule(ConsumerTimer(kind, group_id, member_id), due_ms)


def cancel(kind: TimerKind, group_id: str, member_id: str) -> Cancel:
    return Cancel(ConsumerTimer(kind, group_id, member_id))


class Writing:
    """Records, in order, and effects that a decision collects."""

    __slots__ = ("effects", "event", "records")

    def __init__(self, opened: Opened | None = None) -> None:
        self.records: list[CoordinatorRecord] = list(opened.records) if opened else []
        self.effects: list[Effect] = []
        self.event: Hashable | None = opened.event if opened else None

    def work(self, kind: WorkKind, group_id: str, steps: Any) -> None:
        self.effects.append(BackgroundWork(ConsumerWork(kind, group_id), steps))

    def downgrade(self, downgrade: Downgrade) -> None:
        """Convert the group to the classic protocol."""
        self.records += downgrade.records
        self.effects += downgrade.effects
        self.event = downgrade.event
