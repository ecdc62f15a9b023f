"""Runs of neighbours that a merge makes one object of."""

from __future__ import annotations

from uuid import UUID

import pytest

from service.remote.format.keys import SegmentKey, segment_key
from service.remote.format.manifest import KeyOwner, SegmentEntry
from service.tiering.rewriting.merge_plan import FoundRun, MergeLimits, find_run

TOPIC = UUID(int=7)
DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS
LIMITS = MergeLimits(small_bytes=1000, min_age_ms=DAY_MS, object_bytes=4000)
OLD_MS = NOW_MS - 2 * DAY_MS


def entry(number: int, size: int = 100, newest_ms: int = OLD_MS, span: int = 10) -> SegmentEntry:
    base, last = number * span, number * span + span - 1
    key = segment_key(SegmentKey(TOPIC, 0, base, last, 1, UUID(int=number)))
    return SegmentEntry(base, last, size, size - 50, newest_ms, last, ((1, 0),), key, size - 40, 0)


def chain(*sizes: int) -> list[SegmentEntry]:
    return [entry(number, size) for number, size in enumerate(sizes)]


def never(one: SegmentEntry) -> int:
    raise AssertionError(f"nobody asks when {one.key} was uploaded")


def numbers(found: FoundRun) -> list[int]:
    return [one.base_offset // 10 for one in found.run]


def find(entries: list[SegmentEntry], limits: MergeLimits = LIMITS, from_offset: int = 0) -> list[int]:
    return numbers(find_run(entries, limits, NOW_MS, never, from_offset))


def test_eight_small_neighbours_become_one() -> None:
    assert find(chain(*[100] * 8)) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_seven_do_not() -> None:
    assert find(chain(*[100] * 7)) == []


def test_an_object_of_the_bound_is_not_small() -> None:
    assert find(chain(*[100] * 5, 1000, *[100] * 7)) == []
    assert find(chain(*[100] * 5, 1000, *[100] * 8)) == [6, 7, 8, 9, 10, 11, 12, 13]


def test_a_run_ends_before_it_exceeds_the_size_of_an_object() -> None:
    assert find(chain(*[500] * 12)) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_run_has_at_most_256_objects() -> None:
    limits = LIMITS._replace(object_bytes=1 << 30)
    assert find(chain(*[100] * 300), limits) == list(range(256))


def test_a_run_has_offsets_of_31_bits() -> None:
    entries = [entry(number, span=1 << 28) for number in range(12)]
    found = find_run(entries, LIMITS, NOW_MS, never).run
    assert [one.base_offset >> 28 for one in found] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert found[-1].last_offset - found[0].base_offset == (1 << 31) - 1


def test_an_object_that_outweighs_its_neighbours_is_not_written_again_for_them() -> None:
    """Otherwise each eight small ones would have a large neighbour written anew, again and again."""
    assert find(chain(900, *[10] * 7)) == []
    assert find(chain(900, *[10] * 8)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert find(chain(*[10] * 8, 900, *[10] * 9)) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert find(chain(700, *[100] * 7)) == [0, 1, 2, 3, 4, 5, 6, 7]  # half of the whole


def test_each_record_is_written_a_few_times_in_all() -> None:
    """Objects of 100 bytes, 400 of them, come one by one, and are merged as soon as that can be."""
    limits = MergeLimits(small_bytes=6400, min_age_ms=0, object_bytes=1 << 20)
    entries: list[SegmentEntry] = []
    written = 0
    for number in range(400):
        entries.append(entry(number))
        while run := find_run(entries, limits, NOW_MS, never).run:
            at = entries.index(run[0])
            size = sum(one.size for one in run)
            merged = run[0]._replace(last_offset=run[-1].last_offset, size=size, log_length=size - 50)
            entries[at : at + len(run)] = [merged]
            written += size
    assert sum(one.size for one in entries) == 40_000
    assert len(entries) < 30
    assert written <= 4 * 40_000


def test_young_ones_wait() -> None:
    young = [one._replace(max_timestamp=NOW_MS - DAY_MS + 5000) for one in chain(*[100] * 8)]
    assert find_run(young, LIMITS, NOW_MS, never) == FoundRun((), NOW_MS + 5000)
    assert find_run(young, LIMITS, NOW_MS + 5000, never).run == tuple(young)


def test_the_time_of_the_first_eight_that_ripen_is_told() -> None:
    entries = [entry(number, newest_ms=NOW_MS - DAY_MS + 1000 * (number + 1)) for number in range(20)]
    assert find_run(entries, LIMITS, NOW_MS, never) == FoundRun((), NOW_MS + 8000)


def test_fewer_than_eight_never_ripen() -> None:
    entries = [entry(number, newest_ms=NOW_MS) for number in range(7)]
    assert find_run(entries, LIMITS, NOW_MS, never) == FoundRun((), None)


@pytest.mark.parametrize("newest_ms", [-1, NOW_MS + 1, (1 << 63) - 1])
def test_without_a_usable_timestamp_the_upload_decides(newest_ms: int) -> None:
    entries = [entry(number, newest_ms=newest_ms) for number in range(8)]
    assert len(find_run(entries, LIMITS, NOW_MS, lambda one: OLD_MS).run) == 8
    assert find_run(entries, LIMITS, NOW_MS, lambda one: NOW_MS) == FoundRun((), NOW_MS + DAY_MS)


def test_an_object_of_another_partition_stays() -> None:
    entries = chain(*[100] * 15)
    entries[7] = entries[7]._replace(owner=KeyOwner(UUID(int=8), 0))
    assert find(entries) == []
    assert find([*entries, entry(15)]) == [8, 9, 10, 11, 12, 13, 14, 15]


def test_an_object_that_begins_below_the_start_stays() -> None:
    assert find(chain(*[100] * 9), from_offset=5) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert find(chain(*[100] * 8), from_offset=5) == []
