"""A compacted log against a model of a list of records: any order of appends, rolls, cleanings, cuts,
deletions, failing disks and crashes, also in the middle of a cleaning."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from service.base.clock import ManualClock
from service.base.errors import StorageError
from service.config.settings import LogConfig
from service.hot.cleaning.log_rewrite import CleanerSettings
from service.hot.files import FileCache
from service.hot.log import LocalLog
from service.records.batch import CompressionType
from tests.support.compaction import START_MS, Pair
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.hot.cleanings import clean, put, records_in
from tests.unit.hot.logs import TIP

pairs = st.builds(
    Pair,
    st.integers(0, 6).map(lambda n: b"key %d" % n),
    st.one_of(st.none(), st.binary(min_size=5, max_size=60)),
)


class Kept(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None
    batch: int
    """where its batch begins"""


class CompactedLog(RuleBasedStateMachine):
    """`written`: what was appended and not cut, cleaned or not; `start`: first readable offset."""

    @initialize(
        segment_bytes=st.integers(500, 2000),
        grown=st.integers(1, 4),
        delay=st.sampled_from([0, 60_000]),
        retention=st.sampled_from([0, 5000]),
    )
    def begin(self, segment_bytes: int, grown: int, delay: int, retention: int) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="firn-compaction-"))
        self.clock = ManualClock(START_MS)
        self.disk = FaultDisk()
        self.options: dict[str, Any] = {
            "segment_bytes": segment_bytes,
            "index_interval_bytes": 100,
            "file_delete_delay_ms": delay,
            "delete_retention_ms": retention,
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": 0.0,
        }
        self.grown = grown
        self.written: list[Kept] = []
        self.start = 0
        self.end = 0
        self.sequence = 0
        self.log = self.open(0, -1, clean=True)

    def open(self, recovery_point: int, cleaned_offset: int, *, clean: bool) -> LocalLog:
        return LocalLog.open(
            self.dir / "events-0", TIP, LogConfig(**self.options),
            world=make_world(self.clock, self.disk), recovery_point=recovery_point,
            log_start_offset=self.start, clean=clean, cleaned_offset=cleaned_offset,
            files=FileCache(self.disk, 3),
        )  # fmt: skip

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
            shutil.rmtree(self.dir)

    @rule(
        records=st.lists(pairs, min_size=1, max_size=5),
        codec=st.sampled_from((CompressionType.NONE, CompressionType.NONE, CompressionType.ZSTD)),
        idempotent=st.booleans(),
    )
    def append(self, records: list[Pair], codec: CompressionType, idempotent: bool) -> None:
        producer = (7, 0, self.sequence) if idempotent else (-1, -1, -1)
        assert (
            put(self.log, records, codec=codec, timestamp=self.clock.now_ms(), producer=producer) == self.end
        )
        self.sequence += len(records) if idempotent else 0
        for number, (key, value) in enumerate(records):
            assert key is not None
            self.written.append(Kept(self.end + number, key, value, self.end))
        self.end += len(records)

    @rule()
    def roll(self) -> None:
        self.log.appender.roll()

    @rule(ms=st.integers(1, 6000))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)
        for path in self.log.deletion_queue.take_due(self.clock.now_ms()):
            path.unlink(missing_ok=True)

    @rule(most_keys=st.sampled_from((3, 1000)))
    def clean(self, most_keys: int) -> None:
        config = self.log.config
        self.log.config = LogConfig(
            **{**self.options, "segment_bytes": self.grown * self.options["segment_bytes"]}
        )
        clean(self.log, CleanerSettings(dedupe_bytes=24 * most_keys, load_factor=0.7))
        self.log.config = config

    @rule(calls=st.integers(0, 150), for_ever=st.booleans(), code=st.sampled_from((errno.EIO, errno.ENOSPC)))
    def cleaning_fails(self, calls: int, for_ever: bool, code: int) -> None:
        self.log.durability.flush()
        self.disk.fail("*", code, after=calls, times=None if for_ever else 1)
        with contextlib.suppress(StorageError):
            clean(self.log)
        self.disk.heal()
        if for_ever or self.log.failure is not None:
            self.crash("")

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        end = self.log.truncation.truncate_to(offset)
        # A batch that lost its last records to compaction reaches as far as ever.
        assert end <= offset
        assert all(one.batch < offset for one in self.written if one.offset < end)
        self.cut(end)

    def cut(self, end: int) -> None:
        """What was replaced by what is cut now may be gone; all else is as it was."""
        there = {record.offset for record in records_in(self.log)}
        self.written = [one for one in self.written if one.offset < end and one.offset in there]
        self.end = end
        self.start = min(self.start, end)
        entry = self.log.producers.get(7)
        self.sequence = 0 if entry is None else entry.last_sequence + 1

    @rule(data=st.data())
    def start_moves(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        self.log.deletion.advance_log_start(self.start)

    @rule(lose=st.sampled_from(["", ".index", ".timeindex", ".snapshot"]))
    def crash(self, lose: str) -> None:
        self.restart(lose, is_clean=False)

    @rule(lose=st.sampled_from(["", ".index", ".timeindex", ".snapshot"]))
    def stop(self, lose: str) -> None:
        self.restart(lose, is_clean=True)

    def restart(self, lose: str, *, is_clean: bool) -> None:
        self.log.close(clean=is_clean)
        point, cleaned = self.log.recovery_point, self.log.state.cleaned_offset
        for path in self.log.dir.iterdir():
            if path.suffix == lose:
                path.write_bytes(b"")
        self.log = self.open(point, cleaned, clean=is_clean)
        entry = self.log.producers.get(7)
        if entry is not None:
            assert entry.last_sequence + 1 == self.sequence
        elif lose != ".snapshot":
            assert not self.sequence or self.start > 0
        if entry is None:
            self.sequence = 0

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.end
        assert self.log.log_start_offset == self.start
        found = {record.offset: (record.key, record.value) for record in records_in(self.log)}
        known = {one.offset: (one.key, one.value) for one in self.written if one.offset >= self.start}
        assert found.items() <= known.items()
        last = {key: (offset, value) for offset, (key, value) in known.items()}
        for key, (offset, value) in last.items():
            if value is not None:
                assert found.get(offset) == (key, value)
        # What comes back after a crash was there before; of what was deleted nothing does, nor once its
        # tombstone is gone.
        ours = {key: offset for offset, (key, _) in found.items() if key is not None}
        assert all(ours[key] == last[key][0] for key in ours)


CompactedLog.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestCompactedLog = CompactedLog.TestCase
