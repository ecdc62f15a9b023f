"""Immutable hash map for a million keys that shares its parts with the maps it was made from. [P]

Linear hashing: the map is a row of small dicts, and one of them is split in two whenever the map has grown by
as many keys as a dict should have. So no insertion costs more than the copy of two dicts, and a map of few
keys is one dict. An edit copies a dict once, however many of its keys change.

A change of `metadata.persistent.PersistentMap` costs less, but its million keys take five times the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

PART_KEYS: Final = 256
"""Keys that a part has on average before another part is added."""


class SharedMap(Generic[K, V]):
    """Immutable map; `edit` makes a changed one. The order of iteration is arbitrary."""

    __slots__ = ("_high", "_low", "_parts", "_size")

    def __init__(self, parts: tuple[dict[K, V], ...] = ({},), size: int = 0) -> None:
        self._parts = parts
        self._size = size
        self._high, self._low = _masks(len(parts))

    def get(self, key: K) -> V | None:
        """Return the key's value, or None."""
        at = hash(key)
        parts, index = self._parts, at & self._high
        if index >= len(parts):
            index = at & self._low
        return parts[index].get(key)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._parts)

    def items(self) -> Iterator[tuple[K, V]]:
        return chain.from_iterable(part.items() for part in self._parts)

    def values(self) -> Iterator[V]:
        return chain.from_iterable(part.values() for part in self._parts)

    def edit(self) -> SharedMapEdit[K, V]:
        return SharedMapEdit(list(self._parts), self._size)


class SharedMapEdit(Generic[K, V]):
    """A map that is being changed; `done` makes it immutable, once."""

    __slots__ = ("_high", "_low", "_own", "_parts", "_size")

    def __init__(self, parts: list[dict[K, V]], size: int) -> None:
        self._parts = parts
        self._size = size
        self._own: set[int] = set()
        """Parts that this edit has copied, which no map has yet."""
        self._high, self._low = _masks(len(parts))

    def _index(self, key: K) -> int:
        at = hash(key)
        index = at & self._high
        return index if index < len(self._parts) else at & self._low

    def get(self, key: K) -> V | None:
        return self._parts[self._index(key)].get(key)

    def _part(self, index: int) -> dict[K, V]:
        if index not in self._own:
            self._own.add(index)
            self._parts[index] = dict(self._parts[index])
        return self._parts[index]

    def set(self, key: K, value: V) -> None:
        """Set the key's value. The key of before stays, so that equal texts are one object."""
        part = self._part(self._index(key))
        before = len(part)
        part[key] = value
        self._size += len(part) - before
        if self._size > PART_KEYS * len(self._parts):
            self._split()

    def remove(self, key: K) -> None:
        """Remove a key that is there."""
        del self._part(self._index(key))[key]
        self._size -= 1

    def _split(self) -> None:
        """Add a part, and move the keys there that belong to it by one more bit of their hashes."""
        index = len(self._parts)
        self._high, self._low = _masks(index + 1)
        source = index & self._low
        bit = self._high ^ self._low
        stay: dict[K, V] = {}
        move: dict[K, V] = {}
        for key, value in self._parts[source].items():
            (move if hash(key) & bit else stay)[key] = value
        self._parts[source] = stay
        self._parts.append(move)
        self._own |= {source, index}

    def __len__(self) -> int:
        return self._size

    def done(self) -> SharedMap[K, V]:
        """Return the changed map. The edit ends: its dicts are the map's now."""
        parts = tuple(self._parts) if self._size else ({},)
        self._own = set()
        return SharedMap(parts, self._size)


def _masks(parts: int) -> tuple[int, int]:
    """Return the masks of a hash before and after the last split of a row of `parts`."""
    high = (1 << (parts - 1).bit_length()) - 1
    return high, high >> 1
