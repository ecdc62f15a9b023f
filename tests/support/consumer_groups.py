"""KIP-848 groups in tests: a shard with both kinds of groups, and members that behave."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.coordinator.shard import CoordinatorResult
from service.groups.config import GroupsConfig
from service.groups.consumer.describe import ConsumerGroupView
from service.groups.consumer.group import ConsumerGroup, ConsumerGroupMember
from service.groups.consumer.groups import ConsumerGroups
from service.groups.consumer_config import ConsumerConfig
from service.groups.metrics import GroupMetrics
from service.groups.shard import GroupShard
from tests.support.groups import Members, Topics, client
from tests.support.shards import ShardLeader

Partition = tuple[UUID, int]


class Leader(ShardLeader[GroupShard]):
    """One whose timers go off again when their write has failed, as the runtime's do."""

    AGAIN_MS = 500

    def __init__(self, make: Callable[[], GroupShard]) -> None:
        self._expiring: Hashable | None = None
        self._expired: list[tuple[CoordinatorResult[Any], Hashable]] = []
        super().__init__(make)

    def advance(self, ms: int) -> None:
        until = self.now_ms + ms
        while True:
            name = min(self.timers, key=self.timers.__getitem__, default=None)
            if name is None or self.timers[name] > until:
                break
            self.now_ms = max(self.now_ms, self.timers.pop(name))
            self._expiring = name
            self._take(self.shard.expired(name, self.now_ms), None)
        self.now_ms = until

    def _take(self, decision: CoordinatorResult[Any], ticket: int | None) -> None:
        if self._expiring is not None:
            self._expired.append((decision, self._expiring))
            self._expiring = None
        super()._take(decision, ticket)

    def _refuse(self, decision: CoordinatorResult[Any], ticket: int | None, error: ErrorCode) -> None:
        super()._refuse(decision, ticket, error)
        for other, name in self._expired:
            if other is decision:
                self.timers.setdefault(name, self.now_ms + self.AGAIN_MS)


class World:
    """Topics and settings of one leader, which both may change."""

    def __init__(self, config: ConsumerConfig | None = None) -> None:
        self.topics = Topics()
        self.config = config or ConsumerConfig(assignment_interval_ms=0)
        self.settings: dict[str, Mapping[str, str]] = {}
        self.metrics = GroupMetrics()
        self.warnings: list[str] = []
        self._uuids = 1 << 64
        self.leader = Leader(self._shard)

    def _shard(self) -> GroupShard:
        config = GroupsConfig(group_initial_rebalance_delay_ms=0)
        return GroupShard(0, self.topics, lambda: config, self.metrics, self._modern, self.warnings.append)

    def _modern(self, shard: GroupShard) -> ConsumerGroups:
        return ConsumerGroups(
            shard.journal,
            shard.groups,
            self.topics,
            shard.classic,
            lambda: self.config,
            lambda group_id: self.settings.get(group_id, {}),
            self.metrics,
            self._new_uuid,
        )

    def _new_uuid(self) -> UUID:
        self._uuids += 1
        return UUID(int=self._uuids)

    @property
    def modern(self) -> ConsumerGroups:
        modern = self.leader.shard.modern
        assert isinstance(modern, ConsumerGroups)
        return modern

    def make_topic(self, name: str, partitions: int) -> UUID:
        """Made, grown, or (should it have been deleted) made anew under another id."""
        old = self.topics.get(name)
        topic_id = old.topic_id if old is not None else self._new_uuid()
        self.topics.make(name, partitions, topic_id.int)
        self.leader.tell(lambda shard, now: shard.topics_changed((name,), (), now))
        return topic_id

    def delete_topic(self, name: str) -> None:
        gone = self.topics.pop(name)
        self.leader.tell(lambda shard, now: shard.topics_changed((name,), (gone.topic_id,), now))

    def group(self, group_id: str = "g") -> ConsumerGroup:
        group = self.leader.shard.groups[group_id]
        assert isinstance(group, ConsumerGroup)
        return group


def owned(partitions: Iterable[Partition]) -> tuple[Any, ...]:
    """Return the owned partitions as a heartbeat names them."""
    by_topic: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(partitions, key=str):
        by_topic.setdefault(topic_id, []).append(number)
    return tuple(SimpleNamespace(topic_id=t, partitions=tuple(n)) for t, n in by_topic.items())


def partitions_of(assignment: Any) -> set[Partition]:
    """Return the partitions of a response."""
    return {(topic.topic_id, n) for topic in assignment.topic_partitions for n in topic.partitions}


def beat_request(
    member_id: str,
    epoch: int,
    *,
    group_id: str = "g",
    names: Iterable[str] | None = None,
    regex: str | None = None,
    has: Iterable[Partition] | None = None,
    timeout_ms: int = -1,
    instance: str | None = None,
    assignor: str | None = None,
    rack: str | None = None,
) -> Any:
    return SimpleNamespace(
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=instance,
        rack_id=rack,
        rebalance_timeout=timedelta(milliseconds=timeout_ms),
        subscribed_topic_names=None if names is None else tuple(names),
        subscribed_topic_regex=regex,
        server_assignor=assignor,
        topic_partitions=None if has is None else owned(has),
    )


class Consumers(Members):
    """Requests of members of both protocols to a world's leader."""

    def __init__(self, world: World) -> None:
        super().__init__(world.leader)
        self.world = world

    def beat(self, member_id: str, epoch: int, version: int = 1, client_id: str = "c", **about: Any) -> int:
        """The ticket of a heartbeat."""
        request = beat_request(member_id, epoch, **about)
        who = client(client_id, version)
        return self.leader.ask(lambda shard, t, now: self._heartbeat(shard, request, who, now))

    @staticmethod
    def _heartbeat(shard: GroupShard, request: Any, who: Any, now: int) -> Any:
        assert isinstance(shard.modern, ConsumerGroups)
        return shard.modern.heartbeat(request, who, now)

    def enter(self, member_id: str, *names: str, timeout_ms: int = 60_000, **about: Any) -> Any:
        """The answer to a member that joins."""
        subscription = {"names": names} if names or "regex" not in about else {}
        return self.answer(
            self.beat(member_id, 0, has=(), timeout_ms=timeout_ms, **subscription, **about)  # type: ignore[arg-type]
        )

    def says(self, member_id: str, epoch: int, **about: Any) -> Any:
        """The answer to a heartbeat."""
        return self.answer(self.beat(member_id, epoch, **about))

    def member(self, member_id: str, group_id: str = "g") -> ConsumerGroupMember:
        return self.world.group(group_id).members[member_id]

    def look(self, group_id: str = "g") -> ConsumerGroupView:
        look = self.leader.shard.view(group_id)
        assert isinstance(look, ConsumerGroupView)
        return look


class Consumer:
    """A member that does what KIP-848 asks of it, one heartbeat after the other.

    `slow`: it gives up what it is to give up one heartbeat later.
    """

    def __init__(
        self,
        consumers: Consumers,
        member_id: str,
        *,
        names: Iterable[str] = (),
        regex: str | None = None,
        instance: str | None = None,
        assignor: str | None = None,
        slow: bool = False,
    ) -> None:
        self.consumers = consumers
        self.member_id = member_id
        self.names = tuple(names)
        self.regex = regex
        self.instance = instance
        self.assignor = assignor
        self.slow = slow
        self.epoch = 0
        self.has: set[Partition] = set()
        self._given: set[Partition] | None = None
        """what it was told to have, which it has not made its own yet"""
        self._in_full = True

    @property
    def owner(self) -> str:
        """A static member is the same under another id."""
        return self.instance or self.member_id

    def send(self) -> int:
        """The ticket of its next heartbeat."""
        if self._given is not None:
            self.has = self._given
            self._given = None
        if self.epoch == 0:
            self.has = set()
        full = self._in_full or self.epoch == 0
        return self.consumers.beat(
            self.member_id,
            self.epoch,
            has=self.has,
            instance=self.instance,
            assignor=self.assignor,
            names=self.names if full else None,
            regex=(self.regex or "") if full else None,
            timeout_ms=30_000 if full else -1,
        )

    def take(self, ticket: int) -> ErrorCode | None:
        """Take the response, if there is one, and return its error."""
        answer = self.consumers.leader.answers.get(ticket)
        if answer is None or isinstance(answer, RequestError):
            self._in_full = True
            return None
        if answer.error_code in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            self.fence()
        if answer.error_code != ErrorCode.none:
            return ErrorCode(answer.error_code)
        self._in_full = False
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            given = partitions_of(answer.assignment)
            self._given = given
            if not self.slow:
                self.has = given
                self._given = None
        return None

    def fence(self) -> None:
        """Lose everything and join again."""
        self.epoch, self.has, self._given = 0, set(), None

    def lose(self) -> None:
        """Lose the response, so that the next heartbeat is a full one."""
        self._in_full = True

    def subscribe(self, names: Iterable[str], regex: str | None = None) -> None:
        self.names, self.regex = tuple(names), regex
        self._in_full = True

    def beat(self) -> ErrorCode | None:
        return self.take(self.send())

    def leave(self, for_good: bool = True) -> None:
        epoch = -1 if for_good or self.instance is None else -2
        self.consumers.beat(self.member_id, epoch, instance=self.instance)
        self.fence()
