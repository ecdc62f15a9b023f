"""Long requests about offsets are cut by positions, and the answers to their pieces become one again."""

from __future__ import annotations

from typing import Any

import pytest

from service.groups.offset_pieces import add_topics, pieces
from service.groups.requests import (
    CommittedPartition,
    CommittedTopic,
    GroupCommitRequest,
    OffsetCommitTopic,
)
from service.wire.offsets import OffsetFetchRequestGroup, OffsetFetchRequestTopics


def fetch(**topics: tuple[int, ...]) -> OffsetFetchRequestGroup:
    return OffsetFetchRequestGroup(
        group_id="g",
        topics=tuple(
            OffsetFetchRequestTopics(name=name, partition_indexes=of) for name, of in topics.items()
        ),
    )


def commit(**topics: tuple[Any, ...]) -> GroupCommitRequest:
    named = tuple(OffsetCommitTopic(name, None, of) for name, of in topics.items())
    return GroupCommitRequest("g", named)


CUT: list[dict[str, tuple[int, ...]]] = [{"a": (0, 1, 2)}, {"a": (3,), "b": (7,)}, {"c": ()}]


@pytest.mark.parametrize(("make", "field"), [(fetch, "partition_indexes"), (commit, "partitions")])
def test_a_topic_counts_as_a_position_and_goes_on_in_the_next_piece(make: Any, field: str) -> None:
    cut = pieces(make(a=(0, 1, 2, 3), b=(7,), c=()), 4, field)
    assert list(cut) == [make(**topics) for topics in CUT]


def test_answers_of_pieces_are_one_answer() -> None:
    topics: dict[Any, CommittedTopic] = {}
    for piece in CUT:
        add_topics(
            topics,
            [
                CommittedTopic(name, None, tuple([CommittedPartition(at) for at in of]))
                for name, of in piece.items()
            ],
        )
    assert [(one.name, [each.partition_index for each in one.partitions]) for one in topics.values()] == [
        ("a", [0, 1, 2, 3]),
        ("b", [7]),
        ("c", []),
    ]
