"""Assignor `uniform`: assigns equally many partitions to all members, and moves as few as possible. [P]

Handles groups whose members have the same subscription; `uniform_mixed` handles the others. Of p partitions
each of m members gets p // m, and p % m members get one more: first those that already have more, so that
nothing moves without need. Unassigned and surplus partitions go, in order, to the members that lack some.

Source: Apache Kafka ``UniformAssignor``, ``UniformHomogeneousAssignmentBuilder``.
"""

from __future__ import annotations

from uuid import UUID

from service.base.steps import Steps
from service.groups.assignors import uniform_mixed
from service.groups.assignors.spec import GroupSpec, Target, Targets

NAME = "uniform"


def assign(spec: GroupSpec) -> Steps[Targets]:
    """Return the targets of all members."""
    if not spec.members:
        return {}
    if spec.same_topics:
        return (yield from _assign_equals(spec))
    return (yield from uniform_mixed.assign(spec))


def _assign_equals(spec: GroupSpec) -> Steps[Targets]:
    topics = [spec.topics[index] for index in spec.members[0].topics]
    partitions_of = {topic.topic_id: topic.partitions for topic in topics}
    owned: dict[str, dict[UUID, tuple[int, ...]]] = {}
    taken: dict[UUID, set[int]] = {topic.topic_id: set() for topic in topics}
    for member in spec.members:
        kept = {}
        for topic_id, numbers in member.target.items():
            yield
            count = partitions_of.get(topic_id, 0)
            others = taken.get(topic_id)
            if others is None:
                continue
            valid = tuple(n for n in numbers if n < count and n not in others)
            if valid:
                others.update(valid)
                kept[topic_id] = valid
        owned[member.member_id] = kept
    free = []
    for topic in topics:
        yield
        others = taken[topic.topic_id]
        free += [(topic.topic_id, n) for n in range(topic.partitions) if n not in others]
    return (yield from _even_out(spec, sum(partitions_of.values()), owned, free))


def _even_out(
    spec: GroupSpec,
    partitions: int,
    owned: dict[str, dict[UUID, tuple[int, ...]]],
    free: list[tuple[UUID, int]],
) -> Steps[Targets]:
    quota, extras = divmod(partitions, len(spec.members))
    yield
    counts = {member_id: sum(map(len, kept.values())) for member_id, kept in owned.items()}
    rich = [member_id for member_id, count in counts.items() if count > quota]
    poor = [member_id for member_id, count in counts.items() if count <= quota]
    with_extra = set((rich + poor)[:extras])
    wanting = []
    for member_id, count in counts.items():
        yield
        entitled = quota + (member_id in with_extra)
        if count > entitled:
            yield
            free += _give_up(owned[member_id], count - entitled)
        elif count < entitled:
            wanting.append((member_id, entitled - count))
    targets: dict[str, Target] = dict(owned)
    position = 0
    for member_id, missing in wanting:
        yield
        targets[member_id] = _with(owned[member_id], free[position : position + missing])
        position += missing
    return targets


def _give_up(kept: dict[UUID, tuple[int, ...]], surplus: int) -> list[tuple[UUID, int]]:
    """Remove the last `surplus` partitions from `kept` and return them."""
    given = []
    for topic_id in reversed(tuple(kept)):
        numbers = kept[topic_id]
        left = max(len(numbers) - surplus, 0)
        given += [(topic_id, n) for n in numbers[left:]]
        surplus -= len(numbers) - left
        if left:
            kept[topic_id] = numbers[:left]
            break
        del kept[topic_id]
        if not surplus:
            break
    return given


def _with(kept: dict[UUID, tuple[int, ...]], more: list[tuple[UUID, int]]) -> Target:
    added: dict[UUID, list[int]] = {}
    for topic_id, number in more:
        added.setdefault(topic_id, []).append(number)
    return kept | {
        topic_id: tuple(sorted((*kept.get(topic_id, ()), *numbers))) for topic_id, numbers in added.items()
    }
