"""The work queue by itself, compared with a scan of all its keys."""

from __future__ import annotations

import random

import pytest

from service.tiering.work_queue import WorkQueue


def test_free_places_go_to_the_smallest_priority_first_and_equal_ones_in_turn() -> None:
    queue: WorkQueue[str] = WorkQueue(lanes=2, now_ms=0)
    for key, oldest in (("i", 9), ("e", 5), ("g", 7), ("a", 1), ("b", 1)):
        queue.add_ready(key, 0, (True, oldest, 0))
    queue.add_ready("short", 1, (False, 0, 0))
    queue.remove("g")
    assert [queue.pop_ready(0) for _ in range(5)] == ["a", "b", "e", "i", None]
    assert (queue.pop_ready(1), queue.ready_count(1)) == ("short", 0)


def test_a_dirty_key_leaves_the_ready_and_delayed_queues() -> None:
    queue: WorkQueue[str] = WorkQueue(lanes=1, now_ms=0)
    queue.add_ready("a", 0, (True, 1, 0))
    queue.add_delayed("b", 100)
    queue.mark_dirty("a")
    queue.mark_dirty("a")
    queue.mark_dirty("b")
    assert [queue.pop_dirty(0) for _ in range(3)] == ["a", "b", None]
    assert (queue.pop_ready(0), queue.next_due_ms) == (None, None)


@pytest.mark.parametrize("seed", range(5))
def test_the_work_queue_equals_a_scan_of_all_keys(seed: int) -> None:
    rng = random.Random(seed)
    queue: WorkQueue[int] = WorkQueue(lanes=1, now_ms=0)
    due: dict[int, int] = {}
    ready: dict[int, int] = {}
    now_ms = 0
    for _ in range(5000):
        key = rng.randrange(20)
        action = rng.randrange(4)
        if action == 0:
            due[key] = now_ms + rng.randrange(1, 50)
            ready.pop(key, None)
            queue.add_delayed(key, due[key])
        elif action == 1:
            ready[key] = rng.randrange(1000)
            due.pop(key, None)
            queue.add_ready(key, 0, (True, ready[key], 0))
        elif action == 2:
            now_ms += rng.randrange(20)
            next_ms = queue.next_due_ms
            assert (next_ms is None) == (not due)
            assert next_ms is None or next_ms <= min(due.values())
            while (found := queue.pop_dirty(now_ms)) is not None:
                assert due.pop(found) <= now_ms
            assert not due or min(due.values()) > now_ms
        else:
            smallest = min(ready.values(), default=None)
            taken = queue.pop_ready(0)
            assert (None if taken is None else ready.pop(taken)) == smallest
            assert queue.ready_count(0) == len(ready)


def test_entries_that_count_no_more_do_not_pile_up() -> None:
    queue: WorkQueue[int] = WorkQueue(lanes=1, now_ms=0)
    for number in range(10_000):
        queue.add_delayed(number % 3, 10_000 + number)
    assert len(queue._wheel) == 3
    for number in range(10_000):
        queue.add_ready(number % 3, 0, (True, 10_000 - number, 0))
    assert len(queue._ready[0]) < 200
