"""What a reader knows of its store: whether it serves at all, and which objects it refuses.

Owned by `Flights`, whose lock guards it.
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
"""Somebody waits for what is read, so nobody is told for long that the store is away when it is back."""


class StoreState:
    """The breaker of cold reads and the refused objects. Not thread-safe."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock
        self._random = world.random
        self._breaker = Breaker(_BREAKER)
        self._refusals = Refusals()

    @property
    def problem(self) -> str | None:
        """Why the store is left alone by everybody; None while it is not."""
        return self._breaker.reason

    @property
    def asleep(self) -> tuple[str, ...]:
        """Keys of objects that lie in an archive class, as far as anybody asked for them."""
        return tuple(self._refusals.asleep())

    def why_not(self, object_key: str) -> StorageError | None:
        """Why nothing of the object would be asked for now; None where it would. Changes nothing."""
        now_ms = self._clock.monotonic_ms()
        if self._breaker.refuses(now_ms):
            return self._left_alone(object_key)
        return self._refusals.get(object_key, now_ms)

    def begin(self, object_key: str, now_ms: int) -> None:
        """A try for the object begins. Raises `StoreUnavailable` where the breaker does not let it."""
        if self._breaker.wait_ms(now_ms):
            raise self._left_alone(object_key)

    def ended(self, object_key: str, error: BaseException | None, began_ms: int) -> None:
        """A try has ended. Each object that is refused is told of once, and once more when it is given."""
        now_ms = self._clock.monotonic_ms()
        if is_failure(error):
            opened = self._breaker.failed(
                error, object_key, began_ms=began_ms, now_ms=now_ms, uniform=self._random.random()
            )
            if opened and self._breaker.pauses == 1:
                _log.warning("cold reads leave the store alone for a while: %s", error)
            return
        if self._breaker.answered():
            _log.info("the store serves cold reads again")
        if isinstance(error, StoreRefused):
            if self._refusals.note(object_key, error, began_ms=began_ms, now_ms=now_ms):
                _log.warning("%s cannot be read, its consumers wait and others go on: %s", object_key, error)
        elif self._refusals.forget(object_key):
            _log.info("%s can be read again", object_key)

    def _left_alone(self, object_key: str) -> StoreUnavailable:
        return StoreUnavailable(f"{object_key}: not asked for, as the store fails: {self._breaker.reason}")
