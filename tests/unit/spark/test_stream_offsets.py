"""Offsets of a stream: their JSON, and how a limit is shared out."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import ConfigError, CorruptionError
from service.spark.stream.offsets import (
    OWN_KEY,
    Backlog,
    StreamPosition,
    TopicIdentity,
    by_count,
    decode_position,
    encode_position,
    rotated,
)

FLIGHTS = UUID("3e4f0001-0000-4000-8000-00000000000a")
NAMES = st.text(min_size=1, max_size=5)
TOPICS = st.dictionaries(NAMES, st.builds(TopicIdentity, st.uuids(), NAMES), max_size=5)
SPOTS = st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 2000))
OFFSETS = st.dictionaries(SPOTS, st.integers(0, 2**62), max_size=20)


@given(OFFSETS, st.none() | st.text(max_size=5), TOPICS)
def test_a_position_comes_back_from_json_and_the_order_does_not_matter(
    offsets: dict[tuple[str, int], int], cluster_id: str | None, topics: dict[str, TopicIdentity]
) -> None:
    position = StreamPosition(offsets, cluster_id, topics)
    text = json.dumps(encode_position(position))
    assert decode_position(json.loads(text)) == position
    other_way = StreamPosition(dict(reversed(offsets.items())), cluster_id, dict(reversed(topics.items())))
    assert json.dumps(encode_position(other_way)) == text


def test_topics_come_first_and_what_they_are_last() -> None:
    topics = {"flights": TopicIdentity(FLIGHTS, "flights"), str(FLIGHTS): TopicIdentity(FLIGHTS, "flights")}
    position = StreamPosition({("flights", 0): 7, ("Zoo", 0): 1}, "c-1", topics)
    assert json.dumps(encode_position(position)) == (
        '{"Zoo": {"0": 1}, "flights": {"0": 7}, "@firn": {"cluster": "c-1", "topics": '
        f'{{"{FLIGHTS}": "{FLIGHTS}", "flights": "{FLIGHTS}"}}, "names": {{"{FLIGHTS}": "flights"}}}}}}'
    )


def test_a_checkpoint_without_topic_ids_round_trips() -> None:
    old = '{"flights": {"0": 7, "1": 9}}'
    position = decode_position(json.loads(old))
    assert position == StreamPosition({("flights", 0): 7, ("flights", 1): 9})
    assert json.dumps(encode_position(position)) == old


def test_no_topic_can_be_called_like_the_sources_own_key() -> None:
    with pytest.raises(CorruptionError, match="as no cluster can have"):
        encode_position(StreamPosition({(OWN_KEY, 0): 1}, "c-1"))


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
        {OWN_KEY: []},
        {OWN_KEY: {"cluster": 5}},
        {OWN_KEY: {"topics": {"t": "no id"}}},
        {OWN_KEY: {"topics": {"t": 5}}},
        {OWN_KEY: {"topics": ["t"]}},
        {OWN_KEY: {"names": {"t": None}}},
        {OWN_KEY: {"later": 1}},
    ],
)
def test_another_sources_checkpoint_is_refused(document: object) -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        decode_position(document)


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
