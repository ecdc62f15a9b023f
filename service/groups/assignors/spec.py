"""Input and output of an assignor. [P]

Members are sorted by id and topics by name, so that equal groups get equal assignments, whatever the order of
their records. An assignor is a generator: it pauses before each step (`base/steps.py`), and returns the
targets of all members.

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
"""Partitions by topic id, sorted; topics without partitions are left out."""

NO_TARGET: Target = {}


class MemberSpec(NamedTuple):
    """A member. `topics` are ascending indexes of `GroupSpec.topics`; `target` is its last target."""

    member_id: str
    instance_id: str | None
    topics: Sequence[int]
    target: Target = NO_TARGET


class TopicSpec(NamedTuple):
    """A topic that exists."""

    topic_id: UUID
    partitions: int


class GroupSpec(NamedTuple):
    """A group. `same_topics`: all members have the same subscription."""

    members: Sequence[MemberSpec]
    topics: Sequence[TopicSpec]
    same_topics: bool


Targets: TypeAlias = Mapping[str, Target]
"""targets of all members, by id"""

Assignor: TypeAlias = Callable[[GroupSpec], Steps[Targets]]


def _indexes(subscribed: frozenset[str], names: Sequence[str], index_of: Mapping[str, int]) -> array[int]:
    """Return the indexes of the subscribed names in `names`; if they are many, by a scan of `names`.

    An array, as there may be a million of them: the garbage collector does not traverse it.
    """
    if len(subscribed) * 5 < len(names):
        return array("I", sorted(index_of[name] for name in subscribed if name in index_of))
    return array("I", compress(range(len(names)), map(subscribed.__contains__, names)))


def spec_of(
    subscriptions: Mapping[str, tuple[str | None, frozenset[str]]],
    topics: Mapping[str, TopicSpec],
    targets: Mapping[str, Target],
) -> Steps[GroupSpec]:
    """Build the spec of members given as (instance id, names of topics). Names that `topics` lacks do not
    exist.

    Members with equal subscriptions share one list of indexes.
    """
    names = sorted(topics)
    yield
    index_of = {name: index for index, name in enumerate(names)}
    lists: dict[frozenset[str], Sequence[int]] = {}
    members = []
    for member_id in sorted(subscriptions):
        instance_id, subscribed = subscriptions[member_id]
        indexes = lists.get(subscribed)
        if indexes is None:
            yield
            indexes = _indexes(subscribed, names, index_of)
            lists[subscribed] = indexes
        yield
        members.append(MemberSpec(member_id, instance_id, indexes, targets.get(member_id, NO_TARGET)))
    first = members[0].topics if members else ()
    same = all(indexes == first for indexes in lists.values())
    return GroupSpec(members, [topics[name] for name in names], same)
