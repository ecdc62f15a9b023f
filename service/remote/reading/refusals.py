"""Objects that the store refuses, so that not every reader requests them again. [P]

A refusal (an archive class, a missing permission, a disabled key) is an answer about one object. It is kept
and returned to later readers for a pause that doubles with each refusal; then one download tries again.

>>> refusals = Refusals()
>>> asleep = ObjectAsleep("a.seg: asleep")
>>> refusals.note("a.seg", asleep, began_ms=0, now_ms=0), refusals.get("b.seg", now_ms=0)
(True, None)
>>> refusals.get("a.seg", now_ms=999), refusals.get("a.seg", now_ms=1_000)
(ObjectAsleep('a.seg: asleep'), None)
>>> refusals.note("a.seg", asleep, began_ms=1_000, now_ms=1_000), refusals.asleep()
(False, ['a.seg'])
>>> refusals.forget("a.seg"), refusals.asleep()
(True, [])
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from service.base.backoff import backoff
from service.remote.stores.errors import ObjectAsleep, StoreRefused

FIRST_PAUSE_MS: Final = 1_000
LONGEST_PAUSE_MS: Final = 30_000
MOST: Final = 10_000
"""Most objects that are kept, those refused last."""


class _Refused(NamedTuple):
    error: StoreRefused
    times: int
    at_ms: int
    until_ms: int


class Refusals:
    """Refused objects of one store, for one room. Not thread-safe: its owner guards it."""

    def __init__(self) -> None:
        self._refused: OrderedDict[str, _Refused] = OrderedDict()

    def note(self, object_key: str, error: StoreRefused, *, began_ms: int, now_ms: int) -> bool:
        """Record that the store refused the object; return True when it had not before.

        An attempt that began before the last refusal does not lengthen the pause.
        """
        before = self._refused.get(object_key)
        if before is not None and began_ms <= before.at_ms:
            return False
        self._refused.pop(object_key, None)
        times = 1 if before is None else before.times + 1
        pause_ms = backoff(times, first=FIRST_PAUSE_MS, longest=LONGEST_PAUSE_MS, jitter=0.0, uniform=0.5)
        self._refused[object_key] = _Refused(error, times, now_ms, now_ms + round(pause_ms))
        if len(self._refused) > MOST:
            self._refused.popitem(last=False)
        return before is None

    def forget(self, object_key: str) -> bool:
        """Record that the store served the object, or part of it; return True when it had refused it
        before."""
        return self._refused.pop(object_key, None) is not None

    def get(self, object_key: str, now_ms: int) -> StoreRefused | None:
        """Return the store's refusal of the object while its pause lasts; None otherwise."""
        found = self._refused.get(object_key)
        return found.error if found is not None and now_ms < found.until_ms else None

    def asleep(self) -> list[str]:
        """Return keys of objects found in an archive class."""
        return [key for key, found in self._refused.items() if isinstance(found.error, ObjectAsleep)]
