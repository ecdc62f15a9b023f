"""Runs of neighbours that a merge makes one object of."""

from __future__ import annotations

from uuid import UUID

import pytest

from service.remote.format.keys import SegmentKey, segment_key
from service.remote.format.manifest import KeyOwner, SegmentEntry
from service.tiering.rewriting.merge_plan import FoundRun, MergeLimits, find_run

TOPIC = UUID(int=7)
DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS
LIMITS = MergeLimits(small_bytes=1000, min_age_ms=DAY_MS, object_bytes=4000)
OLD_MS = NOW_MS - 2 * DAY_MS


def entry(number: int, size: int = 100, newest_ms: int = OLD_MS, span: int = 10) -> SegmentEntry:
    base, last = number * span, number * span + span - 1
    key = segment_key(SegmentKey(TOPIC, 0, base, last, 1, UUID(int=number)))
    return SegmentEntry(base, last, size, size - 50, newest_ms, last, ((1, 0),), key, size - 40, 0)


def chain(*sizes: int) -> list[SegmentEntry]:
    return [entry(number, size) for number, size in enumerate(sizes)]


def long_ago(one: SegmentEntry) -> int:
    return OLD_MS


def never(one: SegmentEntry) -> int:
    raise AssertionError(f"nobody asks when {one.key} was uploaded")


def numbers(found: FoundRun) -> list[int]:
    return [one.base_offset // 10 for one in found.run]


def find(entries: list[SegmentEntry], limits: MergeLimits = LIMITS, from_offset: int = 0) -> list[int]:
    return numbers(find_run(entries, limits, NOW_MS, long_ago, from_offset))


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
    found = find_run(entries, LIMITS, NOW_MS, long_ago).run
    assert [one.base_offset >> 28 for one in found] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert found[-1].last_offset - found[0].base_offset == (1 << 31) - 1


def test_an_object_that_outweighs_its_neighbours_is_not_written_again_for_them() -> None:
    """Otherwise each eight small ones would have a large neighbour written anew, again and again."""
    assert find(chain(900, *[10] * 7)) == []
    assert find(chain(900, *[10] * 8)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert find(chain(*[10] * 8, 900, *[10] * 9)) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert find(chain(700, *[100] * 7)) == [0, 1, 2, 3, 4, 5, 6, 7]  # half of the whole


class Chain:
    """A chain that grows and is merged as the loop does it, with the bytes that it costs."""

    def __init__(self, limits: MergeLimits) -> None:
        self.limits = limits
        self.entries: list[SegmentEntry] = []
        self.uploaded_at: dict[str, int] = {}
        self.uploaded = self.written = self.asked = 0
        self.least_age_ms = 1 << 62
        """of a segment when it was merged, since its upload"""
        self._due_ms = 0

    def upload(self, now_ms: int, size: int, newest_ms: int) -> None:
        one = entry(len(self.uploaded_at), size, newest_ms)
        self.entries.append(one)
        self.uploaded_at[one.key] = now_ms
        self.uploaded += size

    def look(self, now_ms: int) -> None:
        """Look at the chain if that is due, and merge all that there is."""

        def uploaded_at(one: SegmentEntry) -> int:
            self.asked += 1
            return self.uploaded_at[one.key]

        if now_ms < self._due_ms:
            return
        while (found := find_run(self.entries, self.limits, now_ms, uploaded_at)).run:
            at, run = self.entries.index(found.run[0]), found.run
            segments = [self.uploaded_at[one.key] for one in run if not one.generation]
            self.least_age_ms = min([self.least_age_ms, *(now_ms - uploaded for uploaded in segments)])
            size = sum(one.size for one in run)
            merged = run[-1]._replace(
                base_offset=run[0].base_offset, size=size, log_length=size - 50, generation=1
            )
            self.entries[at : at + len(run)] = [merged]
            self.written += size
        ripe_ms = now_ms + self.limits.min_age_ms if found.ripe_ms is None else found.ripe_ms
        self._due_ms = self.limits.due_ms(ripe_ms)


KB, MINUTE_MS, HOUR_MS = 1000, 60_000, 3_600_000
TEN_YEARS_MS = 3650 * DAY_MS


@pytest.mark.parametrize("records_ms", [NOW_MS, NOW_MS - TEN_YEARS_MS], ids=["of now", "of ten years ago"])
def test_a_backfill_is_written_once_more_a_day_after_its_upload(records_ms: int) -> None:
    """A thousand segments within an hour, in the order of their records."""
    chain = Chain(MergeLimits())
    for number in range(3 * 24 * 60):
        now_ms = NOW_MS + number * MINUTE_MS
        for _ in range(20 if number < 50 else 0):
            chain.upload(now_ms, 100 * KB, records_ms + number * MINUTE_MS)
        chain.look(now_ms)
    assert chain.uploaded == 100_000 * KB
    assert chain.written == chain.uploaded
    assert chain.least_age_ms >= DAY_MS
    assert len(chain.entries) == 4, "objects have at most 256 segments"
    assert chain.asked < 100


@pytest.mark.parametrize("records_ms", [0, -TEN_YEARS_MS], ids=["of now", "of ten years ago"])
@pytest.mark.parametrize(
    ("every_ms", "kb", "times", "most_objects"),
    [(MINUTE_MS, 100, 1.2, 20), (10 * MINUTE_MS, 100, 2.6, 20), (HOUR_MS, 10, 6.0, 20)],
)
def test_segments_that_trickle_in_are_written_a_few_times_in_all(
    records_ms: int, every_ms: int, kb: int, times: float, most_objects: int
) -> None:
    chain = Chain(MergeLimits())
    for number in range(4000):
        now_ms = NOW_MS + number * every_ms
        chain.upload(now_ms, kb * KB, now_ms + records_ms)
        chain.look(now_ms)

    young = DAY_MS // every_ms
    assert chain.written <= times * chain.uploaded
    assert chain.least_age_ms >= DAY_MS
    assert len(chain.entries) <= young * 9 // 8 + most_objects
    assert chain.asked < 2 * 4000


def test_each_rewrite_at_least_doubles_an_object() -> None:
    """Objects of 100 bytes, 400 of them, come one by one, and are merged as soon as that can be."""
    chain = Chain(MergeLimits(small_bytes=6400, min_age_ms=0, object_bytes=1 << 20))
    for number in range(400):
        chain.upload(NOW_MS + number, 100, OLD_MS)
        chain.look(NOW_MS + number)
    assert sum(one.size for one in chain.entries) == 40_000
    assert len(chain.entries) < 30
    assert chain.written <= 4 * 40_000


def test_young_ones_wait() -> None:
    young = [one._replace(max_timestamp=NOW_MS - DAY_MS + 5000) for one in chain(*[100] * 8)]
    assert find_run(young, LIMITS, NOW_MS, never) == FoundRun((), NOW_MS + 5000)
    late_ms = NOW_MS - DAY_MS + 9000
    assert find_run(young, LIMITS, NOW_MS + 5000, lambda one: late_ms) == FoundRun((), NOW_MS + 9000)
    assert find_run(young, LIMITS, NOW_MS + 9000, lambda one: late_ms).run == tuple(young)


def test_segments_of_old_records_wait_for_a_day_behind_their_upload() -> None:
    """Of thirty that were uploaded one a minute, twelve are old enough."""
    entries = [entry(number) for number in range(30)]
    asked: list[int] = []

    def uploaded_at(one: SegmentEntry) -> int:
        number = one.base_offset // 10
        asked.append(number)
        return NOW_MS - DAY_MS + (number - 11) * 60_000

    assert numbers(find_run(entries, LIMITS, NOW_MS, uploaded_at)) == list(range(12))
    assert len(asked) <= 6, "uploads follow each other, so few of them are asked for"
    assert find_run(entries[5:], LIMITS, NOW_MS, uploaded_at) == FoundRun((), NOW_MS + 60_000)


def test_a_merged_object_is_old_enough_with_its_neighbours() -> None:
    entries = [entry(0, 300)._replace(generation=1), *(entry(number) for number in range(1, 8))]
    assert find(entries) == [0, 1, 2, 3, 4, 5, 6, 7]
    young = [one if one.generation else one._replace(max_timestamp=NOW_MS) for one in entries]
    assert find_run(young, LIMITS, NOW_MS, never) == FoundRun((), NOW_MS + DAY_MS)


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


def test_a_run_spans_an_eighth_of_retention_at_most() -> None:
    """An object goes with its newest record: its oldest one may stay so much longer, and no more."""
    hourly = [entry(number, newest_ms=OLD_MS - (200 - number) * HOUR_MS) for number in range(200)]
    limits = MergeLimits(small_bytes=1000, min_age_ms=DAY_MS, object_bytes=1 << 20)
    assert find(hourly, limits.within(-1, -1)) == list(range(200))
    assert find(hourly, limits.within(168 * HOUR_MS, -1)) == list(range(22))
    since = [one._replace(min_timestamp=one.max_timestamp - HOUR_MS) for one in hourly]
    assert find(since, limits.within(168 * HOUR_MS, -1)) == list(range(21))
    assert find(hourly, limits.within(48 * HOUR_MS, -1)) == []


def test_an_object_is_an_eighth_of_retained_bytes_at_most() -> None:
    limits = MergeLimits(small_bytes=1000, min_age_ms=DAY_MS, object_bytes=1 << 20)
    assert find(chain(*[100] * 50), limits.within(-1, 9600)) == list(range(12))
    assert limits.within(-1, 1 << 40).object_bytes == 1 << 20


def test_records_without_timestamps_span_no_time() -> None:
    entries = [entry(number, newest_ms=-1) for number in range(8)]
    assert find(entries, LIMITS.within(8, -1)) == list(range(8))


def test_an_object_of_another_partition_stays() -> None:
    entries = chain(*[100] * 15)
    entries[7] = entries[7]._replace(owner=KeyOwner(UUID(int=8), 0))
    assert find(entries) == []
    assert find([*entries, entry(15)]) == [8, 9, 10, 11, 12, 13, 14, 15]


def test_an_object_that_begins_below_the_start_stays() -> None:
    assert find(chain(*[100] * 9), from_offset=5) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert find(chain(*[100] * 8), from_offset=5) == []
