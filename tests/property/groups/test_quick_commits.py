"""A plain commit is written, answered and replayed as the ordinary way would do it, byte for byte; what is
not plain is left to that.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.coordinator.batching import OpenBatch, size_of
from service.coordinator.shard import LATER, CoordinatorResult
from service.groups import quick_commits
from service.groups.offset_commits import known_commit
from service.groups.shard import GroupShard
from service.records import commit_kernel
from service.records.batch import CompressionType
from service.wire.api import RequestHeader, parse_request_header, read_request, response_frame
from service.wire.errors import WireError
from service.wire.primitives import ManyElements
from tests.support.consumer_groups import Consumers, World
from tests.support.kernels import interpreted
from tests.support.wire import encode_request, schema

COMMIT = 8
LIVES = [commit_kernel, *(interpreted(with_cython=found)["commit_kernel"] for found in (True, False))]
METADATA = ("", "", "", None, "a", "m" * 126, "m" * 127, "m" * 4096, "m" * 4097, "\u00e9t\u00e9")


NAMES = frozenset({"orders", "bills", "caf\u00e9"})


class Coordinator:
    """Groups of all kinds, and random commits to them."""

    may_use: Callable[[str], bool] | None = None
    """Topics that the client may use, in both ways."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World()
        for name, partitions in (("orders", 12), ("bills", 1), ("caf\u00e9", 300)):
            self.world.make_topic(name, partitions)
        members = Consumers(self.world)
        assert members.enter("modern", "orders").error_code == ErrorCode.none
        (one, two), generation = members.stable("a", "b", group_id="classic")
        joining = members.join(group_id="static", instance="i1")
        self.world.leader.advance(0)
        static, static_generation = members.answer(joining).member_id, members.answer(joining).generation_id
        members.sync(static, static_generation, {static: b""}, group_id="static")
        (alone,), _ = members.stable("j", group_id="joining")
        members.join(group_id="joining", client_id="later")
        epoch = members.member("modern").epoch
        self.committers = [
            ("classic", generation, one, None), ("classic", generation, two, None),
            ("classic", generation + 1, one, None), ("classic", -1, "", None),
            ("classic", generation, "?", None),
            ("static", static_generation, static, "i1"), ("static", static_generation, static, None),
            ("static", static_generation, static, "i2"), ("joining", 1, alone, None),
            ("g", epoch, "modern", None), ("g", epoch, "modern", "i9"), ("g", epoch + 1, "modern", None),
            ("g", epoch - 1, "modern", None), ("g", -1, "", None), ("nobody", -1, "", None),
            ("nobody", 3, "m", None),
        ]  # fmt: skip
        for group_id in ("simple", "", "gr\u00fcn", "x" * 300):
            self.committers += [(group_id, -1, "", None)] * 3 + [(group_id, 0, "", None)]
            header, frame = self._request(9, (group_id, -1, "", None), (("orders", (0,)),))
            ordinary(self, header, frame, self.world.leader.now_ms, write=True)

    @property
    def shard(self) -> GroupShard:
        return self.world.leader.shard

    def request(self) -> tuple[RequestHeader, bytes]:
        random = self.random
        version = random.choice((2, 5, 6, 7, 8, 9, 9, 10, 10))
        topics = []
        for name in random.sample(
            ("orders", "bills", "caf\u00e9", "nowhere"), random.choice((1, 1, 1, 2, 3, 0))
        ):
            there = self.world.topics.get(name)
            limit = 2 if there is None else there.partitions + (random.random() < 0.1)
            most = random.choice((1, 3, 12, 12, 40, 260))
            numbers = [random.randrange(limit) for _ in range(random.randint(random.random() > 0.05, most))]
            topics.append((name, tuple(numbers)))
        return self._request(version, random.choice(self.committers), tuple(topics))

    def _request(
        self, version: int, who: tuple[str, int, str, str | None],
        topics: tuple[tuple[str, tuple[int, ...]], ...],
    ) -> tuple[RequestHeader, bytes]:  # fmt: skip
        random, module = self.random, schema(COMMIT, version)
        is_bare = random.random() < 0.8
        made = []
        for name, numbers in topics:
            partitions = tuple(
                module.OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=random.choice((0, 7, 1 << 40, -1)),
                    committed_metadata="" if is_bare else random.choice(METADATA),
                    **({"committed_leader_epoch": random.choice((-1, 0, 5))} if version >= 6 else {}),
                )
                for number in numbers
            )
            there = self.world.topics.get(name)
            topic_id = UUID(int=99) if there is None else there.topic_id
            about: dict[str, Any] = {"topic_id": topic_id} if version >= 10 else {"name": name}
            made.append(module.OffsetCommitRequestTopic(partitions=partitions, **about))
        group_id, epoch, member_id, instance_id = who
        more = {"group_instance_id": instance_id} if version >= 7 else {}
        request = module.OffsetCommitRequest(
            group_id=group_id, generation_id_or_member_epoch=epoch, member_id=member_id, topics=tuple(made),
            **more,
        )  # fmt: skip
        frame = encode_request(request, random.randrange(1 << 31), "c")
        return parse_request_header(frame), frame


def ordinary(
    of: Coordinator, header: RequestHeader, frame: bytes, now_ms: int, *, write: bool = False
) -> tuple[CoordinatorResult[Any], bytes] | None:
    """What the ordinary way decides and answers, where it takes everything there is; `write`: it is done."""
    version = header.api_version
    try:
        known = known_commit(read_request(header, frame, 256), of.world.topics, version, of.may_use)
        decision = of.shard.commit_offsets(known.request, version, now_ms)
    except (RequestError, WireError, ManyElements):
        return None
    assert decision.response is not LATER
    if write:
        of.world.leader.ask(lambda shard, ticket, now: decision)
    return decision, bytes(response_frame(header, known.answer(decision.response)))


def check(of: Coordinator, header: RequestHeader, frame: bytes) -> bool:
    """Whether the request was plain."""
    shard, leader, random = of.shard, of.world.leader, of.random
    now_ms = leader.now_ms
    allowed = random.choice((None, NAMES, NAMES - {random.choice(sorted(NAMES))}, frozenset[str]()))
    of.may_use = None if allowed is None else allowed.__contains__
    plain = quick_commits.read(memoryview(frame), header.body, header.api_version)
    decided = (
        None if plain is None else quick_commits.decide(plain, shard, of.world.topics, now_ms, of.may_use)
    )
    if plain is None or decided is None:
        ordinary(of, header, frame, now_ms, write=random.random() < 0.2)
        return False
    block, effects = decided
    answer = quick_commits.answer(plain, block, header.correlation_id)
    expected = ordinary(of, header, frame, now_ms)
    assert expected is not None, "the ordinary way refuses it"
    decision, ordinary_answer = expected
    assert answer == ordinary_answer
    assert effects == decision.effects
    assert (block.count, block.size) == (len(decision.records), size_of(decision.records))
    # Behind others in a batch, and alone.
    base, before = len(leader.log), random.choice((0, 1, 63, 64))
    ours, theirs = (OpenBatch(base - before, 0) for _ in range(2))
    for batch in (ours, theirs):
        for number in range(before):
            batch.add(decision.records[:1], 1, now_ms - 100 - (number == 0) * 100)
    ours.add_block(block, now_ms)
    theirs.add(decision.records, block.size, now_ms)
    assert len(ours) == len(theirs)
    assert ours.build(CompressionType.NONE) == theirs.build(CompressionType.NONE)
    # Replayed: the leader replays the records one by one, the block is put over them, committed or not.
    leader.ask(lambda shard, ticket, now: decision)
    seen = state(shard)
    shard.journal._offset = base - 1  # as if it had not been
    if random.random() < 0.5:
        shard.journal.at(base + block.count - 1)
        block.replay(base, is_committed=True)
    else:
        shard.journal.at(base)
        block.replay(base, is_committed=False)
    assert state(shard) == seen
    return True


def state(shard: GroupShard) -> dict[Any, Any]:
    groups = tuple(shard.groups)
    return {(group, place): at for group in groups for place, at in shard.offsets.of_group(group)}


@pytest.mark.parametrize("block", range(6))
def test_a_plain_commit_is_what_the_ordinary_way_makes_of_it(block: int) -> None:
    plain = 0
    for seed in range(block * 5, block * 5 + 5):
        try:
            coordinator = Coordinator(seed)
            for _ in range(60):
                plain += check(coordinator, *coordinator.request())
        except BaseException:
            print("seed", seed)
            raise
    assert plain > 20


@pytest.mark.parametrize("block", range(6))
def test_damaged_commits_are_refused_by_both_paths(block: int) -> None:
    """A byte changed, or the end cut off, or bytes behind it: it is refused, or it is what the ordinary way
    reads.
    """
    for seed in range(block * 5, block * 5 + 5):
        random = Random(seed)
        try:
            coordinator = Coordinator(seed)
            for _ in range(40):
                header, frame = coordinator.request()
                damaged = bytearray(frame)
                for _ in range(random.choice((0, 1, 1, 2))):
                    if len(damaged) > header.body:
                        damaged[random.randrange(header.body, len(damaged))] = random.choice(
                            (0, 1, 127, 128, 255)
                        )
                if random.random() < 0.3:
                    del damaged[random.randrange(header.body, len(damaged) + 1) :]
                if random.random() < 0.1:
                    damaged += b"\0\1more"
                check(coordinator, header, bytes(damaged))
        except BaseException:
            print("seed", seed)
            raise


def _told(life: Any, frame: bytes, position: int, version: int, most: int) -> list[Any]:
    head, topics, rows = (array("q", bytes(8 * size)) for size in (7, 5 * most, 5 * most))
    found = life.read_commit(frame, position, version, most, head, topics, rows)
    told = [found]
    if found < 0:
        return told
    told += [list(head), list(topics), list(rows)]
    first = 0
    for number in range(found):
        count = topics[5 * number + 2]
        out = bytearray(1 << 17)
        raw_id, prefix = bytes(range(16)), b"\0\1\0\1g\0\1t"
        end = life.write_records(
            frame, rows, first, count, prefix, raw_id, 60 + first, 70_000, 1 << 41, out, 3
        )
        told.append((end, bytes(out)))
        told.append(life.pack_rows(frame, rows, first, count, b"\0\1t", raw_id, 1 << 33, 1 << 41, out))
        first += count
    told.append(life.write_answer(frame, version, -5, topics, found, rows, bytearray(1 << 17)))
    return told


@pytest.mark.parametrize("block", range(3))
def test_all_lives_of_the_kernel_are_alike(block: int) -> None:
    for seed in range(block * 3, block * 3 + 3):
        random = Random(seed)
        try:
            coordinator = Coordinator(seed)
            for _ in range(25):
                header, frame = coordinator.request()
                damaged = bytearray(frame)
                if random.random() < 0.5:
                    damaged[random.randrange(header.body, len(damaged))] = random.choice(
                        (0, 1, 127, 128, 255)
                    )
                if random.random() < 0.2:
                    del damaged[random.randrange(header.body, len(damaged)) :]
                first, *others = (
                    _told(life, bytes(damaged), header.body, header.api_version, random_most)
                    for random_most in [random.choice((1, 4, 200))]
                    for life in LIVES
                )
                for other in others:
                    assert other == first
        except BaseException:
            print("seed", seed)
            raise


def test_the_kernel_writes_nowhere_else() -> None:
    """Arrays that are too small are refused, whatever they say."""
    for life in LIVES:
        rows = array("q", (0, 5, 1, 0, 0))
        room = bytearray(200)
        with pytest.raises(IndexError):
            life.read_commit(b"request", 0, 9, 2, array("q", bytes(56)), array("q", bytes(40)), rows)
        with pytest.raises(IndexError):
            life.write_records(b"request", rows, 0, 2, b"key", bytes(16), 0, 0, 0, room, 0)
        with pytest.raises(IndexError):
            life.write_records(b"request", rows, 0, 1, b"key", bytes(16), 0, 0, 0, room, 150)
        with pytest.raises(IndexError):
            life.write_records(b"request", rows, 0, 1, b"key", bytes(16), -1, 0, 0, room, 0)
        beyond = array("q", (0, 5, 1, 5, 3))
        with pytest.raises(IndexError):
            life.pack_rows(b"request", beyond, 0, 1, b"topic", bytes(16), 0, 0, room)
        with pytest.raises(IndexError):
            life.write_answer(b"request", 9, 1, array("q", (0, 9, 1, 0, 0)), 1, rows, room)
        with pytest.raises(IndexError):
            life.write_answer(b"request", 9, 1, array("q", (0, 3, 50, 0, 0)), 1, rows, room)
