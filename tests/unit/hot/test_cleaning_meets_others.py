"""A log is compacted while others are at work on it, with what other brokers left, and with odd settings."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import mmap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.base.clock import ManualClock
from service.base.errors import CorruptionError, StorageError
from service.config.settings import LogConfig
from service.hot.cleaning.cleaner import Cleaner
from service.hot.cleaning.cleaning import Cleaning
from service.hot.cleaning.log_rewrite import Aborted, CleanerSettings, Throttle
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.hot.metrics import HotMetrics
from service.records.batch import read_header
from tests.support.compaction import START_MS, Pair, last_of_each, make_batch
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.hot.cleanings import clean, dirt_of, put, records_in
from tests.unit.hot.logs import TIP, open_log
from tests.unit.hot.test_cleaning import POLICY, filled, reopened

FOR_EVER_MS = 2**63 - 1


def test_deleted_keys_may_be_kept_for_ever(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock, segment_bytes=900, delete_retention_ms=FOR_EVER_MS, **POLICY)
    put(log, [Pair(b"a", b"1"), Pair(b"b", b"1")])
    put(log, [Pair(b"a", None)])
    for _ in range(3):
        put(log, [Pair(b"c", b"1")])
        log.appender.roll()
        clean(log)
        clock.advance(10**12)
        found = {one.key: (one.value, one.timestamp) for one in records_in(log)}
        assert found == {b"a": (None, START_MS), b"b": (b"1", START_MS + 1), b"c": (b"1", START_MS)}


def test_a_gap_that_no_batch_can_span_stays(tmp_path: Path) -> None:
    """Apache Kafka's compaction leaves such ones, where nothing is left of many segments."""
    log = open_log(tmp_path, segment_bytes=10_000, **POLICY)
    far = 3 * 2**31
    data = make_batch(0, [Pair(b"a", b"1")]) + make_batch(1, [Pair(b"a", b"2"), Pair(b"b", b"1")])
    log.appender.append_raw(memoryview(bytearray(data)))
    log.appender.append_raw(memoryview(bytearray(make_batch(far, [Pair(b"b", b"2")]))))
    log.appender.roll()
    assert clean(log)
    want = [(1, b"2"), (far, b"2")]
    assert [(one.offset, one.value) for one in records_in(log)] == want
    for offset in (2, 2**31, 2**31 + 7, far - 1):
        assert log.read(offset, 1 << 20).slice is not None
    again = reopened(log, tmp_path)
    assert [(one.offset, one.value) for one in records_in(again)] == want
    put(again, [Pair(b"a", b"3")])
    again.appender.roll()
    assert clean(again)
    assert [one.offset for one in records_in(again)] == [far, far + 1]


def test_a_search_by_time_goes_on_in_what_was_cleaned(tmp_path: Path) -> None:
    """It pauses between segments, and those that it has not come to may be replaced meanwhile."""
    log = filled(tmp_path, file_delete_delay_ms=0)
    last = records_in(log)[-1]
    searches = [log.timestamp_search.by_timestamp(last.timestamp) for _ in range(3)]
    newest = [log.timestamp_search.by_max_timestamp() for _ in range(3)]
    for steps, (search, other) in enumerate(zip(searches, newest, strict=True)):
        for _ in range(1 + 3 * steps):
            assert next(search) is None
            assert next(other) is None
    clean(log)
    for path in log.deletion_queue.take_due(1 << 60):
        path.unlink(missing_ok=True)
    for search in (*searches, *newest):
        assert log.timestamp_search.run(search) == (last.offset, last.timestamp, 0)
    assert log.failure is None


def in_the_swap(disk: FaultDisk, act: Callable[[], object], at: str) -> None:
    """Have `act` done once, before the first rename of a file called `at`."""
    done: list[Path] = []

    def look(path: Path) -> bool:
        if path.name.endswith(at) and not done:
            done.append(path)
            act()
        return False

    disk.fail("rename", only=look)


@pytest.mark.parametrize("at", [".log.cleaned", ".log", ".log.swap", ".index.swap"])
def test_doubtful_indexes_are_left_alone_within_the_swap(tmp_path: Path, at: str) -> None:
    """Made anew then, they would be called as if nothing were cleaned to its end: a start would undo it."""
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    want, end = last_of_each(records_in(log)), log.log_end_offset
    log.durability.flush()

    def doubt() -> None:
        swap = log.swapping.current
        assert swap is not None
        swap.new.indexes.distrust()
        assert log.read(swap.new.base_offset, 1 << 20).slice is not None
        assert log.offset_for_timestamp(START_MS) is not None

    in_the_swap(disk, doubt, at)
    disk.fail("fsync_dir", errno.EIO, after=2 if at != ".log.cleaned" else 1)
    disk.fail("*", errno.EIO, only=lambda _: disk.faults[1].hits > 0)
    with contextlib.suppress(StorageError):
        clean(log)
    assert disk.faults[1].hits
    disk.heal()
    again = reopened(log, tmp_path)
    assert again.log_end_offset == end
    assert last_of_each(records_in(again)) == want
    again.close(clean=False)
    # And where it is not killed they are made anew afterwards.
    disk = FaultDisk()
    log = filled(tmp_path / "on", disk)
    in_the_swap(disk, doubt, at)
    clean(log)
    assert last_of_each(records_in(log)) == last_of_each(records_in(log))
    for segment in log.state.segments.all[:-1]:
        assert segment.indexes.find(segment.base_offset) is not None
        assert segment.log.path.with_suffix(".index").stat().st_size == segment.index_bytes
    assert not {path.suffix for path in log.dir.iterdir()} & {".cleaned", ".swap"}


class Watching(LogIo):
    """Threads that tell which memory they have given back, once a job with it was done."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.given_back = 0

    def run(self, job: Any, *args: object) -> Any:
        def watched() -> Any:
            memories = [one for one in args if isinstance(one, mmap.mmap)]
            assert not any(one.closed for one in memories)
            found = job(*args)
            self.given_back += sum(one.closed for one in memories)
            return found

        return super().run(watched)


@pytest.mark.parametrize("aborted", [False, True])
def test_the_memory_of_the_keys_is_given_back_on_a_thread_and_not_on_the_loop(
    tmp_path: Path, aborted: bool
) -> None:
    log = filled(tmp_path)
    log.durability.flush()

    async def main() -> None:
        world = log.state.world
        io, cleaner_io = LogIo(world.threads, 1), Watching(world.threads, 1)
        dirt = dirt_of(log)
        assert dirt is not None
        one = Cleaning(log, io, cleaner_io, world, CleanerSettings, Throttle(world.clock), lambda _: True)
        if aborted:
            one.aborted.set()
        with pytest.raises(Aborted) if aborted else contextlib.nullcontext():
            await one.run(dirt)
        assert cleaner_io.given_back == 1
        await cleaner_io.finish()
        await io.finish()

    asyncio.run(main())


class Cutting(LogIo):
    """Threads after whose last swap a log is cut before anybody comes to see it."""

    log: LocalLog
    offset: int

    def run(self, job: Any, *args: object) -> Any:
        done = super().run(job, *args)
        return self._and_cut(done) if getattr(job, "__name__", "") == "run" else done

    async def _and_cut(self, done: asyncio.Future[Any]) -> Any:
        found = await done
        swap = self.log.swapping.current
        assert swap is not None
        if swap.new is self.log.state.segments.all[-2]:
            self.log.truncation.truncate_to(self.offset)
            for n in range(40):
                put(self.log, [Pair(b"k%d" % (n % 7), b"again")])
        return found


def test_a_log_that_is_cut_beneath_its_cleaning_is_dirty_from_there_on(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.durability.flush()
    end = log.log_end_offset - 20

    async def main() -> None:
        io = Cutting(log.state.world.threads, 1)
        io.log, io.offset = log, end
        dirt = dirt_of(log)
        assert dirt is not None
        one = Cleaning(
            log, io, io, log.state.world, CleanerSettings, Throttle(log.state.world.clock), lambda _: True
        )
        with contextlib.suppress(Aborted):
            await one.run(dirt)
        await io.finish()
        assert one.is_outdated

    asyncio.run(main())
    assert log.state.cleaned_offset <= end
    log.appender.roll()
    clean(log)
    assert len(records_in(log)) == 7


def test_a_log_is_cut_within_a_gap(tmp_path: Path) -> None:
    """It ends where its last batch does then, and so it is found again."""
    log = filled(tmp_path)
    clean(log)
    whole = {path: path.read_bytes() for path in log.dir.iterdir() if path.is_file()}
    point, cleaned, last = log.recovery_point, log.state.cleaned_offset, log.log_end_offset
    log.close(clean=False)
    gaps = 0
    for offset in range(0, last, 3):
        for path in log.dir.iterdir():
            path.unlink()
        for path, data in whole.items():
            path.write_bytes(data)
        log = LocalLog.open(
            log.dir, TIP, log.config, world=make_world(ManualClock(START_MS)), recovery_point=point,
            cleaned_offset=cleaned,
        )  # fmt: skip
        below = [one for one in records_in(log) if one.offset < offset]
        end = log.truncation.truncate_to(offset)
        assert end <= offset
        gaps += end < offset - 2
        assert put(log, [Pair(b"k0", b"new")]) == end
        log = reopened(log, tmp_path)
        found = records_in(log)
        assert [one for one in found if one.offset < end] == [one for one in below if one.offset < end]
        assert (found[-1].offset, found[-1].value) == (end, b"new")
        log.close(clean=False)
    assert gaps


def test_a_checkpoint_beyond_the_end_of_a_log_says_nothing(tmp_path: Path) -> None:
    """A log that was cut just before a crash: what comes after is dirty."""
    log = filled(tmp_path)
    clean(log)
    cleaned = log.state.cleaned_offset
    log.truncation.truncate_to(cleaned - 30)
    point = log.recovery_point
    log.close(clean=False)
    log = LocalLog.open(
        log.dir, TIP, log.config, world=make_world(ManualClock(START_MS)), recovery_point=point,
        cleaned_offset=cleaned,
    )  # fmt: skip
    while log.log_end_offset <= cleaned:
        put(log, [Pair(b"k%d" % (log.log_end_offset % 7), b"again")])
    log.appender.roll()
    assert clean(log)
    assert len(records_in(log)) == 7


def test_a_damaged_swap_file_replaces_no_segment(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    disk.fail("rename", errno.EIO, path="00000000000000000000.log", only=lambda path: path.suffix == ".log")
    disk.fail("*", errno.EIO, only=lambda _: disk.faults[0].hits > 0)
    with contextlib.suppress(StorageError):
        clean(log)
    disk.heal()
    (swap,) = log.dir.glob("*.log.swap")
    data = bytearray(swap.read_bytes())
    data[-20] ^= 1
    swap.write_bytes(data)
    files = {path.name for path in log.dir.iterdir()}
    with pytest.raises(CorruptionError, match=r"log\.swap"):
        reopened(log, tmp_path)
    assert {path.name for path in log.dir.iterdir()} == files


def test_a_rate_that_was_far_too_low_is_made_up_for_at_once() -> None:
    clock = ManualClock(START_MS)
    throttle = Throttle(clock)
    assert throttle.charge(1000, 1.0) == pytest.approx(1000)
    clock.advance(1000)
    assert throttle.charge(0, 1.0) == pytest.approx(999)
    assert throttle.charge(0, 1e6) < 0.002
    clock.advance(10)
    assert throttle.charge(0, 1e6) == 0
    assert throttle.charge(500, 1000.0) == pytest.approx(0.5)
    assert throttle.charge(10, math.ulp(0.0)) > 1e9
    assert throttle.charge(0, 1e300) == pytest.approx(0)


class Forgetful:
    """Disk on which a log's owner deletes it while its compaction is checkpointed."""

    def __init__(self) -> None:
        self.cleaner: Cleaner | None = None
        self.here = True

    def is_in_use(self, _: LocalLog) -> bool:
        return self.here

    def flush_failed(self) -> None:
        """Nothing does."""

    async def flush(self, log: LocalLog) -> None:
        log.durability.flush()

    def delete_queued(self, _: LocalLog) -> None:
        """Do nothing: it is never called."""

    def cleaned(self, _: LocalLog) -> None:
        """Do nothing: it is never called."""

    async def note_compacted(self, log: LocalLog) -> bool:
        assert self.cleaner is not None
        self.here = False
        self.cleaner.forget(log)
        return False


def looked_after(log: LocalLog, owner: Any, until: Callable[[Cleaner, HotMetrics], bool]) -> HotMetrics:
    """Run a cleaner over the log until it has come so far."""
    log.durability.flush()
    metrics = HotMetrics()

    async def main() -> None:
        io = LogIo(log.state.world.threads, 1)
        cleaner = owner.cleaner = Cleaner(io, io, log.state.world, owner, metrics)
        cleaner.configured(log)
        work = asyncio.create_task(
            cleaner.run(lambda: CleanerSettings(backoff_ms=1), lambda one: one.log_end_offset)
        )
        async with asyncio.timeout(30):
            while not until(cleaner, metrics) and not work.done():
                await asyncio.sleep(0.001)
        assert not work.done(), work.exception()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await io.finish()

    asyncio.run(main())
    return metrics


def test_a_log_that_goes_before_its_cleaning_began_is_not_set_aside(tmp_path: Path) -> None:
    owner = Forgetful()
    metrics = looked_after(filled(tmp_path), owner, lambda cleaner, _: not owner.here and not cleaner._runs)
    assert owner.cleaner is not None
    assert not owner.cleaner.set_aside()
    assert metrics.uncleanable_logs == 0


class Keeping(Forgetful):
    async def note_compacted(self, _: LocalLog) -> bool:
        return True


def test_a_log_that_is_not_to_be_compacted_any_more_is_not_set_aside(tmp_path: Path) -> None:
    disk = FaultDisk()
    log = filled(tmp_path, disk)
    owner = Keeping()
    disk.fail("pwrite", errno.ENOSPC, path=".cleaned")

    def is_over(cleaner: Cleaner, metrics: HotMetrics) -> bool:
        if metrics.uncleanable_logs and log.config.is_compacted:
            log.config = replace(log.config, cleanup_policy="delete")
            cleaner.configured(log)
        return not log.config.is_compacted

    metrics = looked_after(log, owner, is_over)
    assert owner.cleaner is not None
    assert not owner.cleaner.set_aside()
    assert (metrics.cleaning_errors, metrics.uncleanable_logs) == (1, 0)


def test_a_defect_costs_one_log_its_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: int) -> None:
        raise ValueError("nobody thought of it")

    monkeypatch.setattr("service.hot.cleaning.cleaning._memory", broken)
    log = filled(tmp_path)
    metrics = looked_after(log, Keeping(), lambda _, metrics: metrics.cleaning_errors > 0)
    assert (metrics.cleaning_errors, metrics.uncleanable_logs) == (1, 1)
    assert "nobody thought of it" in caplog.text
    assert log.failure is None


def test_looking_at_many_segments_takes_many_turns(tmp_path: Path) -> None:
    """Of a log that was just opened their timestamps are in their files."""
    log = open_log(tmp_path, segment_bytes=900, **POLICY)
    for n in range(300):
        put(log, [Pair(b"k%d" % (n % 5), b"v")], timestamp=START_MS + n)
        log.appender.roll()
    log.durability.flush()
    log.close()
    disk = FaultDisk()
    config = LogConfig(segment_bytes=900, min_compaction_lag_ms=1, max_compaction_lag_ms=10**9, **POLICY)
    again = LocalLog.open(
        tmp_path / "events-0", TIP, config, world=make_world(ManualClock(START_MS + 10**10), disk),
        recovery_point=log.recovery_point, clean=True, cleaned_offset=0,
    )  # fmt: skip
    most, seen = 0, 0

    async def main() -> None:
        nonlocal most, seen
        io = LogIo(again.state.world.threads, 1)
        owner = Keeping()
        cleaner = Cleaner(io, io, again.state.world, owner, HotMetrics())
        cleaner.configured(again)
        cleaner._stable_offset = lambda one: one.log_end_offset
        seen = disk.calls["pread"]
        work = asyncio.ensure_future(cleaner._dirtiest())
        while not work.done():
            before = disk.calls["pread"]
            await asyncio.sleep(0)
            most = max(most, disk.calls["pread"] - before)
        assert work.result() is again
        seen = disk.calls["pread"] - seen
        await io.finish()

    asyncio.run(main())
    assert seen >= 300
    assert most < seen / 4


def test_a_tombstone_with_an_odd_timestamp_is_no_damage(tmp_path: Path) -> None:
    """Its delete horizon cannot be written, so it stays; all else goes on."""
    log = open_log(tmp_path, segment_bytes=10_000, **{**POLICY, "delete_retention_ms": 1000})
    for timestamp in (-(2**62), 2**62 + 5, 2**63 - 10):
        put(log, [Pair(b"a", b"1"), Pair(b"a", None), Pair(b"b", b"2")], timestamp=timestamp)
        put(log, [Pair(b"b", b"3")])
    log.appender.roll()
    for n in range(3):
        clean(log)
        assert {one.key for one in records_in(log)} >= {b"a", b"b"}
        assert len(records_in(log)) == 2 + n
        assert read_header(log.state.segments.all[0].log.get().pread(200, 0)).base_offset == 8
        put(log, [Pair(b"c%d" % n, b"x")])
        log.config = replace(log.config, segment_bytes=10_000)
        log.appender.roll()
