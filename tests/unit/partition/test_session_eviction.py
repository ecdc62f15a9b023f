"""Eviction of a fetch session for another one (KIP-227: after two minutes)."""

from __future__ import annotations

import pytest

from service.base.purgatory import Purgatory
from service.partition.fetch_sessions import FetchSession, FetchSessions


def sessions() -> FetchSessions:
    """A cache with one slot."""
    numbers = iter(range(1, 10))
    return FetchSessions(Purgatory(0), 1, 100, lambda low, high: next(numbers))


def opened(cache: FetchSessions, now_ms: int, size: int = 1, privileged: bool = False) -> FetchSession | None:
    session = cache.open(now_ms, privileged=privileged, uses_topic_ids=False, size=size)
    if session is not None:
        cache.used(session, now_ms)
    return session


@pytest.mark.parametrize(("passed_ms", "goes"), [(120_000, False), (120_001, True)])
def test_an_unused_fetch_session_is_evicted_after_two_minutes(passed_ms: int, goes: bool) -> None:
    cache = sessions()
    assert opened(cache, 1_000) is not None
    assert (opened(cache, 1_000 + passed_ms) is not None) is goes
    assert cache.evictions == int(goes)


@pytest.mark.parametrize(("age_ms", "goes"), [(120_000, False), (120_001, True)])
def test_a_session_in_use_goes_for_a_larger_one_after_two_minutes(age_ms: int, goes: bool) -> None:
    cache = sessions()
    session = opened(cache, 1_000)
    assert session is not None
    cache.used(session, 1_000 + age_ms)
    assert (opened(cache, 1_001 + age_ms, size=5) is not None) is goes


def test_a_followers_session_goes_before_none_of_a_consumer() -> None:
    cache = sessions()
    assert opened(cache, 1_000, privileged=True) is not None
    assert opened(cache, 2_000, size=50) is None
    assert opened(cache, 121_001, size=50) is not None
