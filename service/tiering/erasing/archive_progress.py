"""Progress of an order to erase keys in the archives that a broker leads: plain values. [P]

>>> work = OrderWork()
>>> work.note(("events", 0), ArchiveWork(objects=10, size=1000, looked=4, looked_size=400))
>>> work.note(("events", 1), ArchiveWork(objects=2, size=200, looked=2, looked_size=200, rewritten=1))
>>> work.note(("events", 0), ArchiveWork(objects=10, size=1000, looked=5, looked_size=500))
>>> work.total.left, work.total.looked, work.total.rewritten
(5, 7, 1)
>>> work.keep(set())
>>> work.total
ArchiveWork(objects=0, size=0, looked=0, looked_size=0, rewritten=0, rewritten_size=0)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from service.remote.format.cut_codec import Place


class ArchiveWork(NamedTuple):
    """Objects of archives, with their bytes: all that there are, those that were looked at, and those that
    were written anew, since this broker leads them."""

    objects: int = 0
    size: int = 0
    looked: int = 0
    looked_size: int = 0
    rewritten: int = 0
    rewritten_size: int = 0

    @property
    def left(self) -> int:
        return max(self.objects - self.looked, 0)

    @property
    def left_size(self) -> int:
        return max(self.size - self.looked_size, 0)

    def of_chain(self, objects: int, size: int, *, is_over: bool) -> ArchiveWork:
        """Return the same work on a chain that has so many objects now. A pass that is over has looked at
        all of them; a new one begins again, and what was looked at then is no less."""
        if is_over:
            return self._replace(objects=objects, size=size, looked=objects, looked_size=size)
        looked, looked_size = min(self.looked, objects), min(self.looked_size, size)
        return self._replace(objects=objects, size=size, looked=looked, looked_size=looked_size)

    def plus(self, other: ArchiveWork, sign: int = 1) -> ArchiveWork:
        return ArchiveWork(*(one + sign * another for one, another in zip(self, other, strict=True)))


_NOTHING = ArchiveWork()


class OrderWork:
    """Work of one order in the archives that this broker leads; ``total`` is the sum."""

    def __init__(self) -> None:
        self.total = _NOTHING
        self._places: dict[Place, ArchiveWork] = {}

    def of(self, place: Place) -> ArchiveWork:
        return self._places.get(place, _NOTHING)

    def note(self, place: Place, work: ArchiveWork) -> None:
        """Set the work in one archive."""
        self.total = self.total.plus(work).plus(self.of(place), -1)
        self._places[place] = work

    def keep(self, places: Collection[Place]) -> None:
        """Forget archives that are not among `places`: others lead them."""
        for place in [place for place in self._places if place not in places]:
            self.total = self.total.plus(self._places.pop(place), -1)
