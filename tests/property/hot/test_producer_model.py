"""Idempotent producers of a log, compared with a model of the writes of each.

Any order of batches (the next one, repeated ones, gaps, epochs), rolls, cleanings, deletions at the start,
cuts, stops, crashes, lost snapshots, expiry, and a disk that is lost but for what an archive holds.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.disk import SystemDisk
from service.base.errors import RequestError
from service.base.steps import at_once
from service.config.settings import LogConfig
from service.hot.files import FileCache
from service.hot.log import LocalLog
from service.hot.producer_snapshot import decode_snapshot
from tests.support.world import make_world
from tests.unit.hot.cleanings import clean
from tests.unit.hot.logs import START_MS, TIP, batch

MASK: Final = 2**31 - 1
EXPIRATION_MS: Final = 60_000


class Sent(NamedTuple):
    """A batch as it was first written; all inclusive."""

    producer: int
    epoch: int
    first: int
    last: int
    base: int
    end: int


@dataclass
class Producer:
    """`sent`: its batches of the newest epoch, oldest first; of the last `sure` the log must know, of those
    up to five back it may."""

    sent: list[Sent] = field(default_factory=list)
    sure: int = 0


class ProducersOfALog(RuleBasedStateMachine):
    @initialize(segment_bytes=st.integers(400, 1500), start=st.sampled_from([0, MASK - 3]))
    def begin(self, segment_bytes: int, start: int) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="firn-producers-"))
        self.clock = ManualClock(START_MS)
        self.options: dict[str, Any] = {
            "segment_bytes": segment_bytes,
            "index_interval_bytes": 100,
            "file_delete_delay_ms": 0,
            "cleanup_policy": "compact,delete",
            "min_cleanable_dirty_ratio": 0.0,
        }
        self.first_sequence = start
        self.history: list[Sent] = []
        self.producers: dict[int, Producer] = {}
        self.expired: set[int] = set()
        self.newest = 0
        self.log = self.open(0, 0, -1, clean=True)

    def open(self, recovery_point: int, start: int, cleaned_offset: int, *, clean: bool) -> LocalLog:
        return LocalLog.open(
            self.dir / "events-0", TIP, LogConfig(**self.options), world=make_world(self.clock),
            recovery_point=recovery_point, log_start_offset=start, clean=clean,
            cleaned_offset=cleaned_offset, files=FileCache(SystemDisk(), 3),
            producer_expiration_ms=EXPIRATION_MS,
        )  # fmt: skip

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
            shutil.rmtree(self.dir)

    # What producers do

    def send(self, producer: int, epoch: int, sequence: int, count: int) -> Sent | ErrorCode:
        """What became of a batch: where it is now or was before, or why it is nowhere."""
        end = self.log.log_end_offset
        one = batch(
            count, producer_id=producer, epoch=epoch, sequence=sequence, timestamp=self.clock.now_ms()
        )
        try:
            info = self.log.append(one, 0, self.clock.now_ms())
        except RequestError as e:
            assert self.log.log_end_offset == end
            return e.code
        assert self.log.log_end_offset == (end if info.duplicate else end + count)
        assert info.duplicate or info.first_offset == end
        last = (sequence + count - 1) & MASK
        return Sent(producer, epoch, sequence, last, info.first_offset, info.last_offset)

    def accept(self, sent: Sent) -> None:
        self.history.append(sent)
        known = self.producers.setdefault(sent.producer, Producer())
        if known.sent and known.sent[-1].epoch != sent.epoch:
            known.sent, known.sure = [], 0
        known.sent.append(sent)
        known.sure = min(known.sure + 1, 5)

    def known(self, data: st.DataObject) -> Producer:
        return data.draw(st.sampled_from(list(self.producers.values())))

    def some_are_known(self) -> bool:
        return bool(self.producers)

    @rule(count=st.integers(1, 4), epoch=st.integers(0, 2))
    def begins(self, count: int, epoch: int) -> None:
        """One that the log does not know may begin at any sequence."""
        self.newest += 1
        sent = self.send(self.newest, epoch, self.first_sequence, count)
        assert isinstance(sent, Sent)
        assert sent.base == self.log.log_end_offset - count
        self.accept(sent)

    @precondition(some_are_known)
    @rule(data=st.data(), count=st.integers(1, 4))
    def goes_on(self, data: st.DataObject, count: int) -> None:
        last = self.known(data).sent[-1]
        sent = self.send(last.producer, last.epoch, (last.last + 1) & MASK, count)
        assert isinstance(sent, Sent)
        assert sent.base == self.log.log_end_offset - count
        self.accept(sent)

    @precondition(some_are_known)
    @rule(data=st.data(), back=st.integers(1, 8))
    def sends_again(self, data: st.DataObject, back: int) -> None:
        known = self.known(data)
        if back > len(known.sent):
            return
        one = known.sent[-back]
        end = self.log.log_end_offset
        answer = self.send(one.producer, one.epoch, one.first, one.end - one.base + 1)
        assert self.log.log_end_offset == end, "written twice"
        if back <= known.sure:
            assert answer == one
        elif back <= 5:
            assert answer in (one, ErrorCode.out_of_order_sequence_number)
        else:
            assert answer is ErrorCode.out_of_order_sequence_number

    @precondition(some_are_known)
    @rule(data=st.data(), count=st.integers(1, 4), skip=st.integers(1, 9))
    def loses_some(self, data: st.DataObject, count: int, skip: int) -> None:
        last = self.known(data).sent[-1]
        answer = self.send(last.producer, last.epoch, (last.last + 1 + skip) & MASK, count)
        assert answer is ErrorCode.out_of_order_sequence_number
        longer = last.end - last.base + 2
        answer = self.send(last.producer, last.epoch, last.first, longer)
        assert answer is ErrorCode.out_of_order_sequence_number

    @precondition(some_are_known)
    @rule(data=st.data(), count=st.integers(1, 4))
    def is_fenced(self, data: st.DataObject, count: int) -> None:
        last = self.known(data).sent[-1]
        sequence = data.draw(st.sampled_from([0, last.first, (last.last + 1) & MASK]))
        answer = self.send(last.producer, last.epoch - 1, sequence, count)
        assert answer is ErrorCode.invalid_producer_epoch
        answer = self.send(last.producer, last.epoch + 1, data.draw(st.integers(1, MASK)), count)
        assert answer is ErrorCode.out_of_order_sequence_number

    @precondition(some_are_known)
    @rule(data=st.data(), count=st.integers(1, 4))
    def has_a_new_epoch(self, data: st.DataObject, count: int) -> None:
        last = self.known(data).sent[-1]
        sent = self.send(last.producer, last.epoch + data.draw(st.integers(1, 3)), 0, count)
        assert isinstance(sent, Sent)
        self.accept(sent)

    # What becomes of the log

    @rule()
    def roll(self) -> None:
        self.log.appender.roll()

    @rule()
    def flush(self) -> None:
        self.log.durability.flush()

    @rule(all_of_it=st.booleans(), then_crash=st.booleans())
    def clean(self, all_of_it: bool, then_crash: bool) -> None:
        if all_of_it:
            self.log.appender.roll()
        clean(self.log)
        self.remove()
        if then_crash:
            self.restart(stopped=False, lose=True)

    def remove(self) -> None:
        for path in self.log.deletion_queue.take_due(self.clock.now_ms()):
            path.unlink(missing_ok=True)

    @rule(data=st.data())
    def start_moves(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset))
        self.log.deletion.advance_log_start(start)
        self.log.deletion.delete_below_start()
        self.remove()

    @rule(all_files_go=st.booleans())
    def everything_is_deleted(self, all_files_go: bool) -> None:
        """Records expire, their producers do not."""
        if all_files_go:
            self.log.appender.roll()
        self.log.deletion.advance_log_start(self.log.log_end_offset)
        self.log.deletion.delete_below_start()
        self.remove()

    @rule(stopped=st.booleans(), lose=st.booleans())
    def restart(self, stopped: bool, lose: bool) -> None:
        """Without snapshots the log tells of those that have records there, cleaned or not."""
        log = self.log
        log.close(clean=stopped)
        if lose:
            for path in log.dir.glob("*.snapshot"):
                path.write_bytes(b"")
            start = max(log.log_start_offset, log.first_base_offset)
            gone = {n for n, one in self.producers.items() if one.sent[-1].end < start}
            self.expired |= gone
            self.history = [one for one in self.history if one.end >= start]  # nothing tells of the others
            self.producers = {n: one for n, one in self.producers.items() if n not in gone}
        self.log = self.open(
            log.recovery_point, log.log_start_offset, log.state.cleaned_offset, clean=stopped
        )
        self.only_the_last()

    def only_the_last(self) -> None:
        """A snapshot has one batch of each."""
        for one in self.producers.values():
            one.sure = 1

    @rule()
    def expire(self) -> None:
        self.clock.advance(EXPIRATION_MS + 10)  # records of a batch are a ms apart
        at_once(self.log.producers.expire(self.clock.now_ms()))
        assert not len(self.log.producers)
        # They stay in the log, and who reads that again may think them new: they are asked about no more.
        self.expired |= self.producers.keys()
        self.producers = {}

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """Above what was compacted: what a producer sent before its last batch may be gone below."""
        least = max(self.log.local_log_start_offset, self.log.state.cleaned_offset)
        offset = data.draw(st.integers(least, self.log.log_end_offset))
        self.cut(self.log.truncation.truncate_to(offset))

    @rule(data=st.data())
    def disk_is_lost(self, data: st.DataObject) -> None:
        """The archive has sealed segments, each with the producers at its end."""
        self.log.durability.flush()
        sealed = [one for one in self.log.sealed.describe_all() if one.producer_snapshot_path is not None]
        if not sealed:
            return
        last = data.draw(st.sampled_from(sealed))
        assert last.producer_snapshot_path is not None
        producers = decode_snapshot(last.producer_snapshot_path.read_bytes())
        start = min(self.log.log_start_offset, last.last_offset + 1)
        self.log.truncation.restart_at(last.last_offset + 1, start, producers=producers)
        self.cut(last.last_offset + 1)

    def cut(self, end: int) -> None:
        kept, self.history = [one for one in self.history if one.end < end], []
        self.producers = {}
        for one in kept:
            if one.producer not in self.expired:
                self.accept(one)
        self.only_the_last()

    @invariant()
    def nobody_is_forgotten(self) -> None:
        if not hasattr(self, "log"):
            return
        for producer, known in self.producers.items():
            entry = self.log.producers.get(producer)
            assert entry is not None, producer
            last = known.sent[-1]
            assert (entry.epoch, entry.last_sequence, entry.last_offset) == (last.epoch, last.last, last.end)


TestProducers = ProducersOfALog.TestCase
TestProducers.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
