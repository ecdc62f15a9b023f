"""The local log against a model of a list of batches:

any order of appends, rolls, cuts, deletions and crashes.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.disk import SystemDisk
from service.base.errors import RequestError
from service.hot.files import FileCache
from service.hot.log import LocalLog
from service.hot.producer_snapshot import encode_snapshot
from tests.unit.hot.logs import START_MS, batch, headers_from, open_log, raw


class Written(NamedTuple):
    base: int
    last: int
    timestamp: int
    epoch: int
    producer: int
    sequence: int
    data: bytes


class LogMachine(RuleBasedStateMachine):
    """`written`: batches that the log must hold, oldest first; `start`: first readable offset."""

    @initialize(
        segment_bytes=st.integers(1300, 3000),
        interval=st.sampled_from([0, 1, 200, 600]),
        delay=st.sampled_from([0, 60_000]),
    )
    def begin(self, segment_bytes: int, interval: int, delay: int) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="firn-log-"))
        self.clock = ManualClock(START_MS)
        self.settings: Any = {
            "segment_bytes": segment_bytes,
            "index_interval_bytes": interval,
            "file_delete_delay_ms": delay,
        }
        self.written: list[Written] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.sequences: dict[int, int] = {}
        self.log = self.open(clean=True)

    def open(self, *, clean: bool) -> LocalLog:
        point = self.log.recovery_point if hasattr(self, "log") else 0
        return open_log(
            self.dir,
            self.clock,
            clean=clean,
            recovery_point=point,
            log_start_offset=self.start,
            files=FileCache(SystemDisk(), 3),
            **self.settings,
        )

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
            shutil.rmtree(self.dir)

    @rule(count=st.integers(1, 8), jump=st.integers(-50, 50), producer=st.integers(-1, 2))
    def append(self, count: int, jump: int, producer: int) -> None:
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        one = batch(
            count,
            timestamp=self.clock.now_ms() + jump,
            producer_id=producer,
            epoch=0 if producer >= 0 else -1,
            sequence=sequence,
        )
        info = self.log.append(one, self.epoch, self.clock.now_ms())
        assert (info.first_offset, info.last_offset) == (self.end, self.end + count - 1)
        self.note(info.first_offset, one.data, producer, sequence)
        if producer >= 0:
            self.sequences[producer] = sequence + count

    def note(self, base: int, data: memoryview, producer: int = -1, sequence: int = -1) -> None:
        count = int.from_bytes(data[57:61], "big")
        timestamp = int.from_bytes(data[35:43], "big")
        epoch = int.from_bytes(data[12:16], "big")
        self.written.append(
            Written(base, base + count - 1, timestamp, epoch, producer, sequence, bytes(data))
        )
        self.end = base + count

    @rule(counts=st.lists(st.integers(1, 5), min_size=1, max_size=6))
    def append_raw(self, counts: list[int]) -> None:
        end, parts = self.end, []
        for count in counts:
            parts.append((end, count, self.epoch))
            end += count
        self.log.appender.append_raw(raw(*parts, timestamp=self.clock.now_ms()))
        for part in parts:
            self.note(part[0], raw(part, timestamp=self.clock.now_ms()))

    @precondition(lambda self: any(w.producer >= 0 and w.last >= self.start for w in self.written))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """One of the last batches of a producer comes again: its first offsets, nothing written."""
        readable = {w.producer for w in self.written if w.producer >= 0 and w.last >= self.start}
        producer = data.draw(st.sampled_from(sorted(readable)))
        known = [w for w in self.written if w.producer == producer][-1:]
        entry = self.log.producers.get(producer)
        assert entry is not None
        assert entry.last_offset == known[-1].last
        for one in known:
            count = one.last - one.base + 1
            again = batch(count, producer_id=producer, epoch=0, sequence=one.sequence)
            info = self.log.append(again, self.epoch, self.clock.now_ms())
            assert (info.duplicate, info.first_offset, info.last_offset) == (True, one.base, one.last)
        wrong = batch(1, producer_id=producer, epoch=0, sequence=self.sequences[producer] + 1)
        with pytest.raises(RequestError) as refused:
            self.log.append(wrong, self.epoch, self.clock.now_ms())
        assert refused.value.code is ErrorCode.out_of_order_sequence_number

    @rule(ms=st.integers(1, 10_000))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)
        for path in self.log.deletion_queue.take_due(self.clock.now_ms()):
            path.unlink(missing_ok=True)

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.appender.roll()

    @rule()
    def flush(self) -> None:
        assert self.log.durability.flush() == self.end

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        kept = [w for w in self.written if w.last < offset]
        end = self.log.truncation.truncate_to(offset)
        expected = (
            self.end
            if offset == self.end
            else next((w.base for w in self.written if w.last >= offset), self.end)
        )
        assert end == expected
        self.cut(kept, end)

    def cut(self, kept: list[Written], end: int) -> None:
        self.written, self.end = kept, end
        self.start = min(self.start, end)
        self.sequences = {}
        for one in kept:
            if one.producer >= 0:
                self.sequences[one.producer] = one.sequence + one.last - one.base + 1
        for producer, entry in self.log.producers:
            # Producers whose records were deleted at the start may still be known: go on as they do.
            if producer not in self.sequences:
                self.sequences[producer] = entry.last_sequence + 1

    @rule(data=st.data())
    def start_moves(self, data: st.DataObject) -> None:
        self.start = max(self.start, data.draw(st.integers(self.start, self.end)))
        self.log.deletion.advance_log_start(self.start)

    @rule(clean=st.booleans(), lose=st.sampled_from(["", ".index", ".timeindex", ".snapshot", "epochs"]))
    def restart(self, clean: bool, lose: str) -> None:
        """A stop, clean or not, and perhaps a lost file of each kind."""
        before = encode_snapshot(self.log.producers)
        if clean:
            self.log.close()
        else:
            self.log.close(clean=False)
        for path in self.log.dir.iterdir():
            if path.suffix == lose or (lose == "epochs" and path.name == "leader-epoch-checkpoint"):
                path.write_bytes(b"")
        self.log = self.open(clean=clean)
        if lose != ".snapshot":
            was, now = _by_id(before), _by_id(encode_snapshot(self.log.producers))
            assert {p: entry for p, (entry, _) in now.items()} == {p: entry for p, (entry, _) in was.items()}
            # Recovery does not know when a batch was written: it takes it for new rather than for expired.
            assert all(now[p][1] >= timestamp for p, (_, timestamp) in was.items())
        else:
            self.cut([w for w in self.written if w.last >= 0], self.end)
            self.sequences = {p: e.last_sequence + 1 for p, e in self.log.producers}
            self.written = [
                w._replace(producer=-1) if w.producer not in self.sequences else w for w in self.written
            ]

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def torn_crash(self, data: st.DataObject) -> None:
        """The machine stops: the last segment lost some of what the flusher had not reached yet."""
        self.log.close(clean=False)
        active = self.log.dir / f"{self.log.active_base_offset:020d}.log"
        size = active.stat().st_size
        durable = sum(
            len(w.data)
            for w in self.written
            if w.base >= self.log.active_base_offset and w.last < self.log.recovery_point
        )
        keep = data.draw(st.integers(durable, size)) if durable <= size else size
        with open(active, "r+b") as file:
            file.truncate(keep)
            file.seek(keep)
            file.write(data.draw(st.sampled_from([b"", b"\0" * 70, b"\x7f" * 200])))
        kept, position = [w for w in self.written if w.base < self.log.active_base_offset], 0
        left = active.read_bytes()
        for one in self.written[len(kept) :]:
            if left[position : position + len(one.data)] != one.data:
                break
            position += len(one.data)
            kept.append(one)
        end = kept[-1].last + 1 if kept else self.log.active_base_offset
        self.start = min(self.start, end)
        self.log = self.open(clean=False)
        assert self.log.log_end_offset == end
        self.cut(kept, end)

    @invariant()
    def the_log_holds_what_was_written(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.log_end_offset, log.log_start_offset) == (self.end, self.start)
        readable = [w for w in self.written if w.last >= self.start]
        found = list(headers_from(log, self.start, max_bytes=700))
        assert [(h.base_offset, h.last_offset) for h in found] == [(w.base, w.last) for w in readable]
        if readable:
            one = readable[len(readable) // 2]
            slice_ = log.read(max(one.base, self.start), len(one.data)).slice
            assert slice_ is not None
            assert slice_.read()[: len(one.data)] == one.data
        for base, epoch in ((w.base, w.epoch) for w in readable[:: max(1, len(readable) // 3)]):
            assert log.epochs.epoch_at(max(base, self.start)) == epoch

    @invariant()
    def records_are_found_by_time(self) -> None:
        if not hasattr(self, "log") or not self.written:
            return
        middle = self.written[len(self.written) // 2]
        found = self.log.offset_for_timestamp(middle.timestamp)
        expected = next(
            (w for w in self.written if w.last >= self.start and w.timestamp >= middle.timestamp), None
        )
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert max(expected.base, self.start) <= found[0] <= expected.last


def _by_id(snapshot: bytes) -> dict[bytes, tuple[bytes, int]]:
    """Producer id to its entry without the timestamp, and the timestamp."""
    body = snapshot[10:]
    entries = [body[at : at + 46] for at in range(0, len(body), 46)]
    return {e[:8]: (e[:26] + e[34:], int.from_bytes(e[26:34], "big")) for e in entries}


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
