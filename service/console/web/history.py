"""History of a cluster's metrics: rates and levels, sample by sample. [P]"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

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


class Alert(NamedTuple):
    """A problem that needs attention. `level` is ``bad`` or ``warn``."""

    level: str
    where: str
    what: str


LAG_S: Final = 600
TURN_S: Final = 0.25


def alerts(nodes: Sequence[NodeSample]) -> list[Alert]:
    """Return the problems, the worst first; Prometheus has the same rules with longer delays."""
    found: list[Alert] = []
    for node in nodes:
        where = "a node" if node.node_id is None else f"node {node.node_id}"
        if node.problem is not None:
            found.append(Alert("warn", where, f"its metrics cannot be read: {node.problem}"))
        if node.between is not None:
            found += _of_node(where, node.between)
    return sorted(found, key=lambda one: one.level != "bad")


def _of_node(where: str, between: Between) -> Iterable[Alert]:
    now = between.now
    checks: Mapping[str, Mapping[str, Any]] = now.health.get("checks", {})
    for what, check in checks.items():
        if check.get("state") != "ok":
            level = "bad" if check.get("state") == "failed" else "warn"
            yield Alert(level, where, f"{what}: {check.get('why', '')}")
    if offline := now.one("firn_partitions", state="offline"):
        yield Alert("bad", where, f"{offline:.0f} partitions are offline")
    if now.total("firn_tiering_displaced"):
        yield Alert("bad", where, "another process writes to its prefix; its tiering has stopped for good")
    for client in now.values("firn_store_reachable", "client"):
        if not now.one("firn_store_reachable", client=client):
            yield Alert("bad", where, f"the object store is not reachable ({client})")
    lag = now.total("firn_tiering_lag_seconds")
    if lag > LAG_S:
        yield Alert("warn", where, f"uploads lag behind by {lag:.0f} s")
    for labels, count in now.samples.get("firn_tiering_blocked_partitions", {}).items():
        yield Alert("warn", where, f"{count:.0f} partitions do not tier: {dict(labels).get('reason', '')}")
    if between.before is not None and (worst := between.quantile("firn_loop_turn_seconds", 0.999)) > TURN_S:
        yield Alert("warn", where, f"a turn of the loop took {1000 * min(worst, 60):.0f} ms")
