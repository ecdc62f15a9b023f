"""Buckets: shared by those of one share, forgotten when nothing of them counts any more."""

from __future__ import annotations

import tracemalloc

from service.quotas.buckets import FORGOTTEN_AT_A_TIME, Rates, Tokens
from service.quotas.entities import Share

ALICE = Share("alice", None, 100.0)


def test_clients_of_one_share_use_one_bucket() -> None:
    rates = Rates(11, 1000)
    assert rates.record(ALICE, 600, 0) == 0
    assert rates.record(ALICE, 600, 0) == 2_000
    assert rates.record(Share("bob", None, 100.0), 600, 0) == 0
    assert len(rates) == 2


def test_another_limit_holds_at_once() -> None:
    rates = Rates(11, 1000)
    rates.record(ALICE, 2_000, 0)
    assert rates.throttle_ms(ALICE, 0) == 10_000
    assert rates.throttle_ms(ALICE._replace(limit=200.0), 0) == 0
    assert rates.throttle_ms(ALICE._replace(user="carol"), 0) == 0
    assert len(rates) == 1, "a question makes no bucket"


def test_a_throttle_can_have_a_bound() -> None:
    rates = Rates(11, 1000, longest_ms=1000)
    assert rates.record(ALICE, 1_001, 0) == 10
    assert rates.record(ALICE, 1_000_000, 0) == 1_000
    assert rates.throttle_ms(ALICE, 0) == 1_000


def test_a_value_that_is_taken_back_leaves_the_rest() -> None:
    rates = Rates(11, 1000)
    rates.record(ALICE, 900, 0)
    assert rates.record(ALICE, 900, 500) > 0
    rates.take_back(ALICE, 900, 500)
    assert rates.record(ALICE, 100, 600) == 0
    rates.count(ALICE, 5_000, 600)
    assert rates.throttle_ms(ALICE, 600) > 0


def test_the_most_that_can_be_fetched_is_that_of_all_whole_windows() -> None:
    assert Rates(11, 1000).most(ALICE) == 1_000
    assert Rates(3, 2000).most(ALICE) == 400


def test_memory_follows_who_was_active() -> None:
    rates = Rates(11, 1000)
    for n in range(100_000):
        rates.record(Share(None, f"made-up-{n}", 100.0), 1, n)
    assert len(rates) <= 11_001, "a bucket per client of the last eleven seconds"
    while rates.forget_idle(111_000):
        pass
    assert len(rates) == 0


def test_a_million_made_up_clients_take_half_a_gigabyte_at_most() -> None:
    rates = Rates(11, 1000)
    tracemalloc.start()
    try:
        for n in range(5_000):
            rates.record(Share("u", f"client-{n}", 1000.0), 10, n)
        each = tracemalloc.get_traced_memory()[0] / 5_000
    finally:
        tracemalloc.stop()
    assert each < 500


def test_one_step_forgets_a_bounded_number() -> None:
    rates = Rates(11, 1000)
    for n in range(1_000):
        rates.record(Share(None, f"c{n}", 100.0), 1, 0)
    rates.record(ALICE, 1, 5_000)
    assert rates.forget_idle(11_000)
    assert len(rates) == 1_001 - FORGOTTEN_AT_A_TIME
    while rates.forget_idle(11_000):
        pass
    assert len(rates) == 1
    assert rates.find(ALICE) is not None


def test_a_bucket_that_is_used_is_kept() -> None:
    rates = Rates(11, 1000)
    for n in range(0, 60_000, 500):
        rates.record(ALICE, 50, n)
        rates.record(Share(None, f"c{n}", 100.0), 1, n)
        rates.forget_idle(n)
    found = rates.find(ALICE)
    assert found is not None
    assert found.per_second(59_500) == 1_100 / 10.5


def test_a_bucket_of_tokens_is_forgotten_once_it_is_full() -> None:
    tokens = Tokens(11, 1000)
    bucket = tokens.of(ALICE, 0)
    bucket.take(3_000, 100.0, 0)
    assert not tokens.forget_idle(29_999)
    assert len(tokens) == 1, "1,900 missing after eleven seconds are a debt still"
    tokens.forget_idle(30_000)
    assert len(tokens) == 0
