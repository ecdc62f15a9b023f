"""Notes of places that are clean of an order's records, gathered into few requests.

Replicas and leaders tell of each partition when it is clean, from as many tasks; a request holds thousands of
places. While one is under way, the notes of others gather for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

from service.base.errors import RequestError, StorageError
from service.base.slices import next_turn
from service.remote.catalog import ErasedPlace, Notes


class _Batch:
    """Notes of one request, with its outcome."""

    __slots__ = ("count", "error", "is_sent", "notes")

    def __init__(self) -> None:
        self.notes: dict[tuple[UUID, int], set[ErasedPlace]] = {}
        self.count = 0
        self.is_sent = False
        self.error: StorageError | RequestError | None = None

    def add(self, key: tuple[UUID, int], places: Collection[ErasedPlace]) -> None:
        self.notes.setdefault(key, set()).update(places)
        self.count += len(places)


class NoteQueue:
    """Sends notes by `send`, at most `most` places and `most_keys` pairs of order and broker in one call of
    it, one call at a time. Owned by the event loop.

    One of the callers sends for all of a batch: there is no task that outlives them.
    """

    def __init__(self, send: Callable[[Notes], Awaitable[None]], *, most: int, most_keys: int) -> None:
        self._send = send
        self._most = most
        self._most_keys = most_keys
        self._turn = asyncio.Lock()
        self._open = _Batch()

    async def note(self, erasure_id: UUID, places: Collection[ErasedPlace], broker_id: int) -> None:
        """Return once the places are noted. Raises as `send` does for one of them."""
        left, key = list(places), (erasure_id, broker_id)
        while left:
            batch = self._open
            room = self._most - batch.count
            if not room or (key not in batch.notes and len(batch.notes) == self._most_keys):
                self._open = _Batch()
                continue
            now, left = left[:room], left[room:]
            batch.add(key, now)
            await self._sent(batch)

    async def _sent(self, batch: _Batch) -> None:
        async with self._turn:
            if not batch.is_sent:
                await next_turn()  # what others tell in this turn of the loop goes along
                if self._open is batch:
                    self._open = _Batch()
                try:
                    await self._send(batch.notes)
                except (RequestError, StorageError) as e:
                    batch.error = e
                batch.is_sent = True  # not where the caller was cancelled: the next one of the batch sends it
        if batch.error is not None:
            raise batch.error
