"""Tails say of a partition what its leader's log has, whatever leaders came and went."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from service.remote.format.coverage import Coverage, Span, cover
from service.remote.format.tail_object import TailSection

TOPIC = UUID(int=1)


def span(level: int, epoch: int, first: int, end: int, name: str = "t") -> Span:
    return Span(name, level, TailSection(TOPIC, 0, epoch, first, end, 0, 1, 0, 0, -1, epoch))


def names(found: Coverage) -> list[tuple[str, int, int]]:
    return [(piece.span.tail, piece.first, piece.end) for piece in found.pieces]


def test_the_section_that_was_written_last_is_read_and_no_offset_twice() -> None:
    small = [span(0, 1, 10 * n, 10 * n + 10, f"{n}") for n in range(5)]
    large = span(1, 1, 10, 40, "3-level-1")
    found = cover([*small, large], 5, 50)
    assert names(found) == [("0", 5, 10), ("3-level-1", 10, 40), ("4", 40, 50)]
    assert found.reaches == 50
    assert names(cover([large, *small], 12, 33)) == [("3-level-1", 12, 33)]


def test_a_section_that_is_saved_again_takes_the_place_of_the_earlier_one() -> None:
    """A compaction came in between, and has taken what would contradict the rest of the later section."""
    old = [span(1, 1, 0, 30, "1"), span(1, 1, 30, 60, "2"), span(0, 1, 60, 70, "3")]
    again = [span(1, 1, 0, 20, "4"), span(1, 1, 20, 50, "5")]
    assert names(cover([*old, *again], 0, 70)) == [
        ("4", 0, 20), ("5", 20, 50), ("2", 50, 60), ("3", 60, 70),
    ]  # fmt: skip
    assert names(cover([*old, again[0]], 10, 70)) == [
        ("4", 10, 20),
        ("1", 20, 30),
        ("2", 30, 60),
        ("3", 60, 70),
    ]
    assert names(cover([*old, span(1, 1, 40, 50, "4")], 35, 55)) == [
        ("2", 35, 40),
        ("4", 40, 50),
        ("2", 50, 55),
    ]


def test_a_section_that_is_missing_ends_it() -> None:
    found = cover([span(0, 1, 0, 10), span(0, 1, 12, 20)], 0, 20)
    assert (len(found.pieces), found.reaches) == (1, 10)
    assert cover([], 3, 9) == Coverage((), 3)
    assert cover([span(0, 1, 0, 10)], 10, 10) == Coverage((), 10)


def test_a_later_leader_that_begins_anew_takes_the_place_of_what_an_earlier_one_saved() -> None:
    old = [span(0, 1, 0, 10, "a"), span(1, 1, 0, 30, "b")]
    assert names(cover([*old, span(0, 2, 10, 15, "new")], 0, 15)) == [("b", 0, 10), ("new", 10, 15)]
    assert cover([*old, span(0, 2, 10, 15, "new")], 0, 30).reaches == 15
    assert names(cover([*old, span(0, 2, 0, 5, "new")], 0, 30)) == [("new", 0, 5)]


@pytest.mark.parametrize("seed", range(40))
def test_sections_of_many_leaders_have_the_last_ones_log(seed: int) -> None:
    source = random.Random(seed)
    log: list[int] = []
    saved_bytes: dict[str, tuple[int, list[int]]] = {}
    spans: list[Span] = []
    saved = saved_high = chain = record = cuts = 0
    for epoch in range(source.randrange(1, 8)):
        if (
            epoch and source.random() < 0.5
        ):  # an unclean election: the new leader has less, and goes on with other records
            cut_at = source.randrange(chain, len(log) + 1)
            if cut_at < saved:
                saved = saved_high = chain
            del log[cut_at:]
        for _ in range(source.randrange(0, 6)):
            for _ in range(source.randrange(0, 9)):
                record += 1
                log.append(record)
            is_high = source.random() < 0.3
            first = max(saved_high if is_high else saved, chain)
            if first < len(log):
                cuts += 1
                name = f"{cuts:03d}"
                saved_bytes[name] = first, log[first:]
                spans.append(span(int(is_high), epoch, first, len(log), name))
                saved = len(log)
                saved_high = len(log) if is_high else max(saved_high, chain)
            if source.random() < 0.2:
                chain = source.randrange(chain, saved + 1)
            found = cover(source.sample(spans, len(spans)), chain, saved)
            assert found.reaches == max(saved, chain)
            read: list[int] = []
            for piece in found.pieces:
                begin, records = saved_bytes[piece.span.tail]
                assert piece.first == chain + len(read)
                read += records[piece.first - begin : piece.end - begin]
            assert read == log[chain:saved]
