"""Lag of consumer groups: how many records each has before it, from its committed offsets. [P]

In three steps, as the ends of logs come from elsewhere: `collect` finds the groups and their offsets, the
caller finds the ends, `lags_of` has the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from service.base.steps import Steps

if TYPE_CHECKING:
    from service.groups.offsets import Place
    from service.groups.shard import GroupShard

MOST_OFFSETS: Final = 100_000
"""Committed offsets that are looked at, in all groups together."""
_AT_A_TIME: Final = 100
_OFFSETS_AT_A_TIME: Final = 500


class GroupOffsets(NamedTuple):
    """A group's committed offsets, as of one moment."""

    group: str
    members: int
    offsets: list[tuple[Place, int]]


class CollectedOffsets(NamedTuple):
    """Groups with members first, then by name. `left_out` counts the groups beyond the limits."""

    groups: list[GroupOffsets]
    left_out: int


class GroupLag(NamedTuple):
    """Lag of one group."""

    group: str
    members: int
    topics: dict[str, dict[int, int]]
    """by topic and partition: records between the committed offset and the high watermark"""


class LagReport(NamedTuple):
    """Lag of the groups that a node coordinates.

    `left_out` counts groups beyond the limits; `unknown` the committed offsets of partitions whose end is not
    known now: nobody leads them, or their leader did not answer.
    """

    groups: list[GroupLag]
    left_out: int = 0
    unknown: int = 0


def collect(shards: Iterable[GroupShard], most_groups: int) -> Steps[CollectedOffsets]:
    """Return the offsets of `most_groups` groups at most: those with members are preferred.

    Groups may come and go between the steps.
    """
    chosen: list[tuple[bool, str, GroupShard]] = []
    found = 0
    for shard in shards:
        for count, group_id in enumerate(tuple(shard.groups)):
            if count % _AT_A_TIME == 0:
                yield
            group = shard.committed_view(group_id)
            if group is None or (group.is_empty and not shard.offsets.has_any(group_id)):
                continue
            found += 1
            chosen.append((group.is_empty, group_id, shard))
            if len(chosen) >= 2 * most_groups + _AT_A_TIME:
                chosen.sort(key=_order)
                del chosen[most_groups:]
    yield
    chosen.sort(key=_order)
    groups: list[GroupOffsets] = []
    room = MOST_OFFSETS
    for _, group_id, shard in chosen[:most_groups]:
        yield
        group = shard.committed_view(group_id)
        count = shard.offsets.count_of(group_id)
        if group is not None and count <= room:
            room -= count
            groups.append(GroupOffsets(group_id, group.member_count, []))
            for at, pair in enumerate(shard.offsets.positions(group_id)):
                if at % _OFFSETS_AT_A_TIME == 0:
                    yield
                groups[-1].offsets.append(pair)
    return CollectedOffsets(groups, found - len(groups))


def _order(one: tuple[bool, str, GroupShard]) -> tuple[bool, str]:
    return one[:2]


def lags_of(collected: CollectedOffsets, ends: Mapping[Place, int | None]) -> Steps[LagReport]:
    """Return the lags. `ends`: high watermark of each partition, None where it is not known; a partition that
    it lacks does not exist any more, and has no lag."""
    groups: list[GroupLag] = []
    unknown = 0
    for group, members, offsets in collected.groups:
        topics: dict[str, dict[int, int]] = {}
        for at, (place, offset) in enumerate(offsets):
            if at % _OFFSETS_AT_A_TIME == 0:
                yield
            if place not in ends:
                continue
            end = ends[place]
            if end is None:
                unknown += 1
            else:
                topics.setdefault(place[0], {})[place[1]] = max(end - offset, 0)
        groups.append(GroupLag(group, members, topics))
    return LagReport(groups, collected.left_out, unknown)
