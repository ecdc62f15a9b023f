"""Requests that go round robin over many partitions: each partition gets as many, whatever a chunk has."""

from __future__ import annotations

from collections import Counter

from bench.wide_topics import WideTopics


def test_neighbouring_requests_are_of_different_topics_and_each_partition_has_one() -> None:
    frames = WideTopics(6, 2).frames
    named = [
        next(name for name in (b"wide-00000", b"wide-00001", b"wide-00002") if name in one) for one in frames
    ]
    assert named == [b"wide-00000", b"wide-00001", b"wide-00002"] * 2
    assert len(set(frames)) == 6
    assert len({len(one) for one in frames}) == 1  # answers, too, are of one length: they are counted by it


def test_chunks_go_on_where_the_last_one_ended() -> None:
    topics = WideTopics(4, 2)
    frames = topics.frames
    sent = b"".join(topics.chunks(2))
    size = len(frames[0])
    counts = Counter(sent[at : at + size] for at in range(0, len(sent), size))
    assert counts == dict.fromkeys(frames, 5)  # 20 requests over 4 partitions


def test_a_rest_of_partitions_is_left_out() -> None:
    assert WideTopics(10_500, 1_000).count == 10_000
    assert WideTopics(10, 10).names == ["wide-00000"]
