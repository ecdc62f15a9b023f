"""Choice of the log to compact, of its range, and of the segments that are merged."""

from __future__ import annotations

from dataclasses import dataclass

from service.config.settings import LogConfig
from service.hot.cleaning.plan import DirtyLog, LogFacts, SegmentGroup, dirty_log, segment_groups

NOW_MS = 1_700_000_000_000


@dataclass
class Facts:
    base_offset: int
    size: int = 100
    index_bytes: int = 8
    time_index_bytes: int = 12
    largest_timestamp: int = NOW_MS - 1000
    first_timestamp: int = NOW_MS - 2000


def log(
    *segments: Facts, cleaned: int = 0, stable: int = 10**9, start: int = 0, end: int = 10**9
) -> LogFacts:
    return LogFacts(start, end, cleaned, stable, segments)


def segments(*bases: int) -> list[Facts]:
    return [Facts(base) for base in bases]


def config(**options: object) -> LogConfig:
    return LogConfig(cleanup_policy="compact", **options)  # type: ignore[arg-type]


def test_all_but_the_active_segment_is_dirty_at_first() -> None:
    assert dirty_log(log(*segments(0, 10, 20)), config(), NOW_MS) == DirtyLog(0, 20, 0, 200, 0)
    assert dirty_log(log(*segments(0)), config(), NOW_MS) is None


def test_a_log_waits_until_enough_of_it_is_dirty() -> None:
    three = log(*segments(0, 10, 20, 30), cleaned=20)
    assert dirty_log(three, config(), NOW_MS) is None
    found = dirty_log(three, config(min_cleanable_dirty_ratio=0.3), NOW_MS)
    assert found == DirtyLog(20, 30, 200, 100, 0)
    assert dirty_log(log(*segments(0, 10, 20), cleaned=10), config(), NOW_MS) is None, (
        "half is not more than half"
    )


def test_unstable_and_recent_segments_are_not_compacted() -> None:
    assert dirty_log(log(*segments(0, 10, 20), stable=19), config(), NOW_MS) == DirtyLog(0, 10, 0, 100, 0)
    assert dirty_log(log(*segments(0, 10, 20), stable=9), config(), NOW_MS) is None
    young = segments(0, 10, 20, 30)
    young[1].largest_timestamp = NOW_MS - 10
    lagging = config(min_compaction_lag_ms=500)
    assert dirty_log(log(*young), lagging, NOW_MS) == DirtyLog(0, 10, 0, 100, 0)
    assert dirty_log(log(*young), lagging, NOW_MS + 500) == DirtyLog(0, 30, 0, 300, 0)


def test_a_log_with_an_old_dirty_record_is_cleaned_however_little_is_dirty() -> None:
    clean = log(*segments(*range(0, 1000, 10)), cleaned=980)
    assert dirty_log(clean, config(max_compaction_lag_ms=3000), NOW_MS) is None
    found = dirty_log(clean, config(max_compaction_lag_ms=1500), NOW_MS)
    assert found is not None
    assert found.late_ms == 500
    assert found.urgency > DirtyLog(0, 10, 0, 100, 0).urgency


def test_an_offset_that_the_log_does_not_have_means_that_all_is_dirty() -> None:
    for cleaned in (5, 2000, -1):
        found = dirty_log(log(*segments(10, 20, 30), cleaned=cleaned, start=10, end=1000), config(), NOW_MS)
        assert found == DirtyLog(10, 30, 0, 200, 0)


def test_a_cleaning_goes_on_within_a_segment() -> None:
    found = dirty_log(log(*segments(0, 10, 20, 30), cleaned=15), config(), NOW_MS)
    assert found == DirtyLog(15, 30, 100, 200, 0)


def test_groups_hold_what_one_segment_may() -> None:
    five = segments(0, 10, 20, 30, 40)
    assert segment_groups(five, 40, 250, 100) == [SegmentGroup(0, 1, 20), SegmentGroup(2, 3, 40)]
    assert segment_groups(five, 40, 10**9, 100) == [SegmentGroup(0, 3, 40)]
    assert segment_groups(five, 40, 10**9, 25) == [SegmentGroup(0, 1, 20), SegmentGroup(2, 3, 40)], (
        "time indexes count, too"
    )
    assert segment_groups(five, 21, 10**9, 100) == [SegmentGroup(0, 2, 30)], (
        "one that is mapped in part is copied as a whole"
    )
    assert segment_groups(five, 40, 50, 100) == [SegmentGroup(n, n, 10 * n + 10) for n in range(4)]


def test_a_group_spans_no_more_offsets_than_an_index_can_say() -> None:
    far = segments(0, 10, 2**31, 2**31 + 10, 2**32)
    assert segment_groups(far, 2**32, 10**9, 100) == [SegmentGroup(0, 1, 2**31), SegmentGroup(2, 3, 2**32)]


def test_offsets_of_a_group_are_said_in_31_bits() -> None:
    most = 2**31 - 1
    assert segment_groups(segments(5, 10, 6 + most, 2**33), 6 + most, 10**9, 100) == [
        SegmentGroup(0, 1, 6 + most)
    ]
    assert segment_groups(segments(5, 10, 7 + most, 2**33), 7 + most, 10**9, 100) == [
        SegmentGroup(0, 0, 10),
        SegmentGroup(1, 1, 7 + most),
    ]


def test_a_group_is_no_larger_than_a_position_can_say() -> None:
    large = [Facts(0, size=2**31 - 101), Facts(10), Facts(20)]
    assert segment_groups(large, 20, 2**40, 100) == [SegmentGroup(0, 1, 20)]
    large[1].size = 101
    assert segment_groups(large, 20, 2**40, 100) == [SegmentGroup(0, 0, 10), SegmentGroup(1, 1, 20)]


def test_a_group_begins_with_what_does_not_fit_into_the_one_before() -> None:
    uneven = [Facts(10 * n, size=size) for n, size in enumerate((100, 150, 50, 60, 40, 300, 10, 10))]
    assert segment_groups(uneven, 70, 200, 100) == [
        SegmentGroup(0, 0, 10), SegmentGroup(1, 2, 30), SegmentGroup(3, 4, 50), SegmentGroup(5, 5, 60),
        SegmentGroup(6, 6, 70),
    ]  # fmt: skip
    exact = [Facts(0, index_bytes=8), Facts(10, index_bytes=92), Facts(20, index_bytes=1), Facts(30)]
    assert segment_groups(exact, 30, 10**9, 100) == [SegmentGroup(0, 1, 20), SegmentGroup(2, 2, 30)]
    exact[1].time_index_bytes = 88
    assert segment_groups(exact, 30, 10**9, 100) == [SegmentGroup(0, 1, 20), SegmentGroup(2, 2, 30)]
    exact[1].time_index_bytes = 89
    assert segment_groups(exact, 30, 10**9, 100) == [SegmentGroup(n, n, 10 * n + 10) for n in range(3)]


class Untold(Facts):
    """A segment whose file must not be asked for its times."""

    @property
    def first_timestamp(self) -> int:
        raise AssertionError("its first timestamp was asked for")

    @first_timestamp.setter
    def first_timestamp(self, value: int) -> None:
        pass


def test_times_are_asked_for_only_where_they_count() -> None:
    untold = log(Untold(0), Untold(10), Untold(20))
    assert dirty_log(untold, config(), NOW_MS) == DirtyLog(0, 20, 0, 200, 0)
    assert dirty_log(untold, config(max_compaction_lag_ms=NOW_MS), NOW_MS) == DirtyLog(0, 20, 0, 200, 0)
    empty = log(Untold(0, size=0), Facts(10), Facts(20))
    found = dirty_log(empty, config(max_compaction_lag_ms=1500), NOW_MS)
    assert found == DirtyLog(0, 20, 0, 100, 500)


def test_records_without_a_time_are_not_late_and_young_ones_are_not_either() -> None:
    def late(first_timestamp: int, lag_ms: int = 1500) -> int:
        found = dirty_log(
            log(Facts(0, first_timestamp=first_timestamp), Facts(10)),
            config(max_compaction_lag_ms=lag_ms),
            NOW_MS,
        )
        assert found is not None
        return found.late_ms

    assert late(-1) == late(0) == 0
    assert late(1) == NOW_MS - 1501
    assert late(NOW_MS - 1501) == 1
    assert late(NOW_MS - 1500) == late(NOW_MS) == late(NOW_MS + 99) == 0


def test_the_one_that_is_late_comes_before_a_dirtier_one() -> None:
    order = [DirtyLog(0, 10, 900, 100, 1), DirtyLog(0, 10, 100, 900, 0), DirtyLog(0, 10, 900, 100, 0)]
    assert sorted(order, key=lambda one: one.urgency, reverse=True) == order
    assert [one.ratio for one in order] == [0.1, 0.9, 0.1]


def test_a_cleaning_ends_where_the_first_young_segment_begins() -> None:
    aged = [Facts(10 * n, largest_timestamp=NOW_MS - 1000 + n) for n in range(4)]
    lagging = config(min_compaction_lag_ms=999)
    assert dirty_log(log(*aged), lagging, NOW_MS) == DirtyLog(0, 20, 0, 200, 0)
    assert dirty_log(log(*aged), lagging, NOW_MS + 1) == DirtyLog(0, 30, 0, 300, 0)
    assert dirty_log(log(*aged), config(min_compaction_lag_ms=0), NOW_MS) == DirtyLog(0, 30, 0, 300, 0)
    assert dirty_log(log(*aged), config(min_compaction_lag_ms=1001), NOW_MS) is None
    ahead = [Facts(0, largest_timestamp=NOW_MS + 10**6), Facts(10)]
    assert dirty_log(log(*ahead), config(min_compaction_lag_ms=0), NOW_MS) == DirtyLog(0, 10, 0, 100, 0)
    past = log(*aged, cleaned=20)
    assert dirty_log(
        past, config(min_compaction_lag_ms=998, min_cleanable_dirty_ratio=0.1), NOW_MS
    ) == DirtyLog(20, 30, 200, 100, 0)


def test_a_log_that_was_cleaned_to_its_end_is_clean() -> None:
    assert dirty_log(log(*segments(0, 10, 20), cleaned=20, end=20), config(), NOW_MS) is None
    assert dirty_log(log(*segments(0, 10, 20), cleaned=21, end=20), config(), NOW_MS) == DirtyLog(
        0, 20, 0, 200, 0
    )
    assert dirty_log(log(*segments(0, 10, 20), stable=10), config(), NOW_MS) == DirtyLog(0, 10, 0, 100, 0)
    assert dirty_log(log(*segments(0, 10, 20), stable=20), config(), NOW_MS) == DirtyLog(0, 20, 0, 200, 0)
