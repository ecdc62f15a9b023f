"""Immutable maps that share structure: a change costs its own size, not a copy of the whole. [P]

`PersistentMap` is a hash trie for any key (topics, catalog entries); `PartitionMap` is for partition ids,
which are 0..n-1 without a gap, and iterates in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, ValuesView
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from service.base.errors import CorruptionError
from service.base.steps import Steps

K = TypeVar("K")
V = TypeVar("V")

_AT_A_TIME: Final = 128
_BITS: Final = 5
_WIDTH: Final = 1 << _BITS
_MASK: Final = _WIDTH - 1
_LEAF_LIMIT: Final = 32
_MAX_DEPTH: Final = 12
"""Uses 60 bits of the hash; keys with equal bits share one leaf, whatever its size."""


class Removed:
    """Type of `REMOVED`."""


REMOVED: Final = Removed()

_Node = Any
"""A leaf is a dict; a branch is a tuple of 32 nodes. A recursive alias would add nothing."""


class PersistentMap(Mapping[K, V]):
    """Immutable mapping; `with_changes` returns a changed one.

    The order of iteration is arbitrary and may differ between processes: sort where a decision depends on it.

    >>> one = PersistentMap({"a": 1})
    >>> two = one.with_changes({"b": 2, "a": REMOVED})
    >>> dict(one), dict(two)
    ({'a': 1}, {'b': 2})
    """

    __slots__ = ("_root", "_size")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._root: _Node = {}
        self._size = 0
        if entries:
            self._root = _changed({}, list(entries.items()), 0)
            self._size = _count(self._root)

    def __getitem__(self, key: K) -> V:
        node, bits = self._root, hash(key)
        while type(node) is tuple:
            node, bits = node[bits & _MASK], bits >> _BITS
        found: V = node[key]
        return found

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for leaf in self._leaves():
            yield from leaf

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def _leaves(self) -> Iterator[dict[K, V]]:
        stack: list[_Node] = [self._root]
        while stack:
            node = stack.pop()
            if type(node) is tuple:
                stack.extend(node)
            else:
                yield node

    def with_changes_in_steps(self, changes: Mapping[K, V | Removed]) -> Steps[PersistentMap[K, V]]:
        """Apply changes as `with_changes` does, in steps."""
        result, keys = self, iter(changes)
        while some := tuple(islice(keys, _AT_A_TIME)):
            yield
            result = result.with_changes({key: changes[key] for key in some})
        return result

    def with_changes(self, changes: Mapping[K, V | Removed]) -> PersistentMap[K, V]:
        """Return this map with entries set, or removed where the value is `REMOVED`. O(changes)."""
        if not changes:
            return self
        result: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
        added = 0
        for key, value in changes.items():
            added += (value is not REMOVED) - (key in self)
        result._root = _changed(self._root, list(changes.items()), 0)
        result._size = self._size + added
        return result


class _Values(ValuesView[V]):
    """View of a map's values, without a look-up for each."""

    _mapping: PersistentMap[Any, V]

    def __iter__(self) -> Iterator[V]:
        for leaf in self._mapping._leaves():
            yield from leaf.values()


def _changed(node: _Node, items: list[tuple[Any, Any]], depth: int) -> _Node:
    if type(node) is not tuple:
        return _changed_leaf(node, items, depth)
    shift = depth * _BITS
    by_slot: dict[int, list[tuple[Any, Any]]] = {}
    for item in items:
        by_slot.setdefault((hash(item[0]) >> shift) & _MASK, []).append(item)
    children = list(node)
    for slot, slot_items in by_slot.items():
        children[slot] = _changed(children[slot], slot_items, depth + 1)
    if any(children):
        return tuple(children)
    return {}


def _changed_leaf(leaf: dict[Any, Any], items: list[tuple[Any, Any]], depth: int) -> _Node:
    merged = dict(leaf)
    for key, value in items:
        if value is REMOVED:
            merged.pop(key, None)
        else:
            merged[key] = value
    if len(merged) <= _LEAF_LIMIT or depth >= _MAX_DEPTH:
        return merged
    return _changed(({},) * _WIDTH, list(merged.items()), depth)


def _count(node: _Node) -> int:
    if type(node) is tuple:
        return sum(map(_count, node))
    return len(node)


_CHUNK_BITS: Final = 6
_CHUNK: Final = 1 << _CHUNK_BITS


class PartitionMap(Mapping[int, V], Generic[V]):
    """Immutable map of partition ids 0..n-1, iterated in order.

    >>> dict(PartitionMap.of({0: "a", 1: "b"}).with_changes({1: "c", 2: "d"}))
    {0: 'a', 1: 'c', 2: 'd'}
    """

    __slots__ = ("_chunks", "_size")

    def __init__(self) -> None:
        self._chunks: tuple[tuple[V, ...], ...] = ()
        self._size = 0

    @classmethod
    def of(cls, entries: Mapping[int, V]) -> PartitionMap[V]:
        """Return a map of `entries`; `CorruptionError` where an id between 0 and the largest is missing."""
        return cls().with_changes(entries)

    def __getitem__(self, partition: int) -> V:
        if 0 <= partition < self._size:
            return self._chunks[partition >> _CHUNK_BITS][partition & (_CHUNK - 1)]
        raise KeyError(partition)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._size))

    def with_changes(self, changes: Mapping[int, V]) -> PartitionMap[V]:
        """Return this map with entries set or added at its end. O(changes + n/64)."""
        chunks: list[tuple[V, ...] | list[V]] = list(self._chunks)
        size = self._size
        for partition in sorted(changes):
            if not 0 <= partition <= size:
                raise CorruptionError(f"partition {partition} is added instead of {size}, the next one")
            index, slot = partition >> _CHUNK_BITS, partition & (_CHUNK - 1)
            if index == len(chunks):
                chunks.append([])
            chunk = chunks[index]
            if isinstance(chunk, tuple):
                chunk = chunks[index] = list(chunk)
            if partition == size:
                chunk.append(changes[partition])
                size += 1
            else:
                chunk[slot] = changes[partition]
        result: PartitionMap[V] = PartitionMap()
        result._chunks = tuple(tuple(chunk) for chunk in chunks)
        result._size = size
        return result
