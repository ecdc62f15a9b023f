"""Groups in tests: topics that are a dictionary, and a shard whose modern groups do not exist."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.coordinator.ports import CoordinatorTopic
from service.coordinator.shard import NOTHING, CoordinatorResult, Effect, Outcome
from service.groups.config import GroupsConfig
from service.groups.group import Group
from service.groups.metrics import GroupMetrics
from service.groups.requests import RequestOrigin
from service.groups.shard import GroupShard
from tests.support.shards import ShardLeader


class Topics(dict[str, CoordinatorTopic]):
    """A `TopicsView`."""

    def by_name(self, topic: str) -> CoordinatorTopic | None:
        return self.get(topic)

    def by_id(self, topic_id: UUID) -> CoordinatorTopic | None:
        return next((topic for topic in self.values() if topic.topic_id == topic_id), None)

    def names(self) -> Iterable[str]:
        return tuple(self)

    @property
    def token(self) -> object:
        return tuple(self.values())

    def make(self, name: str, partitions: int, number: int) -> CoordinatorTopic:
        topic = self[name] = CoordinatorTopic(UUID(int=number), name, partitions)
        return topic


class NoModernGroups:
    """`ModernGroups` of a cluster whose ``group.version`` is 0: there is none."""

    def __init__(self, shard: GroupShard) -> None:
        self.shard = shard

    def view(self, group_id: str, group: Any, committed: bool) -> Group:
        raise AssertionError(group)

    def replay(self, offset: int, kind: int, key: bytes, value: bytes | None) -> bool:
        return False

    def join(self, *about: Any) -> CoordinatorResult[Any]:
        raise AssertionError(about)

    sync = classic_heartbeat = leave = join

    def loaded(self, group_id: str, group: Any, now_ms: int) -> tuple[Effect, ...]:
        return ()

    def expired(self, name: Hashable, now_ms: int) -> Outcome:
        raise AssertionError(name)

    def worked(self, name: Hashable, result: object, now_ms: int) -> Outcome:
        raise AssertionError(name)

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome:
        raise AssertionError(event)

    def topics_changed(self, names: tuple[str, ...], deleted: tuple[UUID, ...], now_ms: int) -> Outcome:
        return NOTHING


def classic_shard(
    topics: Topics | None = None,
    metrics: GroupMetrics | None = None,
    warnings: list[str] | None = None,
    **settings: Any,
) -> GroupShard:
    """A shard for classic groups; the first round is not delayed unless `settings` say so."""
    told: list[str] = [] if warnings is None else warnings
    config = GroupsConfig(**{"group_initial_rebalance_delay_ms": 0, **settings})
    return GroupShard(
        0,
        Topics() if topics is None else topics,
        lambda: config,
        metrics or GroupMetrics(),
        NoModernGroups,
        told.append,
    )


def client(client_id: str = "c", version: int = 9) -> RequestOrigin:
    return RequestOrigin(client_id, "/127.0.0.1", version)


def protocol(name: str, metadata: bytes = b"") -> Any:
    return SimpleNamespace(name=name, metadata=metadata)


def join_request(
    group_id: str = "g",
    member_id: str = "",
    instance: str | None = None,
    protocols: Iterable[tuple[str, bytes]] = (("range", b"range"),),
    session_ms: int = 10_000,
    rebalance_ms: int = 60_000,
    protocol_type: str = "consumer",
) -> Any:
    return SimpleNamespace(
        group_id=group_id,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=tuple(protocol(*one) for one in protocols),
        session_timeout=timedelta(milliseconds=session_ms),
        rebalance_timeout=timedelta(milliseconds=rebalance_ms),
        reason=None,
    )


def sync_request(
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    group_id: str = "g",
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = None,
) -> Any:
    return SimpleNamespace(
        group_id=group_id,
        member_id=member_id,
        generation_id=generation,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=tuple(
            SimpleNamespace(member_id=who, assignment=what) for who, what in (assignments or {}).items()
        ),
    )


def heartbeat_request(
    member_id: str, generation: int, group_id: str = "g", instance: str | None = None
) -> Any:
    return SimpleNamespace(
        group_id=group_id, member_id=member_id, generation_id=generation, group_instance_id=instance
    )


def leave_request(*members: tuple[str, str | None], group_id: str = "g") -> Any:
    return SimpleNamespace(
        group_id=group_id,
        members=tuple(
            SimpleNamespace(member_id=member_id, group_instance_id=instance, reason=None)
            for member_id, instance in members
        ),
    )


class Members:
    """Requests of members of classic groups to a shard's leader; each call returns a ticket."""

    def __init__(self, leader: ShardLeader[GroupShard]) -> None:
        self.leader = leader
        self._uuids = 0

    def join(self, member_id: str = "", client_id: str = "c", version: int = 9, **about: Any) -> int:
        self._uuids += 1
        fresh_id = str(UUID(int=self._uuids))
        request = join_request(member_id=member_id, **about)
        who = client(client_id, version)
        return self.leader.ask(lambda shard, t, now: shard.join_group(request, who, t, fresh_id, now))

    def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **about: Any
    ) -> int:
        request = sync_request(member_id, generation, assignments, **about)
        return self.leader.ask(lambda shard, t, now: shard.sync_group(request, client(), t, now))

    def heartbeat(self, member_id: str, generation: int, **about: Any) -> int:
        request = heartbeat_request(member_id, generation, **about)
        return self.leader.ask(lambda shard, t, now: shard.heartbeat(request, client(), now))

    def leave(self, *members: tuple[str, str | None], **about: Any) -> int:
        request = leave_request(*members, **about)
        return self.leader.ask(lambda shard, t, now: shard.leave_group(request, client(), t, now))

    def answer(self, ticket: int) -> Any:
        """Return the response of a ticket; fail if it waits."""
        assert not self.leader.waits(ticket), f"request {ticket} has no answer"
        return self.leader.answers[ticket]

    def error(self, ticket: int) -> ErrorCode:
        answer = self.answer(ticket)
        return answer.code if isinstance(answer, RequestError) else ErrorCode(answer.error_code)

    def member_id(self, **about: Any) -> str:
        """An id, by MEMBER_ID_REQUIRED."""
        answer = self.answer(self.join(**about))
        assert answer.error_code == ErrorCode.member_id_required
        return str(answer.member_id)

    def stable(self, *client_ids: str, group_id: str = "g", **about: Any) -> tuple[list[str], int]:
        """A stable group of new members; their ids, the leader's first, and the generation."""
        ids = [self.member_id(client_id=name, group_id=group_id, **about) for name in client_ids]
        tickets = [
            self.join(member_id, name, group_id=group_id, **about)
            for member_id, name in zip(ids, client_ids, strict=True)
        ]
        self.leader.advance(0)
        generation = self.answer(tickets[0]).generation_id
        leader = self.answer(tickets[0]).leader
        ids.sort(key=lambda member_id: member_id != leader)
        given = {member_id: b"to " + member_id.encode() for member_id in ids}
        kind = about.get("protocol_type", "consumer")
        synced = [
            self.sync(
                one,
                generation,
                given if one == leader else None,
                group_id=group_id,
                protocol_type=kind,
            )
            for one in ids
        ]
        assert [self.answer(t).assignment for t in synced] == [given[one] for one in ids]
        return ids, generation

    @property
    def state(self) -> str:
        """Return the state of the group `g`."""
        group = self.leader.shard.view("g")
        return "Dead" if group is None else group.state
