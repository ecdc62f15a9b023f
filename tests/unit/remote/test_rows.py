"""Rows of a manifest read by columns: the same as read one by one, or refused in the same words."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import CorruptionError
from service.remote.format.fields import MAX_INTEGER
from service.remote.format.keys import SegmentKey, partition_prefix, segment_key
from service.remote.format.manifest import KeyOwner, SegmentEntry
from service.remote.format.rows import decode_entries, encode_entries, entry_row, parse_entries, parse_entry

TOPIC = UUID(int=7)
HOME = partition_prefix(TOPIC, 3)


def rows(count: int = 12) -> list[dict[str, Any]]:
    made = []
    for number in range(count):
        base = number * 100
        key = segment_key(SegmentKey(TOPIC, 3, base, base + 99, number // 5, UUID(int=number)))
        epochs = tuple((epoch, epoch * 500) for epoch in range(number // 5 + 1))
        entry = SegmentEntry(base, base + 99, 2_000, 1_500, 70, base, epochs, key, 1_600, 9, min_timestamp=60)
        if number % 3 == 0:
            entry = entry._replace(open_from=base + (100 if number % 2 else -5 * (number > 0)))
        made.append(entry_row(entry))
    return made


def outcome(read: Any) -> Any:
    try:
        return read()
    except CorruptionError as e:
        return str(e)


def one_by_one(given_rows: list[dict[str, Any]]) -> tuple[SegmentEntry, ...]:
    return tuple(parse_entry(row, HOME, MAX_INTEGER) for row in given_rows)


def test_rows_as_they_are_written_are_read_by_columns_and_by_rows_alike() -> None:
    found = parse_entries(rows(), HOME, MAX_INTEGER)
    assert found == one_by_one(rows())
    assert all(type(entry) is SegmentEntry for entry in found)
    assert [entry.open_from for entry in found[:7]] == [0, -1, -1, 400, -1, -1, 595]
    assert [("open_from" in row) for row in rows(4)] == [True, False, False, True]
    assert parse_entries([], HOME, MAX_INTEGER) == ()


def test_segments_of_a_request_are_read_as_those_of_a_manifest() -> None:
    segments = parse_entries(rows(), HOME, MAX_INTEGER)
    data = encode_entries(segments)
    assert decode_entries(data, TOPIC, 3) == segments
    assert decode_entries(encode_entries(()), TOPIC, 3) == ()
    owned = segments[0]._replace(owner=KeyOwner(TOPIC, 3))
    for wrong in (
        lambda: decode_entries(data, TOPIC, 4),
        lambda: decode_entries(data, UUID(int=8), 3),
        lambda: decode_entries(data[:-1], TOPIC, 3),
        lambda: decode_entries(data[:-2] + b",7]}", TOPIC, 3),
        lambda: decode_entries(b"[]", TOPIC, 3),
        lambda: decode_entries(b"{}", TOPIC, 3),
        lambda: decode_entries(b" " * ((16 << 20) + 1), TOPIC, 3),
        lambda: decode_entries(encode_entries(segments[:1] * 1025), TOPIC, 3),
        lambda: decode_entries(encode_entries([owned]), TOPIC, 3),
    ):
        with pytest.raises(CorruptionError):
            wrong()  # type: ignore[no-untyped-call]


def test_rows_with_an_owner_or_of_an_older_writer_are_read_as_ever() -> None:
    mixed = rows()
    other = KeyOwner(UUID(int=8), 1)
    foreign = parse_entry(mixed[3], HOME, MAX_INTEGER)._replace(
        key=segment_key(SegmentKey(*other, 300, 399, 0, UUID(int=3))), owner=other
    )
    mixed[3] = entry_row(foreign)
    del mixed[5]["min_timestamp"], mixed[5]["generation"]
    found = parse_entries(mixed, HOME, MAX_INTEGER)
    assert found == one_by_one(mixed)
    assert (found[3].owner, found[5].min_timestamp) == (other, -1)


STRANGE: list[Any] = [
    None, True, False, -1, -2, 0, 1, 1.0, 69, 71, 1 << 31, 1 << 40, (1 << 40) + 1, 1 << 53, 1 << 64, "", "x",
    [], [[0, 0]], [[0, 1]], [[0.0, 0]], [[False, 0]], [[0, 0], [0, 5]], [[0, 0], [1, 100]], {}, "data/x.seg",
]  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 11), st.sampled_from(sorted(rows(1)[0])), st.sampled_from(STRANGE))
def test_both_row_parsers_agree_on_any_row(at: int, name: str, value: Any) -> None:
    damaged = rows()
    damaged[at][name] = value
    assert outcome(lambda: parse_entries(damaged, HOME, MAX_INTEGER)) == outcome(lambda: one_by_one(damaged))


@pytest.mark.parametrize("seed", range(40))
def test_fields_that_go_or_come_make_no_difference_between_the_two_ways(seed: int) -> None:
    rng, damaged = random.Random(seed), rows()
    row = damaged[rng.randrange(12)]
    name = rng.choice(sorted(row))
    if rng.random() < 0.5:
        row["stranger"] = row.pop(name)
    else:
        del row[name]
    assert outcome(lambda: parse_entries(damaged, HOME, MAX_INTEGER)) == outcome(lambda: one_by_one(damaged))
