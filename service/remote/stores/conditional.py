"""Conditional writes whose lost answers are looked up, and the proof that a store honours them.

A request that was done and whose answer was lost is sent again by the client below, or by us, and then finds
its own object in its way. So after any answer but "done" the object is read back: what lies there is ours,
or somebody else's, or the store does not say, which is for the caller to ask again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.remote.stores.errors import (
    ObjectNotFound,
    PreconditionFailed,
    RequestUnknown,
    StoreUnavailable,
)
from service.remote.stores.store import ObjectStore, Tagged

PROBE_PREFIX: Final = "probe"
PROBES: Final = 3
_MAX_PROBE_BYTES: Final = 64


def create(store: ObjectStore, key: str, data: Buffer) -> bool:
    """Write `data` where nothing is; False where something else is. Equal bytes count as ours."""
    try:
        if store.put_if_absent(key, data):
            return True
    except StoreUnavailable:
        if holds(store, key, data):
            return True
        raise
    return holds(store, key, data)


def replace(store: ObjectStore, key: str, data: Buffer, tag: str) -> bool:
    """Write `data` over the object of `tag`; False where another is there now. Equal bytes are ours."""
    try:
        store.put_if_match(key, data, tag)
    except PreconditionFailed:
        return holds(store, key, data)
    except StoreUnavailable:
        if holds(store, key, data):
            return True
        raise
    return True


def write(store: ObjectStore, key: str, data: Buffer, seen: Tagged | None) -> bool:
    """Write `data` where `seen` was, None for nothing; False where that has changed since."""
    return create(store, key, data) if seen is None else replace(store, key, data, seen.tag)


def tagged_or_none(store: ObjectStore, key: str, *, max_size: int) -> Tagged | None:
    """The object as it is; None where there is none."""
    try:
        return store.get_tagged(key, max_size=max_size)
    except ObjectNotFound:
        return None


def holds(store: ObjectStore, key: str, data: Buffer) -> bool:
    """Whether `key` holds these bytes now."""
    try:
        return store.get(key, max_size=len(data)) == data
    except (ObjectNotFound, CorruptionError):  # another size
        return False


def probe(store: ObjectStore, new_uuid: Callable[[], UUID]) -> str | None:
    """Why conditional writes of `store` cannot be relied on; None when they can.

    A lost answer and a damaged one after it look like a store that ignores conditions: so it is asked up to
    `PROBES` times, each time of a fresh object, and relied on when one of these finds nothing wrong. Raises
    what a store raises that does not answer, or does not let these credentials write at all.
    """
    why = None
    for _ in range(PROBES):
        why = _probe_once(store, f"{PROBE_PREFIX}/{new_uuid()}")
        if why is None:
            return None
    return why


def _probe_once(store: ObjectStore, key: str) -> str | None:
    """Writes, and removes, one small object under a name that nobody else uses. A store that knows no such
    writes may refuse them or, worse, write: both are told."""
    try:
        return broken_promise(store, key)
    except RequestUnknown as e:
        return f"it refuses them: {e}"
    finally:
        store.delete([key])


def broken_promise(store: ObjectStore, key: str) -> str | None:
    """As `_probe_once`, under a `key` that the caller removes, and refusals are raised."""
    if not create(store, key, b"one"):
        return "it writes no new object where none is"
    if store.put_if_absent(key, b"two"):
        return "it replaces an object that is only to be made where none is (If-None-Match)"
    first = store.get_tagged(key, max_size=_MAX_PROBE_BYTES)
    if not replace(store, key, b"three", first.tag):
        return "it does not replace the object of a tag that it gave (If-Match)"
    try:
        store.put_if_match(key, b"four", first.tag)
    except PreconditionFailed:
        return None
    return "it replaces an object that is another by now (If-Match)"
