"""State of a replay: position, rate, remaining records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import ConfigError
from service.pipelines.replay_state import (
    Acknowledged,
    Job,
    Part,
    PartState,
    RateLimiter,
    decode_job,
    decode_state,
)


@given(st.lists(st.integers(0, 1000), unique=True, min_size=1), st.randoms(use_true_random=False))
def test_the_next_offset_is_never_above_one_that_is_not_acknowledged(
    offsets: list[int], random: object
) -> None:
    offsets = sorted(offsets)
    seen = Acknowledged(0)
    for offset in offsets:
        seen.sent(offset)
    order = list(offsets)
    random.shuffle(order)  # type: ignore[attr-defined]
    open_offsets = set(offsets)
    for offset in order:
        seen.done(offset)
        open_offsets.remove(offset)
        assert all(one >= seen.next_offset for one in open_offsets)
        assert seen.waiting == sum(one >= seen.next_offset for one in offsets)
    assert seen.next_offset == offsets[-1] + 1


@pytest.mark.parametrize(("records", "size"), [(100.0, None), (None, 1000.0), (100.0, 1000.0)])
def test_a_pace_is_kept_and_pauses_are_hardly_made_up_for(records: float | None, size: float | None) -> None:
    pace, now = RateLimiter(records, size), 1000.0
    for _ in range(1000):
        now += pace.wait_s(now, 10)
    assert now == pytest.approx(1010, abs=0.2)
    now = 5000.0
    for _ in range(1000):
        now += pace.wait_s(now, 10)
    assert now == pytest.approx(5010, abs=0.2)


def test_without_a_limit_nothing_waits() -> None:
    pace = RateLimiter(None, None)
    assert [pace.wait_s(1.0, 1 << 30) for _ in range(5)] == [0.0] * 5


def test_state_reads_back() -> None:
    job = Job({"into": "x"}, (Part("flights", "id", 3, 10, 20),))
    assert decode_job(job.encode()) == job
    assert decode_state(PartState(7, 8, 9).encode()) == PartState(7, 8, 9)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"format": "firn-replay", "format_version": 2}', b"[" * 99999]
)
def test_malformed_replay_state_is_refused(data: bytes) -> None:
    for decode in (decode_job, decode_state):
        with pytest.raises(ConfigError, match="state"):
            decode(data)


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="holds"):
        decode_state(PartState(-1).encode())
    with pytest.raises(ConfigError, match="not one of a replay"):
        decode_job(b'{"format": "firn-replay", "format_version": 1, "asked": {}, "parts": [[1]]}')
