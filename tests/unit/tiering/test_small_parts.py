"""Small pure parts of tiering: a sole owner, texts of verdicts, an archive's old end, counters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from service.base.errors import CorruptionError, StorageError
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest import PageRef
from service.tiering.expiry import ChainSpan, ExpiryPlan, Retention, plan_expiry
from service.tiering.head_check import HeadVerdict, check_damaged_head, problem
from service.tiering.metrics import TieringMetrics
from service.tiering.ports import TieringSettings
from service.tiering.standalone_owner import StandaloneOwner
from service.tiering.tasks import Task
from service.tiering.work_queue import WorkQueue

TIP = TopicIdPartition(UUID(int=7), "events", 3)
OTHER = TopicIdPartition(UUID(int=8), "others", 0)
ENTRY = CatalogEntry(5, "m5", 1, 0, 50, 5, 500)


def test_a_sole_owner_is_the_keeper_and_has_no_members() -> None:
    house = StandaloneOwner(lambda: 17)
    assert (house.is_keeper(), house.is_unfenced(), house.rank(), house.life()) == (True, True, 0, 0)
    assert (house.knows(UUID(int=1)), house.broker_of(UUID(int=1)), house.members()) == (False, None, ())
    assert (house.leader_epoch(UUID(int=7), 3), house.archived(), house.others()) == (None, (), ())
    assert asyncio.run(house.barrier()) == 17


def test_a_node_waits_as_apache_kafka_does_and_for_the_rest_as_docs_say() -> None:
    """``remote.log.manager.task.*`` and the pool of copiers have Kafka's defaults."""
    settings = TieringSettings()
    assert (settings.interval_ms, settings.copier_threads) == (30_000, 10)
    assert (settings.backoff_initial_ms, settings.backoff_max_ms, settings.backoff_jitter) == (
        500,
        30_000,
        0.2,
    )
    hour_ms = 60 * 60 * 1000
    assert (settings.grace_ms, settings.sweep_interval_ms, settings.metadata_interval_ms) == (hour_ms,) * 3
    assert (settings.watchdog_ms, settings.fence_age_ms, settings.stop_timeout_ms) == (120_000, 10_000, 5_000)
    assert (settings.topics_debounce_ms, settings.topics_latest_ms) == (1_000, 10_000)
    assert (settings.commit_segments, settings.commit_bytes, settings.block_bytes) == (
        16,
        268_435_456,
        1_048_576,
    )


def test_heads_are_looked_at_before_the_grace_of_what_they_name_is_over() -> None:
    assert TieringSettings(interval_ms=10, grace_ms=100).heads_interval_ms == 50
    assert TieringSettings(interval_ms=80, grace_ms=100).heads_interval_ms == 80


# -- verdicts


class Told(NamedTuple):
    version: int


def test_a_head_problem_names_the_versions_of_both_sides() -> None:
    head: Any = Told(6)
    assert problem(HeadVerdict.HEAD_NEWER, TIP, ENTRY, head).startswith(
        "events-3: the bucket is ahead of this node's metadata: HEAD names version 6, the metadata version 5;"
    )
    assert problem(HeadVerdict.UNREADABLE, TIP._replace(topic=""), None, None).startswith(
        f"{UUID(int=7)}/3: HEAD is damaged and there are newer manifests (firn repair): "
        "HEAD names nothing readable, the metadata no archive;"
    )
    assert ": foreign: " not in problem(HeadVerdict.FOREIGN, TIP, ENTRY, head)
    assert ": ours-newer: " in problem(HeadVerdict.OURS_NEWER, TIP, ENTRY, head)


@pytest.mark.parametrize(("newest", "verdict"), [(0, "ours-newer"), (5, "ours-newer"), (6, "unreadable")])
def test_a_head_that_is_damaged_is_judged_by_the_manifests(newest: int, verdict: str) -> None:
    assert check_damaged_head(ENTRY, newest).value == verdict
    assert check_damaged_head(None, newest) is HeadVerdict.UNREADABLE


# -- expiry


class Part(NamedTuple):
    base_offset: int
    last_offset: int
    size_bytes: int = 100
    max_timestamp: int = -1
    min_timestamp: int = -1


def page(base: int, last: int, size: int, newest: int = -1, oldest: int = -1) -> PageRef:
    return PageRef(base, last, 0, 2, size, newest, 0, 0, f"page-{base}", 10, 0, oldest)


def expired(chain: Sequence[Any], **options: Any) -> ExpiryPlan[Any]:
    known: dict[str, Any] = {"now_ms": 10_000, "log_start_offset": 0, "total_bytes": 0}
    span = options.pop("span", ChainSpan(0, 40))
    retention = options.pop("retention", Retention(-1, -1))
    return plan_expiry(chain, span, retention, **{**known, **options})


FOUR = [Part(10 * n, 10 * n + 9, 100, 1000 * (n + 1)) for n in range(4)]


def test_no_limit_keeps_all_and_says_what_is_oldest() -> None:
    assert expired(FOUR) == ExpiryPlan(None, FOUR[0], None)
    assert expired([]) == ExpiryPlan(None, None, None)


@pytest.mark.parametrize(
    ("ms", "start"), [(9_000, None), (8_999, 10), (8_000, 10), (7_999, 20), (6_000, 30), (5_999, 40), (0, 40)]
)
def test_segments_older_than_retention_ms_expire(ms: int, start: int | None) -> None:
    assert expired(FOUR, retention=Retention(ms, -1)).start == start


@pytest.mark.parametrize(
    ("limit", "start"), [(501, None), (500, None), (401, None), (400, 10), (301, 10), (300, 20), (0, 40)]
)
def test_segments_beyond_retention_bytes_expire(limit: int, start: int | None) -> None:
    """100 bytes of the log are not in the bucket yet."""
    assert expired(FOUR, retention=Retention(-1, limit), total_bytes=500).start == start


def test_bytes_below_the_chains_start_were_dropped_before() -> None:
    keeps = Retention(-1, 350)
    inside = ChainSpan(5, 40)
    assert expired(FOUR, retention=keeps, total_bytes=400, span=inside).start is None
    assert expired(FOUR, retention=keeps, total_bytes=400, span=inside, dropped_bytes=50).start == 10
    assert expired(FOUR, retention=keeps, total_bytes=400, span=inside, dropped_bytes=49).start is None


def test_a_chain_begins_where_the_log_does_and_no_further_than_it_ends() -> None:
    assert expired(FOUR, log_start_offset=10).start == 10
    assert expired(FOUR, log_start_offset=15) == ExpiryPlan(15, FOUR[1], None)
    assert expired(FOUR, log_start_offset=99) == ExpiryPlan(40, None, None)
    gone = expired(FOUR, log_start_offset=15, span=ChainSpan(20, 40))
    assert gone == ExpiryPlan(None, FOUR[2], None), "a page may list what went before"
    assert expired(FOUR, log_start_offset=15, span=ChainSpan(19, 40)).first == FOUR[1]


def test_segments_without_timestamps_age_from_their_upload() -> None:
    bare = [Part(0, 9), Part(10, 19)]
    keeps = Retention(1_000, -1)
    assert expired(bare, retention=keeps).start is None
    assert expired(bare, retention=keeps, uploaded_at_ms=lambda _: 8_999).start == 20
    assert expired(bare, retention=keeps, uploaded_at_ms=lambda _: 9_000).start is None
    assert expired([Part(0, 9, 100, 0)], retention=keeps).start == 10, "1970 is a time"

    def away(_: Any) -> int:
        raise StorageError("away")

    plan = expired(bare, retention=keeps, uploaded_at_ms=away)
    assert (plan.start, plan.first, str(plan.problem)) == (None, bare[0], "away")


def test_a_page_goes_by_its_sums_and_is_read_where_a_part_of_it_may() -> None:
    listed = [Part(0, 9, 100, 1000), Part(10, 19, 100, 2000)]
    read: list[str] = []

    def children(one: PageRef) -> Sequence[Any]:
        read.append(one.key)
        return listed

    chain = [page(0, 19, 200, newest=2000, oldest=1000), *FOUR[2:]]

    def start_for(**options: Any) -> tuple[int | None, int]:
        del read[:]
        return expired(chain, children=children, **options).start, len(read)

    assert start_for(retention=Retention(9_000, -1)) == (None, 0)
    assert start_for(retention=Retention(8_999, -1)) == (10, 1)
    assert start_for(retention=Retention(7_999, -1)) == (20, 0)
    assert start_for(retention=Retention(-1, 200), total_bytes=400) == (20, 0)
    assert start_for(retention=Retention(-1, 201), total_bytes=400) == (10, 1)
    assert start_for(retention=Retention(-1, 399), total_bytes=400) == (None, 1)
    assert start_for(retention=Retention(-1, 400), total_bytes=400) == (None, 0)
    assert start_for(log_start_offset=5) == (5, 1)
    assert start_for(log_start_offset=20) == (20, 0)
    untimed = [page(0, 19, 200, newest=2000, oldest=-1), *FOUR[2:]]
    assert expired(untimed, children=children, retention=Retention(1, -1)).start == 40, "its parts are read"
    assert read


def test_a_page_that_cannot_be_read_is_the_problem_and_stays() -> None:
    chain = [page(0, 19, 200, newest=2000, oldest=1000), *FOUR[2:]]
    for error in (StorageError("away"), CorruptionError("damaged")):

        def children(_: PageRef, error: Exception = error) -> Sequence[Any]:
            raise error

        plan = expired(chain, children=children, retention=Retention(8_500, -1))
        assert (plan.start, plan.first, plan.problem) == (None, chain[0], error)
    plan = expired(chain, retention=Retention(8_500, -1))
    assert str(plan.problem) == "page-0 was not read: this plan has no reader of pages"


def test_two_limits_that_are_none_are_none() -> None:
    assert Retention(-1, -1).is_unlimited
    assert not Retention(0, -1).is_unlimited
    assert not Retention(-1, 0).is_unlimited


# -- what is counted


def test_metrics_give_the_oldest_wait_and_the_reason_of_a_partition() -> None:
    metrics = TieringMetrics()
    assert metrics.oldest_sealed_ms is None
    metrics.waiting = {TIP: 50, OTHER: 20}
    assert metrics.oldest_sealed_ms == 20
    metrics.store = "the store is away"
    assert metrics.why(TIP) == "the store is away"
    metrics.reasons[TIP] = "HEAD is damaged"
    del metrics.waiting[OTHER]
    assert (metrics.why(TIP), metrics.why(OTHER)) == ("HEAD is damaged", None)


def test_forgetting_a_task_clears_its_failures() -> None:
    metrics = TieringMetrics()
    failing: Any = metrics.failing
    failing.update({(Task.COPY, TIP): 1, (Task.COPY, OTHER): 2, (Task.EXPIRE, TIP): 3})
    metrics.forget(Task.COPY)
    assert list(failing) == [(Task.EXPIRE, TIP)]


# -- the queue


def test_a_lane_returns_the_smallest_priority_and_forgets_removed_keys() -> None:
    queue: WorkQueue[str] = WorkQueue(2, 0)
    for name, priority in (("c", 3), ("a", 1), ("b", 2)):
        queue.add_ready(name, 1, (2, priority, 0))
    assert (queue.ready_count(0), queue.ready_count(1)) == (0, 3)
    queue.add_ready("a", 1, (2, 9, 0))
    queue.add_ready("c", 0, (2, 3, 0))
    queue.remove("b")
    assert (queue.ready_count(0), queue.ready_count(1)) == (1, 1)
    assert [queue.pop_ready(1), queue.pop_ready(1), queue.pop_ready(0)] == ["a", None, "c"]


def test_equal_priorities_are_served_in_order_of_arrival() -> None:
    queue: WorkQueue[str] = WorkQueue(1, 0)
    for name in ("b", "a", "c"):
        queue.add_ready(name, 0, (2, 1, 0))
    assert [queue.pop_ready(0) for _ in range(4)] == ["b", "a", "c", None]


def test_stale_heap_entries_are_bounded() -> None:
    queue: WorkQueue[int] = WorkQueue(1, 0)
    for key in range(3):
        queue.add_ready(key, 0, (2, key, 0))
    most = 0
    for turn in range(400):
        queue.add_ready(0, 0, (2, turn, 0))
        most = max(most, len(queue._ready[0]))
    assert most == 2 * 2 + 64 + 1, "the third was taken out before it is put back"
    assert [queue.pop_ready(0) for _ in range(4)] == [1, 2, 0, None]


def test_delayed_keys_are_due_once_and_after_dirty_ones() -> None:
    queue: WorkQueue[str] = WorkQueue(1, 0)
    queue.add_delayed("a", 100)
    queue.add_delayed("b", None)
    queue.add_delayed("c", 50)
    queue.add_delayed("c", 200)
    assert queue.pop_dirty(99) is None
    queue.mark_dirty("d")
    assert [queue.pop_dirty(100), queue.pop_dirty(100), queue.pop_dirty(100)] == ["d", "a", None]
    queue.remove("c")
    assert queue.next_due_ms is None
    assert queue.pop_dirty(1000) is None
