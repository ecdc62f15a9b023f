"""Conditional writes that check lost answers, and a probe of whether a store honours them.

A request that was executed and whose answer was lost is sent again by the client below, or by us, and then
conflicts with its own object. So after any answer but success the object is read back: it is ours, or another
writer's, or the store does not answer, and the caller tries again.
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
    """Write `data` where no object is; return False where another one is. Equal bytes count as ours."""
    try:
        if store.put_if_absent(key, data):
            return True
    except StoreUnavailable:
        if holds(store, key, data):
            return True
        raise
    return holds(store, key, data)


def replace(store: ObjectStore, key: str, data: Buffer, tag: str) -> bool:
    """Write `data` over the object with `tag`; return False where another one is there now. Equal bytes count
    as ours."""
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
    """Write `data` over `seen`, None for no object; return False where that has changed since."""
    return create(store, key, data) if seen is None else replace(store, key, data, seen.tag)


def tagged_or_none(store: ObjectStore, key: str, *, max_size: int) -> Tagged | None:
    """Return the object with its tag; None where there is none."""
    try:
        return store.get_tagged(key, max_size=max_size)
    except ObjectNotFound:
        return None


def holds(store: ObjectStore, key: str, data: Buffer) -> bool:
    """Return whether `key` has these bytes now."""
    try:
        return store.get(key, max_size=len(data)) == data
    except (ObjectNotFound, CorruptionError):  # another size
        return False


def probe(store: ObjectStore, new_uuid: Callable[[], UUID]) -> str | None:
    """Return why conditional writes of `store` cannot be relied on; None when they can.

    A lost answer followed by a damaged one looks like a store that ignores conditions. So the store is probed
    up to `PROBES` times, each time with a fresh object, and is relied on when one probe finds nothing wrong.
    Raises what a store raises that does not answer, or does not let these credentials write at all.
    """
    why = None
    for _ in range(PROBES):
        why = _probe_once(store, f"{PROBE_PREFIX}/{new_uuid()}")
        if why is None:
            return None
    return why


def _probe_once(store: ObjectStore, key: str) -> str | None:
    """Write and delete one small object under a unique name; return what is wrong.

    A store without conditional writes may refuse them or, worse, write unconditionally: both are reported.
    """
    try:
        return broken_promise(store, key)
    except RequestUnknown as e:
        return f"it refuses them: {e}"
    finally:
        store.delete([key])


def broken_promise(store: ObjectStore, key: str) -> str | None:
    """Return what is wrong, as `_probe_once`; the caller deletes `key`, and refusals are raised."""
    if not create(store, key, b"one"):
        return "it does not create an object where none exists"
    if store.put_if_absent(key, b"two"):
        return "it replaces an object that exists (If-None-Match)"
    first = store.get_tagged(key, max_size=_MAX_PROBE_BYTES)
    if not replace(store, key, b"three", first.tag):
        return "it does not replace the object of a tag that it returned (If-Match)"
    try:
        store.put_if_match(key, b"four", first.tag)
    except PreconditionFailed:
        return None
    return "it replaces an object that has changed since (If-Match)"
