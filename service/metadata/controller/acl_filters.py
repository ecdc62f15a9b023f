"""Filters of access control entries, and which of many filters match an entry. [P]

Source: Apache Kafka ``AclBindingFilter``, ``ResourcePatternFilter``, ``AccessControlEntryFilter``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from service.base.steps import Steps
from service.security.acls import AclEntry
from service.security.operations import WILDCARD, PatternType

_AT_A_TIME: Final = 64
ANY: Final = 1
"""Number of the resource type, pattern type, operation and permission that match every one."""


class AclFilter(NamedTuple):
    """Filter of entries. A text of None and a number `ANY` match every entry; a pattern type MATCH is of the
    entries that apply to a resource of the name."""

    resource_type: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int


def matches(wanted: AclFilter, entry: AclEntry) -> bool:
    """Return whether the filter matches the entry."""
    return (
        wanted.resource_type in (ANY, entry.resource_type)
        and wanted.pattern in (ANY, PatternType.MATCH, entry.pattern)
        and wanted.principal in (None, entry.principal)
        and wanted.host in (None, entry.host)
        and wanted.operation in (ANY, entry.operation)
        and wanted.permission in (ANY, entry.permission)
        and _matches_name(wanted, entry)
    )


def _matches_name(wanted: AclFilter, entry: AclEntry) -> bool:
    if wanted.name is None or wanted.name == entry.name:
        return True
    if wanted.pattern != PatternType.MATCH:
        return False
    if entry.pattern == PatternType.LITERAL:
        return entry.name == WILDCARD
    return wanted.name.startswith(entry.name)


_Values = tuple[str | int | None, ...]
"""Fields of a filter or of an entry, None for each that a shape leaves open."""


class FilterIndex:
    """Index of filters by what they fix, so that an entry's cost does not grow with the number of filters.

    A shape says which fields a filter fixes; there are at most 128. Filters of MATCH with a name are a
    sorted list of names under their other fields.
    """

    def __init__(self) -> None:
        self._exact: dict[tuple[bool, ...], dict[_Values, list[int]]] = {}
        self._matching: dict[tuple[bool, ...], dict[_Values, list[tuple[str, int]]]] = {}

    def add(self, number: int, one: AclFilter) -> None:
        """Add a filter under a number of its own."""
        fields = _fields(one)
        if one.pattern == PatternType.MATCH and one.name is not None:
            fields = (fields[0], None, None, *fields[3:])
            shape = tuple(value is not None for value in fields)
            insort(self._matching.setdefault(shape, {}).setdefault(fields, []), (one.name, number))
        else:
            shape = tuple(value is not None for value in fields)
            self._exact.setdefault(shape, {}).setdefault(fields, []).append(number)

    def emptied(self) -> Steps[None]:
        """Forget all filters, in steps: to free many at once would hold the loop."""
        indexes: tuple[dict[_Values, Any], ...] = (*self._exact.values(), *self._matching.values())
        for by_values in indexes:
            while by_values:
                yield
                for key in tuple(islice(by_values, _AT_A_TIME)):
                    del by_values[key]

    def matching(self, entry: AclEntry) -> Iterator[int]:
        """Yield the numbers of the filters that match an entry, each once, in no order."""
        for shape, by_values in self._exact.items():
            yield from by_values.get(_fixed(entry, shape), ())
        for shape, by_others in self._matching.items():
            names = by_others.get(_fixed(entry, shape))
            if names is not None:
                yield from _of_names(names, entry)


def _fields(one: AclFilter) -> _Values:
    return (
        one.resource_type if one.resource_type != ANY else None,
        one.name,
        one.pattern if one.pattern not in (ANY, PatternType.MATCH) else None,
        one.principal,
        one.host,
        one.operation if one.operation != ANY else None,
        one.permission if one.permission != ANY else None,
    )


def _fixed(entry: AclEntry, shape: tuple[bool, ...]) -> _Values:
    values: _Values = entry
    return tuple([value if is_fixed else None for value, is_fixed in zip(values, shape, strict=True)])


def _of_names(names: list[tuple[str, int]], entry: AclEntry) -> Iterator[int]:
    """Yield the filters of MATCH whose name an entry's resource matches; `names` are sorted."""
    is_literal = entry.pattern == PatternType.LITERAL
    if is_literal and entry.name == WILDCARD:
        yield from (number for _, number in names)
        return
    for at in range(bisect_left(names, (entry.name, -1)), len(names)):
        name, number = names[at]
        if name != entry.name if is_literal else not name.startswith(entry.name):
            return
        yield number
