"""Cold topics have a segment that can go, however small they are."""

from __future__ import annotations

import pytest

from bench.cold_topics import segment_bytes


@pytest.mark.parametrize(("megabytes", "expected"), [(10, 5_000_000), (32, 16_000_000), (512, 33_554_432)])
def test_a_topic_has_at_least_two_segments(megabytes: int, expected: int) -> None:
    assert segment_bytes(megabytes) == expected
