"""The cache by cost drops what was used longest ago, and its size is what it holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.base.lru_cache import LruCache


def held(cache: LruCache[str, int], keys: str = "abcd") -> str:
    return "".join(key for key in keys if cache.get(key) is not None)


def test_a_read_entry_stays_longer_than_one_written_later() -> None:
    cache: LruCache[str, int] = LruCache(limit=10)
    for key in "abc":
        cache.put(key, 1, 3)
    assert cache.get("a") == 1
    cache.put("d", 1, 3)
    assert held(cache) == "acd"
    assert cache.size == 9


def test_a_dear_value_evicts_as_many_as_it_takes() -> None:
    cache: LruCache[str, int] = LruCache(limit=10)
    for key in "abc":
        cache.put(key, 1, 3)
    cache.put("d", 1, 7)
    assert held(cache) == "cd"
    assert cache.size == 10


def test_a_value_beyond_the_limit_is_not_kept() -> None:
    cache: LruCache[str, int] = LruCache(limit=10)
    cache.put("a", 1, 11)
    assert held(cache) == ""
    assert cache.size == 0


def test_a_second_value_of_a_key_takes_the_place_and_the_cost_of_the_first() -> None:
    cache: LruCache[str, int] = LruCache(limit=10)
    cache.put("a", 1, 9)
    cache.put("a", 2, 4)
    assert cache.get("a") == 2
    assert cache.size == 4


def test_discarded_entries_cost_nothing() -> None:
    cache: LruCache[str, int] = LruCache(limit=10)
    for key in "abc":
        cache.put(key, 1, 3)
    cache.discard("b")
    cache.discard("b")
    assert held(cache) == "ac"
    assert cache.size == 6
    cache.clear()
    assert held(cache) == ""
    assert cache.size == 0


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 12), st.booleans())))
def test_the_cache_holds_what_a_list_by_last_use_would(calls: list[tuple[str, int, bool]]) -> None:
    cache: LruCache[str, int] = LruCache(limit=20)
    model: list[tuple[str, int]] = []
    for key, cost, is_put in calls:
        found = [one for one in model if one[0] == key]
        if not is_put:
            assert cache.get(key) == (found[0][1] if found else None)
            model = [one for one in model if one not in found] + found
            continue
        cache.put(key, cost, cost)
        model = [one for one in model if one not in found] + [(key, cost)]
        while sum(one[1] for one in model) > 20:
            del model[0]
        assert cache.size == sum(one[1] for one in model)
