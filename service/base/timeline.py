"""Dictionaries whose changes can be reverted until they are committed: the state of a log-backed shard. [P]

A shard's state changes by replay of records, some of which are not committed yet, or never will be. The
shard's `Journal` remembers the changes of each uncommitted record. Decisions read the newest state; answers
to clients read the committed one. Committed changes are not remembered: while everything is committed, a
`Timeline` costs as much as a dictionary.

>>> journal = Journal()
>>> members: Timeline[str, int] = Timeline(journal)
>>> journal.at(7)
>>> members["a"] = 1
>>> members.get("a"), members.committed("a")
(1, None)
>>> journal.commit(8)
>>> members.committed("a")
1
"""

from __future__ import annotations

from collections import deque
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any, Final, Generic, TypeVar, overload

from service.base.errors import InvariantError

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class _Missing:
    __slots__ = ()


_MISSING: Final = _Missing()


class _Change:
    """One uncommitted change of one key: the value before, and the neighbouring changes of the same key.

    `last` is the newest change of the key, if there are others; it is valid in the oldest change only. A
    change that has left the journal refers to no other, nor to itself: the cycle would keep its values until
    the whole heap is collected.
    """

    __slots__ = ("earlier", "key", "last", "later", "offset", "old", "timeline")

    def __init__(self, offset: int, timeline: Timeline[Any, Any], key: object, old: object) -> None:
        self.offset = offset
        self.timeline = timeline
        self.key = key
        self.old = old
        self.earlier: _Change | None = None
        self.later: _Change | None = None
        self.last: _Change | None = None


class Journal:
    """Uncommitted changes of the timelines of one shard, by the offset of the record that made them.

    Changes by records below the committed offset are not remembered.
    """

    __slots__ = ("_changes", "_committed", "_offset")

    def __init__(self) -> None:
        self._changes: deque[_Change] = deque()
        self._offset = 0
        self._committed = 0

    def __len__(self) -> int:
        """Return the number of uncommitted changes."""
        return len(self._changes)

    @property
    def committed_offset(self) -> int:
        """Offset below which everything is committed."""
        return self._committed

    def at(self, offset: int) -> None:
        """Attribute the changes from now on to the record at `offset`."""
        if offset < self._offset:
            raise InvariantError(f"the record at offset {offset} after the one at {self._offset}")
        self._offset = offset

    def commit(self, offset: int) -> None:
        """Commit everything below `offset`. An offset below the committed one changes nothing."""
        if offset <= self._committed:
            return
        self._committed = offset
        changes = self._changes
        while changes and changes[0].offset < offset:
            change = changes.popleft()
            if change.later is None:
                change.timeline._forget(change)
            else:
                change.timeline._commit(change, change.later)

    def revert_to(self, offset: int) -> None:
        """Undo the changes of the records at `offset` and later, none of which may be committed."""
        if offset < self._committed:
            raise InvariantError(f"a revert to offset {offset}, below the committed {self._committed}")
        changes = self._changes
        while changes and changes[-1].offset >= offset:
            change = changes.pop()
            change.timeline._revert(change)
        self._offset = min(self._offset, offset)


class Timeline(Generic[K, V]):
    """A dictionary of immutable values, with its newest state and its state at the committed offset.

    Keys are in order of insertion; a key whose removal was undone comes last.
    """

    __slots__ = ("_journal", "_oldest", "_values")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._values: dict[K, V] = {}
        self._oldest: dict[K, _Change] | None = None

    # The newest state.

    def __getitem__(self, key: K) -> V:
        return self._values[key]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: object = None) -> object:
        return self._values.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def keys(self) -> KeysView[K]:
        return self._values.keys()

    def values(self) -> ValuesView[V]:
        return self._values.values()

    def items(self) -> ItemsView[K, V]:
        return self._values.items()

    def __setitem__(self, key: K, value: V) -> None:
        old = self._values.get(key, _MISSING)
        if old is value:
            return
        journal = self._journal
        if journal._offset >= journal._committed:
            self._remember(key, old)
        self._values[key] = value

    def put_committed(self, items: Iterable[tuple[K, V]]) -> None:
        """Set many keys at once. The journal's current record must be committed already."""
        self.committed_values().update(items)

    def committed_values(self) -> dict[K, V]:
        """Return the dictionary to set keys in for a record that is committed already, where the journal is.
        Only until the next call of anything here."""
        journal = self._journal
        if journal._offset >= journal._committed or self._oldest is not None:
            raise InvariantError("uncommitted changes must be made key by key")
        return self._values

    def __delitem__(self, key: K) -> None:
        self.pop(key)

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: D) -> V | D: ...
    def pop(self, key: K, default: object = _MISSING) -> object:
        """Remove `key` and return its value; KeyError if there is none and no default is given."""
        old = self._values.get(key, _MISSING)
        if old is _MISSING:
            if default is _MISSING:
                raise KeyError(key)
            return default
        self._remember(key, old)
        del self._values[key]
        return old

    # The state at the committed offset.

    @overload
    def committed(self, key: K) -> V | None: ...
    @overload
    def committed(self, key: K, default: D) -> V | D: ...
    def committed(self, key: K, default: object = None) -> object:
        """Return the value of `key` at the committed offset; `default` where it had none."""
        if self._oldest is not None:
            change = self._oldest.get(key)
            if change is not None:
                return default if change.old is _MISSING else change.old
        return self._values.get(key, default)

    def committed_items(self) -> Iterator[tuple[K, V]]:
        """Yield keys and values at the committed offset; keys removed since come last."""
        oldest = self._oldest
        if not oldest:
            yield from self._values.items()
            return
        for key, value in self._values.items():
            change = oldest.get(key)
            if change is None:
                yield key, value
            elif change.old is not _MISSING:
                yield key, change.old  # type: ignore[misc]  # a change keeps values of any timeline
        for key, change in oldest.items():
            if key not in self._values and change.old is not _MISSING:
                yield key, change.old  # type: ignore[misc]

    def removed(self) -> list[K]:
        """Return the keys whose removal is not committed."""
        changes = (self._oldest or {}).items()
        return [key for key, one in changes if key not in self._values and one.old is not _MISSING]

    # For the journal.

    def _remember(self, key: K, old: object) -> None:
        journal = self._journal
        if journal._offset < journal._committed:
            return  # the current record is committed already
        change = _Change(journal._offset, self, key, old)
        journal._changes.append(change)
        if self._oldest is None:
            self._oldest = {}
        first = self._oldest.setdefault(key, change)
        if first is not change:
            before = first.last or first
            change.earlier, before.later, first.last = before, change, change

    def _commit(self, change: _Change, later: _Change) -> None:
        """Drop `change`, the oldest of its key; `later` is the next one."""
        assert self._oldest is not None
        later.earlier, later.last = None, None if change.last is later else change.last
        change.later = change.last = None
        self._oldest[change.key] = later  # type: ignore[index]

    def _revert(self, change: _Change) -> None:
        """Undo `change`, the newest of its key."""
        assert self._oldest is not None
        key: K = change.key  # type: ignore[assignment]
        earlier = change.earlier
        if earlier is not None:
            earlier.later = change.earlier = None
            oldest = self._oldest[key]
            oldest.last = None if earlier is oldest else earlier
        else:
            self._forget(change)
        if change.old is _MISSING:
            del self._values[key]
        else:
            # A removed key becomes a new entry: replicas that undo in one order get one order.
            self._values[key] = change.old  # type: ignore[assignment]

    def _forget(self, change: _Change) -> None:
        assert self._oldest is not None
        del self._oldest[change.key]  # type: ignore[arg-type]
        if not self._oldest:
            self._oldest = None
