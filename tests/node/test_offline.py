"""One bad replica or directory: it is offline and reported, its bytes stay, the others continue."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.disk import DiskError, SystemDisk
from service.base.errors import CorruptionError, StorageError
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.log_dir import CLEAN_SHUTDOWN, cluster_id_of, read_topic_id, write_topic_id
from service.hot.manager import LogManager
from service.hot.state import LogOffline
from tests.support.fault_disk import FaultDisk
from tests.support.waiting import until
from tests.support.world import make_world
from tests.unit.hot.logs import START_MS, at_once, batch, checkpoint, checkpointed, get_or_create
from tests.unit.hot.test_manager import close, while_running

CONFIG = LogConfig(segment_bytes=1000, file_delete_delay_ms=0)
A = TopicIdPartition(UUID(int=1), "a", 0)
B = TopicIdPartition(UUID(int=2), "b", 0)
C = TopicIdPartition(UUID(int=3), "c", 0)
Scenario = Callable[[], Awaitable[None]]


def manager(disk: FaultDisk, *dirs: Path, clock: ManualClock | None = None, **options: object) -> LogManager:
    made = LogManager(dirs, make_world(clock, disk), **options)  # type: ignore[arg-type]
    asyncio.run(made.open_all(lambda _: CONFIG))
    return made


def fill(logs: LogManager, tip: TopicIdPartition, count: int = 20) -> None:
    log = get_or_create(logs, tip, CONFIG)
    for n in range(count):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)


def flip(path: Path, position: int) -> bytes:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    return bytes(data)


def test_a_failed_fsync_takes_its_directory_offline_for_good(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    disk, told = FaultDisk(), []
    logs = manager(disk, one, two, on_directory_failed=lambda path, error: told.append((path, str(error))))
    fill(logs, A)
    fill(logs, B)
    checkpoint(logs)
    log, other = get_or_create(logs, A, CONFIG), get_or_create(logs, B, CONFIG)
    disk.fail("fsync", errno.EIO, times=1, path=f"a-0/{log.active_base_offset:020d}.log")

    async def scenario() -> None:
        with pytest.raises(DiskError):
            await logs.flush(log)
        # The kernel would say that all is well now: it has thrown the pages away and reported it.
        with pytest.raises(StorageError):
            await logs.flush(log)
        await logs.flush(other)
        other.append(batch(1), 0, START_MS)

    asyncio.run(scenario())
    assert [path for path, _ in told] == [one]
    assert "Input/output error" in told[0][1]
    for refused in (lambda: log.append(batch(1), 0, START_MS), lambda: log.read(0, 100)):
        with pytest.raises(LogOffline, match="a-0 is offline"):
            refused()
    assert log.recovery_point < 20
    new = TopicIdPartition(UUID(int=9), "new", 0)
    assert get_or_create(logs, new, CONFIG).dir.parent == two
    close(logs, broker_epoch=1)
    assert not (one / ".kafka_cleanshutdown").exists()
    assert (two / ".kafka_cleanshutdown").exists()
    assert checkpointed(one / "recovery-point-offset-checkpoint") == {("a", 0): 0}
    again = manager(disk, one, two)
    assert get_or_create(again, A, CONFIG).log_end_offset == 20
    close(again)


def test_a_failed_fsync_in_the_background_is_heard_and_ends_nothing(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    disk, told = FaultDisk(), []
    logs = manager(disk, one, two, on_directory_failed=lambda path, _: told.append(path))
    get_or_create(logs, A, CONFIG)
    disk.fail("fsync", errno.EIO, path="a-0/")

    async def scenario() -> None:
        fill(logs, B)
        fill(logs, A)
        other = get_or_create(logs, B, CONFIG)
        await until(lambda: told == [one] and other.recovery_point > 0)

    while_running(logs, scenario)
    close(logs)
    assert not (one / ".kafka_cleanshutdown").exists()


def test_a_checkpoint_that_cannot_be_written_is_tried_again_and_nothing_is_unlinked(tmp_path: Path) -> None:
    disk, clock = FaultDisk(), ManualClock(START_MS)
    logs = manager(disk, tmp_path, clock=clock)
    fill(logs, A, 40)
    log = get_or_create(logs, A, CONFIG)
    fault = disk.fail("open", errno.ENOSPC, path="log-start-offset-checkpoint")
    log.deletion.advance_log_start(25)

    async def refused() -> None:
        await until(lambda: fault.hits > 1)
        assert (tmp_path / "a-0" / f"{0:020d}.log").exists()
        disk.heal()
        await until(lambda: not (tmp_path / "a-0" / f"{0:020d}.log").exists())

    while_running(logs, refused)
    assert checkpointed(tmp_path / "log-start-offset-checkpoint") == {("a", 0): 25}
    close(logs)


def test_a_damaged_replica_is_offline_and_the_others_are_opened(tmp_path: Path) -> None:
    disk = FaultDisk()
    logs = manager(disk, tmp_path)
    fill(logs, A)
    fill(logs, B)
    close(logs, clean=False)
    path = tmp_path / "a-0" / f"{0:020d}.log"
    damaged = flip(path, 200)
    for _ in range(2):
        logs = manager(disk, tmp_path)
        assert get_or_create(logs, B, CONFIG).log_end_offset == 20
        assert logs.get(A.topic_id, 0) is None
        with pytest.raises(CorruptionError, match=r"a-0 could not be opened: .*0000\.log: wrong checksum"):
            get_or_create(logs, A, CONFIG)
        assert [tip for tip, _ in logs.offline()] == [A]
        assert path.read_bytes() == damaged
        close(logs, broker_epoch=1)
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
    flip(path, 200)
    logs = manager(disk, tmp_path)
    assert get_or_create(logs, A, CONFIG).log_end_offset == 20
    close(logs)


@pytest.mark.parametrize(("number", "bit"), [(5, 16), (5, 4), (19, 8), (19, 16)])
def test_a_changed_base_offset_is_noticed_when_it_is_read(tmp_path: Path, number: int, bit: int) -> None:
    """No checksum covers it: up or down, in the middle of the log or at its end."""
    logs = manager(FaultDisk(), tmp_path)
    fill(logs, A)
    log = get_or_create(logs, A, CONFIG)
    found = log.read(number, 1).slice
    assert found is not None
    path, position = found.file.path, found.position
    data = bytearray(path.read_bytes())
    assert int.from_bytes(data[position : position + 8], "big") == number
    data[position + 7] ^= bit
    path.write_bytes(data)
    with pytest.raises(LogOffline, match=f"offset {number} is nowhere"):
        log.read(number, 1 << 20)
    close(logs)


def test_a_start_that_moved_is_told_while_the_files_before_it_are_still_there(tmp_path: Path) -> None:
    logs = manager(FaultDisk(), tmp_path)
    fill(logs, A)
    log = get_or_create(logs, A, CONFIG)
    log.config = replace(CONFIG, file_delete_delay_ms=60_000)
    segment = log.sealed.describe_all()[0]
    assert log.deletion.delete_segments(segment.last_offset + 1, "test") == 1
    assert log.log_start_offset == segment.last_offset + 1
    checkpoint(logs)
    close(logs, clean=False)
    assert (tmp_path / "a-0" / f"{0:020d}.log").exists()
    again = manager(FaultDisk(), tmp_path)
    assert get_or_create(again, A, CONFIG).log_start_offset == segment.last_offset + 1
    close(again)


def test_a_replica_made_again_elsewhere_is_the_one_that_is_used(tmp_path: Path) -> None:
    """The first was made in a directory that failed just then; it may even be there after it was removed."""
    one, two = tmp_path / "one", tmp_path / "two"
    disk = FaultDisk()
    logs = manager(disk, one, two)
    disk.fail("fsync_dir", only=lambda path: path == one, times=1)
    with pytest.raises(StorageError):
        get_or_create(logs, A, CONFIG)
    assert not (one / "a-0").exists()
    fill(logs, A)
    close(logs)
    for empty, full in ((one, two), (two, one)):
        shutil.copytree(full / "a-0", empty / "a-0", dirs_exist_ok=True)
        for path in (empty / "a-0").iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        (empty / "a-0" / f"{0:020d}.log").touch()
        (empty / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
        again = manager(FaultDisk(), one, two)
        log = get_or_create(again, A, CONFIG)
        assert (log.dir, log.log_end_offset) == (full / "a-0", 20)
        assert log.append(batch(1), 0, START_MS).first_offset == 20
        log.truncation.truncate_to(20)
        close(again)
        shutil.rmtree(empty / "a-0")
        shutil.move(full / "a-0", empty / "a-0")


@pytest.mark.parametrize("stays", ["", f"{40:020d}.index"])
def test_a_stop_in_the_middle_of_a_removal_leaves_no_hole(tmp_path: Path, stays: str) -> None:
    """What was begun and what waits for later goes in one order; where a file stays, so do those behind."""
    disk = FaultDisk()
    logs = manager(disk, tmp_path)
    fill(logs, A, 60)
    log = get_or_create(logs, A, CONFIG)
    bases = [segment.base_offset for segment in log]

    async def scenario() -> None:
        begun, told = threading.Event(), threading.Event()

        def is_first(_: Path) -> bool:
            begun.set()
            assert told.wait(20)
            return False

        log.deletion.delete_segments(40, "test")
        disk.fail("unlink", only=is_first)
        running = asyncio.create_task(logs.run())
        await until(begun.is_set)
        log.config = replace(CONFIG, file_delete_delay_ms=60_000)
        log.deletion.delete_segments(48, "test")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(0)
        told.set()
        if stays:
            disk.fail("unlink", path=stays)
        await logs.close()

    asyncio.run(scenario())
    left = sorted(int(path.stem) for path in (tmp_path / "a-0").glob("*.log"))
    assert left == bases[bases.index(40 if stays else 48) :]


def test_a_damaged_replica_keeps_its_recovery_point(tmp_path: Path) -> None:
    disk = FaultDisk()
    logs = manager(disk, tmp_path)
    fill(logs, A)
    close(logs, broker_epoch=1)
    path = max((tmp_path / "a-0").glob("*.log"))
    (tmp_path / ".kafka_cleanshutdown").unlink()
    flip(path, path.stat().st_size - 1)
    for _ in range(2):
        logs = manager(disk, tmp_path)
        assert [tip for tip, _ in logs.offline()] == [A]
        close(logs, broker_epoch=1)
    assert checkpointed(tmp_path / "recovery-point-offset-checkpoint") == {("a", 0): 20}


def test_a_replica_that_the_disk_did_not_let_us_open_is_tried_again(tmp_path: Path) -> None:
    disk = FaultDisk()
    logs = manager(disk, tmp_path)
    fill(logs, A)
    close(logs, clean=False)
    disk.fail("open", errno.EMFILE, path="a-0/")
    logs = manager(disk, tmp_path)
    with pytest.raises(StorageError, match="Too many open files"):
        get_or_create(logs, A, CONFIG)
    disk.heal()
    while_running(logs, lambda: until(lambda: logs.get(A.topic_id, 0) is not None))
    assert get_or_create(logs, A, CONFIG).log_end_offset == 20
    close(logs)


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"version: 0\ntopic_id: !", None])
def test_a_replica_without_valid_partition_metadata_is_not_opened(
    tmp_path: Path, content: bytes | None
) -> None:
    disk = FaultDisk()
    logs = manager(disk, tmp_path)
    fill(logs, A)
    fill(logs, B)
    close(logs)
    metadata, log = tmp_path / "a-0" / "partition.metadata", max((tmp_path / "a-0").glob("*.log"))
    metadata.unlink()
    if content is not None:
        metadata.write_bytes(content)
    before = log.read_bytes()
    logs = manager(disk, tmp_path)
    assert get_or_create(logs, B, CONFIG).log_end_offset == 20
    with pytest.raises(CorruptionError, match=r"partition\.metadata"):
        get_or_create(logs, A, CONFIG)
    at_once(logs.set_aside_unknown(lambda topic_id, _: topic_id == B.topic_id))
    assert log.read_bytes() == before
    close(logs)
    write_topic_id(SystemDisk(), tmp_path / "a-0", A.topic_id)
    logs = manager(disk, tmp_path)
    assert get_or_create(logs, A, CONFIG).log_end_offset == 20
    close(logs)


def test_a_flipped_bit_of_a_topic_id_takes_the_replica_offline_and_nothing_is_made_in_its_place(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a-0" / "partition.metadata"
    path.parent.mkdir()
    write_topic_id(SystemDisk(), path.parent, A.topic_id)
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CorruptionError, match=r"partition\.metadata"):
            read_topic_id(SystemDisk(), path.parent)
    path.write_bytes(whole)
    assert read_topic_id(SystemDisk(), path.parent) == A.topic_id


@pytest.mark.parametrize("content", [b"", None])
def test_a_half_created_replica_is_created_again(tmp_path: Path, content: bytes | None) -> None:
    disk = FaultDisk()
    (tmp_path / "a-0").mkdir()
    (tmp_path / "a-0" / f"{0:020d}.log").touch()
    if content is not None:
        (tmp_path / "a-0" / "partition.metadata").write_bytes(content)
    logs = manager(disk, tmp_path)
    fill(logs, A)
    close(logs)
    assert len(list(tmp_path.glob("a-0.*-stray"))) == 1


def test_a_replica_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = FaultDisk()
    logs = manager(disk, tmp_path)
    for call, path in (("mkdir", "a-0"), ("pwrite", "partition.metadata"), ("open", f"{0:020d}.log")):
        disk.fail(call, errno.ENOSPC, path=path)
        with pytest.raises(StorageError):
            get_or_create(logs, A, CONFIG)
        disk.heal()
        assert not (tmp_path / "a-0").exists(), call
    fill(logs, A)
    close(logs)


def test_new_logs_are_durable_with_one_fsync_of_their_directory(tmp_path: Path) -> None:
    disk = FaultDisk()
    logs = manager(disk, tmp_path)
    disk.log.clear()
    tips = [A._replace(partition=n) for n in range(10)]
    made = at_once(logs.create([(tip, CONFIG) for tip in tips]))
    durable = [(call, path) for call, path in disk.log if call.startswith("fsync")]
    for n in range(10):
        assert ("fsync", tmp_path / f"a-{n}" / "partition.metadata.tmp") in durable
        assert ("fsync_dir", tmp_path / f"a-{n}") in durable
    assert durable.count(("fsync_dir", tmp_path)) == 1
    assert len(durable) == 21
    log = made[3]
    assert isinstance(log, LocalLog)
    log.append(batch(1), -1, START_MS)
    disk.log.clear()
    asyncio.run(logs.flush(log))
    assert [path for call, path in disk.log if call.startswith("fsync")] == [log.dir / f"{0:020d}.log"]
    close(logs)


def test_a_directory_that_does_not_keep_new_names_fails(tmp_path: Path) -> None:
    disk, failed = FaultDisk(), []
    logs = manager(disk, tmp_path, on_directory_failed=lambda path, _: failed.append(path))
    disk.fail("fsync_dir", errno.EIO, only=lambda path: path == tmp_path)
    with pytest.raises(StorageError):
        get_or_create(logs, A, CONFIG)
    assert failed == [tmp_path]
    assert logs.get(A.topic_id, 0) is None
    close(logs)


@pytest.mark.parametrize("call", ["fsync", "open"])
def test_a_topic_deleted_during_its_flush_ends_nothing(tmp_path: Path, call: str) -> None:
    disk, deleted = FaultDisk(), threading.Event()
    logs = manager(disk, tmp_path)
    log = get_or_create(logs, A, LogConfig(flush_messages=1))
    log.append(batch(1), 0, START_MS)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        async def go() -> None:
            await logs.delete([A])
            deleted.set()

        def while_flushing(path: Path) -> bool:
            asyncio.run_coroutine_threadsafe(go(), loop)
            assert deleted.wait(5)
            return False

        disk.fail(call, path="a-0/", only=while_flushing, times=1)
        with contextlib.suppress(LogOffline):
            await logs.flush(log)
        assert logs.get(A.topic_id, 0) is None
        fill(logs, B)
        await logs.flush(get_or_create(logs, B, CONFIG))

    while_running(logs, scenario)
    close(logs, broker_epoch=1)
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_an_empty_directory_is_not_after_a_hard_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "service.hot.manager")
    logs = manager(FaultDisk(), tmp_path)
    assert "hard stop" not in caplog.text
    fill(logs, A)
    close(logs, clean=False)
    close(manager(FaultDisk(), tmp_path))
    assert "opening 1 logs" in caplog.text
    assert "after a hard stop" in caplog.text


def test_a_log_of_a_killed_process_is_durable_with_its_first_records(tmp_path: Path) -> None:
    killed = manager(FaultDisk(), tmp_path)
    get_or_create(killed, A, CONFIG)
    asyncio.run(killed.close(False, -1))  # nothing of it was flushed
    disk = FaultDisk()
    logs = manager(disk, tmp_path)
    log = get_or_create(logs, A, CONFIG)
    log.append(batch(1), 0, START_MS)
    log.durability.flush()
    assert ("fsync_dir", tmp_path) in disk.log
    close(logs)


@pytest.mark.parametrize("ends", [True, False])
def test_a_file_that_does_not_go_holds_up_those_behind_it_so_that_no_hole_opens(
    tmp_path: Path, ends: bool
) -> None:
    tiered = LogConfig(
        segment_bytes=1000, file_delete_delay_ms=0, remote_storage_enable=True, local_retention_bytes=1
    )
    disk, clock = FaultDisk(), ManualClock(START_MS)
    logs = manager(disk, tmp_path, clock=clock)
    log = get_or_create(logs, A, tiered)
    for n in range(60):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
    bases = [segment.base_offset for segment in log]
    fault = disk.fail("unlink", errno.EIO, times=1, path=f"{bases[1]:020d}.log")

    async def scenario() -> None:
        log.deletion.apply_retention(START_MS, bases[3], is_tiered=True)
        await until(lambda: fault.hits == 1)
        if not ends:
            clock.advance(20_000)
            await until(lambda: not (log.dir / f"{bases[2]:020d}.log").exists())

    while_running(logs, scenario)
    asyncio.run(logs.close(False, -1))
    again = LogManager([tmp_path], make_world(clock, disk))
    asyncio.run(again.open_all(lambda _: tiered))
    found = get_or_create(again, A, tiered)
    assert [segment.base_offset for segment in found] == (bases[1:] if ends else bases[3:])
    assert found.log_end_offset == 60
    close(again)


def test_a_start_goes_on_without_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    logs = manager(FaultDisk(), one, two)
    fill(logs, A)
    fill(logs, B)
    homes = {tip: get_or_create(logs, tip, CONFIG).dir.parent for tip in (A, B)}
    assert set(homes.values()) == {one, two}
    close(logs)
    (gone,) = (tip for tip, home in homes.items() if home == two)
    (left,) = (tip for tip, home in homes.items() if home == one)
    two.rename(tmp_path / "elsewhere")
    two.write_text("not a directory")
    assert cluster_id_of(SystemDisk(), [one, two]) is None, "it has no say"
    logs = manager(FaultDisk(), one, two)
    assert len(logs.claim("c", 1)) == 1
    assert logs.directories == [one]
    assert get_or_create(logs, left, CONFIG, is_new=False).log_end_offset == 20
    with pytest.raises(LogOffline, match=f"its files may be in {two}, which cannot be used"):
        get_or_create(logs, gone, CONFIG, is_new=False)
    assert get_or_create(logs, C, CONFIG, is_new=True).dir.parent == one, "what is new has no files there"
    close(logs)
    two.unlink()
    (tmp_path / "elsewhere").rename(two)
    logs = manager(FaultDisk(), one, two)
    assert get_or_create(logs, gone, CONFIG, is_new=False).log_end_offset == 20
    close(logs)


def test_the_directory_of_the_metadata_log_has_to_be_usable(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("not a directory")
    with pytest.raises(DiskError):
        LogManager([tmp_path / "one", tmp_path / "two"], make_world())


@pytest.mark.parametrize("call", ["lock", "list"])
def test_a_directory_whose_disk_refuses_at_the_start_is_left_out(tmp_path: Path, call: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    close(manager(FaultDisk(), one, two))
    disk = FaultDisk()
    disk.fail(call, errno.EIO, path=str(two))
    logs = manager(disk, one, two)
    assert logs.directories == [one]
    with pytest.raises(LogOffline):
        get_or_create(logs, A, CONFIG, is_new=False)
    close(logs)
    assert not (two / CLEAN_SHUTDOWN).exists() or call == "lock", "nothing there was looked at"


TIERED = LogConfig(segment_bytes=1000, file_delete_delay_ms=0, remote_storage_enable=True)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_a_flipped_bit_of_a_checkpoint_is_named_and_moves_nothing(
    tmp_path: Path, name: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As a start, a changed digit would have segments deleted that the bucket does not have."""
    made = manager(FaultDisk(), tmp_path)
    log = get_or_create(made, A, TIERED)
    for n in range(60):
        log.append(batch(1, timestamp=START_MS + n), 0, START_MS)
    checkpoint(made)
    asyncio.run(made.close(clean))
    path, files = tmp_path / name, {one: one.read_bytes() for one in (tmp_path / "a-0").glob("*.log")}
    assert len(files) > 3
    whole = path.read_bytes()
    rows = whole.index(b"a 0 ")
    for bit in range(8 * rows, 8 * whole.index(b"\n", rows)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        caplog.clear()
        again = LogManager([tmp_path], make_world())
        asyncio.run(again.open_all(lambda _: TIERED))
        log = get_or_create(again, A, TIERED, is_new=False)
        assert (log.log_start_offset, log.log_end_offset) == (0, 60)
        assert f"ignoring {path}" in caplog.text
        asyncio.run(again.close(clean))
        assert {one: one.read_bytes() for one in files} == files


def test_a_checkpoint_that_kafka_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text("0\n2\na 0 17\nb 3 5\n")
    assert checkpointed(path) == {("a", 0): 17, ("b", 3): 5}


def test_a_restart_that_fails_between_the_old_segments_and_the_new_one_ends_nothing(tmp_path: Path) -> None:
    disk = FaultDisk()
    logs = manager(disk, tmp_path)
    fill(logs, A)
    fill(logs, B)
    log = get_or_create(logs, A, CONFIG)
    disk.fail("rename", errno.EACCES, path=".log")
    with pytest.raises(StorageError):
        log.truncation.restart_at(1000, 1000, epochs=(), producers=())
    disk.heal()
    assert log.failure is not None
    assert (log.first_base_offset, log.active_base_offset) == (20, 20)
    checkpoint(logs)
    close(logs)
    again = manager(disk, tmp_path)
    assert get_or_create(again, A, CONFIG).log_end_offset == 1000
    assert get_or_create(again, B, CONFIG).log_end_offset == 20
    close(again)
