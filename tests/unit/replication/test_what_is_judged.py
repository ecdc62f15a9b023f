"""Fetches of replicas in Kafka's order of checks; batches of leaders by their headers; waiters for acks."""

from __future__ import annotations

import weakref
from array import array
from random import Random
from typing import NamedTuple
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.records.batch import iter_headers
from service.records.kernel_status import Status
from service.records.scan import BatchScan
from service.replication.ack_queue import AckQueue
from service.replication.follower_append_check import (
    AppendablePrefix,
    appendable_prefix,
    appendable_prefix_of_run,
    end_of_run,
    first_of,
)
from service.replication.replica_fetch import (
    ReplicaFetch,
    judge_epoch,
    judge_log,
    judge_topic,
)
from tests.unit.hot.logs import raw
from tests.unit.replication.leaders import Log

ID, OTHER = UUID(int=1), UUID(int=2)


# -- fetches


def test_a_topic_that_is_not_known_or_not_this_one() -> None:
    assert judge_topic(ID, None, ID) is ErrorCode.unknown_topic_id
    assert judge_topic(ID, ID, OTHER) is ErrorCode.inconsistent_topic_id
    assert judge_topic(ID, OTHER, OTHER) is ErrorCode.inconsistent_topic_id
    assert judge_topic(ID, ID, None) is ErrorCode.none
    assert judge_topic(ID, ID, ID) is ErrorCode.none


def test_the_leader_epoch_is_checked_before_the_leader() -> None:
    assert judge_epoch(-1, 5) is ErrorCode.none


def leading() -> Log:
    """Epochs 2 from 10, 4 from 20, 7 from 30; the start is 12, what is local begins at 15."""
    log = Log(40, ((2, 10), (4, 20), (7, 30)), start=12)
    log.local_log_start_offset = 15
    return log


RANGE, MOVED = ErrorCode.offset_out_of_range, ErrorCode.offset_moved_to_tiered_storage


@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [
        (40, 7, None),
        (35, 7, None),
        (30, 4, None),
        (25, 4, None),
        (25, 8, RANGE),
        (11, 7, RANGE),
        (11, 1, RANGE),
        (31, 4, (4, 30)),
        (41, 7, (7, 40)),
        (25, 5, (4, 30)),
        (25, 3, (2, 20)),
        (13, 3, (2, 20)),
        (13, 1, (1, 10)),
        (13, 2, MOVED),
        (15, 2, None),
        (13, -1, MOVED),
        (11, -1, RANGE),
        (41, -1, RANGE),
        (40, -1, None),
    ],
)
def test_the_log_is_judged_in_order(
    offset: int, last_epoch: int, expected: ErrorCode | tuple[int, int] | None
) -> None:
    verdict = judge_log(ReplicaFetch(2, 102, 7, offset, last_epoch), leading())
    if expected is None or isinstance(expected, tuple):
        assert (verdict.error, verdict.diverging) == (ErrorCode.none, expected)
    else:
        assert (verdict.error, verdict.diverging) == (expected, None)
        assert verdict.why


# -- batches


class Header(NamedTuple):
    base_offset: int
    next_offset: int
    partition_leader_epoch: int


def judged(
    *headers: tuple[int, int, int], start: int = 0, end: int = 10, may_lack: bool = False
) -> AppendablePrefix:
    return appendable_prefix(
        [Header(*one) for one in headers],
        start_offset=start,
        end_offset=end,
        latest_epoch=3,
        leader_epoch=5,
        may_lack=may_lack,
    )


def test_batches_that_follow_on_the_log_fit() -> None:
    assert judged((10, 12, 3), (12, 13, 5)) == AppendablePrefix(2, 13, 5)
    assert judged() == AppendablePrefix(0, 10, 3)


@pytest.mark.parametrize(
    "bad", [(11, 15, 5), (13, 15, 5), (12, 12, 5), (12, 11, 5), (-1, 15, 5), (12, 15, 2), (12, 15, -1)]
)
def test_batches_before_one_that_does_not_fit_are_accepted(bad: tuple[int, int, int]) -> None:
    found = judged((10, 12, 3), bad, (15, 16, 5))
    assert (found.accepted, found.end_offset, found.latest_epoch) == (1, 12, 3)
    assert found.why


def test_batches_of_a_later_epoch_than_the_fetchs_are_not_taken() -> None:
    found = judged((10, 12, 5), (12, 14, 6), (14, 15, 5))
    assert (found.accepted, found.end_offset) == (1, 12)
    assert found.why == "epoch 6 at 12, fetched in 5"


def test_a_compacted_log_may_lack_offsets() -> None:
    assert judged((13, 15, 3), (20, 21, 4), may_lack=True) == AppendablePrefix(2, 21, 4)
    assert judged((9, 15, 3), may_lack=True).accepted == 0


def test_an_empty_log_begins_with_the_batch_in_which_the_leaders_start_lies() -> None:
    assert judged((8, 12, 3), (12, 13, 3), start=10) == AppendablePrefix(2, 13, 3, begins_at=8)
    assert judged((8, 12, 3), start=9).accepted == 0
    assert judged((-2, 12, 3), start=10).accepted == 0


def test_an_emptied_log_starts_with_the_batch_that_contains_its_start() -> None:
    """So it is after a cut at the leader's start, where the epoch before ends for it."""
    assert judged((8, 13, 3), start=12) == AppendablePrefix(1, 13, 3, begins_at=8)
    assert judged((8, 12, 3), start=12).accepted == 0
    assert judged((8, 13, 3), start=14).accepted == 0, "it does not lie there"


def test_the_first_batch_of_all_may_be_the_one_in_which_the_leaders_start_lies() -> None:
    assert judged((0, 12, 3), start=10) == AppendablePrefix(1, 12, 3, begins_at=0)
    assert judged((0, 11, 3), start=10) == AppendablePrefix(1, 11, 3, begins_at=0)
    assert judged((0, 10, 3), start=10).accepted == 0, "the start lies behind it"
    assert judged((9, 12, 3), start=10).begins_at == 9
    assert judged((10, 12, 3), start=10).begins_at == -1, "it follows on the log as it is"


def columns(*batches: tuple[int, int, int]) -> BatchScan:
    """Batches of (base offset, next offset, epoch), of 100 bytes each, behind 7 others."""
    count = len(batches)
    zeros = array("q", [0] * count)
    return BatchScan(
        Status.OK,
        7 + 100 * count,
        array("q", range(7, 7 + 100 * count, 100)),
        array("q", [100] * count),
        array("q", [base for base, _, _ in batches]),
        array("q", [later - 1 for _, later, _ in batches]),
        array("q", [epoch for _, _, epoch in batches]),
        *[zeros] * 4,
    )


def test_batches_in_columns_are_judged_as_one_by_one() -> None:
    """Their offsets rise, as whoever has walked them has found; some lack offsets, or change epochs."""
    wholly, partly = 0, 0
    for seed in range(2000):
        random = Random(seed)
        offset, epoch = random.choice((10, 10, 10, 10, 9, 12)), random.choice((3, 3, 4, 5, 6, 2, -1))
        batches = []
        for _ in range(random.randrange(6)):
            offset += random.choice((0, 0, 0, 0, 0, 0, 3))
            if random.random() < 0.15:
                epoch = random.choice((-1, 3, 4, 5, 6))
            size = random.choice((1, 1, 1, 2, 5))
            batches.append((offset, offset + size, epoch))
            offset += size
        latest_epoch, may_lack = random.choice((3, -1)), random.random() < 0.2
        found = appendable_prefix_of_run(
            columns(*batches),
            start_offset=0,
            end_offset=10,
            latest_epoch=latest_epoch,
            leader_epoch=5,
            may_lack=may_lack,
        )
        expected = appendable_prefix(
            [Header(*one) for one in batches],
            start_offset=0,
            end_offset=10,
            latest_epoch=latest_epoch,
            leader_epoch=5,
            may_lack=may_lack,
        )
        assert found == expected, f"seed {seed}: {batches}, latest epoch {latest_epoch}"
        wholly += found.accepted == len(batches) > 0
        partly += 0 < found.accepted < len(batches)
    assert wholly > 200
    assert partly > 200


def test_the_first_batches_of_a_run() -> None:
    run = columns((10, 12, 3), (12, 13, 4), (13, 20, 5))
    assert first_of(run, 3) == run
    assert first_of(run, 2) == columns((10, 12, 3), (12, 13, 4))


KIB = 1024


@pytest.mark.parametrize(
    ("size", "left", "batches", "end"),
    [
        (100, 5 * KIB, 1, 100),
        (100, 5 * KIB, 3, 300),
        (100, 250, 3, 250),
        (100, 100, 3, 100),
        (100, 99, 1, 0),
        (100, 11, 1, 0),
        (100, 0, 1, 0),
        (100 * KIB, 2000 * KIB, 6, 512 * KIB),
        (600 * KIB, 2000 * KIB, 6, 600 * KIB),
    ],
)
def test_a_run_is_of_so_many_batches_like_the_first_within_half_a_mebibyte(
    size: int, left: int, batches: int, end: int
) -> None:
    data = bytearray(7 + left)
    data[7 + 8 : 7 + 12] = (size - 12).to_bytes(4, "big")
    if left < 12:
        data = data[: 7 + left]
    assert end_of_run(memoryview(data), 7, batches) == 7 + end


def test_headers_of_real_batches_are_judged() -> None:
    headers = list(iter_headers(raw((10, 2, 3), (12, 3, 5), (15, 1, 6))))
    found = appendable_prefix(
        headers, start_offset=0, end_offset=10, latest_epoch=3, leader_epoch=5, may_lack=False
    )
    assert (found.accepted, found.end_offset, found.latest_epoch) == (2, 15, 5)


# -- acks


def test_any_number_of_waiters_is_told_once_and_in_order() -> None:
    for seed in range(50):
        random, queue, mark = Random(seed), AckQueue(), 0
        waiting: list[tuple[int, int]] = []
        waiters = {}
        for number in range(300):
            act = random.random()
            if act < 0.5:
                offset = mark + random.randint(1, 20)
                waiters[number] = queue.wait(number, offset)
                waiting.append((offset, number))
            elif act < 0.8 and waiting:
                offset, gone = random.choice(waiting)
                assert queue.give_up(waiters[gone]), f"seed {seed}"
                waiting.remove((offset, gone))
            else:
                mark += random.randint(0, 8)
                told = [one.key for one in queue.passed(mark)]
                expected = sorted(one for one in waiting if one[0] <= mark)
                assert told == [number for _, number in expected], f"seed {seed}"
                waiting = [one for one in waiting if one[0] > mark]
            assert len(queue) == len(waiting), f"seed {seed}"
        assert [one.key for one in queue.dismiss()] == [number for _, number in sorted(waiting)]


def test_waiters_that_gave_up_leave_the_queue_when_they_are_64_and_the_majority() -> None:
    queue = AckQueue()
    waiters = [queue.wait(number, 10) for number in range(128)]
    for waiter in waiters[:64]:
        assert queue.give_up(waiter)
    assert len(queue._heap) == 128, "half of them are not the greater part"
    assert queue.give_up(waiters[64])
    assert len(queue) == len(queue._heap) == 63
    few = AckQueue()
    waiters = [few.wait(number, 10) for number in range(64)]
    while len(waiters) > 1:
        few.give_up(waiters.pop())
    assert len(few._heap) == 64, "63 are not many"
    few.give_up(waiters.pop())
    assert not few._heap
    assert len(few) == 0


class Key:
    """Object held by a request, to see when it is freed."""


def test_the_request_of_a_waiter_that_gives_up_is_freed_at_once() -> None:
    queue, key = AckQueue(), Key()
    held, waiter = weakref.ref(key), queue.wait(key, 10)
    del key
    assert queue.give_up(waiter)
    assert held() is None


def test_waiters_that_gave_up_do_not_accumulate() -> None:
    queue = AckQueue()
    queue.wait("stays", 10)
    for number in range(10_000):
        queue.give_up(queue.wait(number, 10))
    assert len(queue._heap) <= 2 * 64 + 1
    assert [one.key for one in queue.passed(10)] == ["stays"]
