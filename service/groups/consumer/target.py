"""Target assignments: when they are made, by which assignor, and their records. [P]

Those of small groups are made at once, those of large ones (`LARGE`) as long work: the result is
written if the group's epoch has not changed meanwhile. Source: Apache Kafka ``TargetAssignmentBuilder``,
``GroupMetadataManager.maybeUpdateTargetAssignment``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from service.base.steps import Steps
from service.coordinator.ports import TopicsView
from service.coordinator.shard import CoordinatorRecord
from service.groups.assignors import range as range_assignor
from service.groups.assignors import uniform
from service.groups.assignors.spec import Assignor, TopicSpec, spec_of
from service.groups.consumer.group import NO_PARTITIONS, ConsumerGroup, ConsumerGroupMember
from service.groups.records_modern import Partitions, target_epoch_record, target_record

ASSIGNORS: Final[Mapping[str, Assignor]] = {
    uniform.NAME: uniform.assign,
    range_assignor.NAME: range_assignor.assign,
}
LARGE: Final = 2_000
"""Members plus partitions; a larger group is assigned in slices."""
MANY_MEMBERS: Final = 150
"""Members; a group with more is assigned in slices, whatever its partitions: that takes some milliseconds."""


Subscriptions: TypeAlias = Mapping[str, tuple[str | None, frozenset[str]]]
"""instance id and topic names of each member"""
_NOBODY: Final[Subscriptions] = MappingProxyType({})


class Basis(NamedTuple):
    """Input of target assignments, as of `epoch`."""

    group_id: str
    epoch: int
    assignor: str
    subscriptions: Subscriptions
    topics: Mapping[str, TopicSpec]
    targets: Mapping[str, Partitions]

    @property
    def is_large(self) -> bool:
        members = len(self.subscriptions)
        partitions = sum(topic.partitions for topic in self.topics.values())
        return members > MANY_MEMBERS or members + partitions > LARGE


class TargetAssignment(NamedTuple):
    """New targets for a group's epoch, and the records of changed targets, without the epoch's record."""

    epoch: int
    targets: Mapping[str, Partitions]
    records: tuple[CoordinatorRecord, ...]
    subscriptions: Subscriptions = _NOBODY
    """the input they were made from"""

    def is_of(self, group: ConsumerGroup) -> bool:
        """Return whether the group's members are those that the targets were made for. At the same
        epoch they may differ: a static member returned under another id, or a write failed and its epoch was
        used again."""
        return self.subscriptions == _subscriptions(group, group.members.items())


def is_due(target_ms: int, interval_ms: int, now_ms: int) -> bool:
    """Return whether new targets may be made: also at once if there are none yet, or the time of the
    last is not plausible, as after a clock was set back."""
    return target_ms == 0 or interval_ms == 0 or not target_ms <= now_ms < target_ms + interval_ms


def preferred_assignor(members: Iterable[ConsumerGroupMember], assignors: tuple[str, ...]) -> str:
    """Return the assignor that most members name; of equals, and without votes, the first of `assignors`."""
    votes = dict.fromkeys(assignors, 0)
    for member in members:
        if member.assignor in votes:
            votes[member.assignor] += 1
    return max(votes, key=votes.__getitem__)


def basis(
    group: ConsumerGroup,
    epoch: int,
    changed: ConsumerGroupMember | None,
    assignors: tuple[str, ...],
    topics: TopicsView,
) -> Basis:
    """Return the input for the group with `changed`, which replaces the previous holder of its instance
    id."""
    members = dict(group.members.items())
    targets = dict(group.targets.items())
    if changed is not None:
        members[changed.member_id] = changed
        before = group.static_members.get(changed.instance_id) if changed.instance_id is not None else None
        if before is not None and before != changed.member_id:
            del members[before]
            if before in targets:
                targets[changed.member_id] = targets.pop(before)
    subscriptions = _subscriptions(group, members.items())
    # Collecting the topics of very many members would take long; topics without subscribers do no harm.
    known: dict[str, TopicSpec] = {}
    for name in chain(group.subscribed, group.topics_of(changed) if changed is not None else ()):
        if name not in known and (topic := topics.by_name(name)) is not None:
            known[name] = TopicSpec(topic.topic_id, topic.partitions)
    return Basis(
        group.group_id, epoch, preferred_assignor(members.values(), assignors), subscriptions, known, targets
    )


def _subscriptions(
    group: ConsumerGroup, members: Iterable[tuple[str, ConsumerGroupMember]]
) -> dict[str, tuple[str | None, frozenset[str]]]:
    return {member_id: (member.instance_id, group.topics_of(member)) for member_id, member in members}


def make_targets(base: Basis) -> Steps[TargetAssignment]:
    """Make the targets of all members."""
    spec = yield from spec_of(base.subscriptions, base.topics, base.targets)
    targets = yield from ASSIGNORS[base.assignor](spec)
    records = []
    for member in spec.members:
        target = targets.get(member.member_id, NO_PARTITIONS)
        if target != base.targets.get(member.member_id):
            yield
            records.append(target_record(base.group_id, member.member_id, target))
    return TargetAssignment(base.epoch, targets, tuple(records), base.subscriptions)


def records_of(group_id: str, new: TargetAssignment, now_ms: int) -> tuple[CoordinatorRecord, ...]:
    """Return the records of the targets and of their epoch."""
    return (*new.records, target_epoch_record(group_id, new.epoch, now_ms))
