"""The pure parts: what may be copied, what has expired, which states follow which, how long to wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from service.base.backoff import backoff
from service.base.errors import InvariantError
from service.remote.catalog import CatalogEntry, CatalogResult, decide_commit, malformed
from service.tiering.expiry import ChainSpan, Expiry, Retention, plan_expiry
from service.tiering.lifecycle import MOVES, SegmentState, move
from service.tiering.planner import CopyPlan, plan_copies, priority

ENTRY = CatalogEntry(
    version=3, manifest_key="m3", leader_epoch=2, start_offset=10, end_offset=50, segments=4, size_bytes=400
)


class Segment(NamedTuple):
    base_offset: int
    last_offset: int
    size: int = 100


def plan(*segments: Segment, **facts: int) -> CopyPlan[Segment]:
    known = {"chain_start": 0, "chain_end": 0, "log_start_offset": 0, "high_watermark": 1000}
    return plan_copies(segments, **{"last_stable_offset": 1000, **known, **facts})


def test_segments_go_in_offset_order_from_the_end_of_the_chain() -> None:
    found = plan(Segment(0, 9), Segment(10, 19), Segment(20, 29), chain_end=10)
    assert [(one.segment.base_offset, one.from_offset) for one in found.copies] == [(10, 10), (20, 20)]
    assert (found.lag_segments, found.lag_bytes, found.blocked) == (2, 200, None)


@pytest.mark.parametrize("bound", ["high_watermark", "last_stable_offset"])
def test_a_segment_goes_only_when_its_last_offset_is_below_both_bounds(bound: str) -> None:
    assert not plan(Segment(0, 9), **{bound: 9}).copies
    assert len(plan(Segment(0, 9), **{bound: 10}).copies) == 1


def test_nothing_goes_past_a_segment_that_may_not_go_yet() -> None:
    assert len(plan(Segment(0, 9), Segment(10, 19), Segment(20, 29), high_watermark=19).copies) == 1


def test_a_segment_whose_head_is_already_there_goes_from_the_end_of_the_chain_on() -> None:
    [only] = plan(Segment(0, 9), Segment(10, 29), chain_end=15).copies
    assert (only.segment.base_offset, only.from_offset) == (10, 15)


def test_an_empty_chain_begins_with_the_segment_that_holds_the_log_start() -> None:
    found = plan(Segment(0, 9), Segment(10, 19), Segment(20, 29), log_start_offset=12)
    assert [one.from_offset for one in found.copies] == [10, 20]


def test_an_emptied_chain_never_goes_back() -> None:
    [first, _] = plan(Segment(0, 9), Segment(10, 19), chain_start=4, chain_end=4).copies
    assert first.from_offset == 4


def test_a_hole_after_the_chain_blocks_it_and_says_where() -> None:
    found = plan(Segment(20, 29), chain_end=10)
    assert not found.copies
    assert found.blocked == "offsets 10 to 19 are in no tier"


def test_empty_segments_are_not_copied() -> None:
    assert [one.from_offset for one in plan(Segment(0, 9), Segment(10, 19, size=0)).copies] == [0]


def test_who_has_waited_longest_goes_first_and_then_who_has_most() -> None:
    small, large = plan(Segment(0, 9)), plan(Segment(0, 9, size=500))
    assert priority(large, 10) < priority(small, 10) < priority(large, 20)
    assert priority(small, 90, is_hurried=True) < priority(large, 10), "its disk fills up"


class Remote(NamedTuple):
    last_offset: int
    size: int
    max_timestamp: int


SPAN = ChainSpan(0, 30)


@pytest.mark.parametrize(
    ("log_start", "expected"),
    [
        (0, None),
        (5, Expiry(0, 5, 0)),
        (10, Expiry(1, 10, 100)),
        (25, Expiry(2, 25, 200)),
        (30, Expiry(3, 30, 300)),
        (99, Expiry(3, 30, 300)),
    ],
)
def test_the_chain_begins_where_the_log_does(log_start: int, expected: Expiry | None) -> None:
    chain = [Remote(last, 100, 0) for last in (9, 19, 29)]
    unlimited = Retention(-1, -1)
    assert (
        plan_expiry(chain, SPAN, unlimited, now_ms=0, log_start_offset=log_start, total_bytes=300) == expected
    )


def test_only_a_prefix_of_the_chain_expires() -> None:
    chain = [Remote(9, 100, 10), Remote(19, 100, 900), Remote(29, 100, 20)]
    found = plan_expiry(chain, SPAN, Retention(500, -1), now_ms=1000, log_start_offset=0, total_bytes=300)
    assert found is not None
    assert (found.segments, found.start_offset) == (1, 10)


@pytest.mark.parametrize(("total", "segments"), [(299, 0), (300, 1), (399, 1), (400, 2)])
def test_size_expires_only_what_leaves_the_full_retention_behind(total: int, segments: int) -> None:
    chain = [Remote(9, 100, 0), Remote(19, 100, 0)]
    found = plan_expiry(chain, SPAN, Retention(-1, 200), now_ms=0, log_start_offset=0, total_bytes=total)
    assert (found.segments if found else 0) == segments


def test_the_chain_is_read_no_further_than_needed() -> None:
    def chain() -> Iterator[Remote]:
        yield Remote(9, 100, 900)
        raise AssertionError("read on")

    assert (
        plan_expiry(chain(), SPAN, Retention(500, -1), now_ms=1000, log_start_offset=0, total_bytes=0) is None
    )


def test_a_segment_without_usable_times_ages_from_its_upload() -> None:
    for timestamp in (-1, 5000):
        for uploaded, expired in ((400, True), (600, False)):
            found = plan_expiry(
                [Remote(9, 100, timestamp)],
                SPAN,
                Retention(500, -1),
                now_ms=1000,
                log_start_offset=0,
                total_bytes=0,
                uploaded_at_ms=lambda _, at=uploaded: at,  # type: ignore[misc]
            )
            assert (found is not None) is expired


@pytest.mark.parametrize("state", list(SegmentState))
def test_every_move_that_is_not_in_the_table_raises(state: SegmentState) -> None:
    for to in SegmentState:
        if to in MOVES[state]:
            assert move(state, to) is to
        else:
            with pytest.raises(InvariantError, match="T1"):
                move(state, to)


def test_what_is_live_can_only_be_dropped_and_only_after_it_was_published() -> None:
    assert SegmentState.DROPPED not in MOVES[SegmentState.COMMITTED]
    for live in (SegmentState.COMMITTED, SegmentState.PUBLISHED):
        assert SegmentState.ABANDONED not in MOVES[live]


def successor(**changes: Any) -> CatalogEntry:
    fields: dict[str, Any] = {"version": 4, "manifest_key": "m4", "end_offset": 60, "segments": 5, **changes}
    return ENTRY._replace(**fields)


def test_the_catalog_takes_the_next_version_of_the_current_leader() -> None:
    assert decide(successor()) is CatalogResult.COMMITTED


def decide(entry: CatalogEntry, previous: int = 3, epoch: int = 2) -> CatalogResult:
    return decide_commit(ENTRY, previous_version=previous, entry=entry, leader_epoch=epoch)


def test_the_catalog_refuses_a_fenced_leader_and_a_leader_it_does_not_know_yet() -> None:
    assert decide(successor(), epoch=3) is CatalogResult.FENCED
    assert decide(successor(leader_epoch=5)) is CatalogResult.FENCED


def test_the_catalog_refuses_a_commit_that_started_from_another_version() -> None:
    assert decide(successor(version=3), previous=2) is CatalogResult.VERSION_CONFLICT
    assert decide(successor(version=6), previous=5) is CatalogResult.VERSION_CONFLICT


def test_the_catalog_refuses_a_chain_that_goes_backwards() -> None:
    assert decide(successor(end_offset=49)) is CatalogResult.VERSION_CONFLICT
    assert decide(successor(start_offset=9)) is CatalogResult.VERSION_CONFLICT


def test_a_commit_that_is_repeated_is_committed_again_even_after_the_leader_changed() -> None:
    assert decide(ENTRY, previous=2, epoch=9) is CatalogResult.COMMITTED


@pytest.mark.parametrize(
    "wrong",
    [{"version": 5}, {"manifest_key": ""}, {"segments": 0}, {"end_offset": 5}, {"size_bytes": -1}],
)
def test_an_entry_that_no_chain_can_have_is_an_error_of_its_own(wrong: dict[str, int | str]) -> None:
    assert malformed(successor(**wrong), 3) is not None
    with pytest.raises(ValueError, match=r"."):
        decide(successor(**wrong))


def test_backoff_doubles_up_to_its_maximum_and_is_jittered_around_it() -> None:
    waits = [backoff(n, first=100, longest=5000, jitter=0.2, uniform=0.5) for n in (1, 2, 3, 7, 10**9)]
    assert waits == [100, 200, 400, 5000, 5000]
    spread = [backoff(1, first=100, longest=5000, jitter=0.2, uniform=u) for u in (0.0, 1.0)]
    assert spread == [80, 120]
