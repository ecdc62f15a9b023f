"""Plans for changes of groups by an administrator: what a reset or a deletion would do. Blocking, read-only.

Commands and the console show a plan, and carry it out as it was shown. Raises `RequestError`, `StorageError`
and `OSError`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError, RequestError
from service.client import offset_resets as resets
from service.client.admin import EARLIEST, LATEST, Cluster
from service.client.admin_models import Place
from service.client.group_changes import is_without_members
from service.client.offset_queries import list_offsets
from service.client.offset_resets import ChosenOffsets, LogSpan
from service.client.partition_lookup import resolved
from service.client.places import NamedPartitions, place_name
from service.groups.admin_models import GroupRow, Listing
from service.groups.admin_queries import committed_offsets, find_group


class ResetMode(Enum):
    """Modes of Kafka's tool: each says what `ResetTarget.number` is."""

    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "offset"
    """this offset"""
    SHIFT = "shift"
    """so many records, back if negative"""
    TIME = "time"
    """milliseconds since 1970"""
    PLAN = "plan"
    """the offsets of `ResetTarget.plan`"""


class ResetTarget(NamedTuple):
    """Target of a reset: one mode, with its number or its offsets."""

    mode: ResetMode
    number: int = 0
    plan: Mapping[Place, int] = {}


class PlannedReset(NamedTuple):
    """Offsets that a reset gives a group, what it has committed, and `notes` for people."""

    group: str
    offsets: Mapping[Place, int]
    committed: Mapping[Place, int]
    notes: tuple[str, ...] = ()


def known_group(found: Listing, group: str) -> GroupRow | None:
    """Return the row of a group, None for a new one. Raises `RequestError` where that is not known."""
    row = next((one for one in found.rows if one.group_id == group), None)
    if row is None and found.problems:
        raise RequestError(
            ErrorCode.coordinator_not_available,
            f"whether there is a group {group} is not known: {'; '.join(found.problems)}",
        )
    return row


def plan_reset(
    cluster: Cluster,
    found: Listing,
    group: str,
    named: Collection[NamedPartitions] | None,
    target: ResetTarget,
) -> PlannedReset:
    """Return what the group would get in the partitions that are `named`, or in all that it has committed.

    Raises `RequestError` for a group with members, and `ConfigError` for a target that makes no sense.
    """
    row = known_group(found, group)
    if row is not None and not is_without_members(row.state):
        raise RequestError(
            ErrorCode.non_empty_group,
            f"group {group} is {row.state}: only a group without members can be reset",
        )
    committed = {} if row is None else committed_offsets(cluster, row.node, group)
    if target.mode is ResetMode.PLAN:
        places = sorted(target.plan)
    elif named is None:
        places = sorted(committed)
    else:
        places = resolved(cluster, named)
    if not places:
        raise RequestError(ErrorCode.invalid_request, f"group {group} has committed nothing")
    try:
        chosen = _chosen(cluster, places, committed, target)
    except ConfigError as e:
        raise ConfigError(f"group {group}: {e}") from None
    notes = chosen.notes if row is not None else ("there is no such group yet", *chosen.notes)
    return PlannedReset(group, chosen.offsets, committed, notes)


def _chosen(
    cluster: Cluster, places: list[Place], committed: Mapping[Place, int], target: ResetTarget
) -> ChosenOffsets:
    mode = target.mode
    bounds = bounds_of(cluster, places)
    if mode is ResetMode.PLAN:
        return resets.within(target.plan, bounds)
    if mode is ResetMode.OFFSET:
        return resets.within(dict.fromkeys(places, target.number), bounds)
    if mode is ResetMode.SHIFT:
        return resets.shifted(places, committed, target.number, bounds)
    if mode is ResetMode.CURRENT:
        return resets.current(places, committed, bounds)
    if mode is ResetMode.EARLIEST:
        return ChosenOffsets({place: bounds[place].first for place in places})
    if mode is ResetMode.LATEST:
        return ChosenOffsets({place: bounds[place].end for place in places})
    return resets.at_time(_told(cluster, places, target.number), bounds)


def bounds_of(cluster: Cluster, places: Collection[Place]) -> dict[Place, LogSpan]:
    """Return where the log of each partition begins and ends. Raises `RequestError` if one is not told."""
    first, last = (_told(cluster, places, at) for at in (EARLIEST, LATEST))
    return {place: LogSpan(first[place], last[place]) for place in places}


def _told(cluster: Cluster, places: Collection[Place], timestamp: int) -> dict[Place, int]:
    answers = list_offsets(cluster, places, timestamp)
    for place, one in sorted(answers.items()):
        if one.error is not None:
            raise RequestError(one.error.code, f"{place_name(place)}: {one.error}")
    return {place: one.offset for place, one in answers.items()}


def deletable_group(found: Listing, group: str) -> GroupRow:
    """Return the row of a group that can be deleted. Raises `RequestError` for one that is not there, or has
    members."""
    row = known_group(found, group)
    if row is None:
        raise RequestError(ErrorCode.group_id_not_found, f"there is no group {group}")
    if not is_without_members(row.state):
        raise RequestError(
            ErrorCode.non_empty_group, f"group {group} is {row.state}: it has members, and is not deleted"
        )
    return row


def committed_there(
    cluster: Cluster, found: Listing, group: str, named: Collection[NamedPartitions]
) -> dict[Place, int]:
    """Return what a group has committed in the partitions that are named.

    Topics that are gone count, too: what is committed decides, not what there is. Raises `RequestError` for
    a group, a topic or a partition that is neither.
    """
    row = find_group(found, group)
    committed = committed_offsets(cluster, row.node, row.group_id)
    topics = {topic for topic, _ in committed}
    resolved(cluster, [one for one in named if one.topic not in topics])
    return {
        place: offset
        for place, offset in sorted(committed.items())
        if any(place[0] == one.topic and (one.numbers is None or place[1] in one.numbers) for one in named)
    }


def check_offsets_fit(cluster: Cluster, offsets: Mapping[Place, int]) -> None:
    """Raise `ConfigError` if a log no longer has one of these offsets."""
    for place, log in sorted(bounds_of(cluster, tuple(offsets)).items()):
        if not log.first <= offsets[place] <= log.end:
            raise ConfigError(
                f"{place_name(place)} has the offsets {log.first} to {log.end} now, and not {offsets[place]}"
            )
