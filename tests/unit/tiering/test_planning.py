"""The pure parts: segments to copy, expired segments, states and their moves, pauses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest

from service.base.backoff import backoff
from service.base.errors import InvariantError, StorageError
from service.remote.catalog import CatalogEntry, CatalogResult, decide_commit, malformed
from service.remote.format.manifest import PageRef
from service.tiering.expiry import ChainSpan, ExpiryPlan, Retention, plan_expiry
from service.tiering.lifecycle import MOVES, SegmentState, move
from service.tiering.planner import CopyPlan, plan_copies, priority, priority_after_failure

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


def test_uploads_are_ordered_by_waiting_time_and_then_size() -> None:
    small, large = plan(Segment(0, 9)), plan(Segment(0, 9, size=500))
    assert priority(large, 10) < priority(small, 10) < priority(large, 20)
    assert priority(small, 90, is_urgent=True) < priority(large, 10), "its disk fills up"


def test_failed_work_yields_to_all_other_work_for_ten_minutes() -> None:
    failed_at = 1_000_000
    failed = priority_after_failure(priority(plan(Segment(0, 9)), 10), failed_at)
    for sealed_at in (20, failed_at, failed_at + 599_999):
        assert priority(plan(Segment(0, 9)), sealed_at) < failed
    assert failed < priority(plan(Segment(0, 9)), failed_at + 600_001), "it has its turn in the end"
    short = priority_after_failure((0, 0, 0), failed_at)
    assert priority(plan(Segment(0, 9)), failed_at) < short, "settling and expiry, too"
    pressing = priority_after_failure(priority(plan(Segment(0, 9)), 10, is_urgent=True), failed_at)
    assert priority(plan(Segment(0, 9)), failed_at - 1) < pressing < failed


class Remote(NamedTuple):
    base_offset: int
    last_offset: int
    size_bytes: int
    max_timestamp: int
    min_timestamp: int = -1


SPAN = ChainSpan(0, 30)
UNLIMITED = Retention(-1, -1)


def start_of(
    chain: Iterable[Remote | PageRef],
    retention: Retention,
    now_ms: int = 0,
    log_start: int = 0,
    total: int = 0,
) -> int | None:
    found: ExpiryPlan[Remote | PageRef] = plan_expiry(
        chain, SPAN, retention, now_ms=now_ms, log_start_offset=log_start, total_bytes=total
    )
    return found.start


@pytest.mark.parametrize(
    ("log_start", "expected"), [(0, None), (5, 5), (10, 10), (25, 25), (30, 30), (99, 30)]
)
def test_the_chain_begins_where_the_log_does(log_start: int, expected: int | None) -> None:
    chain = [Remote(base, base + 9, 100, 0) for base in (0, 10, 20)]
    assert start_of(chain, UNLIMITED, log_start=log_start, total=300) == expected


def test_only_a_prefix_of_the_chain_expires() -> None:
    chain = [Remote(0, 9, 100, 10), Remote(10, 19, 100, 900), Remote(20, 29, 100, 20)]
    assert start_of(chain, Retention(500, -1), now_ms=1000, total=300) == 10


@pytest.mark.parametrize(("total", "expected"), [(299, None), (300, 10), (399, 10), (400, 20)])
def test_size_expires_only_what_leaves_the_full_retention_behind(total: int, expected: int | None) -> None:
    chain = [Remote(0, 9, 100, 0), Remote(10, 19, 100, 0)]
    assert start_of(chain, Retention(-1, 200), total=total) == expected


def test_the_chain_is_read_no_further_than_needed() -> None:
    def chain() -> Iterator[Remote]:
        yield Remote(0, 9, 100, 900)
        raise AssertionError("read on")

    assert start_of(chain(), Retention(500, -1), now_ms=1000) is None


@pytest.mark.parametrize(("uploaded", "expires"), [(400, True), (600, False)])
def test_a_segment_without_timestamps_ages_from_its_upload(uploaded: int, expires: bool) -> None:
    found = plan_expiry(
        [Remote(0, 9, 100, -1)],
        SPAN,
        Retention(500, -1),
        now_ms=1000,
        log_start_offset=0,
        total_bytes=0,
        uploaded_at_ms=lambda _: uploaded,
    )
    assert (found.start is not None) is expires


def test_a_timestamp_in_the_future_keeps_a_segment_as_in_kafka() -> None:
    """RLMExpirationTask: `maxTimestampMs < now - retention.ms` alone; when it was copied does not count."""
    found = plan_expiry(
        [Remote(0, 9, 100, 5000)],
        SPAN,
        Retention(500, -1),
        now_ms=1000,
        log_start_offset=0,
        total_bytes=0,
        uploaded_at_ms=lambda _: 0,
    )
    assert (found.start, found.problem) == (None, None)
    assert start_of([Remote(0, 9, 100, 5000)], Retention(500, -1), now_ms=5501) == 10


def page(base: int, last: int, size: int, oldest: int, newest: int) -> PageRef:
    return PageRef(base, last, 0, 2, size, newest, 0, 0, f"page {base}", 10, 0, oldest)


@pytest.mark.parametrize(
    ("retention", "now_ms", "log_start", "total", "expected"),
    [
        (UNLIMITED, 0, 20, 0, 20),
        (Retention(500, -1), 1600, 0, 0, 20),
        (Retention(-1, 100), 0, 0, 300, 20),
        (UNLIMITED, 0, 0, 0, None),
        (Retention(500, -1), 1000, 0, 0, None),
        (Retention(-1, 300), 0, 0, 300, None),
    ],
)
def test_a_page_is_not_read_where_all_of_it_goes_or_all_of_it_stays(
    retention: Retention, now_ms: int, log_start: int, total: int, expected: int | None
) -> None:
    chain: list[Remote | PageRef] = [page(0, 19, 200, 900, 1000), Remote(20, 29, 100, 1500)]
    found = plan_expiry(chain, SPAN, retention, now_ms=now_ms, log_start_offset=log_start, total_bytes=total)
    assert (found.start, found.problem) == (expected, None)


@pytest.mark.parametrize(
    ("retention", "now_ms", "log_start", "total", "expected"),
    [
        (UNLIMITED, 0, 5, 0, 5),
        (Retention(500, -1), 1450, 0, 0, None),
        (Retention(-1, 250), 0, 0, 300, None),
    ],
)
def test_a_page_that_cannot_be_read_keeps_what_it_lists_and_is_told(
    retention: Retention, now_ms: int, log_start: int, total: int, expected: int | None
) -> None:
    chain: list[Remote | PageRef] = [page(0, 19, 200, 900, 1000), Remote(20, 29, 100, 1500)]

    def gone(ref: PageRef) -> list[Remote | PageRef]:
        raise StorageError(f"{ref.key} is gone")

    found = plan_expiry(
        chain, SPAN, retention, now_ms=now_ms, log_start_offset=log_start, total_bytes=total, children=gone
    )
    assert found.start == expected
    assert str(found.problem) == "page 0 is gone"


@pytest.mark.parametrize("state", list(SegmentState))
def test_every_move_that_is_not_in_the_table_raises(state: SegmentState) -> None:
    for to in SegmentState:
        if to in MOVES[state]:
            assert move(state, to) is to
        else:
            with pytest.raises(InvariantError, match="T1"):
                move(state, to)


def test_a_live_segment_is_dropped_only_after_its_publication() -> None:
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
