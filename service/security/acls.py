"""ACLs of the cluster: the entries, and what they say about a principal and a resource. [P]

An `AclSet` is immutable; the metadata image has one, and another object exactly after a change. The rules are
those of Kafka's `StandardAuthorizerData` and `Authorizer.authorizeByResourceType`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import ClassVar, Final
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.steps import Steps, at_once
from service.security.acl_index import AclEntry, Grant, Held, IndexEdit, grants, rights_in, what, who
from service.security.operations import (
    ANY_USER,
    RESOURCE_TYPES,
    WILDCARD,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from service.security.shared_map import SharedMap

__all__ = ["NO_ENTRY", "AclEdit", "AclEntry", "AclSet"]

NO_ENTRY: Final = -1
"""Rights on a resource that no entry is about."""
LONGEST_SHARED: Final = 256
"""Longest text of which equal ones become one object."""
_GRANTS_AT_A_TIME: Final = 200

_Index = SharedMap[str, Held]
_EMPTY: Final[_Index] = SharedMap()
_LITERAL, _PREFIXED, _PRINCIPALS = range(3)


class AclSet:
    """Immutable set of ACLs. A change shares what it does not touch."""

    __slots__ = ("_by_id", "_indexes", "_lengths")

    EMPTY: ClassVar[AclSet]

    def __init__(
        self,
        by_id: SharedMap[int, AclEntry],
        indexes: tuple[tuple[_Index, ...], ...],
        lengths: tuple[Mapping[int, int], ...],
    ) -> None:
        self._by_id = by_id
        self._indexes = indexes
        """Entries of a literal name, of a prefix and of a principal, by kind and type."""
        self._lengths = lengths
        """Lengths of prefixes in ascending order, with the number of entries of each, by type."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AclSet) and dict(self._by_id.items()) == dict(other._by_id.items())

    __hash__ = None  # type: ignore[assignment]

    @property
    def entries(self) -> Mapping[UUID, AclEntry]:
        """The entries by id, in arbitrary order."""
        return _Entries(self._by_id)

    def __contains__(self, entry: AclEntry) -> bool:
        """Return whether an equal entry is in the set, under any id."""
        kind = _PREFIXED if entry.pattern == PatternType.PREFIXED else _LITERAL
        held = self._indexes[kind][entry.resource_type].get(entry.name)
        return held is not None and _has(held, entry.principal, entry.host, entry.rights)

    def edit(self) -> AclEdit:
        """Begin a change. Each of its steps is short, so that it can be made in slices."""
        return AclEdit(self)

    def with_entries(self, added: Mapping[UUID, AclEntry], removed: Iterable[UUID]) -> AclSet:
        """Return the set without `removed` and with `added`. Raises `CorruptionError` as `AclEdit`."""
        edit = self.edit()
        for one in removed:
            edit.remove(one)
        for key, entry in added.items():
            edit.add(key, entry)
        return edit.done()

    def rights(self, resource: int, name: str, principal: str | None, host: str) -> int:
        """Return the combined rights of a principal at a host, for `operations.allowed_by`.

        `NO_ENTRY` if no entry, whoever it is about, matches the resource. `principal` None is about nobody:
        entries for everybody match it alone.
        """
        found, rights = False, 0
        for held in self._held(resource, name):
            found = True
            rights |= rights_in(held, principal, host)
        return rights if found else NO_ENTRY

    def _held(self, resource: int, name: str) -> Iterator[Held]:
        literal = self._indexes[_LITERAL][resource]
        if len(literal):
            if (held := literal.get(name)) is not None:
                yield held
            if name != WILDCARD and (held := literal.get(WILDCARD)) is not None:
                yield held
        if lengths := self._lengths[resource]:
            prefixed, longest = self._indexes[_PREFIXED][resource], len(name)
            for length in lengths:
                if length > longest:
                    break
                if (held := prefixed.get(name[:length])) is not None:
                    yield held

    def rule(
        self,
        resource: int,
        name: str,
        principal: str | None,
        hosts: tuple[str, ...],
        wanted: Iterable[int],
    ) -> AclEntry | None:
        """Return an entry that matches and has one of the rights `wanted`, in their order."""
        principals = (ANY_USER,) if principal is None else (principal, ANY_USER)
        for right in wanted:
            for prefixed, at in ((False, name), (False, WILDCARD), *_prefixes(self._lengths[resource], name)):
                held = self._indexes[_PREFIXED if prefixed else _LITERAL][resource].get(at)
                if held is None:
                    continue
                for of, on in product(principals, (WILDCARD, *hosts)):
                    if _has(held, of, on, right):
                        pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
                        return AclEntry(resource, at, pattern, of, on, *_meaning(right))
        return None

    def allows_any(
        self, resource: int, operation: AclOperation, principal: str | None, hosts: tuple[str, ...]
    ) -> Steps[bool]:
        """Return whether the principal may do `operation` on some resource of a type, in steps. `hosts`: the
        texts of its address.

        Entries for the operation itself and for ALL count. A prefix that is denied rules out the names and
        prefixes that begin with it.
        """
        allow = 1 << operation | 1 << AclOperation.ALL
        deny = allow << 16
        denied: dict[int, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        allowed: dict[int, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        number = 0
        for one in self._grants(resource, principal):
            number += 1
            if not number % _GRANTS_AT_A_TIME:
                yield
            if one.host != WILDCARD and one.host not in hosts:
                continue
            if one.rights & deny:
                denied[one.pattern].add(one.name)
            if one.rights & allow:
                allowed[one.pattern].add(one.name)
        if WILDCARD in denied[PatternType.LITERAL]:
            return False
        if WILDCARD in allowed[PatternType.LITERAL]:
            return True
        lengths = sorted({len(one) for one in denied[PatternType.PREFIXED]} - {0})
        for pattern, names in allowed.items():
            for name in names:
                # Two prefixes looked at are counted as one grant.
                number += 1 + len(lengths) // 2
                if number >= _GRANTS_AT_A_TIME:
                    number = 0
                    yield
                if pattern == PatternType.LITERAL and name in denied[pattern]:
                    continue
                if not any(name[:n] in denied[PatternType.PREFIXED] for n in lengths if n <= len(name)):
                    return True
        return False

    def _grants(self, resource: int, principal: str | None) -> Iterator[Grant]:
        index = self._indexes[_PRINCIPALS][resource]
        for one in (principal, ANY_USER) if principal != ANY_USER else (ANY_USER,):
            if one is not None and (held := index.get(one)) is not None:
                yield from grants(held)


class AclEdit:
    """A change of a set: `add` and `remove` in any number of slices, then `done`, once."""

    def __init__(self, base: AclSet) -> None:
        self._base = base
        self._by_id = base._by_id.edit()
        self._edits: dict[tuple[int, int], IndexEdit] = {}
        self._lengths = list(base._lengths)
        self._changed = False

    def add(self, key: UUID, entry: AclEntry) -> None:
        """Add an entry. Raises `CorruptionError` if its id or an equal entry is there, and for a resource
        type, pattern or permission that no entry can have. An operation of a newer Kafka is kept.
        """
        if self._by_id.get(key.int) is not None:
            raise CorruptionError(f"ACL {key} is there already")
        entry = _checked(entry)
        kind = _PREFIXED if entry.pattern == PatternType.PREFIXED else _LITERAL
        self._index(kind, entry.resource_type).add(entry.name, entry)
        self._index(_PRINCIPALS, entry.resource_type).add(entry.principal, entry)
        self._by_id.set(key.int, entry)
        if kind == _PREFIXED:
            self._count(entry, 1)
        self._changed = True

    def remove(self, key: UUID) -> None:
        """Remove an entry. Raises `CorruptionError` if its id is not there."""
        entry = self._by_id.get(key.int)
        if entry is None:
            raise CorruptionError(f"there is no ACL {key} to be removed")
        kind = _PREFIXED if entry.pattern == PatternType.PREFIXED else _LITERAL
        self._index(kind, entry.resource_type).remove(entry.name, entry)
        self._index(_PRINCIPALS, entry.resource_type).remove(entry.principal, entry)
        self._by_id.remove(key.int)
        if kind == _PREFIXED:
            self._count(entry, -1)
        self._changed = True

    def _index(self, kind: int, resource: int) -> IndexEdit:
        edit = self._edits.get((kind, resource))
        if edit is None:
            index = self._base._indexes[kind][resource]
            edit = self._edits[kind, resource] = IndexEdit(index, what if kind == _PRINCIPALS else who)
        return edit

    def _count(self, entry: AclEntry, by: int) -> None:
        lengths, length = self._lengths[entry.resource_type], len(entry.name)
        count = lengths.get(length, 0) + by
        if lengths is self._base._lengths[entry.resource_type] or count in (0, by):
            rest = {one: n for one, n in lengths.items() if one != length}
            if count:
                rest[length] = count
            self._lengths[entry.resource_type] = dict(sorted(rest.items()))
        else:
            assert isinstance(lengths, dict)
            lengths[length] = count

    def done(self) -> AclSet:
        """Return the changed set: the same object if nothing changed."""
        return at_once(self.done_in_steps())

    def done_in_steps(self) -> Steps[AclSet]:
        """Return the changed set as `done` does, in steps."""
        if not self._changed:
            return self._base
        indexes = [list(of_kind) for of_kind in self._base._indexes]
        for (kind, resource), edit in self._edits.items():
            indexes[kind][resource] = yield from edit.done_in_steps()
        return AclSet(self._by_id.done(), tuple(map(tuple, indexes)), tuple(self._lengths))


AclSet.EMPTY = AclSet(SharedMap(), ((_EMPTY,) * RESOURCE_TYPES,) * 3, ({},) * RESOURCE_TYPES)


class _Entries(Mapping[UUID, AclEntry]):
    """View of the entries by id."""

    def __init__(self, by_id: SharedMap[int, AclEntry]) -> None:
        self._by_id = by_id

    def __getitem__(self, key: UUID) -> AclEntry:
        found = self._by_id.get(key.int)
        if found is None:
            raise KeyError(key)
        return found

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[UUID]:
        for key in self._by_id:
            yield UUID(int=key)


def _checked(entry: AclEntry) -> AclEntry:
    """Return the entry with texts that are shared with others. Raises `CorruptionError`."""
    resource, name, pattern, principal, host, operation, permission = entry
    if not AclResourceType.TOPIC <= resource <= AclResourceType.USER:
        raise CorruptionError(f"an ACL has the unknown resource type {resource}")
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise CorruptionError(f"an ACL has the unknown pattern type {pattern}")
    if permission not in (AclPermissionType.DENY, AclPermissionType.ALLOW):
        raise CorruptionError(f"an ACL has the unknown permission {permission}")
    shared = (_same_text(one) if len(one) <= LONGEST_SHARED else one for one in (name, principal, host))
    name, principal, host = shared
    return AclEntry(int(resource), name, int(pattern), principal, host, int(operation), int(permission))


@lru_cache(maxsize=20_000)
def _same_text(text: str) -> str:
    return text


def _prefixes(lengths: Mapping[int, int], name: str) -> Iterator[tuple[bool, str]]:
    return ((True, name[:length]) for length in lengths if length <= len(name))


def _has(held: Held, principal: str, host: str, right: int) -> bool:
    """Return whether there is an entry of exactly this principal, host and right."""
    if isinstance(held, SharedMap):
        return bool((held.get(principal if host == WILDCARD else (principal, host)) or 0) & right)
    for one in (held,) if isinstance(held, AclEntry) else held:
        if (one.principal, one.host, one.rights) == (principal, host, right):
            return True
    return False


def _meaning(right: int) -> tuple[int, int]:
    """Return the operation and permission of the right of one entry."""
    bit = right.bit_length() - 1
    return (bit - 16, AclPermissionType.DENY) if bit >= 16 else (bit, AclPermissionType.ALLOW)
