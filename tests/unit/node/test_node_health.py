"""Health of a node by its parts: the checks and readiness that its findings make."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from service.health.judge import judge
from service.health.readiness import HealthState, NodeHealth
from service.metadata.image import MetadataImage
from service.metadata.publisher import QuorumStatus
from service.metadata.raft.leading import VoterSilence
from service.node.health import ObservedParts, facts_of, parts_of

STALE = "node 3: no controller has confirmed its metadata for 12 s: they are stale"


def health(
    age_ms: int | None, *, is_serving: bool = True, standing: QuorumStatus | None = None
) -> NodeHealth:
    metadata: Any = SimpleNamespace(image=MetadataImage(), confirmed_age_ms=age_ms, quorum_status=standing)
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


def test_the_leader_of_the_quorum_says_which_controller_is_away_and_nobody_else_does() -> None:
    silences = {1: VoterSilence(400, True), 2: VoterSilence(10_001, True), 4: VoterSilence(10_000, False)}
    found = health(0, standing=QuorumStatus(True, 3, 7, 90, {1: 0, 2: 55, 3: 0, 4: 90}, silences))
    assert [(one.words, one.subject, one.since_ms) for one in found.findings] == [
        ("voter 2 has not fetched for 10 s", "node 2", 89_999)
    ]
    assert found.is_ready
    never = {4: VoterSilence(10_001, False)}
    found = health(0, standing=QuorumStatus(True, 3, 7, 90, {3: 0, 4: 90}, never))
    assert [one.words for one in found.findings] == ["voter 4 has not fetched at all"]
    assert health(0, standing=QuorumStatus(False, 1, 7, 90, {}, {})).findings == ()
