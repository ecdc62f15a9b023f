"""A session that looks at what was marked tells the same as one that looks at everything, every time."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.purgatory import ENOUGH, Purgatory
from service.partition.fetch_sessions import FetchSession, FetchSessions, PartitionRead
from service.replication.leader import LeaderState
from service.wire.fetch import FetchPartition, FetchPartitionResult

BYTES = 100
"""of each record"""
PARTITIONS = 6
FEW = st.integers(0, PARTITIONS - 1)


class Log:
    """A partition: so many records from a start on."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.high_watermark = self.end_offset = 0
        self.is_offline = False
        self.growth, self.stable = object(), object()
        self.leading: LeaderState | None = None

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark


class Asked(NamedTuple):
    offset: int
    most: int


class Told(NamedTuple):
    """What the client was told last, -1 where it was told of an error."""

    high_watermark: int
    start: int


def asking(index: int, asked: Asked) -> FetchPartition:
    return FetchPartition(index, -1, asked.offset, -1, -1, asked.most)


class SessionBesideAFullScan(RuleBasedStateMachine):
    """The model is Kafka's way: each fetch reads every partition, and leaves out what has not changed."""

    def __init__(self) -> None:
        super().__init__()
        self.purgatory = Purgatory(0)
        self.sessions = FetchSessions(self.purgatory, 10, 1000, lambda a, b: 77)
        self.logs: dict[int, Log] = {n: Log() for n in range(PARTITIONS)}
        self.asked: dict[int, Asked] = {}
        self.told: dict[int, Told] = {}
        self.session = self._begin()
        self.epoch = 1

    def _begin(self) -> FetchSession:
        session = self.sessions.open(0, privileged=False, uses_topic_ids=False, size=PARTITIONS)
        assert session is not None
        for index in range(PARTITIONS // 2):
            self.asked[index] = Asked(0, 1000)
            one = session.add("t", asking(index, self.asked[index]))
            look = self._look_at(session, one.asked, 1000)
            session.note_sent(look)
            self.told[index] = Told(look.result.high_watermark, look.result.log_start_offset)
        self.sessions.used(session, 0)
        return session

    # what happens to partitions

    @rule(index=FEW, count=st.integers(1, 5))
    def append(self, index: int, count: int) -> None:
        if index in self.logs and not self.logs[index].is_offline:
            log = self.logs[index]
            log.high_watermark += count
            self.purgatory.happened(log, count * BYTES)

    @rule(index=FEW)
    def trim(self, index: int) -> None:
        if index in self.logs and self.logs[index].start_offset < self.logs[index].high_watermark:
            self.logs[index].start_offset += 1
            self.purgatory.happened(self.logs[index], 0)

    @rule(index=FEW)
    def go(self, index: int) -> None:
        """The partition is deleted, or comes anew."""
        gone = self.logs.pop(index, None)
        if gone is None:
            self.logs[index] = Log()
        else:
            self.purgatory.happened(gone, ENOUGH)

    # what the client does

    @rule(
        changes=st.dictionaries(
            FEW, st.tuples(st.integers(0, 8), st.sampled_from([0, 150, 1000])), max_size=3
        ),
        forgotten=st.lists(FEW, max_size=2),
        room=st.sampled_from([0, 100, 250, 100_000]),
    )
    def fetch(self, changes: dict[int, tuple[int, int]], forgotten: list[int], room: int) -> None:
        asked = {index: Asked(*change) for index, change in changes.items()}
        self._fetch(asked, forgotten, room)

    @rule()
    def read_on(self) -> None:
        """As a consumer does: it asks for what follows."""
        changes = {}
        for index, asked in self.asked.items():
            log = self.logs.get(index)
            if log is not None and log.start_offset <= asked.offset < log.high_watermark:
                changes[index] = Asked(log.high_watermark, asked.most)
        self._fetch(changes, [], 100_000)

    def _fetch(self, changes: dict[int, Asked], forgotten: list[int], room: int) -> None:
        topics = [("t", [asking(index, asked) for index, asked in changes.items()])]
        session = self.sessions.resume(0, 77, self.epoch, 12, topics, [("t", forgotten)])
        for index, asked in changes.items():
            self.asked[index] = asked
            self.told.setdefault(index, Told(-1, -1))
        for index in forgotten:
            self.asked.pop(index, None)
            self.told.pop(index, None)
        if session is None:
            assert not self.asked
            self.session, self.epoch = self._begin(), 1
            return
        assert session is self.session
        self.epoch += 1
        self._answered(session, room)

    def _answered(self, session: FetchSession, room: int) -> None:
        size, told = 0, {}
        for one in tuple(session.dirty):
            if size >= room and room:
                break
            look = self._look_at(session, one.asked, room - size, min_one=size == 0)
            size += sum(len(part) for part in look.result.records if isinstance(part, bytes))
            session.note_read(look)
            if look.needs_response:
                session.note_sent(look)
                told[one.asked.partition] = look.result
        stopped = bool(room) and size >= room
        for index in self.asked:
            expected = self._full_scan(index)
            if index in told:
                result = told[index]
                assert (result.error_code, result.high_watermark, result.log_start_offset) == expected[:3]
                self.told[index] = Told(result.high_watermark, result.log_start_offset)
            elif not stopped and room >= 100_000:
                error, high_watermark, start, has_records = expected
                assert not has_records or self.asked[index].most < BYTES
                assert error == 0
                assert (high_watermark, start) == self.told[index], f"{index} has news that were not told"

    def _look_at(
        self, session: FetchSession, asked: FetchPartition, room: int, min_one: bool = True
    ) -> PartitionRead:
        of = session.partitions["t", asked.partition]
        error, high_watermark, start, has_records = self._full_scan(asked.partition, asked.fetch_offset)
        log = self.logs.get(asked.partition)
        if error:
            return PartitionRead(of, None, FetchPartitionResult(asked.partition, error))
        assert log is not None
        records = []
        if has_records and (min(room, asked.max_bytes) >= BYTES or min_one):
            records = [bytes(BYTES)]
        result = FetchPartitionResult(asked.partition, 0, high_watermark, high_watermark, start, records)
        return PartitionRead(of, log, result)

    def _full_scan(self, index: int, offset: int | None = None) -> tuple[int, int, int, bool]:
        """(error, high watermark, start, whether there are records) of one partition, as it is now."""
        offset = self.asked[index].offset if offset is None else offset
        log = self.logs.get(index)
        if log is None:
            return ErrorCode.unknown_topic_or_partition, -1, -1, False
        if not log.start_offset <= offset <= log.high_watermark:
            return ErrorCode.offset_out_of_range, -1, -1, False
        return 0, log.high_watermark, log.start_offset, offset < log.high_watermark

    @invariant()
    def what_is_not_dirty_has_no_news_and_is_watched(self) -> None:
        assert len(self.session.partitions) == len(self.asked)
        assert self.sessions.partition_count == self.session.size
        for (_, index), one in self.session.partitions.items():
            if one in self.session.dirty:
                continue
            error, high_watermark, start, has_records = self._full_scan(index)
            assert not error
            assert not has_records
            assert (high_watermark, start) == (one.high_watermark, one.log_start_offset)
            assert one.is_waiting
            assert one.watched is self.logs[index]


TestSessionBesideAFullScan = SessionBesideAFullScan.TestCase


class Room(NamedTuple):
    privileged: bool
    size: int
    created_ms: int


class CacheBesideAList(RuleBasedStateMachine):
    """Whose session ends for whose, beside Kafka's rule as its comment states it."""

    MOST, PARTITIONS_AT_MOST = 4, 60

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.number = 0
        self.sessions = FetchSessions(Purgatory(0), self.MOST, self.PARTITIONS_AT_MOST, self._next)
        self.known: dict[int, Room] = {}
        self.used: dict[int, int] = {}
        self.epochs: dict[int, int] = {}

    def _next(self, a: int, b: int) -> int:
        self.number += 1
        return self.number

    @rule(ms=st.sampled_from([1, 60_000, 119_000, 121_000]))
    def pass_time(self, ms: int) -> None:
        self.now += ms

    @rule(privileged=st.booleans(), size=st.sampled_from([1, 5, 20, 40, 61]))
    def begin(self, privileged: bool, size: int) -> None:
        session = self.sessions.open(self.now, privileged=privileged, uses_topic_ids=False, size=size)
        ended = [number for number in self.known if number not in self._there()]
        taken = len(self.known), sum(room.size for room in self.known.values())
        if session is None and not ended:
            # Nobody has to go for it, or it is too large for any room.
            fits = taken[0] < self.MOST and taken[1] + size <= self.PARTITIONS_AT_MOST
            assert size > self.PARTITIONS_AT_MOST or not fits
        for number in ended:
            room = self.known.pop(number)
            used = self.used.pop(number)
            stale = self.now - used > 120_000
            old = used - room.created_ms > 120_000
            evictable = old or (privileged and not room.privileged)
            assert stale or (evictable and (room.privileged, room.size) <= (privileged, size))
        if session is not None:
            for index in range(size):
                session.add("t", asking(index, Asked(0, 1)))
            self.sessions.used(session, self.now)
            self.known[session.id] = Room(privileged, size, self.now)
            self.used[session.id] = self.now
            self.epochs[session.id] = 1

    def _there(self) -> set[int]:
        return {number for number in self.known if self._probe(number)}

    def _probe(self, number: int) -> bool:
        """Whether the session lives: a wrong epoch is refused with another error than a wrong number."""
        try:
            self.sessions.resume(self.now, number, -7, 12, (), ())
        except RequestError as e:
            return e.code is ErrorCode.invalid_fetch_session_epoch
        raise AssertionError("epoch -7 was taken")

    @rule(pick=st.integers(0, 100))
    def use(self, pick: int) -> None:
        if self.known:
            number = sorted(self.known)[pick % len(self.known)]
            self.sessions.resume(self.now, number, self.epochs[number], 12, (), ())
            self.epochs[number] += 1
            self.used[number] = self.now

    @rule(pick=st.integers(0, 100))
    def end(self, pick: int) -> None:
        if self.known:
            number = sorted(self.known)[pick % len(self.known)]
            assert self.sessions.close(number)
            assert not self.sessions.close(number)
            del self.known[number], self.used[number]

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.sessions) == len(self.known) <= self.MOST
        assert self.sessions.partition_count == sum(room.size for room in self.known.values())
        assert self.sessions.partition_count <= self.PARTITIONS_AT_MOST


TestCacheBesideAList = CacheBesideAList.TestCase
