"""Skew between our clock and the store's, checked before anything is deleted because of its age.

A node whose clock jumps a year ahead would find every record expired. The store stamps a small object that is
written for this. The result is kept for a while and carried forward by the monotonic clock, so that a jump in
between shows, too. A folder is stamped by the machine itself: both clocks are then the same.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from service.base.world import World
from service.remote.stores.conditional import PROBE_PREFIX
from service.remote.stores.store import ObjectStore

MAX_SKEW_MS: Final = 15 * 60_000
"""Above this difference neither clock decides what is deleted. S3 refuses requests beyond it."""
_KEPT_MS: Final = 60_000


class StoreClock:
    """Measures the skew. Called on `offload` threads; two of them may measure at once, which does no harm."""

    def __init__(self, store: ObjectStore, world: World) -> None:
        self._store = store
        self._world = world
        self._measured: tuple[int, int] | None = None
        """(our monotonic clock, the store's clock) at the last measurement"""

    def skew_ms(self) -> int:
        """Return how far our clock is ahead of the store's. Raises what the store raises."""
        clock = self._world.clock
        measured = self._measured
        if measured is None or clock.monotonic_ms() - measured[0] > _KEPT_MS:
            measured = self._measured = clock.monotonic_ms(), self._measure(self._world.new_uuid())
        return clock.now_ms() - (measured[1] + clock.monotonic_ms() - measured[0])

    def _measure(self, name: UUID) -> int:
        key = f"{PROBE_PREFIX}/{name}"
        self._store.put(key, b"clock")
        try:
            return self._store.head(key).last_modified_ms
        finally:
            self._store.delete([key])
