"""Choice of the offsets that a reset gives a group. [P]

Source: Kafka ``OffsetsUtils``: what is outside of a log comes to its nearest end, a partition without a
record of a time or later to the log's end, and one without a committed offset cannot be shifted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from service.base.errors import ConfigError
from service.client.admin_models import Place


class LogSpan(NamedTuple):
    """First offset of a log, and the one behind its last committed record."""

    first: int
    end: int


class ChosenOffsets(NamedTuple):
    """New offset of each partition; `notes` say which of them are not as they were asked for."""

    offsets: dict[Place, int]
    notes: tuple[str, ...] = ()


def within(wanted: Mapping[Place, int], bounds: Mapping[Place, LogSpan]) -> ChosenOffsets:
    """Return the offsets, each moved to the nearest that its log has."""
    found: dict[Place, int] = {}
    notes: list[str] = []
    for place, offset in sorted(wanted.items()):
        log = bounds[place]
        found[place] = min(max(offset, log.first), log.end)
        if found[place] != offset:
            side, edge = ("ends at", log.end) if offset > log.end else ("begins at", log.first)
            notes.append(f"{place[0]}-{place[1]} {side} {edge}: it gets that instead of {offset}")
    return ChosenOffsets(found, tuple(notes))


def shifted(
    places: Iterable[Place], committed: Mapping[Place, int], by: int, bounds: Mapping[Place, LogSpan]
) -> ChosenOffsets:
    """Return the committed offsets moved by so many. Raises `ConfigError` where nothing is committed."""
    chosen = list(places)
    missing = [f"{topic}-{number}" for topic, number in chosen if (topic, number) not in committed]
    if missing:
        raise ConfigError(f"nothing is committed that could be shifted: {', '.join(missing)}")
    return within({place: committed[place] + by for place in chosen}, bounds)


def current(
    places: Iterable[Place], committed: Mapping[Place, int], bounds: Mapping[Place, LogSpan]
) -> ChosenOffsets:
    """Return what is committed, and the end of the log where nothing is."""
    chosen = list(places)
    notes = [
        f"{topic}-{number} has no committed offset: it gets the end"
        for topic, number in chosen
        if (topic, number) not in committed
    ]
    return ChosenOffsets({place: committed.get(place, bounds[place].end) for place in chosen}, tuple(notes))


def at_time(found: Mapping[Place, int], bounds: Mapping[Place, LogSpan]) -> ChosenOffsets:
    """Return the offsets that were `found` for a time, -1 where there is none: the end of the log."""
    notes = [
        f"{topic}-{number} has no record of that time or later: it gets the end"
        for (topic, number), offset in sorted(found.items())
        if offset < 0
    ]
    return ChosenOffsets(
        {place: bounds[place].end if offset < 0 else offset for place, offset in found.items()},
        tuple(notes),
    )
