"""The store's clock as a second opinion on ours, before anything is deleted because of its age.

A node whose clock jumps a year ahead would find every record expired. The store stamps a small object that
is written for this; what the two clocks disagree by is kept and carried forward by the monotonic clock for
a while, so that a jump in between shows, too. A folder is stamped by the machine itself: there both are one.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from service.base.world import World
from service.remote.stores.conditional import PROBE_PREFIX
from service.remote.stores.store import ObjectStore

MAX_SKEW_MS: Final = 15 * 60_000
"""Clocks that differ by more do not decide what is deleted. S3 refuses requests beyond it."""
_KEPT_MS: Final = 60_000


class StoreClock:
    """Called on `offload` threads; two of them may ask the store at once, which does no harm."""

    def __init__(self, store: ObjectStore, world: World) -> None:
        self._store = store
        self._world = world
        self._asked: tuple[int, int] | None = None
        """(our monotonic clock, the store's) when it was last asked"""

    def skew_ms(self) -> int:
        """How far our clock is ahead of the store's. Raises what the store raises."""
        clock = self._world.clock
        asked = self._asked
        if asked is None or clock.monotonic_ms() - asked[0] > _KEPT_MS:
            asked = self._asked = clock.monotonic_ms(), self._ask(self._world.new_uuid())
        return clock.now_ms() - (asked[1] + clock.monotonic_ms() - asked[0])

    def _ask(self, name: UUID) -> int:
        key = f"{PROBE_PREFIX}/{name}"
        self._store.put(key, b"clock")
        try:
            return self._store.head(key).last_modified_ms
        finally:
            self._store.delete([key])
