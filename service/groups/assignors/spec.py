"""What an assignor is given, and what it answers. [P]

Members come in order of their ids and topics in order of their names, so that equal groups are assigned
equally, whatever the order of their records was. An assignor is a generator: it tells each step's work (µs)
before it is done, and returns the target of every member (`base/steps.py`).

Source: Apache Kafka ``ConsumerGroupPartitionAssignor``, ``GroupSpec``, ``MemberSubscription``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import NamedTuple, TypeAlias
from uuid import UUID

from service.base.steps import Steps

Target: TypeAlias = Mapping[UUID, tuple[int, ...]]
"""Partitions by topic id, in order of their numbers; topics without partitions are not named."""

NO_TARGET: Target = {}


class MemberSpec(NamedTuple):
    """`topics` are ascending indexes of `GroupSpec.topics`; `target` is what it has by the last targets."""

    member_id: str
    instance_id: str | None
    topics: Sequence[int]
    target: Target = NO_TARGET


class Topic(NamedTuple):
    """A topic that exists."""

    topic_id: UUID
    partitions: int


class GroupSpec(NamedTuple):
    """`same_topics`: every member has the same subscription."""

    members: Sequence[MemberSpec]
    topics: Sequence[Topic]
    same_topics: bool


Targets: TypeAlias = Mapping[str, Target]
"""The target of every member, by its id."""

Assignor: TypeAlias = Callable[[GroupSpec], Steps[Targets]]


def _indexes(subscribed: frozenset[str], names: Sequence[str], index_of: Mapping[str, int]) -> array[int]:
    """Where the subscribed names stand in `names`; of many names, those are looked through in order.

    An array, as there may be a million of them: the collector of garbage does not look into it.
    """
    if len(subscribed) * 5 < len(names):
        return array("I", sorted(index_of[name] for name in subscribed if name in index_of))
    return array("I", compress(range(len(names)), map(subscribed.__contains__, names)))


def spec_of(
    subscriptions: Mapping[str, tuple[str | None, frozenset[str]]],
    topics: Mapping[str, Topic],
    targets: Mapping[str, Target],
) -> Steps[GroupSpec]:
    """The spec of members given as (instance id, names of topics). Names that `topics` lacks do not exist.

    Members with equal subscriptions share one list of indexes.
    """
    names = sorted(topics)
    yield len(names)
    index_of = {name: index for index, name in enumerate(names)}
    lists: dict[frozenset[str], Sequence[int]] = {}
    members = []
    for member_id in sorted(subscriptions):
        instance_id, subscribed = subscriptions[member_id]
        indexes = lists.get(subscribed)
        if indexes is None:
            yield min(len(subscribed) // 4, len(names) // 20) + 1
            indexes = _indexes(subscribed, names, index_of)
            lists[subscribed] = indexes
        yield 3 + len(subscribed) // 100
        members.append(MemberSpec(member_id, instance_id, indexes, targets.get(member_id, NO_TARGET)))
    first = members[0].topics if members else ()
    same = all(indexes == first for indexes in lists.values())
    return GroupSpec(members, [topics[name] for name in names], same)
