"""Cuts that stay, and tails that the newest one needs."""

from __future__ import annotations

import itertools
import random
from uuid import UUID

from service.base.steps import at_once
from service.remote.format.cut_codec import CutRef, PartitionCut, TailRef
from service.remote.format.tail_object import TailSection
from service.tiering.cuts.completeness import Lack, without_lost
from service.tiering.cuts.keeping import kept_of
from service.tiering.cuts.tail_table import TailTable

HOUR = 3_600_000
NOW = 1_700_000_000_000
A, B = UUID(int=1), UUID(int=2)


def made(number: int, at_ms: int, *, is_exact: bool = True, is_complete: bool = True) -> CutRef:
    return CutRef(number, f"cut/{number:020d}-{A}.json.gz", 1, 0, at_ms, is_exact, is_complete)


def history(hours: int, every_ms: int = 10_000) -> list[CutRef]:
    times = range(NOW - hours * HOUR, NOW + 1, every_ms)
    return [made(number, at_ms) for number, at_ms in enumerate(times, 1)]


def kept_in_steps(cuts: list[CutRef], grace_ms: int) -> tuple[CutRef, ...]:
    """As a keeper does it: with each new cut."""
    kept: tuple[CutRef, ...] = ()
    for ref in cuts:
        kept = kept_of((*kept, ref), ref.at_ms, grace_ms)
    return kept


def test_the_newest_and_one_a_minute_of_an_hour_stay() -> None:
    kept = kept_in_steps(history(3), HOUR)
    ages = [(NOW - ref.at_ms) // 1000 for ref in kept]
    assert ages[-30:] == list(range(290, -1, -10))
    older = ages[:-30]
    assert 54 <= len(older) <= 56
    assert all(50 <= a - b <= 70 for a, b in itertools.pairwise(older))
    assert max(ages) <= 3600


def test_one_an_hour_of_a_week_stays_and_all_fit() -> None:
    kept = kept_in_steps(history(24 * 7, 60_000), 24 * 7 * HOUR)
    assert len(kept) <= 256
    assert kept[0].at_ms <= NOW - (24 * 7 - 1) * HOUR
    assert all(b.at_ms - a.at_ms <= HOUR + 60_000 for a, b in itertools.pairwise(kept))


def test_a_cut_that_a_restore_would_take_stays_however_old_it_is() -> None:
    old = [made(1, NOW - 50 * HOUR), made(2, NOW - 40 * HOUR, is_exact=False)]
    new = [made(n, NOW - n, is_complete=False) for n in range(3, 300)]
    kept = [ref.cut for ref in kept_of([*old, *new], NOW, HOUR)]
    assert kept[:2] == [1, 2]
    assert kept[-1] == 299
    assert len(kept) <= 256
    assert kept_of([], NOW, HOUR) == ()
    assert kept_of(old[:1], NOW, HOUR) == (old[0],)


def test_an_incomplete_cut_of_a_minute_gives_way_to_a_complete_one() -> None:
    rows = [made(1, NOW - 1_800_000), made(2, NOW - 1_790_000, is_complete=False)]
    rows += [made(n, NOW - 100 + n) for n in range(3, 40)]
    kept = [ref.cut for ref in kept_of(rows, NOW, HOUR)]
    assert 1 in kept
    assert 2 not in kept


def test_clocks_that_jump_do_not_empty_the_list() -> None:
    for seed in range(100):
        source = random.Random(seed)
        kept: tuple[CutRef, ...] = ()
        for number in range(1, 60):
            at_ms = NOW + source.randrange(-3 * HOUR, 3 * HOUR)
            ref = made(number, at_ms, is_exact=source.random() < 0.8, is_complete=source.random() < 0.8)
            before = [one for one in (*kept, ref) if one.is_complete and one.is_exact]
            kept = kept_of((*kept, ref), at_ms, HOUR)
            assert kept[-1] == ref
            assert [one.cut for one in kept] == sorted(one.cut for one in kept)
            if before:
                assert before[-1] in kept


def tail(number: int, level: int, *ranges: tuple[int, int, int]) -> tuple[TailRef, int, list[TailSection]]:
    ref = TailRef(f"tail/{number:020d}-{level:02d}-0000000001-{A}.tail", 100, 50, 1)
    return ref, level, [TailSection(A, p, 0, first, end, 0, 1, 0, 0, -1, 0) for p, first, end in ranges]


def test_tails_are_live_as_long_as_one_partition_needs_them() -> None:
    table = TailTable()
    one, two, three = tail(1, 0, (0, 0, 5), (1, 0, 9)), tail(2, 0, (0, 5, 8)), tail(3, 1, (0, 0, 8))
    at_once(table.add(*one))
    at_once(table.add(*two))
    assert [table.update((A, 0), 0, 8), table.update((A, 1), 0, 9)] == [8, 9]
    assert table.live() == (one[0], two[0])
    at_once(table.add(*three))
    assert table.changed == ((A, 0),)
    assert table.update((A, 0), 0, 8) == 8
    assert table.live() == (one[0], three[0]), "partition 1 is in the first alone"
    assert table.update((A, 1), 9, 9) == 9
    assert table.live() == (three[0],)
    at_once(table.forget([(A, 0), (A, 1)]))
    assert table.live() == ()


def test_a_gap_is_told_by_how_far_the_tails_reach() -> None:
    table = TailTable()
    at_once(table.add(*tail(1, 0, (0, 3, 5))))
    assert table.update((A, 0), 0, 5) == 0
    assert table.update((A, 0), 3, 9) == 5


def test_a_tail_of_many_sections_is_added_and_forgotten_in_steps() -> None:
    table = TailTable()
    one = tail(1, 0, *((partition, 0, 5) for partition in range(3000)))
    assert sum(1 for _ in table.add(*one)) == 3000
    assert sum(1 for _ in table.forget([(A, partition) for partition in range(3000)])) == 3000
    assert table.live() == ()


def test_rows_of_many_lost_tails_are_changed_in_steps() -> None:
    row = PartitionCut(3, 0, 9, 9, 9, 9, 3, 0, False)
    topics = {A: (row,) * 3000, B: (row,)}
    steps = without_lost(topics, [Lack(A, partition, 9, 3, 4) for partition in range(0, 3000, 2)])
    assert sum(1 for _ in iter(lambda: next(steps, True), True)) == 1500
    found = at_once(without_lost(topics, [Lack(A, 1, 9, 3, 4)]))
    awaited = row._replace(saved=4, saved_high=4, last_epoch=-1, waits=True)
    assert found == {A: (row, awaited, *[row] * 2998), B: (row,)}
