"""A commit that is like the last one of its connection is written, answered and replayed from that one's plan
as the ordinary way would do it, byte for byte; no other commit is taken for one that is like it.
"""

from __future__ import annotations

import tracemalloc
from array import array
from random import Random
from typing import Any

import pytest

from service.coordinator.batching import OpenBatch, size_of
from service.groups import quick_commits
from service.groups.commit_plans import COMPARED_FROM, CommitPlan, CommitPlans
from service.groups.offsets import CommittedOffsets
from service.records import commit_kernel, commit_plan_kernel
from service.records.batch import CompressionType, stamp
from service.wire.api import RequestHeader, parse_request_header
from tests.property.groups.test_quick_commits import Coordinator, ordinary, state
from tests.support.kernels import interpreted
from tests.support.wire import encode_request, schema

LIVES = [
    commit_plan_kernel,
    *(interpreted(with_cython=found)["commit_plan_kernel"] for found in (True, False)),
]
EPOCH = 7
HOLE = 12
BEHIND_CORRELATION_ID = 8


def planned(of: Coordinator, header: RequestHeader, frame: bytes) -> tuple[CommitPlan, bytes] | None:
    """The plan of a request, and its marks; None if it is not plain, or too large."""
    plain = quick_commits.read(memoryview(frame), header.body, header.api_version)
    if plain is None:
        return None
    decided = quick_commits.decide(plain, of.shard, of.world.topics, of.world.leader.now_ms)
    if decided is None:
        return None
    block, _ = decided
    parts = block.plan_parts(COMPARED_FROM)
    if parts is None:
        return None
    answer = quick_commits.answer(plain, block, header.correlation_id)
    token, offsets = of.world.topics.token, of.shard.offsets
    return CommitPlan(plain, parts, "client", answer, token, 0, offsets), parts.marks


def holes(marks: bytes) -> list[int]:
    return [int.from_bytes(marks[at : at + 2]) for at in range(0, len(marks), commit_plan_kernel.MARK_BYTES)]


def other_offsets(random: Random, start: int, frame: bytes, marks: bytes) -> bytes:
    """The request with other offsets and leader epochs; `marks` count from `start`."""
    changed = bytearray(frame)
    for hole in holes(marks):
        changed[start + hole : start + hole + HOLE] = random.randbytes(HOLE)
    return bytes(changed)


def check(of: Coordinator) -> bool:
    """Whether a plan took the request that is like another."""
    random, leader, shard = of.random, of.world.leader, of.shard
    header, frame = of.request()
    found = planned(of, header, frame)
    if found is None:
        ordinary(of, header, frame, leader.now_ms, write=random.random() < 0.2)
        return False
    plan, marks = found
    token, offsets = of.world.topics.token, shard.offsets
    like = bytearray(other_offsets(random, BEHIND_CORRELATION_ID, frame, marks))
    like[4:8] = random.randbytes(4)
    header = parse_request_header(like)
    # What is not like it: another API or version, client, group, topic, partition or size.
    inside = {at for hole in holes(marks) for at in range(hole, hole + HOLE)}
    outside = [0, 1, 2, 3, *(at for at in range(8, len(frame)) if at - BEHIND_CORRELATION_ID not in inside)]
    for at in (random.choice(outside), random.randrange(4), header.body - 1):
        unlike = bytearray(like)
        unlike[at] ^= 1 << random.randrange(8)
        assert not plan.takes(memoryview(unlike), token, offsets)
    for other in (bytes(like[:-1]), bytes(like) + b"\0", b"", bytes(like[:7])):
        assert not plan.takes(memoryview(other), token, offsets)
    assert not plan.takes(memoryview(like), object(), offsets)
    assert not plan.takes(memoryview(like), token, CommittedOffsets(shard.journal))
    # What is.
    assert plan.takes(memoryview(like), token, offsets)
    expected = ordinary(of, header, bytes(like), leader.now_ms)
    assert expected is not None, "the ordinary way refuses it"
    decision, answer = expected
    base = len(leader.log)
    theirs = OpenBatch(base, 0)
    theirs.add(decision.records, size_of(decision.records), leader.now_ms)
    batch = theirs.build(CompressionType.NONE)
    stamp(batch, 0, base, EPOCH)
    assert plan.build(base, EPOCH, leader.now_ms) == batch
    assert (plan.count, plan.size) == (len(decision.records), len(batch))
    assert plan.answer() == answer
    assert quick_commits.accepted_effects(plan.plain, shard, leader.now_ms) == decision.effects
    leader.ask(lambda shard, ticket, now: decision)
    seen = state(shard)
    shard.journal._offset = base - 1  # as if it had not been replayed
    shard.journal.at(base + plan.count - 1)
    plan.replay(base)
    assert state(shard) == seen
    return True


@pytest.mark.parametrize("block", range(3))
def test_a_commit_like_the_last_one_is_what_the_ordinary_way_makes_of_it(block: int) -> None:
    taken = 0
    for seed in range(block * 4, block * 4 + 4):
        try:
            coordinator = Coordinator(seed)
            for _ in range(50):
                taken += check(coordinator)
        except BaseException:
            print("seed", seed)
            raise
    assert taken > 20


def test_a_size_in_more_bytes_than_it_needs_gets_no_plan() -> None:
    """Where all bytes before it are the same, offset and epoch look right one byte further on, too."""
    coordinator, module = Coordinator(1), schema(8, 9)
    same = b"\x81" * 12
    partition = module.OffsetCommitRequestPartition(
        partition_index=0,
        committed_offset=int.from_bytes(same[:8], signed=True),
        committed_leader_epoch=int.from_bytes(same[8:], signed=True),
        committed_metadata="",
    )
    topic = module.OffsetCommitRequestTopic(name="orders", partitions=(partition,))
    frame = encode_request(
        module.OffsetCommitRequest(
            group_id="simple", generation_id_or_member_epoch=-1, member_id="", topics=(topic,)
        )
    )
    header = parse_request_header(frame)
    found = planned(coordinator, header, frame)
    assert found is not None
    end = frame.index(same) + len(same)
    assert holes(found[1]) == [end - HOLE - BEHIND_CORRELATION_ID]
    assert frame[end] == 1
    longer = frame[:end] + b"\x81\0" + frame[end + 1 :]
    assert ordinary(coordinator, header, longer, coordinator.world.leader.now_ms) is not None
    for life in LIVES:
        head, topics, rows = (array("q", bytes(8 * size)) for size in (7, 10, 10))
        read = commit_kernel.read_commit(longer, header.body, 9, 2, head, topics, rows)
        assert read == 1
        assert life.find_marks(longer, header.body, 9, rows, 0, 1, 15, 61) is None


def _told(life: Any, random: Random, header: RequestHeader, frame: bytes) -> list[Any]:
    """What a life of the kernel makes of the request and of one that is like it."""
    head, topics, rows = (array("q", bytes(8 * size)) for size in (7, 1000, 1000))
    found = commit_kernel.read_commit(frame, header.body, header.api_version, 200, head, topics, rows)
    told: list[Any] = [found]
    first = 0
    for number in range(found):
        count, raw_id, prefix = topics[5 * number + 2], bytes(range(16)), b"\0\1\0\1g\0\1t"
        marks = life.find_marks(frame, header.body, header.api_version, rows, first, count, len(prefix), 61)
        told.append(marks)
        first += count
        if marks is None:
            continue
        like, body = other_offsets(random, header.body, frame, marks), frame[header.body :]
        told.append(life.is_same(like, header.body, body, marks))
        unlike = bytearray(like)
        unlike[random.randrange(header.body, len(frame))] ^= 1
        told.append(life.is_same(bytes(unlike), header.body, body, marks))
        batch = bytearray(61) + bytes(1 << 16)
        life.fill_batch(like, header.body, marks, batch, 1 << 40, 3, 1 << 41)
        places, tails = list(range(count)), [raw_id + bytes(one % 5) for one in range(count)]
        state_of: dict[Any, bytes] = {}
        life.fill_rows(batch, marks, places, tails, 1 << 33, bytearray(60), state_of)
        told += [bytes(batch), state_of]
    return told


def test_all_lives_of_the_kernel_are_alike() -> None:
    for seed in range(6):
        try:
            coordinator = Coordinator(seed)
            for number in range(25):
                header, frame = coordinator.request()
                first, *others = (_told(life, Random(number), header, frame) for life in LIVES)
                for other in others:
                    assert other == first
        except BaseException:
            print("seed", seed)
            raise


@pytest.mark.parametrize("life", LIVES)
def test_the_kernel_writes_nowhere_else(life: Any) -> None:
    rows, room = array("q", (0, 5, 1, 14, 0)), bytearray(61 + 30)
    beyond_request, beyond_batch = b"\0\1\0\75\0\111", b"\0\0\0\120\0\75"
    with pytest.raises(IndexError):
        life.find_marks(b"request", 0, 9, rows, 0, 2, 4, 61)
    assert life.find_marks(b"request", 0, 9, rows, 0, 1, 4, 61) is None
    for marks in (beyond_request, beyond_batch, b"\0\0\0\75\0\124"):
        with pytest.raises(IndexError):
            life.fill_batch(bytes(12), 0, marks, room, 0, 0, 0)
    with pytest.raises(IndexError):
        life.fill_batch(bytes(12), 0, b"", bytearray(60), 0, 0, 0)
    for marks, tails, out in (
        (beyond_batch, [bytes(16)], 60),
        (b"\0\0\0\75\0\75", [bytes(16)], 51),
        (b"\0\0\0\75\0\75", [], 60),
    ):
        with pytest.raises(IndexError):
            life.fill_rows(room, marks, ["place"], tails, 0, bytearray(out), {})
    assert not any(room)


class Planned:
    """As much of a plan as its cache looks at."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.taken = self.misses = 0
        self.wait = 1


def plans_of(*kept: int) -> CommitPlans:
    plans = CommitPlans()
    for number, one in enumerate(kept):
        plans.put(number, Planned(one))  # type: ignore[arg-type]
    return plans


def test_the_oldest_plans_go_when_they_keep_too_much() -> None:
    plans = plans_of(4 << 20, 2 << 20, 1 << 20)
    assert (len(plans), plans.kept) == (3, 7 << 20)
    plans.put(3, Planned(7 << 20))  # type: ignore[arg-type]
    assert (len(plans), plans.kept) == (3, 10 << 20)
    assert plans.find(0) is None
    assert plans.find(1) is not None


def _plan_of(coordinator: Coordinator, partitions: int, metadata: int, member: int) -> CommitPlan:
    module = schema(8, 9)
    numbers = range(partitions)
    topic = module.OffsetCommitRequestTopic(
        name="caf\u00e9",
        partitions=tuple(
            module.OffsetCommitRequestPartition(
                partition_index=number,
                committed_offset=7,
                committed_leader_epoch=1,
                committed_metadata="m" * metadata,
            )
            for number in numbers
        ),
    )
    request = module.OffsetCommitRequest(
        group_id="simple", generation_id_or_member_epoch=-1, member_id="m" * member, topics=(topic,)
    )
    frame = encode_request(request)
    found = planned(coordinator, parse_request_header(frame), frame)
    assert found is not None
    return found[0]


@pytest.mark.parametrize(("partitions", "metadata", "member"), [
    (1, 0, 0), (10, 0, 0), (199, 0, 0), (10, 4096, 0), (1, 4096, 0), (1, 0, 16_000),
])  # fmt: skip
def test_a_plan_counts_for_what_it_keeps(partitions: int, metadata: int, member: int) -> None:
    """Metadata and names of members are the client's to choose."""
    coordinator = Coordinator(1)
    _plan_of(coordinator, partitions, metadata, member)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        plans = [_plan_of(coordinator, partitions, metadata, member) for _ in range(10)]
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept <= sum(plan.kept for plan in plans) * 1.15


def test_a_plan_ends_with_its_connection() -> None:
    plans = plans_of(10, 5)
    plans.drop(0)
    plans.drop(0)
    assert plans.find(0) is None
    assert (len(plans), plans.kept) == (1, 5)


def committing(plans: CommitPlans, *shapes: str) -> tuple[list[int], int]:
    """Which commits of a connection got plans, the first is 1, and how many a plan took."""
    got, taken, planned_shape = [], 0, ""
    for number, shape in enumerate(shapes, 1):
        plan = plans.find(5)
        if plan is not None and shape == planned_shape:
            plan.misses = 0
            plan.taken += 1
            taken += 1
        elif plans.wants(5, 100):
            plans.put(5, Planned(1))  # type: ignore[arg-type]
            planned_shape = shape
            got.append(number)
    return got, taken


def test_a_connection_that_commits_something_else_each_time_gets_plans_ever_more_seldom() -> None:
    got, taken = committing(plans_of(), *map(str, range(1, 40)))
    assert (got, taken) == ([1, 2, 4, 8, 16, 32], 0)
    assert not plans_of().wants(6, commit_plan_kernel.MOST_BYTES + 1)


@pytest.mark.parametrize(("turns", "got", "taken"), [("ab", [1, 2], 99), ("aab", [1, 3, 5], 131)])
def test_a_connection_that_commits_by_turns_keeps_one_plan(turns: str, got: list[int], taken: int) -> None:
    assert committing(plans_of(), *(turns * 200)[:200]) == (got, taken)


def test_a_connection_that_commits_other_partitions_from_now_on_gets_a_plan_soon() -> None:
    assert committing(plans_of(), *"abc", *"d" * 20, *"e" * 20) == ([1, 2, 4, 27], 35)


def test_a_connection_without_room_gets_that_of_another_once_in_sixteen() -> None:
    plans = plans_of(*[1 << 20] * 11)
    got = []
    for number in range(11, 60):
        if plans.wants(number, 100):
            plans.put(number, Planned(1 << 20))  # type: ignore[arg-type]
            got.append(number)
    assert got == [26, 42, 58]
    assert len(plans) == 10
    plans.drop(58)
    assert plans.wants(60, 100)
