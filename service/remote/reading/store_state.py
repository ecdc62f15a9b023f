"""State of a reader's store: whether it serves at all, and which objects it refuses.

Owned by `DownloadManager`, whose lock guards it.
"""

from __future__ import annotations

import logging
from typing import Final

from service.base.errors import StorageError
from service.base.world import World
from service.remote.reading.refusals import Refusals
from service.remote.stores.breaker import Breaker, BreakerSettings, is_failure
from service.remote.stores.errors import StoreRefused, StoreUnavailable

_log = logging.getLogger(__name__)

_BREAKER: Final = BreakerSettings(failures=8, longest_pause_ms=5_000)
"""Clients wait for cold reads, so the breaker's pauses are short: reads resume soon after the store does."""


class StoreState:
    """Breaker of cold reads, and the refused objects. Not thread-safe."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock
        self._random = world.random
        self._breaker = Breaker(_BREAKER)
        self._refusals = Refusals()

    @property
    def problem(self) -> str | None:
        """Reason of the open breaker; None while it is closed."""
        return self._breaker.reason

    @property
    def asleep(self) -> tuple[str, ...]:
        """Keys of objects found in an archive class."""
        return tuple(self._refusals.asleep())

    def refusal_of(self, object_key: str) -> StorageError | None:
        """Return why the object would not be requested now; None where it would. Changes nothing."""
        now_ms = self._clock.monotonic_ms()
        if self._breaker.refuses(now_ms):
            return self._suspended(object_key)
        return self._refusals.get(object_key, now_ms)

    def begin(self, object_key: str, now_ms: int) -> None:
        """Begin an attempt for the object. Raises `StoreUnavailable` where the breaker does not allow it."""
        if self._breaker.wait_ms(now_ms):
            raise self._suspended(object_key)

    def ended(self, object_key: str, error: BaseException | None, began_ms: int) -> None:
        """Record the end of an attempt that began at monotonic `began_ms`.

        A failure of the store counts for the breaker, anything else closes it. A refused object
        is logged once, and once more when it is readable again.
        """
        now_ms = self._clock.monotonic_ms()
        if is_failure(error):
            opened = self._breaker.failed(
                error, object_key, began_ms=began_ms, now_ms=now_ms, uniform=self._random.random()
            )
            if opened and self._breaker.pauses == 1:
                _log.warning("the store fails, cold reads are suspended for a while: %s", error)
            return
        if self._breaker.answered():
            _log.info("the store serves cold reads again")
        if isinstance(error, StoreRefused):
            if self._refusals.note(object_key, error, began_ms=began_ms, now_ms=now_ms):
                _log.warning("%s cannot be read, its consumers wait: %s", object_key, error)
        elif self._refusals.forget(object_key):
            _log.info("%s can be read again", object_key)

    def _suspended(self, object_key: str) -> StoreUnavailable:
        return StoreUnavailable(f"{object_key}: not requested, as the store fails: {self._breaker.reason}")
