"""A view of a bucket that is only read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.base.errors import InvariantError
from service.base.threads import SystemThreads
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.read_only_store import ReadOnlyStore

WRITES: tuple[Callable[[ReadOnlyStore], object], ...] = (
    lambda store: store.put("a", b"x"),
    lambda store: store.put_stream("a", [b"x"], 1),
    lambda store: store.put_if_absent("b", b"x"),
    lambda store: store.put_if_match("a", b"x", "tag"),
    lambda store: store.delete(["a"]),
)


@pytest.mark.parametrize("write", WRITES)
def test_nothing_can_be_written_through_it(write: Callable[[ReadOnlyStore], object]) -> None:
    beneath = MemoryStore(SystemThreads())
    beneath.put("a", b"kept")
    store = ReadOnlyStore(beneath)
    with pytest.raises(InvariantError):
        write(store)
    assert store.get("a", max_size=10) == b"kept"
    assert [one.key for one in store.list("")] == ["a"]
