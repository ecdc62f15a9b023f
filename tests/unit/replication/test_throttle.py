"""Throttled replicas: which count, and a fetcher that leaves them out while there is no quota (KIP-73)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from service.replication.follower import FollowerMachine, FollowerSettings
from service.replication.follower_events import (
    Append,
    Done,
    Fetch,
    FollowerFetchResponse,
    PartitionFetchResponse,
)
from service.replication.throttle import UNLIMITED, Quota, ReplicationThrottle
from tests.unit.replication.followers import BACKOFF_MS, NONE, tip
from tests.unit.replication.leaders import NOW_MS, Log

BOUND = 1_000
ME = 3


@pytest.mark.parametrize(
    ("replicas", "here"),
    [
        ([], []),
        ([""], []),
        (["*"], [0, 1, 2, 3]),
        (["", "*"], [0, 1, 2, 3]),
        (["0:3", "1:2", "3:3"], [0, 3]),
        (["0:3", "", "2:03"], [0, 2]),
        (["3:1", "3:2"], []),
    ],
)
def test_replicas_of_this_broker_count_as_the_topic_says(replicas: Sequence[str], here: list[int]) -> None:
    throttle = ReplicationThrottle(ME, Quota(11, 1))
    assert throttle.mark("t1", replicas) is bool(here)
    assert not throttle.mark("t1", replicas), "nothing new"
    found = [n for n in range(4) if throttle.covers(tip(1)._replace(partition=n))]
    assert found == here
    assert not throttle.covers(tip(2))
    assert throttle.mark("t1", ()) is bool(here)
    assert not throttle.covers(tip(1))


def test_a_bound_that_changes_holds_at_once() -> None:
    throttle = ReplicationThrottle(ME, Quota(11, 1))
    quota = throttle.quota
    quota.record(5_000, 0)
    assert not quota.is_exceeded(0)
    assert throttle.limit(BOUND)
    assert not throttle.limit(BOUND), "nothing new"
    assert (quota.is_exceeded(0), quota.free_ms(0)) == (True, 5_000)
    throttle.limit(2_500)
    assert (quota.is_exceeded(0), quota.free_ms(0)) == (True, 2_000)
    throttle.limit(UNLIMITED)
    assert (quota.is_exceeded(0), quota.free_ms(0)) == (False, 0)


def test_a_bound_of_nothing_lets_one_answer_through_in_all_windows() -> None:
    quota = Quota(11, 1)
    quota.bytes_per_s = 0
    assert not quota.is_exceeded(0)
    quota.record(1, 0)
    assert (quota.free_ms(5), quota.is_exceeded(10_999), quota.is_exceeded(11_000)) == (11_000, True, False)


class Fetcher:
    """A machine with partitions of which the first `throttled` are."""

    def __init__(self, count: int = 2, throttled: int = 1) -> None:
        self.throttle = ReplicationThrottle(ME, Quota(11, 1))
        self.throttle.limit(BOUND)
        for number in range(throttled):
            self.throttle.mark(tip(number).topic, ["*"])
        self.machine = FollowerMachine(FollowerSettings(BACKOFF_MS), self.throttle)
        self.now_ms = NOW_MS
        self.logs = [Log(10, ((1, 0), (3, 4))) for _ in range(count)]
        for number in range(count):
            self.machine.assign(tip(number), self.logs[number], 5, self.now_ms, is_clean=True)

    def fetch(self) -> Fetch:
        fetch = self.machine.next_fetch(self.now_ms)
        assert fetch is not None
        return fetch

    def answer(self, fetch: Fetch, *told: PartitionFetchResponse, records: int = 10) -> None:
        """All that has bytes is appended, `records` records each."""
        effects = self.machine.answered(fetch.number, FollowerFetchResponse(NONE, 77, told), self.now_ms)
        for effect in effects:
            if isinstance(effect, Append):
                number = int(effect.tip.topic[1:])
                self.logs[number].log_end_offset += records
                self.machine.done(effect.number, Done.DONE, self.now_ms)

    def comes(self, size: int, *, behind: int = 1_000, number: int = 0) -> None:
        """One fetch, by which so many bytes of a partition come; so many records are missing after it."""
        fetch, mark = self.fetch(), self.logs[number].log_end_offset + 10 + behind
        others = [
            PartitionFetchResponse(one, high_watermark=99)
            for one, _ in fetch.partitions
            if one != tip(number)
        ]
        self.answer(fetch, PartitionFetchResponse(tip(number), high_watermark=mark, size=size), *others)

    def named(self, fetch: Fetch) -> list[int]:
        return [int(one.topic[1:]) for one, _ in fetch.partitions]


def test_a_lagging_partition_is_left_out_until_the_quota_allows() -> None:
    fetcher = Fetcher()
    fetcher.comes(3_000)
    fetch = fetcher.fetch()
    assert (fetcher.named(fetch), fetch.forgotten, fetch.most_wait_ms) == ([], [tip()], 3_000)
    fetcher.answer(fetch)
    fetcher.now_ms += 2_999
    fetch = fetcher.fetch()
    assert (fetcher.named(fetch), fetch.forgotten, fetch.most_wait_ms) == ([], [], 1), "others are asked for"
    fetcher.answer(fetch)
    fetcher.now_ms += 1
    fetch = fetcher.fetch()
    assert (fetcher.named(fetch), fetch.forgotten, fetch.most_wait_ms) == ([0], [], None)


def test_a_fetcher_that_has_nothing_else_sleeps_until_then() -> None:
    fetcher = Fetcher(count=1)
    fetcher.comes(3_000)
    fetcher.answer(fetcher.fetch())  # that it is left out is said
    assert fetcher.machine.next_fetch(fetcher.now_ms) is None
    assert fetcher.machine.next_deadline_ms() == NOW_MS + 3_000
    fetcher.now_ms = NOW_MS + 3_000
    assert fetcher.named(fetcher.fetch()) == [0]


def test_in_sync_replicas_are_counted_but_not_throttled() -> None:
    fetcher = Fetcher()
    fetcher.comes(50_000, behind=0)
    for _ in range(3):
        assert fetcher.throttle.quota.is_exceeded(fetcher.now_ms)
        fetcher.comes(50_000, behind=0)
    assert fetcher.throttle.quota.recorded == 200_000
    fetcher.comes(1, behind=1)
    assert fetcher.fetch().forgotten == [tip()], "it has fallen behind"


def test_an_in_sync_replica_is_not_throttled_under_a_new_leader() -> None:
    fetcher = Fetcher(count=2, throttled=2)
    fetcher.comes(9_000)
    log = fetcher.logs[1]
    fetcher.machine.assign(tip(1), log, 6, fetcher.now_ms, is_clean=True, is_in_sync=True)
    fetch = fetcher.fetch()
    assert (fetcher.named(fetch), fetch.forgotten) == ([1], [tip(0)])


def test_unthrottled_partitions_are_neither_delayed_nor_counted() -> None:
    fetcher = Fetcher()
    for _ in range(3):
        fetcher.comes(50_000, number=1)
    assert fetcher.throttle.quota.recorded == 0
    fetcher.comes(9_000)
    fetcher.comes(50_000, number=1)
    assert fetcher.named(fetcher.fetch()) == [1]


def test_throttled_partitions_share_one_quota() -> None:
    fetcher = Fetcher(count=4, throttled=3)
    fetcher.comes(9_000)
    fetch = fetcher.fetch()
    assert sorted(fetch.forgotten) == [tip(0), tip(1), tip(2)]
    fetcher.answer(fetch)
    fetcher.now_ms += 9_000
    assert fetcher.named(fetcher.fetch()) == [0, 1, 2]


def test_a_partition_that_was_never_fetched_is_throttled_too() -> None:
    fetcher = Fetcher(count=3, throttled=3)
    fetcher.throttle.quota.record(9_000, fetcher.now_ms)
    assert fetcher.machine.next_fetch(fetcher.now_ms) is None, "none was asked for yet"
    assert fetcher.machine.next_deadline_ms() == NOW_MS + 9_000


def test_a_changed_throttle_applies_to_the_next_fetch() -> None:
    fetcher = Fetcher()
    fetcher.comes(9_000)
    fetcher.answer(fetcher.fetch())
    fetcher.throttle.mark(tip().topic, ())
    fetcher.machine.throttled(tip())
    fetch = fetcher.fetch()
    assert (fetcher.named(fetch), fetch.most_wait_ms) == ([0], None)
    fetcher.answer(fetch)
    fetcher.throttle.mark(tip().topic, ["0:3"])
    fetcher.machine.throttled(tip())
    assert fetcher.fetch().forgotten == [tip()]
    fetcher.machine.throttled(tip(99))  # of no concern here


def test_a_bound_that_is_raised_is_heeded_by_the_next_fetch() -> None:
    fetcher = Fetcher()
    fetcher.comes(9_000)
    fetcher.answer(fetcher.fetch())
    fetcher.throttle.limit(9_000)
    assert fetcher.named(fetcher.fetch()) == [0]


def test_a_new_session_leaves_out_throttled_partitions() -> None:
    fetcher = Fetcher(count=3, throttled=2)
    fetcher.comes(9_000)
    fetch = fetcher.fetch()
    fetcher.machine.failed(fetch.number, fetcher.now_ms)
    fetcher.now_ms += BACKOFF_MS
    fetch = fetcher.fetch()
    assert (fetch.session_epoch, fetcher.named(fetch)) == (0, [2])
    fetcher.answer(fetch, PartitionFetchResponse(tip(2)))
    fetcher.now_ms = NOW_MS + 9_000
    fetch = fetcher.fetch()
    assert (fetch.session_epoch, sorted(fetcher.named(fetch))) == (1, [0, 1])


def test_a_throttled_partition_may_be_reassigned_or_removed() -> None:
    fetcher = Fetcher(count=3, throttled=2)
    fetcher.comes(9_000)
    fetcher.answer(fetcher.fetch())
    fetcher.machine.assign(tip(0), fetcher.logs[0], 6, fetcher.now_ms, is_clean=True)
    fetcher.machine.remove(tip(1))
    fetcher.machine.assign(tip(2), fetcher.logs[2], 6, fetcher.now_ms, is_clean=True)
    assert fetcher.named(fetcher.fetch()) == [2]
