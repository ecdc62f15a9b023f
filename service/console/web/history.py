"""History of a cluster's metrics: rates and levels, sample by sample. [P]"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from service.console.figures import Between

MOST_POINTS: Final = 450
SERIES: Final = (
    "t", "produced", "fetched_disk", "fetched_bucket", "uploaded", "lag_bytes", "busy", "turn_p99_ms",
    "memory", "store_p99_ms", "requests",
)  # fmt: skip
"""`t` in seconds of the wall clock; bytes, bytes and requests per second, milliseconds; `busy` from 0 to
1."""


class NodeSample(NamedTuple):
    """One node: its two newest samples, or the reason why there are none."""

    node_id: int | None
    url: str | None
    version: str | None
    between: Between | None
    problem: str | None


Point = tuple[float, ...]


class History:
    """Points of the whole cluster, the newest last."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=MOST_POINTS)

    def add(self, now_ms: int, nodes: Iterable[NodeSample]) -> Point | None:
        """Add and return a point for these samples; None if no node has two."""
        samples = [one.between for one in nodes if one.between is not None and one.between.before is not None]
        if not samples:
            return None
        point = (
            round(now_ms / 1000, 1),
            _sum(samples, "firn_produced_bytes_total"),
            _sum(samples, "firn_fetched_bytes_total", tier="local"),
            _sum(samples, "firn_fetched_bytes_total", tier="bucket"),
            _sum(samples, "firn_tiering_copied_bytes_total"),
            sum(one.now.total("firn_tiering_lag_bytes") for one in samples),
            round(max(one.rate("firn_loop_turn_seconds_sum") for one in samples), 4),
            _most_ms(samples, "firn_loop_turn_seconds"),
            sum(one.now.total("process_resident_memory_bytes") for one in samples),
            _most_ms(samples, "firn_store_call_seconds"),
            _sum(samples, "firn_request_handling_seconds_count"),
        )
        self._points.append(point)
        return point

    @property
    def points(self) -> Sequence[Point]:
        return tuple(self._points)

    def series(self, name: str) -> list[float]:
        """Return one of `SERIES`, the oldest value first."""
        at = SERIES.index(name)
        return [point[at] for point in self._points]

    def columns(self) -> dict[str, list[float]]:
        return {name: self.series(name) for name in SERIES}


def _sum(samples: Sequence[Between], name: str, **labels: str) -> float:
    return round(sum(one.rate(name, **labels) for one in samples), 1)


def _most_ms(samples: Sequence[Between], name: str) -> float:
    worst = max(one.quantile(name, 0.99) for one in samples)
    return round(1000 * min(worst, 60.0), 3)
