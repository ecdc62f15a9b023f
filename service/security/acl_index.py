"""Index of ACL entries: those of one resource name, or of one principal. [P]

One entry of a name is kept as itself, a few as a tuple, and more as a map from whom (or what) they are about
to the combined rights. So neither a name with a million entries nor a million names with one entry each make
a question slow or the index large.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.steps import Steps
from service.security.operations import ANY_USER, WILDCARD, PatternType, rights_of
from service.security.shared_map import SharedMap, SharedMapEdit

_DONE_AT_A_TIME: Final = 16
FEW: Final = 8
"""Most entries of a name that are looked at one after the other."""


class AclEntry(NamedTuple):
    """One ACL (Kafka `StandardAcl`); numbers as in `operations`."""

    resource_type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    @property
    def rights(self) -> int:
        """Effect of the entry, as `operations.allowed_by` reads it."""
        return rights_of(self.operation, self.permission)


Held = AclEntry | tuple[AclEntry, ...] | SharedMap[Hashable, int]
"""Entries that an index has under one key."""


def who(entry: AclEntry) -> Hashable:
    """Return the key of an entry among those of its resource."""
    return entry.principal if entry.host == WILDCARD else (entry.principal, entry.host)


def what(entry: AclEntry) -> Hashable:
    """Return the key of an entry among those of its principal."""
    if entry.host == WILDCARD and entry.pattern == PatternType.LITERAL:
        return entry.name
    return entry.name, entry.pattern, entry.host


class Grant(NamedTuple):
    """Rights of a principal on what a pattern matches, from a host."""

    name: str
    pattern: int
    host: str
    rights: int


def _few(held: Held) -> tuple[AclEntry, ...]:
    assert not isinstance(held, SharedMap)
    return (held,) if isinstance(held, AclEntry) else held


def grants(held: Held) -> Iterator[Grant]:
    """Yield what an index by principal has under one of them."""
    if isinstance(held, SharedMap):
        for key, rights in held.items():
            if isinstance(key, tuple):
                name, pattern, host = key
                yield Grant(name, pattern, host, rights)
            else:
                assert isinstance(key, str)
                yield Grant(key, PatternType.LITERAL, WILDCARD, rights)
        return
    for one in _few(held):
        yield Grant(one.name, one.pattern, one.host, one.rights)


def rights_in(held: Held, principal: str | None, host: str) -> int:
    """Return the combined rights of a principal at a host in what an index by name has under one name."""
    rights = 0
    if isinstance(held, tuple):
        for _, _, _, of, at, operation, permission in _few(held):
            if of in (principal, ANY_USER) and at in (WILDCARD, host):
                rights |= rights_of(operation, permission)
        return rights
    for key in (principal, ANY_USER, (principal, host), (ANY_USER, host)):
        rights |= held.get(key) or 0
    return rights


class IndexEdit:
    """An index that is being changed. `sub` names an entry among those of one key."""

    __slots__ = ("_many", "_map", "_sub")

    def __init__(self, index: SharedMap[str, Held], sub: Callable[[AclEntry], Hashable]) -> None:
        self._map = index.edit()
        self._sub = sub
        self._many: dict[str, SharedMapEdit[Hashable, int]] = {}
        """Keys with many entries that have changed."""

    def add(self, key: str, entry: AclEntry) -> None:
        """Add an entry. Raises `CorruptionError` if an equal one is there."""
        many = self._open(key)
        if many is None:
            held = self._map.get(key)
            if held is None:
                self._map.set(key, entry)
                return
            entries = _few(held)
            if entry in entries:
                raise _twice(entry)
            if len(entries) < FEW:
                self._map.set(key, (*entries, entry))
                return
            many = self._many[key] = SharedMap[Hashable, int]().edit()
            for one in entries:
                self._put(many, one)
        self._put(many, entry)

    def _put(self, many: SharedMapEdit[Hashable, int], entry: AclEntry) -> None:
        sub, added = self._sub(entry), entry.rights
        rights = many.get(sub) or 0
        if rights & added:
            raise _twice(entry)
        many.set(sub, _same_rights(rights | added))

    def remove(self, key: str, entry: AclEntry) -> None:
        """Remove an entry that is there."""
        many = self._open(key)
        if many is not None:
            sub = self._sub(entry)
            rights = (many.get(sub) or 0) & ~entry.rights
            if rights:
                many.set(sub, _same_rights(rights))
            else:
                many.remove(sub)
            return
        held = self._map.get(key)
        assert held is not None
        left = tuple(one for one in _few(held) if one != entry)
        if not left:
            self._map.remove(key)
        else:
            self._map.set(key, left if len(left) > 1 else left[0])

    def _open(self, key: str) -> SharedMapEdit[Hashable, int] | None:
        many = self._many.get(key)
        if many is None and isinstance(held := self._map.get(key), SharedMap):
            many = self._many[key] = held.edit()
        return many

    def done_in_steps(self) -> Steps[SharedMap[str, Held]]:
        """Return the changed index, in steps: as many as keys with many entries have changed."""
        while self._many:
            for _ in range(min(_DONE_AT_A_TIME, len(self._many))):
                key, many = self._many.popitem()
                if len(many):
                    self._map.set(key, many.done())
                else:
                    self._map.remove(key)
            yield
        return self._map.done()


def _twice(entry: AclEntry) -> CorruptionError:
    return CorruptionError(f"an ACL of {entry.principal!r} on {entry.name!r} is there twice")


@lru_cache(maxsize=4096)
def _same_rights(rights: int) -> int:
    """Return one object for equal numbers: a large index has few different ones."""
    return rights
