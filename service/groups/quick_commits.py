"""Fast path of OffsetCommit, from the request's bytes to its records and its response. [P]

Nearly all commits are alike: of a simple group, or of a member with the right generation or epoch, for
existing partitions, with nothing rejected. This module decides those without an object per partition. All
others go to `offset_commits`, which alone decides what is rejected. Records, response and effects of the fast
path equal those of `offset_commits`, byte for byte.

>>> read(memoryview(b"no request"), 0, 9) is None
True
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Final, NamedTuple

from service.coordinator.batching import RECORD_OVERHEAD
from service.coordinator.ports import CoordinatorTopic, TopicsView
from service.coordinator.shard import Effect, Schedule
from service.groups.classic.group import ClassicGroup
from service.groups.classic.rebalance_step import SESSION
from service.groups.consumer.group import ConsumerGroup
from service.groups.offset_commits import TOPIC_IDS_FROM, MayUse
from service.groups.offsets import CommittedOffsets
from service.groups.records import MAX_STRING_BYTES, offset_key_prefix
from service.groups.requests import NO_MEMBER
from service.groups.shard import GroupShard
from service.records.batch import HEADER_SIZE
from service.records.commit_kernel import (
    EPOCH,
    GROUP,
    GROUP_SIZE,
    HEAD_FIELDS,
    INSTANCE,
    INSTANCE_SIZE,
    MEMBER,
    MEMBER_SIZE,
    ROW_BYTES,
    ROW_FIELDS,
    TOPIC_FIELDS,
    VALUE_BYTES,
    pack_rows,
    read_commit,
    write_answer,
    write_records,
)
from service.records.commit_plan_kernel import find_marks
from service.wire.primitives import uuid_from_bytes

MOST: Final = 200
"""Most topics and partitions of one commit; a larger one is mostly split into several decisions anyway."""
_COMMITS_BY_EPOCH_FROM: Final = 9
_LONGEST_ID: Final = 250
"""Longest group id of a plain commit; it bounds the cache of key prefixes."""
_LONGEST_METADATA: Final = 16_000
_KEY_PARTITION: Final = 4
_KEY_HEAD: Final = 4
_NO_EFFECTS: Final[tuple[Effect, ...]] = ()

_head = array("q", bytes(8 * HEAD_FIELDS))
_topics = array("q", bytes(8 * TOPIC_FIELDS * MOST))
_rows = array("q", bytes(8 * ROW_FIELDS * MOST))
_out = bytearray(1 << 16)
_row = bytearray(ROW_BYTES + _LONGEST_METADATA + MAX_STRING_BYTES)
"""Buffers for one request at a time: the records of a request are written before the next is read."""


class PlainRequest(NamedTuple):
    """A parsed request; its topics and partitions are in this module's arrays."""

    frame: memoryview
    version: int
    group_id: str
    group_bytes: int
    epoch: int
    member_id: str
    instance_id: str | None
    topics: int


def read(frame: memoryview, position: int, version: int) -> PlainRequest | None:
    """Parse the request whose body begins at `position`; None if it is not plain. Valid until the next
    call."""
    topics = read_commit(frame, position, version, MOST, _head, _topics, _rows)
    if topics < 0:
        return None
    head = _head
    instance_id = None
    try:
        group_id = str(frame[head[GROUP] : head[GROUP] + head[GROUP_SIZE]], "utf-8")
        member_id = NO_MEMBER
        if head[MEMBER_SIZE]:
            member_id = str(frame[head[MEMBER] : head[MEMBER] + head[MEMBER_SIZE]], "utf-8")
        if head[INSTANCE_SIZE] >= 0:
            instance_id = str(frame[head[INSTANCE] : head[INSTANCE] + head[INSTANCE_SIZE]], "utf-8")
    except UnicodeDecodeError:
        return None
    if len(group_id) > _LONGEST_ID:
        return None
    return PlainRequest(
        frame, version, group_id, head[GROUP_SIZE], head[EPOCH], member_id, instance_id, topics
    )


class PlanParts(NamedTuple):
    """A plain commit that is alone in its batch: the parts of `commit_plans.CommitPlan`."""

    records: bytes
    """with offsets, epochs and times of any value"""
    marks: bytes
    """see `records/commit_plan_kernel`"""
    names: tuple[str, ...]
    """of the topics"""
    rests: list[bytes]
    """each record's key, behind the group"""
    tails: list[bytes]
    """each row, behind its numbers"""


class PlainCommit:
    """A `RecordBlock`: records of a plain request that has been accepted."""

    __slots__ = ("_commit_ms", "_group_id", "_offsets", "_packed", "_plain", "_topics", "count", "size")

    def __init__(
        self,
        plain: PlainRequest,
        topics: list[tuple[CoordinatorTopic, bytes]],
        offsets: CommittedOffsets,
        commit_ms: int,
    ) -> None:
        """`topics`: each topic of the request, with the prefix of its records' keys."""
        self._plain: PlainRequest | None = plain
        self._topics = topics
        self._group_id = plain.group_id
        self._offsets = offsets
        self._commit_ms = commit_ms
        self._packed: list[tuple[list[bytes], list[bytes]]] = []
        self.count = count = 0
        self.size = 0
        """`size_of` the records"""
        for at, (_, prefix) in enumerate(topics):
            count = _topics[at * TOPIC_FIELDS + 2]
            each = RECORD_OVERHEAD + len(prefix) + _KEY_PARTITION + VALUE_BYTES
            self.count += count
            self.size += count * each + _topics[at * TOPIC_FIELDS + 4]

    def encode(self, offset: int, delta: int, timestamp_delta: int) -> bytes:
        """Return the records, and pack the offsets for `replay`: the request's bytes are not kept."""
        plain, self._plain = self._plain, None
        assert plain is not None
        frame, commit_ms = plain.frame, self._commit_ms
        out = _room(self.size)
        rest_at = _KEY_HEAD + plain.group_bytes
        first = at = 0
        for number, (topic, prefix) in enumerate(self._topics):
            count = _topics[number * TOPIC_FIELDS + 2]
            raw_id = topic.topic_id.bytes
            at = write_records(
                frame, _rows, first, count, prefix, raw_id, delta + first, timestamp_delta, commit_ms, out, at
            )
            self._packed.append(
                pack_rows(
                    frame, _rows, first, count, prefix[rest_at:], raw_id, offset + first, commit_ms, _row
                )
            )
            first += count
        return bytes(memoryview(out)[:at])

    @property
    def names(self) -> list[str]:
        """Names of the topics."""
        return [topic.name for topic, _ in self._topics]

    def plan_parts(self, position: int) -> PlanParts | None:
        """Return the parts of a plan for this commit, with marks from `position` of the request on; None if
        it is too large. Before `encode`."""
        plain = self._plain
        assert plain is not None
        frame, out, rest_at = plain.frame, _room(self.size), _KEY_HEAD + plain.group_bytes
        parts = PlanParts(b"", b"", tuple(self.names), [], [])
        first = at = 0
        found: list[bytes] = []
        for number, (topic, prefix) in enumerate(self._topics):
            count, raw_id = _topics[number * TOPIC_FIELDS + 2], topic.topic_id.bytes
            start = HEADER_SIZE + at
            marks = find_marks(frame, position, plain.version, _rows, first, count, len(prefix), start)
            if marks is None:
                return None
            found.append(marks)
            at = write_records(frame, _rows, first, count, prefix, raw_id, first, 0, 0, out, at)
            for row in range(first * ROW_FIELDS, (first + count) * ROW_FIELDS, ROW_FIELDS):
                parts.rests.append(prefix[rest_at:] + _rows[row].to_bytes(_KEY_PARTITION))
                metadata = _rows[row + 3]
                parts.tails.append(raw_id + bytes(frame[metadata : metadata + _rows[row + 4]]))
            first += count
        return parts._replace(records=bytes(memoryview(out)[:at]), marks=b"".join(found))

    def replay(self, offset: int, is_committed: bool) -> None:
        for rests, rows in self._packed:
            self._offsets.replay_rows(offset, self._group_id, rests, rows, is_committed)
            offset += len(rows)


def decide(
    plain: PlainRequest, shard: GroupShard, topics: TopicsView, now_ms: int, may_use: MayUse | None = None
) -> tuple[PlainCommit, tuple[Effect, ...]] | None:
    """Return the records and effects of the request; None if it is not plain after all, or has topics that
    the client may not use. Changes nothing."""
    effects = accepted_effects(plain, shard, now_ms)
    if effects is None:
        return None
    known: list[tuple[CoordinatorTopic, bytes]] = []
    count = metadata = 0
    for number in range(plain.topics):
        at, size, partitions, greatest, room = _topics[number * TOPIC_FIELDS : (number + 1) * TOPIC_FIELDS]
        topic = _topic(plain, at, size, topics)
        if topic is None or greatest >= topic.partitions:
            return None
        if may_use is not None and not may_use(topic.name):
            return None
        known.append((topic, _prefix(plain.group_id, topic.name)))
        count += partitions
        metadata += room
    if metadata > count:
        longest = max(_rows[ROW_FIELDS - 1 : count * ROW_FIELDS : ROW_FIELDS])
        if longest > min(shard.config().offset_metadata_max_bytes, MAX_STRING_BYTES, _LONGEST_METADATA):
            return None
    return PlainCommit(plain, known, shard.offsets, now_ms), effects


def _topic(plain: PlainRequest, at: int, size: int, topics: TopicsView) -> CoordinatorTopic | None:
    raw = plain.frame[at : at + size]
    if plain.version >= TOPIC_IDS_FROM:
        return topics.by_id(uuid_from_bytes(bytes(raw)))
    try:
        return topics.by_name(str(raw, "utf-8"))
    except UnicodeDecodeError:
        return None


def accepted_effects(plain: PlainRequest, shard: GroupShard, now_ms: int) -> tuple[Effect, ...] | None:
    """Return the effects of an accepted commit, as `Group.check_commit` and `is_alive` decide; None if not
    plain."""
    group_id, epoch = plain.group_id, plain.epoch
    group = shard.groups.get(group_id)
    if type(group) is ClassicGroup:
        if shard.classic.rebalance_of(group_id) is not None:
            return None
        if not group.members:
            return _NO_EFFECTS if epoch < 0 else None
        member = group.members.get(plain.member_id)
        if member is None or epoch != group.generation:
            return None
        if plain.instance_id is not None and group.instances.get(plain.instance_id) != plain.member_id:
            return None
        return (Schedule((SESSION, group_id, plain.member_id), now_ms + member.session_timeout_ms),)
    if type(group) is ConsumerGroup:
        of = group.members.get(plain.member_id)
        if of is None or epoch != of.epoch:
            return None
        is_known = of.classic is not None or plain.version >= _COMMITS_BY_EPOCH_FROM
        return _NO_EFFECTS if is_known else None
    return None


def answer(plain: PlainRequest, block: PlainCommit, correlation_id: int) -> bytes:
    """Return the encoded response, without errors."""
    out = _room(block.size)
    return write_answer(plain.frame, plain.version, correlation_id, _topics, plain.topics, _rows, out)


_prefix: Final = lru_cache(maxsize=4096)(offset_key_prefix)


def _room(size: int) -> bytearray:
    """Return a buffer for records of that size, or for the response to them."""
    return _out if size + 64 <= len(_out) else bytearray(size + 64)
