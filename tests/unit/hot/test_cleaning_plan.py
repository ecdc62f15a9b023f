"""Which log is cleaned, up to where, and which of its segments become one."""

from __future__ import annotations

from dataclasses import dataclass

from service.config.settings import LogConfig
from service.hot.cleaning.plan import Dirt, Group, LogFacts, groups, judge

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
    assert judge(log(*segments(0, 10, 20)), config(), NOW_MS) == Dirt(0, 20, 0, 200, 0)
    assert judge(log(*segments(0)), config(), NOW_MS) is None


def test_a_log_waits_until_enough_of_it_is_dirty() -> None:
    three = log(*segments(0, 10, 20, 30), cleaned=20)
    assert judge(three, config(), NOW_MS) is None
    found = judge(three, config(min_cleanable_dirty_ratio=0.3), NOW_MS)
    assert found == Dirt(20, 30, 200, 100, 0)
    assert judge(log(*segments(0, 10, 20), cleaned=10), config(), NOW_MS) is None, (
        "half is not more than half"
    )


def test_what_is_not_stable_or_too_young_is_left() -> None:
    assert judge(log(*segments(0, 10, 20), stable=19), config(), NOW_MS) == Dirt(0, 10, 0, 100, 0)
    assert judge(log(*segments(0, 10, 20), stable=9), config(), NOW_MS) is None
    young = segments(0, 10, 20, 30)
    young[1].largest_timestamp = NOW_MS - 10
    lagging = config(min_compaction_lag_ms=500)
    assert judge(log(*young), lagging, NOW_MS) == Dirt(0, 10, 0, 100, 0)
    assert judge(log(*young), lagging, NOW_MS + 500) == Dirt(0, 30, 0, 300, 0)


def test_a_log_with_an_old_dirty_record_is_cleaned_however_little_is_dirty() -> None:
    clean = log(*segments(*range(0, 1000, 10)), cleaned=980)
    assert judge(clean, config(max_compaction_lag_ms=3000), NOW_MS) is None
    found = judge(clean, config(max_compaction_lag_ms=1500), NOW_MS)
    assert found is not None
    assert found.late_ms == 500
    assert found.urgency > Dirt(0, 10, 0, 100, 0).urgency


def test_an_offset_that_the_log_does_not_have_means_that_all_is_dirty() -> None:
    for cleaned in (5, 2000, -1):
        found = judge(log(*segments(10, 20, 30), cleaned=cleaned, start=10, end=1000), config(), NOW_MS)
        assert found == Dirt(10, 30, 0, 200, 0)


def test_a_cleaning_goes_on_within_a_segment() -> None:
    found = judge(log(*segments(0, 10, 20, 30), cleaned=15), config(), NOW_MS)
    assert found == Dirt(15, 30, 100, 200, 0)


def test_groups_hold_what_one_segment_may() -> None:
    five = segments(0, 10, 20, 30, 40)
    assert groups(five, 40, 250, 100) == [Group(0, 1, 20), Group(2, 3, 40)]
    assert groups(five, 40, 10**9, 100) == [Group(0, 3, 40)]
    assert groups(five, 40, 10**9, 25) == [Group(0, 1, 20), Group(2, 3, 40)], "time indexes count, too"
    assert groups(five, 21, 10**9, 100) == [Group(0, 2, 30)], (
        "one that is mapped in part is copied as a whole"
    )
    assert groups(five, 40, 50, 100) == [Group(n, n, 10 * n + 10) for n in range(4)]


def test_a_group_spans_no_more_offsets_than_an_index_can_say() -> None:
    far = segments(0, 10, 2**31, 2**31 + 10, 2**32)
    assert groups(far, 2**32, 10**9, 100) == [Group(0, 1, 2**31), Group(2, 3, 2**32)]
