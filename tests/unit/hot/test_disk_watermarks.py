"""The ladder: which step a file system is on, when it ends, and how long producers wait."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.hot.disk_watermarks import (
    LEAST_ALARM_BYTES,
    DiskState,
    DiskWatermarks,
    Step,
    assess,
    describe,
    min_free_bytes,
    min_sealed_bytes,
)

GIB = 1 << 30
TOTAL = 1000 * GIB
MARKS = DiskWatermarks(
    True, (80, 85, 92, 97), 1, counted_bytes=1 << 50, reserve_bytes=GIB, throttle_max_ms=1000
)


def stand(
    left: float, before: Step = Step.FREE, marks: DiskWatermarks = MARKS, *, is_tiered: bool = True
) -> DiskState:
    """Return the step with `left` percent left of a terabyte."""
    return assess(before, TOTAL, round(TOTAL * left / 100), marks, is_tiered=is_tiered)


@pytest.mark.parametrize(
    ("left", "step"),
    [
        (100, Step.FREE), (20, Step.FREE), (19.9, Step.UPLOADS_FIRST), (15, Step.UPLOADS_FIRST),
        (14.9, Step.SHRINK), (8, Step.SHRINK), (7.9, Step.THROTTLE), (3, Step.THROTTLE), (2.9, Step.REFUSE),
        (0, Step.REFUSE),
    ],
)  # fmt: skip
def test_each_step_begins_below_its_watermark(left: float, step: Step) -> None:
    assert stand(left).step is step


@pytest.mark.parametrize(("step", "mark"), [(1, 20), (2, 15), (3, 8), (4, 3)])
def test_a_step_ends_a_margin_above_its_watermark(step: int, mark: int) -> None:
    before = Step(step)
    assert stand(mark + 0.9, before).step >= before
    assert stand(mark + 1, before).step < before
    assert stand(mark + 0.9, Step(step - 1)).step < before, "nor does it begin within the margin"


def test_steps_are_skipped_in_both_directions() -> None:
    assert stand(1, Step.FREE).step is Step.REFUSE
    assert stand(50, Step.REFUSE).step is Step.FREE
    assert stand(15.5, Step.REFUSE).step is Step.SHRINK, "the margin of those below counts as well"


def test_producers_wait_longer_the_less_is_left() -> None:
    waits = [stand(left).throttle_ms for left in (8, 7.99, 6, 4, 3.01, 2.9, 0)]
    assert waits[0] == 0
    assert waits[1] >= 1
    assert waits == sorted(waits)
    assert waits[-1] == waits[-2] == MARKS.throttle_max_ms
    assert 350 < stand(6).throttle_ms < 450


def test_without_tiered_partitions_only_the_reserve_counts() -> None:
    assert stand(0.2, is_tiered=False).step is Step.FREE
    assert assess(Step.FREE, TOTAL, GIB, MARKS, is_tiered=False).step is Step.FREE
    refused = assess(Step.FREE, TOTAL, GIB - 1, MARKS, is_tiered=False)
    assert (refused.step, refused.to_free) == (Step.REFUSE, 0)
    assert assess(Step.REFUSE, TOTAL, GIB + GIB // 8 - 1, MARKS, is_tiered=False).step is Step.REFUSE
    assert assess(Step.REFUSE, TOTAL, GIB + GIB // 8, MARKS, is_tiered=False).step is Step.FREE


def test_disk_watermarks_count_only_a_part_of_a_large_file_system() -> None:
    marks = MARKS._replace(counted_bytes=100 * GIB)
    assert assess(Step.FREE, TOTAL, 20 * GIB, marks, is_tiered=True).step is Step.FREE
    assert assess(Step.FREE, TOTAL, 20 * GIB - 1, marks, is_tiered=True).step is Step.UPLOADS_FIRST
    assert assess(Step.FREE, 50 * GIB, 10 * GIB, marks, is_tiered=True).step is Step.FREE, (
        "a small one as it is"
    )


def test_a_hundred_percent_is_never_and_off_leaves_the_reserve() -> None:
    never = MARKS._replace(percents=(80, 100, 100, 100), reserve_bytes=0)
    assert stand(0, marks=never).step is Step.UPLOADS_FIRST
    off = MARKS._replace(is_on=False)
    assert stand(0.2, marks=off).step is Step.FREE
    assert assess(Step.FREE, TOTAL, GIB - 1, off, is_tiered=True).step is Step.REFUSE
    assert assess(Step.FREE, TOTAL, 0, off._replace(reserve_bytes=0), is_tiered=True).step is Step.FREE


def test_steps_with_the_same_watermark_are_one() -> None:
    same = MARKS._replace(percents=(90, 90, 97, 97))
    assert stand(9.9, marks=same).step is Step.SHRINK
    assert stand(3, marks=same).step is Step.SHRINK
    assert stand(2.9, marks=same).step is Step.REFUSE


def test_freeing_the_requested_bytes_leaves_the_shrink_steps() -> None:
    for left in (14, 5, 1):
        standing = stand(left)
        freed = assess(standing.step, TOTAL, standing.usable + standing.to_free, MARKS, is_tiered=True)
        assert freed.step is Step.UPLOADS_FIRST
    assert stand(18).to_free == 0
    # A reserve that is larger than all shares is left, too.
    marks = MARKS._replace(reserve_bytes=300 * GIB)
    standing = assess(Step.FREE, TOTAL, 250 * GIB, marks, is_tiered=True)
    assert standing.step is Step.REFUSE
    after = assess(Step.REFUSE, TOTAL, 250 * GIB + standing.to_free, marks, is_tiered=True)
    assert after.step is Step.FREE


def test_the_disk_is_asked_again_before_the_next_step_is_passed() -> None:
    for left in (50, 16, 10, 5):
        standing = stand(left)
        passed = assess(standing.step, TOTAL, standing.usable - standing.alarm_bytes, MARKS, is_tiered=True)
        assert passed.step is standing.step
    assert stand(0).alarm_bytes == LEAST_ALARM_BYTES
    assert stand(50).most_bytes == (TOTAL - GIB) // 2


def test_the_disk_is_asked_again_half_way_to_the_next_step_and_after_a_mebibyte_at_least() -> None:
    mib = 1 << 20
    for usable, alarm, most in [
        (500 * GIB, 150 * GIB, 500 * GIB - GIB // 2),  # 20 % are the next step
        (200 * GIB, 25 * GIB, 200 * GIB - GIB // 2),
        (160 * GIB, 5 * GIB, 160 * GIB - GIB // 2),
        (30 * GIB, (29 * GIB) // 2, 30 * GIB - GIB // 2),  # the reserve is
        (GIB, GIB // 2, GIB // 2),
        (900 * mib, 450 * mib, 900 * mib - GIB // 2),
        (900 * mib + 1, 450 * mib, 900 * mib + 1 - GIB // 2),
        (3 * mib, 3 * mib // 2, mib),
        (2 * mib, mib, mib),
        (mib, mib, mib),
    ]:
        standing = assess(Step.FREE, TOTAL, usable, MARKS, is_tiered=True)
        assert (standing.alarm_bytes, standing.most_bytes) == (alarm, most), usable
        assert (standing.total, standing.usable) == (TOTAL, usable)


def test_producer_delays_grow_between_the_last_two_steps() -> None:
    waits = {left: stand(left).throttle_ms for left in (8, 7.999, 5.5, 5, 3, 2.999, 0)}
    assert waits == {8: 0, 7.999: 1, 5.5: 500, 5: 600, 3: 1000, 2.999: 1000, 0: 1000}
    together = MARKS._replace(percents=(80, 85, 97, 98))
    assert stand(3, marks=together).throttle_ms == 0
    assert stand(2.5, marks=together).throttle_ms == 500
    alike = MARKS._replace(percents=(80, 85, 98, 98), throttle_max_ms=700)
    assert stand(1.9, marks=alike).throttle_ms == 700


def test_the_free_bytes_that_need_no_step_are_computed() -> None:
    assert min_free_bytes(TOTAL, MARKS) == 210 * GIB
    assert min_free_bytes(TOTAL, MARKS._replace(percents=(95, 85, 92, 97), margin_percent=3)) == 180 * GIB
    assert min_free_bytes(TOTAL, MARKS._replace(counted_bytes=100 * GIB)) == 21 * GIB
    assert min_free_bytes(TOTAL, MARKS._replace(is_on=False)) == GIB + GIB // 8
    assert min_free_bytes(TOTAL, MARKS._replace(reserve_bytes=400 * GIB)) == 450 * GIB
    for usable in (210 * GIB, 210 * GIB - 1):
        assert (assess(Step.REFUSE, TOTAL, usable, MARKS, is_tiered=True).step is Step.FREE) is (
            usable == 210 * GIB
        )


def test_a_reserve_as_large_as_the_last_share_has_the_shares_margin() -> None:
    marks = MARKS._replace(reserve_bytes=30 * GIB)
    at_end = assess(Step.REFUSE, TOTAL, 35 * GIB, marks, is_tiered=True)
    assert at_end.step is Step.REFUSE, "3 % and a margin of 1 % of all, not an eighth of the reserve"
    assert assess(Step.REFUSE, TOTAL, 40 * GIB, marks, is_tiered=True).step is Step.THROTTLE
    larger = MARKS._replace(reserve_bytes=50 * GIB)
    assert assess(Step.FREE, TOTAL, 50 * GIB, larger, is_tiered=True).step is Step.THROTTLE
    assert assess(Step.FREE, TOTAL, 49 * GIB, larger, is_tiered=True).step is Step.REFUSE


def test_the_bytes_to_free_begin_at_the_shrink_step() -> None:
    assert stand(15).to_free == 0
    assert stand(14).to_free == 20 * GIB, "to 16 %"
    assert stand(16, Step.SHRINK).to_free == 0
    assert stand(2).to_free == 140 * GIB
    assert stand(2, is_tiered=False).to_free == 0
    assert stand(2, marks=MARKS._replace(is_on=False)).to_free == 0


def test_small_segments_are_sealed_from_a_quarter_to_a_thousandth_of_their_size() -> None:
    assert [min_sealed_bytes(step, GIB) for step in (Step.SHRINK, Step.THROTTLE, Step.REFUSE)] == [
        256 << 20, 64 << 20, 1 << 20,
    ]  # fmt: skip
    assert [min_sealed_bytes(step, 3) for step in (Step.SHRINK, Step.THROTTLE, Step.REFUSE)] == [1, 1, 1]
    assert min_sealed_bytes(Step.SHRINK, 8) == 2


@pytest.mark.parametrize(
    ("left", "said"),
    [(0, "0 B"), (9_999, "9999 B"), (10_000, "9 KiB"), (10_239_999, "9999 KiB"), (10_240_000, "9 MiB"),
     (20_000 << 30, "20000 GiB")],
)  # fmt: skip
def test_sizes_are_said_in_four_digits(left: int, said: str) -> None:
    assert f"({said} left)" in describe(stand(50)._replace(usable=left))


def test_small_segments_are_sealed_only_where_nothing_else_helps() -> None:
    sizes = [min_sealed_bytes(step, GIB) for step in (Step.SHRINK, Step.THROTTLE, Step.REFUSE)]
    assert all(before > after for before, after in pairwise(sizes))
    assert min_sealed_bytes(Step.REFUSE, 14) == 1


def test_a_disk_step_is_described_in_words() -> None:
    assert describe(stand(6)) == "94% full (60 GiB left): producers are slowed down"
    assert describe(stand(60)) == "40% full (600 GiB left): nothing is done about it"
    assert describe(assess(Step.FREE, 0, 0, MARKS, is_tiered=True)).startswith("100% full (0 B left)")


@given(
    st.sampled_from(Step),
    st.integers(0, 1 << 50),
    st.integers(0, 100),
    st.lists(st.integers(1, 100), min_size=4, max_size=4),
    st.integers(0, 50),
    st.integers(0, 1 << 40),
    st.booleans(),
)
def test_looking_twice_changes_nothing_and_less_room_is_never_a_lower_step(
    before: Step, total: int, left: int, percents: list[int], margin: int, reserve: int, is_tiered: bool
) -> None:
    first, second, third, fourth = sorted(percents)
    marks = DiskWatermarks(True, (first, second, third, fourth), margin, 1 << 45, reserve, 1000)
    usable = total * left // 100
    standing = assess(before, total, usable, marks, is_tiered=is_tiered)
    again = assess(standing.step, total, usable, marks, is_tiered=is_tiered)
    assert again.step is standing.step
    less = assess(standing.step, total, usable // 2, marks, is_tiered=is_tiered)
    assert less.step >= standing.step
    assert standing.alarm_bytes >= LEAST_ALARM_BYTES
    assert standing.most_bytes >= LEAST_ALARM_BYTES
    assert 0 <= standing.throttle_ms <= 1000
    assert (standing.throttle_ms > 0) == (standing.step >= Step.THROTTLE)
    assert describe(standing)


def test_the_reserve_is_entered_and_left_a_margin_above_whatever_the_step_is() -> None:
    def in_reserve(left: float, was: bool, marks: DiskWatermarks = MARKS) -> bool:
        return assess(
            Step.REFUSE, TOTAL, round(GIB * left), marks, is_tiered=True, was_in_reserve=was
        ).is_in_reserve

    assert not in_reserve(1.0, was=False)
    assert in_reserve(0.99, was=False)
    assert in_reserve(1.12, was=True)
    assert not in_reserve(1.125, was=True)
    assert not in_reserve(0, was=False, marks=MARKS._replace(reserve_bytes=0))


def test_the_disk_is_asked_again_before_the_reserve_is_used_though_the_last_step_began_long_before() -> None:
    standing = assess(Step.REFUSE, TOTAL, 21 * GIB, MARKS, is_tiered=True)
    assert standing.step is Step.REFUSE
    assert standing.alarm_bytes == 10 * GIB
    assert standing.most_bytes == 20 * GIB + GIB // 2


def test_partitions_that_stay_are_said_with_the_reason() -> None:
    full = assess(Step.REFUSE, TOTAL, GIB // 2, MARKS, is_tiered=True, was_in_reserve=True)
    assert describe(full) == (
        "100% full (512 MiB left): records are refused until there is room, "
        "and replicas do not follow here, as what is left is firn.disk.reserve.bytes"
    )
    assert describe(full._replace(led=2)).endswith(
        "; 2 partitions of several replicas are led here all the same: "
        "no other in-sync replica of theirs has room"
    )
    assert describe(full._replace(led=2, moves_leaders=False)).endswith(
        ": the active controller (Apache Kafka's, or an older one) does not move them"
    )
