"""Health of a node by its parts: the checks and readiness that its findings make."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from service.health.judge import judge
from service.health.readiness import HealthState, NodeHealth
from service.metadata.image import MetadataImage
from service.node.health import ObservedParts, facts_of, parts_of

STALE = "node 3: no controller has confirmed its metadata for 12 s: they are stale"


def health(age_ms: int | None, *, is_serving: bool = True) -> NodeHealth:
    metadata: Any = SimpleNamespace(image=MetadataImage(), confirmed_age_ms=age_ms)
    parts = ObservedParts(3, 9000, is_broker=False, is_serving=is_serving, metadata=cast("Any", metadata))
    return NodeHealth(parts_of(parts), judge(facts_of(parts), 100_000))


def test_a_node_with_stale_metadata_says_so_and_stays_ready() -> None:
    found = health(12_345)
    assert {one.what: (one.state, one.why) for one in found.checks} == {
        "node": (HealthState.OK, ""),
        "metadata": (HealthState.DEGRADED, STALE),
        "cluster": (HealthState.OK, ""),
    }
    assert found.is_ready, "it serves what it leads"
    assert [one.since_ms for one in found.findings] == [87_655]


def test_a_node_whose_metadata_are_confirmed_or_need_nobodys_word_is_well() -> None:
    for age_ms in (None, 0, 9000):
        assert [one.state for one in health(age_ms).checks] == [HealthState.OK] * 3


def test_a_node_that_starts_is_not_ready() -> None:
    found = health(0, is_serving=False)
    assert not found.is_ready
    assert found.checks[0] == ("node", HealthState.FAILED, "node 3 is starting or stopping")
