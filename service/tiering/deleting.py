"""Delete many objects: a refused one does not hold up the others, a store that does not answer ends the loop.

`delete_each` is called on `offload` threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from service.base.errors import FirnError, StorageError
from service.remote.stores.errors import OF_THE_STORE, StoreUnavailable
from service.remote.stores.store import ObjectStore
from service.tiering.offload_pool import Stalled

DELETE_BATCH: Final = 1000
MOST_IN_A_ROW: Final = 3
NO_ANSWER: Final = (StoreUnavailable, *OF_THE_STORE, Stalled)
"""Errors that do not depend on the object: the next object would meet the same."""


class Deleted(NamedTuple):
    """Number of deleted keys, the keys that are left, and their last error."""

    number: int
    left: tuple[str, ...] = ()
    error: FirnError | None = None


def delete_each(store: ObjectStore, keys: Sequence[str]) -> Deleted:
    """Delete `keys` in one call, and in ever smaller ones where the store refuses some of them.

    A store that does not answer is not called again: all keys of that call are left.
    """
    if not keys:
        return Deleted(0)
    try:
        store.delete(keys)
    except NO_ANSWER as e:
        return Deleted(0, tuple(keys), e)
    except StorageError as e:
        if len(keys) == 1:
            return Deleted(0, tuple(keys), e)
    else:
        return Deleted(len(keys))
    half = len(keys) // 2
    first, second = delete_each(store, keys[:half]), delete_each(store, keys[half:])
    return Deleted(first.number + second.number, (*first.left, *second.left), second.error or first.error)


class FailureRun:
    """Failures of a loop over partitions or keys, which continues after each of them.

    The loop ends only when a store does not answer `MOST_IN_A_ROW` times in a row: it would not answer for
    the others either, and each call may take long to fail.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def note(self, error: FirnError | None) -> None:
        """Record how an iteration ended. Raises `error` where it ends the loop."""
        if not isinstance(error, NO_ANSWER):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row >= MOST_IN_A_ROW:
            raise error
