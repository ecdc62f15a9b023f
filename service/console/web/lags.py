"""History of the lag of watched groups: some points of each partition, of few groups. [P]"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final

from service.groups.admin_models import PartitionProgress

MOST_GROUPS: Final = 16
MOST_POINTS: Final = 180
LEAST_STEP_MS: Final = 4_500
"""Samples closer to each other make one point, because several pages may sample the same group."""

Place = tuple[str, int]


class Lags:
    """Points by group and partition, the newest last. The group without a sample for longest is dropped."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, dict[Place, deque[tuple[int, int]]]] = OrderedDict()

    def add(self, group_id: str, now_ms: int, positions: Iterable[PartitionProgress]) -> None:
        """Add a sample of some of a group's partitions; `now_ms` ascends."""
        points = self._groups.setdefault(group_id, {})
        self._groups.move_to_end(group_id)
        if len(self._groups) > MOST_GROUPS:
            self._groups.popitem(last=False)
        for one in positions:
            if one.lag is None:
                continue
            line = points.setdefault((one.topic, one.partition), deque(maxlen=MOST_POINTS))
            if not line or now_ms - line[-1][0] >= LEAST_STEP_MS:
                line.append((now_ms, one.lag))

    def forget_others(self, group_id: str, places: Iterable[Place]) -> None:
        """Drop the points of partitions that the group no longer has."""
        points, known = self._groups.get(group_id, {}), frozenset(places)
        for place in [one for one in points if one not in known]:
            del points[place]

    def of(self, group_id: str) -> dict[Place, Sequence[tuple[int, int]]]:
        """Return (ms of the monotonic clock, lag) by partition."""
        return {place: tuple(line) for place, line in self._groups.get(group_id, {}).items()}
