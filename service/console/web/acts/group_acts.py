"""Acts on groups: reset their offsets, delete offsets of a topic, delete a group. Blocking.

What each would do is planned by the same code as for `firn group`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from service.base.errors import ConfigError, RequestError
from service.base.patience import patience
from service.base.times import duration_ms, time_ms
from service.client.admin import ChangingCluster
from service.client.admin_models import Place
from service.client.advice import meant
from service.client.group_changes import PlaceErrors, commit_offsets, delete_group, delete_offsets
from service.client.places import place_name
from service.console.web.acts import fields
from service.console.web.acts.act import (
    Act,
    ActField,
    ActForm,
    ActOutcome,
    ActPreview,
    ActWorld,
    first_rows,
    may_be_done,
    word_of,
)
from service.console.web.markup import link
from service.console.web.words import NOTHING, counted
from service.groups.admin_changes import (
    ResetMode,
    ResetTarget,
    check_offsets_fit,
    committed_there,
    deletable_group,
    plan_reset,
)
from service.groups.admin_queries import committed_offsets, list_groups

WAIT_S: Final = 5.0
"""Time for a coordinator that is not there yet."""
MOST_PARTITIONS: Final = 10_000
"""Partitions of one act: the console keeps what it has shown."""
_MOST_ID: Final = 32_767
_MOST_REFUSED: Final = 20


class OffsetReset(Act):
    """Other committed offsets for a group without members."""

    event = "offsets-reset"
    event_words = "offsets reset"
    verb = "Reset the offsets"

    def __init__(self, values: Mapping[str, str], world: ActWorld) -> None:
        self._group = _group(values)
        topic = values.get("topic", "").strip()
        if not topic and values.get("partitions", "").strip():
            raise ConfigError("Partitions: of which topic?")
        self._named = [fields.partitions(values, topic)] if topic else None
        mode = fields.choice(values, "mode", "To", dict(MODES))
        self._target = _TARGETS[mode](values, world)

    def preview(self, cluster: ChangingCluster) -> ActPreview:
        plan = plan_reset(cluster, list_groups(cluster), self._group, self._named, self._target)
        _check_count(plan.offsets)
        before = {place: plan.committed.get(place) for place in plan.offsets}
        rows, more = first_rows(
            [
                (*_named(place), _number(before[place]), f"{offset:,}", _moved(before[place], offset))
                for place, offset in sorted(plan.offsets.items())
            ]
        )
        return ActPreview(
            word_of(self._group),
            (f"{self._group} [{_partitions(plan.offsets)}]",),
            (("Group", self._group), ("Partitions", f"{len(plan.offsets):,}")),
            ("Topic", "Partition", "Committed", "New offset", "Difference"),
            rows,
            more,
            plan.notes,
            seen=before,
            chosen=dict(plan.offsets),
        )

    def carry_out(self, cluster: ChangingCluster, preview: ActPreview) -> ActOutcome:
        offsets: Mapping[Place, int] = preview.chosen
        check_offsets_fit(cluster, offsets)
        results = commit_offsets(cluster, patience(WAIT_S), self._group, offsets)
        return _told(self._group, "got other offsets", results)


class OffsetDeletion(Act):
    """Deletion of what a group has committed for a topic."""

    event = "offsets-deleted"
    event_words = "offsets deleted"
    verb = "Delete the offsets"

    def __init__(self, values: Mapping[str, str], _: ActWorld) -> None:
        self._group = _group(values)
        self._named = [fields.partitions(values, fields.name(values, "topic", "Topic"))]

    def preview(self, cluster: ChangingCluster) -> ActPreview:
        committed = committed_there(cluster, list_groups(cluster), self._group, self._named)
        if not committed:
            raise ConfigError(f"{self._group} has committed nothing there")
        _check_count(committed)
        rows, more = first_rows([(*_named(place), f"{offset:,}") for place, offset in committed.items()])
        return ActPreview(
            word_of(self._group),
            (f"{self._group} [{_partitions(committed)}]",),
            (("Group", self._group), ("Partitions", f"{len(committed):,}")),
            ("Topic", "Partition", "Committed"),
            rows,
            more,
            ("Consumers of the group begin there as their auto.offset.reset says.",),
            seen=committed,
            chosen=tuple(committed),
        )

    def carry_out(self, cluster: ChangingCluster, preview: ActPreview) -> ActOutcome:
        results = delete_offsets(cluster, patience(WAIT_S), self._group, preview.chosen)
        return _told(self._group, "lost their offsets", results)


class GroupDeletion(Act):
    """Deletion of a group without members, and of all that it has committed."""

    event = "groups-deleted"
    event_words = "groups deleted"
    verb = "Delete the group"

    def __init__(self, values: Mapping[str, str], _: ActWorld) -> None:
        self._group = _group(values)

    def preview(self, cluster: ChangingCluster) -> ActPreview:
        row = deletable_group(list_groups(cluster), self._group)
        committed = committed_offsets(cluster, row.node, self._group)
        rows, more = first_rows([(*_named(place), f"{one:,}") for place, one in sorted(committed.items())])
        return ActPreview(
            word_of(self._group),
            (self._group,),
            (("Group", self._group), ("State", row.state), ("Committed offsets", f"{len(committed):,}")),
            ("Topic", "Partition", "Committed"),
            rows,
            more,
            ("All its committed offsets go with it.",),
            seen=hash(frozenset(committed.items())),
        )

    def carry_out(self, cluster: ChangingCluster, preview: ActPreview) -> ActOutcome:
        delete_group(cluster, patience(WAIT_S), self._group)
        return ActOutcome(f"The group {self._group} is deleted.", link=("All groups", "/groups"))


def _check_count(places: Mapping[Place, int]) -> None:
    if len(places) > MOST_PARTITIONS:
        raise ConfigError(
            f"{len(places):,} partitions are too many for the console, which takes {MOST_PARTITIONS:,}:"
            " firn group changes more"
        )


def _group(values: Mapping[str, str]) -> str:
    # Ids of groups may have spaces around them, or be empty.
    return values.get("group", "")


def _named(place: Place) -> tuple[str, str]:
    return place[0], str(place[1])


def _number(offset: int | None) -> str:
    return NOTHING if offset is None else f"{offset:,}"


def _moved(before: int | None, offset: int) -> str:
    return NOTHING if before is None else f"{offset - before:+,}" if offset != before else "0"


def _partitions(places: Mapping[Place, int]) -> str:
    topics = len({topic for topic, _ in places})
    return f"{counted(len(places), 'partition')} of {counted(topics, 'topic')}"


def _told(group: str, what: str, results: PlaceErrors) -> ActOutcome:
    """Return what became of each partition. Raises `RequestError` where none was changed."""
    errors = {place: error for place, error in sorted(results.items()) if error is not None}
    undecided = {place: error for place, error in errors.items() if may_be_done(error)}
    refused = {place: error for place, error in errors.items() if place not in undecided}
    done = len(results) - len(errors)
    if errors and not done:
        # One of which nobody knows decides how the act ended.
        first = next(iter((undecided or refused).values()))
        raise RequestError(first.code, "; ".join(_lines(errors)))
    return ActOutcome(
        f"{done:,} of {counted(len(results), 'partition')} {what}.",
        tuple(_lines(refused)),
        (group or "(the empty id)", link("/group", id=group)),
        (f"{group} [{done} of {counted(len(results), 'partition')}]",),
        tuple(_lines(undecided)),
    )


def _lines(errors: Mapping[Place, RequestError]) -> list[str]:
    lines = [f"{place_name(place)}: {meant(error)}" for place, error in islice(errors.items(), _MOST_REFUSED)]
    if len(errors) > _MOST_REFUSED:
        lines.append(f"and {len(errors) - _MOST_REFUSED:,} more partitions")
    return lines


MODES: Final = (
    ("earliest", "the beginning of the log"),
    ("latest", "the end of the log"),
    ("current", "what is committed now"),
    ("offset", "an offset"),
    ("shift", "so many records further, or back (-100)"),
    ("time", "a time (2026-01-31T12:00Z)"),
    ("ago", "a time ago (P7D, PT1H30M)"),
)


def _at(values: Mapping[str, str]) -> str:
    return fields.name(values, "at", "Offset, number or time")


_TARGETS: Final[Mapping[str, Callable[[Mapping[str, str], ActWorld], ResetTarget]]] = {
    "earliest": lambda *_: ResetTarget(ResetMode.EARLIEST),
    "latest": lambda *_: ResetTarget(ResetMode.LATEST),
    "current": lambda *_: ResetTarget(ResetMode.CURRENT),
    "offset": lambda values, _: ResetTarget(ResetMode.OFFSET, fields.offset(values, "at", "Offset")),
    "shift": lambda values, _: ResetTarget(
        ResetMode.SHIFT, fields.offset(values, "at", "Number of records", is_signed=True)
    ),
    "time": lambda values, _: ResetTarget(ResetMode.TIME, max(time_ms(_at(values)), 0)),
    "ago": lambda values, world: ResetTarget(
        ResetMode.TIME, max(world.now_ms() - duration_ms(_at(values)), 0)
    ),
}
_GROUP: Final = ActField("group", "Group", most=_MOST_ID)
_PARTITIONS: Final = ActField("partitions", "Partitions", hint="0,2,5; empty: all", most=4_096)
RESET_OFFSETS: Final = ActForm(
    "reset-offsets",
    "Reset offsets of a group",
    "/groups",
    "The group must have no members: its consumers go on from where they are.",
    (
        _GROUP,
        ActField("topic", "Topic", hint="empty: all that the group has committed"),
        _PARTITIONS,
        ActField("mode", "To", "choice", options=MODES),
        ActField("at", "Offset, number or time", hint="where the choice above needs one", most=64),
    ),
    OffsetReset,
)
DELETE_OFFSETS: Final = ActForm(
    "delete-offsets",
    "Delete offsets of a group",
    "/groups",
    "What the group has committed for one topic.",
    (_GROUP, ActField("topic", "Topic", required=True), _PARTITIONS),
    OffsetDeletion,
)
DELETE_GROUP: Final = ActForm(
    "delete-group", "Delete a group", "/groups", "A group without members.", (_GROUP,), GroupDeletion
)
FORMS: Final = (RESET_OFFSETS, DELETE_OFFSETS, DELETE_GROUP)
