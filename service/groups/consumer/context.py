"""What decisions about KIP-848 groups look at beside the group itself. [P]"""

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
    """What ends with a timer: always somebody's membership."""

    SESSION = "consumer session"
    REBALANCE = "consumer rebalance"
    """a member has not given up partitions"""
    JOIN = "consumer join"
    """a classic member was told to rejoin"""
    SYNC = "consumer sync"
    """a classic member has joined and not asked for its assignment"""


class ConsumerTimer(NamedTuple):
    """The name of a timer of a member."""

    kind: TimerKind
    group_id: str
    member_id: str


class WorkKind(StrEnum):
    """Long work for a group."""

    TARGET = "consumer target"
    REGEX = "consumer regex"


class ConsumerWork(NamedTuple):
    """The name of long work."""

    kind: WorkKind
    group_id: str


class Opened(NamedTuple):
    """A group that a member comes to, and the records that make it one of KIP-848 if it was classic.

    `part` is called once nothing can be refused any more: it ends what is under way in the classic group.
    """

    group: ConsumerGroup
    records: tuple[CoordinatorRecord, ...] = ()
    part: Callable[[], tuple[Effect, ...]] | None = None
    event: Hashable | None = None


class Turn(NamedTuple):
    """What turns a group classic."""

    records: tuple[CoordinatorRecord, ...]
    effects: tuple[Effect, ...]
    event: Hashable


class Migration(Protocol):
    """`groups/migration.py`, as the rest of the room sees it."""

    def upgraded(self, group_id: str, now_ms: int) -> Opened:
        """A classic group, or none at all, as one of KIP-848. Raises `RequestError` where it cannot be."""

    def downgraded(self, group: ConsumerGroup, leaving: frozenset[str], now_ms: int) -> Turn | None:
        """What turns a group classic once these members are gone, if it is to."""


class Context:
    """One for each shard. Versions of the topics count what `topics_changed` told since the shard began."""

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
        """Raises `RequestError` GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        raise RequestError(
            ErrorCode.group_id_not_found,
            f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group.",
        )

    def new_member_id(self) -> str:
        """As Kafka's ``Uuid.randomUuid()`` looks; no dash in front, which tools take for an option."""
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
    """What a decision collects on its way: records in order, and effects."""

    __slots__ = ("effects", "event", "records")

    def __init__(self, opened: Opened | None = None) -> None:
        self.records: list[CoordinatorRecord] = list(opened.records) if opened else []
        self.effects: list[Effect] = []
        self.event: Hashable | None = opened.event if opened else None

    def work(self, kind: WorkKind, group_id: str, steps: Any) -> None:
        self.effects.append(BackgroundWork(ConsumerWork(kind, group_id), steps))

    def turn(self, turn: Turn) -> None:
        """The group turns classic."""
        self.records += turn.records
        self.effects += turn.effects
        self.event = turn.event
