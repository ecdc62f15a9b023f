"""Offsets of a stream: their JSON, and how a limit is shared out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import ConfigError
from service.spark.stream.offsets import Backlog, by_count, decode_offsets, encode_offsets, rotated

SPOTS = st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 2000))
OFFSETS = st.dictionaries(SPOTS, st.integers(0, 2**62), max_size=20)


@given(OFFSETS)
def test_offsets_come_back_from_json_and_the_order_does_not_matter(
    offsets: dict[tuple[str, int], int],
) -> None:
    text = json.dumps(encode_offsets(offsets))
    assert decode_offsets(json.loads(text)) == offsets
    assert json.dumps(encode_offsets(dict(reversed(offsets.items())))) == text


@pytest.mark.parametrize(
    "document",
    [
        [],
        None,
        {"t": 5},
        {"t": {"x": 1}},
        {"t": {"0": -1}},
        {"t": {"0": True}},
        {"t": {"0": "1"}},
        {"t": {"-1": 0}},
    ],
)
def test_another_sources_checkpoint_is_refused(document: object) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        decode_offsets(document)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=30), st.integers(1, 5000))
def test_a_limit_is_used_up_and_never_exceeded(sizes: list[int], limit: int) -> None:
    backlogs = [Backlog(("t", number), 7, 7 + size) for number, size in enumerate(sizes)]
    ends = by_count(backlogs, limit)
    taken = {spot: end - 7 for spot, end in ends.items()}
    assert sum(taken.values()) == min(limit, sum(sizes))
    assert all(0 < count <= sizes[spot[1]] for spot, count in taken.items())


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(1, 50))
def test_every_partition_gets_its_turn_however_small_the_limit(sizes: list[int], limit: int) -> None:
    at = dict.fromkeys(range(len(sizes)), 0)
    after, rounds, waited = None, 0, dict.fromkeys(range(len(sizes)), 0)
    while any(at[p] < size for p, size in enumerate(sizes)):
        backlogs = [Backlog(("t", p), at[p], size) for p, size in enumerate(sizes) if at[p] < size]
        ends = by_count(rotated(backlogs, after), limit)
        after = list(ends)[-1]
        for backlog in backlogs:
            number = backlog.spot[1]
            waited[number] = 0 if backlog.spot in ends else waited[number] + 1
            assert waited[number] < len(sizes)
            at[number] = ends.get(backlog.spot, at[number])
        rounds += 1
    assert rounds <= -(-sum(sizes) // limit)
