"""Samples of the nodes: points of the charts, and alerts."""

from __future__ import annotations

from service.console.figures import Between, Figures
from service.console.web.history import MOST_POINTS, SERIES, History, NodeSample

HEALTHY = {"ready": True, "checks": {"log": {"state": "ok", "why": ""}}}


def figures(at_s: float, produced: int, *more: str, health: dict[str, object] | None = None) -> Figures:
    text = "\n".join(
        (
            f"firn_produced_bytes_total {produced}",
            f'firn_fetched_bytes_total{{tier="bucket"}} {2 * produced}',
            "process_resident_memory_bytes 1000",
            *more,
        )
    )
    return Figures(at_s, text, health or HEALTHY, [])


def look(before: Figures | None, now: Figures, node_id: int = 1) -> NodeSample:
    return NodeSample(node_id, "http://n", "1", Between(before, now), None)


def test_points_are_rates_of_all_nodes_together() -> None:
    history = History()
    assert history.add(1000, [look(None, figures(0, 100))]) is None
    nodes = [look(figures(0, 100), figures(2, 300)), look(figures(0, 0), figures(2, 1000), 2)]
    point = history.add(3000, nodes)
    assert point is not None
    found = dict(zip(SERIES, point, strict=True))
    assert (found["t"], found["produced"], found["fetched_bucket"], found["memory"]) == (3.0, 600, 1200, 2000)
    assert history.series("produced") == [600]


def test_the_past_is_bounded() -> None:
    history = History()
    for n in range(2 * MOST_POINTS):
        history.add(n, [look(figures(0, 0), figures(1, 1))])
    assert len(history.points) == MOST_POINTS
