"""All logs of a node: directories, locks, identity, clean and hard stops, flushing, deletion."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.disk import SystemDisk
from service.base.errors import ConfigError, StorageError
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.log_dir import (
    Boot,
    LogDir,
    cluster_id_of,
    decode_uuid,
    encode_uuid,
    read_meta,
    read_topic_id,
)
from service.hot.manager import LogManager
from service.hot.producer_snapshot import read_snapshot
from tests.support.fault_disk import FaultDisk
from tests.support.waiting import until
from tests.support.world import make_world
from tests.unit.hot.logs import START_MS, at_once, batch, checkpoint, checkpointed, delete, get_or_create

DISK = SystemDisk()
CONFIG = LogConfig(segment_bytes=1000)
A = TopicIdPartition(UUID(int=1), "a", 0)
B = TopicIdPartition(UUID(int=2), "b", 3)
HOUR_MS = 3_600_000


def manager(*dirs: Path, clock: ManualClock | None = None, **options: Any) -> LogManager:
    made = LogManager(dirs, make_world(clock), **options)
    asyncio.run(made.open_all(lambda _: CONFIG))
    return made


def close(logs: LogManager, *, clean: bool = True, broker_epoch: int = -1) -> None:
    asyncio.run(logs.close(clean, broker_epoch))


def boot(boot_id: str, *dirs: Path) -> LogManager:
    """A node's logs, in a run of the machine of that id."""
    made = LogManager(dirs, replace(make_world(), boot_id=boot_id))
    asyncio.run(made.open_all(lambda _: CONFIG))
    return made


def leave_with_a_hole(logs: LogManager, path: Path, topic: TopicIdPartition) -> None:
    """Leave as after a kill or a power loss: the second of three batches is missing."""
    log = get_or_create(logs, topic, CONFIG)
    for _ in range(3):
        log.append(batch(2), 0, START_MS)
    close(logs, clean=False)
    size = len(batch(2).data)
    with open(path / f"{topic.topic}-{topic.partition}" / f"{0:020d}.log", "r+b") as file:
        file.seek(size)
        file.write(bytes(size))


def test_only_what_a_machine_took_with_it_may_be_missing(tmp_path: Path) -> None:
    leave_with_a_hole(boot("one", tmp_path), tmp_path, A)
    other = boot("two", tmp_path)
    assert other.offline() == []
    assert other.logs()[A.topic_id, A.partition].log_end_offset == 2
    leave_with_a_hole(other, tmp_path, B)
    again = boot("two", tmp_path)  # what is missing now, this run of the machine has not taken
    assert [tip for tip, _ in again.offline()] == [B]
    close(again, clean=False)


@pytest.mark.parametrize(("before", "now"), [("", "two"), ("one", ""), ("one", "one")])
def test_an_unknown_boot_id_does_not_excuse_a_hole(tmp_path: Path, before: str, now: str) -> None:
    leave_with_a_hole(boot(before, tmp_path), tmp_path, A)
    logs = boot(now, tmp_path)
    assert [tip for tip, _ in logs.offline()] == [A]
    close(logs, clean=False)


def read_boot(path: Path) -> Boot:
    with closing(LogDir(path, make_world())) as home:
        return home.read_boot()


def test_a_damaged_boot_id_is_no_loss_of_power(tmp_path: Path) -> None:
    """Every bit of the file; an id that is another one would let damage be cut like what the power took."""
    leave_with_a_hole(boot("one", tmp_path), tmp_path, A)
    whole = (tmp_path / ".boot-id").read_bytes()
    found = set()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / ".boot-id").write_bytes(data)
        found.add(read_boot(tmp_path).boot_id)
    assert found == {"", "one"}
    (tmp_path / ".boot-id").write_bytes(b"two\na-0\n")  # as versions before the checksum wrote it
    assert read_boot(tmp_path) == ("two", {"a-0"})


def test_damage_from_before_a_reboot_stays_offline(tmp_path: Path) -> None:
    leave_with_a_hole(boot("one", tmp_path), tmp_path, A)
    for boot_id in ("one", "two", "three"):
        logs = boot(boot_id, tmp_path)
        assert [tip for tip, _ in logs.offline()] == [A]
        close(logs)


def test_a_replica_that_could_not_be_read_yet_may_have_lost_as_much_later(tmp_path: Path) -> None:
    leave_with_a_hole(boot("one", tmp_path), tmp_path, A)
    disk = FaultDisk()
    disk.fail("pread", errno.EIO, times=1, path=f"a-0/{0:020d}.log")
    logs = LogManager([tmp_path], replace(make_world(disk=disk), boot_id="two"))
    asyncio.run(logs.open_all(lambda _: CONFIG))
    assert [tip.topic for tip, _ in logs.offline()] == ["a"]
    close(logs, clean=False)
    logs = boot("two", tmp_path)
    assert logs.offline() == []
    assert logs.logs()[A.topic_id, A.partition].log_end_offset == 2
    close(logs)


def test_logs_come_back_after_a_clean_stop(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    for n in range(30):
        get_or_create(logs, A, CONFIG).append(batch(2), n // 10, START_MS)
    get_or_create(logs, B, CONFIG).append(batch(1), 0, START_MS)
    close(logs, broker_epoch=17)
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 17}
    assert checkpointed(tmp_path / "recovery-point-offset-checkpoint") == {("a", 0): 60, ("b", 3): 1}
    again = manager(tmp_path)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert {key: log.log_end_offset for key, log in again.logs().items()} == {
        (A.topic_id, 0): 60,
        (B.topic_id, 3): 1,
    }
    assert again.get(A.topic_id, 0).recovery_point == 60
    assert get_or_create(again, A, CONFIG) is again.get(A.topic_id, 0)
    close(again)


def test_logs_come_back_after_a_hard_stop(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    for _ in range(30):
        get_or_create(logs, A, CONFIG).append(batch(2), 0, START_MS)
    close(logs, clean=False)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    again = manager(tmp_path)
    assert again.get(A.topic_id, 0).log_end_offset == 60
    close(again)


def test_a_start_offset_survives_any_stop_after_a_checkpoint(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = get_or_create(logs, A, CONFIG)
    for _ in range(30):
        log.append(batch(2), 0, START_MS)
    log.deletion.advance_log_start(33)
    checkpoint(logs)
    close(logs, clean=False)
    again = manager(tmp_path)
    assert again.get(A.topic_id, 0).log_start_offset == 33
    close(again)


def test_damaged_checkpoints_cost_a_recovery_and_nothing_else(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    get_or_create(logs, A, CONFIG).append(batch(2), 0, START_MS)
    close(logs, clean=False)
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (tmp_path / name).write_text("0\n1\na 0\n")
    again = manager(tmp_path)
    assert again.get(A.topic_id, 0).log_end_offset == 2
    close(again)


def test_a_directory_in_use_is_refused_by_name(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    with pytest.raises(StorageError, match=r"in use"):
        LogManager([tmp_path], make_world())
    script = "import fcntl,sys;fcntl.lockf(open(sys.argv[1],'r+'),fcntl.LOCK_EX|fcntl.LOCK_NB)"
    other = subprocess.run(
        [sys.executable, "-c", script, tmp_path / ".lock"], capture_output=True, check=False
    )
    assert other.returncode != 0, "a JVM's lock would have been granted"
    close(logs)
    close(manager(tmp_path))


def test_a_failed_start_gives_its_other_directories_back(tmp_path: Path) -> None:
    taken = LogDir(tmp_path / "two", make_world())
    with pytest.raises(StorageError):
        LogManager([tmp_path / "one", tmp_path / "two"], make_world())
    taken.close()
    close(manager(tmp_path / "one", tmp_path / "two"))


def test_directories_know_their_node_and_cluster(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    logs = manager(one)
    assert cluster_id_of(DISK, [one, two]) is None
    (meta,) = logs.claim("cluster-x", 3).values()
    assert read_meta(DISK, one) == meta
    assert cluster_id_of(DISK, [one, two]) == "cluster-x"
    close(logs)
    logs = manager(one, two)
    assert logs.claim("cluster-x", 3)[one] == meta
    with pytest.raises(ConfigError, match=r"node\.id"):
        logs.claim("cluster-x", 4)
    with pytest.raises(ConfigError, match=r"cluster\.id"):
        logs.claim("cluster-y", 3)
    close(logs)
    (one / "meta.properties").write_text("version=1\nnode.id=x\n")
    with pytest.raises(StorageError, match=r"meta\.properties"):
        read_meta(DISK, one)


def test_new_logs_go_where_the_fewest_are(tmp_path: Path) -> None:
    logs = manager(tmp_path / "one", tmp_path / "two")
    for n in range(4):
        get_or_create(logs, TopicIdPartition(A.topic_id, "a", n), CONFIG)
    assert [len(list((tmp_path / d).glob("a-*"))) for d in ("one", "two")] == [2, 2]
    close(logs)


def test_a_deleted_log_goes_after_its_delay_and_its_name_is_free_at_once(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    logs = manager(tmp_path, clock=clock)
    log = get_or_create(logs, A, CONFIG)
    log.append(batch(1), 0, START_MS)
    found = log.read(0, 1000).slice
    delete(logs, A)
    delete(logs, A)  # gone already
    assert found is not None
    assert len(found.read()) == found.size
    assert [p.name.endswith("-delete") for p in tmp_path.glob("a-0*")] == [True]
    assert get_or_create(logs, A, CONFIG).log_end_offset == 0
    clock.advance(CONFIG.file_delete_delay_ms - 1)
    while_running(logs, lambda: asyncio.sleep(0.05))
    assert len(list(tmp_path.glob("a-0*"))) == 2
    clock.advance(1)
    while_running(logs, lambda: until(lambda: len(list(tmp_path.glob("a-0*"))) == 1))
    close(logs)


def test_a_deletion_is_soon_in_the_checkpoint(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    get_or_create(logs, A, CONFIG)
    get_or_create(logs, B, CONFIG)
    delete(logs, A)
    path = tmp_path / "recovery-point-offset-checkpoint"
    while_running(logs, lambda: until(path.exists))
    assert checkpointed(path) == {("b", 3): 0}
    close(logs)


def test_directories_marked_deleted_are_removed_at_the_next_start(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    get_or_create(logs, A, CONFIG)
    delete(logs, A)
    close(logs)
    close(manager(tmp_path))
    assert list(tmp_path.glob("a-0*")) == []


def test_a_topic_made_again_does_not_inherit_records(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    get_or_create(logs, A, CONFIG).append(batch(1), 0, START_MS)
    successor = A._replace(topic_id=UUID(int=99))
    assert get_or_create(logs, successor, CONFIG).log_end_offset == 0
    assert logs.get(A.topic_id, 0) is None
    assert read_topic_id(DISK, tmp_path / "a-0") == UUID(int=99)
    assert [p.name.endswith("-stray") for p in tmp_path.glob("a-0.*")] == [True]
    close(logs)
    again = manager(tmp_path)
    assert list(again.logs()) == [(UUID(int=99), 0)]
    close(again)


def test_a_topic_made_again_is_not_cut_by_its_predecessors_checkpoint(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = get_or_create(logs, A, CONFIG)
    for _ in range(30):
        log.append(batch(2), 0, START_MS)
    log.deletion.advance_log_start(33)
    checkpoint(logs)
    delete(logs, A)
    successor = A._replace(topic_id=UUID(int=99))
    get_or_create(logs, successor, CONFIG).append(batch(5), 0, START_MS)
    close(logs, clean=False)
    again = manager(tmp_path).get(successor.topic_id, 0)
    assert again is not None
    assert (again.log_start_offset, again.log_end_offset) == (0, 5)


def test_logs_that_the_metadata_does_not_know_are_set_aside(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    get_or_create(logs, A, CONFIG)
    get_or_create(logs, B, CONFIG)
    at_once(logs.set_aside_unknown(lambda topic_id, _: topic_id == B.topic_id))
    assert list(logs.logs()) == [(B.topic_id, 3)]
    close(logs)


def test_long_topic_names_can_be_deleted(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    tip = A._replace(topic="t" * 249)
    get_or_create(logs, tip, CONFIG)
    delete(logs, tip)
    close(logs)


def test_flushes_that_come_together_share_their_fsyncs(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = get_or_create(logs, A, LogConfig(flush_messages=1))

    async def produce() -> None:
        offset = log.append(batch(1), 0, START_MS).last_offset
        assert log.flush_due
        await logs.flush(log)
        assert log.recovery_point > offset

    async def many() -> None:
        await asyncio.gather(*(produce() for _ in range(50)))

    asyncio.run(many())
    assert log.recovery_point == 50
    assert not log.flush_due
    close(logs)


def test_sealed_segments_are_flushed_in_the_background(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = get_or_create(logs, A, CONFIG)

    async def scenario() -> None:
        for _ in range(30):
            log.append(batch(2), 0, START_MS)
        await until(lambda: log.recovery_point == log.active_base_offset > 0)

    while_running(logs, scenario)
    close(logs)


def test_flush_ms_and_checkpoints_happen_in_the_background(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    logs = manager(tmp_path, clock=clock, checkpoint_interval_ms=1000)
    log = get_or_create(logs, A, LogConfig(flush_ms=500))
    log.append(batch(2), 0, START_MS)
    while_running(logs, lambda: asyncio.sleep(0.02))
    assert log.recovery_point == 0
    clock.advance(500)
    while_running(logs, lambda: until(lambda: log.recovery_point == 2))

    async def checkpointed() -> None:
        await asyncio.sleep(0.05)  # the interval begins with `run`
        clock.advance(1000)
        log.appender.roll()
        await until((tmp_path / "recovery-point-offset-checkpoint").exists)

    while_running(logs, checkpointed)
    close(logs, clean=False)
    assert manager(tmp_path).get(A.topic_id, 0).recovery_point == 2


@pytest.mark.parametrize("value", [UUID(int=0), UUID(int=1), UUID(int=2**128 - 1)])
def test_ids_have_kafkas_text_form(value: UUID) -> None:
    assert decode_uuid(encode_uuid(value)) == value


@pytest.mark.parametrize("text", ["", "AAAA", "!" * 22, "A" * 23])
def test_other_texts_are_no_ids(text: str) -> None:
    with pytest.raises(ValueError, match="not an id"):
        decode_uuid(text)


def while_running(logs: LogManager, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run `scenario` beside the manager's background task, which must not end by itself."""

    async def both() -> None:
        task = asyncio.create_task(logs.run())
        try:
            await scenario()
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(both())


def test_a_segment_whose_producers_are_still_to_be_written_is_told_of_after_its_flush(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = get_or_create(logs, A, LogConfig(segment_bytes=200_000))
    news: list[int] = []
    log.sealed.watch(lambda: news.append(len(log.sealed.spans(0, 10))))
    for producer in range(600):
        log.append(batch(1, producer_id=producer, epoch=0, sequence=0), 0, START_MS)
    log.appender.roll()
    assert news == [0], "sealed, and held back"
    while_running(logs, lambda: until(lambda: news[-1] == 1))
    (sealed,) = log.sealed.describe_all()
    assert sealed.producer_snapshot_path is not None
    assert len(read_snapshot(DISK, sealed.producer_snapshot_path)) == 600
    assert news == [0, 1]
    close(logs)


def test_producers_are_kept_as_long_as_it_says_now(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    logs = manager(tmp_path, clock=clock, producer_expiration_ms=10 * HOUR_MS)
    get_or_create(logs, A, CONFIG).append(batch(1, producer_id=7, epoch=0, sequence=0), 0, START_MS)
    producers = get_or_create(logs, A, CONFIG).producers

    async def run() -> None:
        running = asyncio.create_task(logs.run())
        await asyncio.sleep(0)
        clock.advance(2 * HOUR_MS)
        logs.set_producer_expiration(3 * HOUR_MS)
        await until(lambda: producers.expiration_ms == 3 * HOUR_MS)
        assert len(producers) == 1
        logs.set_producer_expiration(HOUR_MS)
        clock.advance(HOUR_MS // 4)
        await until(lambda: not len(producers))
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(run())
    later = get_or_create(logs, B, CONFIG)
    assert later.producers.expiration_ms == HOUR_MS
    close(logs)


def test_a_start_that_falls_is_told_soon(tmp_path: Path) -> None:
    """Who finds one beyond the log's end begins there anew, and passes over what was written since."""
    logs = manager(tmp_path)
    log = get_or_create(logs, A, CONFIG)
    log.append(batch(10), 0, START_MS)
    log.deletion.move_log_start(5)
    path, name = tmp_path / "log-start-offset-checkpoint", (A.topic, A.partition)
    while_running(logs, lambda: until(lambda: path.exists() and checkpointed(path).get(name) == 5))
    assert log.truncation.truncate_to(5) == 0, "its batch goes as a whole"
    while_running(logs, lambda: until(lambda: name not in checkpointed(path)))
    log.append(batch(3), 1, START_MS)
    close(logs, clean=False)
    again = manager(tmp_path)
    log = get_or_create(again, A, CONFIG)
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    close(again)


def test_a_log_may_be_cut_once_its_checkpoint_says_no_more_than_what_is_left(tmp_path: Path) -> None:
    disk = FaultDisk()
    logs = LogManager([tmp_path], make_world(ManualClock(START_MS), disk))
    file = tmp_path / "recovery-point-offset-checkpoint"

    async def scenario() -> None:
        await logs.open_all(lambda _: CONFIG)
        (log,) = await logs.create([(A, CONFIG)])
        assert isinstance(log, LocalLog)
        log.append(batch(10), 0, START_MS)
        log.append(batch(10), 0, START_MS)
        await logs.flush(log)
        await logs.checkpoint_starts()
        assert checkpointed(file) == {("a", 0): 20}
        disk.fail("rename", errno.EIO, path=file.name)
        async with logs.lower_recovery_point(log, 10) as may_be_cut:
            assert not may_be_cut
        disk.heal()
        async with logs.lower_recovery_point(log, 10) as may_be_cut:
            assert may_be_cut
            assert checkpointed(file) == {("a", 0): 10}
            log.truncation.truncate_to(10)
        written = disk.calls["rename"]
        async with logs.lower_recovery_point(log, 10) as may_be_cut:
            assert may_be_cut
        assert disk.calls["rename"] == written, "it said no more before"
        await logs.close()

    asyncio.run(scenario())


def test_a_log_is_made_though_what_failed_before_could_not_be_removed(tmp_path: Path) -> None:
    """No descriptor is left from some call on, for the removal of what is half made neither."""
    for after in range(40):
        disk = FaultDisk()
        logs = LogManager([tmp_path / str(after)], replace(make_world(), disk=disk))
        at_once(logs.open_all(lambda _: CONFIG))
        fault = disk.fail("open", errno.EMFILE, after=after)
        disk.fail("list", errno.EMFILE)
        (made,) = at_once(logs.create([(A, CONFIG)]))
        disk.heal()
        if isinstance(made, LocalLog):
            assert not fault.hits
            close(logs)
            return
        log = get_or_create(logs, A, CONFIG)
        log.append(batch(1), 0, START_MS)
        close(logs)
    raise AssertionError("forty calls to make a log")
