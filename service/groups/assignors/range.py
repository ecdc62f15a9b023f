"""Assignor `range`: assigns consecutive ranges of each topic's partitions to its subscribers. [P]

If the partitions do not divide evenly, the first subscribers get one more. So topics with equally many
partitions and the same subscribers are co-partitioned: partition n of each goes to the same member. Static
members come first, ordered by instance id, and keep their place over restarts; then the others, by member id.

Source: Apache Kafka ``RangeAssignor``.
"""

from __future__ import annotations

from array import array
from uuid import UUID

from service.base.steps import Steps
from service.groups.assignors.spec import GroupSpec, MemberSpec, Targets

NAME = "range"


def _place(member: MemberSpec) -> tuple[bool, str]:
    if member.instance_id is None:
        return True, member.member_id
    return False, member.instance_id


def assign(spec: GroupSpec) -> Steps[Targets]:
    """Return the ranges of all members."""
    members = sorted(spec.members, key=_place)
    subscribers = [array("I") for _ in spec.topics]  # arrays, which the garbage collector does not traverse
    if spec.same_topics and members:
        all_members = array("I", range(len(members)))
        for topic in members[0].topics:
            subscribers[topic] = all_members
    else:
        for index, member in enumerate(members):
            yield
            for topic in member.topics:
                subscribers[topic].append(index)
    targets: dict[str, dict[UUID, tuple[int, ...]]] = {member.member_id: {} for member in members}
    for (topic_id, partitions), indexes in zip(spec.topics, subscribers, strict=True):
        if not indexes:
            continue
        quota, extra = divmod(partitions, len(indexes))
        receiving = indexes if quota else indexes[:extra]
        yield
        start = 0
        for place, index in enumerate(receiving):
            stop = start + quota + (place < extra)
            targets[members[index].member_id][topic_id] = tuple(range(start, stop))
            start = stop
    return targets
