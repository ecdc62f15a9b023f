"""Detection of acknowledged records that a killed process lost, from memory that survives it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.base.disk import DiskError
from service.base.errors import StorageError
from service.base.shared_memory import SystemSharedMemory
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.hot.recovery import announce_restart
from tests.support.world import make_world
from tests.unit.hot.logs import START_MS, at_once, batch, delete, get_or_create

EPOCH = 40
TIP = TopicIdPartition(UUID(int=1 << 80), "events", 0)
OTHER = TopicIdPartition(UUID(int=(1 << 128) - 2), "more", 3)
"""both halves of its id are negative numbers to the block"""


class Machine:
    """A machine with log directories; its processes one after the other."""

    def __init__(self, folder: Path, directories: int = 1) -> None:
        self.data = [folder / f"data-{number}" for number in range(directories)]
        self.memory = folder / "memory"
        self.memory.mkdir()
        self.boot_id = "first"
        self.running: list[LogManager] = []

    def start(self, *, registers_as: int | None = EPOCH) -> tuple[LogManager, int]:
        """A process that has registered, with the epoch that it told of the one before; not opened yet."""
        world = replace(make_world(), boot_id=self.boot_id, memory=SystemSharedMemory(self.memory))
        logs = LogManager(self.data, world)
        self.running.append(logs)
        logs.claim("cluster", 1, keeps_ends=True)
        previous = logs.previous_epoch()
        if registers_as is not None:
            logs.registered(registers_as)
        return logs, previous

    def opened(self, **options: int | None) -> tuple[LogManager, int]:
        logs, previous = self.start(**options)
        at_once(logs.open_all(lambda topic: LogConfig()))
        return logs, previous

    def kill(self) -> None:
        """Close the open files of a process, and do nothing else."""
        for logs in self.running:
            for home in logs._dirs.in_use:
                home._is_marked_clean = False
            logs._dirs.close()
        self.running.clear()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def append(logs: LogManager, tip: TopicIdPartition = TIP, count: int = 3) -> LocalLog:
    log = get_or_create(logs, tip, LogConfig())
    for _ in range(count):
        log.append(batch(2), 0, START_MS)
    return log


def written(machine: Machine) -> None:
    """Two logs of a process that is then killed."""
    logs, _ = machine.opened()
    append(logs)
    append(logs, OTHER, 2)
    machine.kill()


def active(machine: Machine) -> Path:
    return machine.data[0] / "events-0" / "00000000000000000000.log"


def test_a_killed_process_left_all_of_it(machine: Machine) -> None:
    written(machine)
    for epoch in (41, 42):
        logs, previous = machine.opened(registers_as=epoch)
        assert previous == epoch - 1
        assert [log.log_end_offset for log in logs.logs().values()] != []
        append(logs)
        machine.kill()
    logs, previous = machine.opened()
    assert previous == 42
    log = logs.get(TIP.topic_id, 0)
    assert log is not None
    assert log.log_end_offset == 18


def test_a_node_killed_before_a_log_restart_can_start(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing then was to go; nothing says that the broker has lost it."""
    written(machine)
    logs, _ = machine.opened()
    log = logs.get(TIP.topic_id, 0)
    assert log is not None

    def announce(*told: Any) -> None:
        announce_restart(*told)
        raise DiskError("flushing", log.dir, 5)

    with monkeypatch.context() as patch:
        patch.setattr("service.hot.log_truncation.announce_restart", announce)
        with pytest.raises(StorageError):
            log.truncation.restart_at(3, 3)
    machine.kill()
    logs, _ = machine.opened()
    again = logs.get(TIP.topic_id, 0)
    assert again is not None
    assert again.log_end_offset == 3


def test_one_that_is_killed_before_its_logs_are_open_left_it_all_too(machine: Machine) -> None:
    written(machine)
    machine.start(registers_as=41)
    machine.kill()
    machine.start(registers_as=None)
    machine.kill()
    assert machine.opened()[1] == 41


def torn(machine: Machine) -> None:
    """A write that the kill cut short: nobody was told of it."""
    with active(machine).open("ab") as file:
        file.write(bytes(batch(2).data)[:-7])


def cut(machine: Machine) -> None:
    """A follower gave up what a new leader did not have."""
    logs, _ = machine.opened()
    log = logs.get(TIP.topic_id, 0)
    assert log is not None
    log.truncation.truncate_to(2)
    machine.kill()


def begun_anew(machine: Machine) -> None:
    logs, _ = machine.opened()
    log = logs.get(TIP.topic_id, 0)
    assert log is not None
    log.truncation.restart_at(100, 100)
    machine.kill()


def deleted(machine: Machine) -> None:
    logs, _ = machine.opened()
    delete(logs, TIP)
    machine.kill()


def rolled(machine: Machine) -> None:
    logs, _ = machine.opened()
    log = append(logs)
    log.appender.roll()
    append(logs, count=1)
    machine.kill()


def expired(machine: Machine) -> None:
    """The segment that was active is sealed and goes; nothing was written since."""
    logs, _ = machine.opened()
    log = append(logs)
    log.appender.roll()
    assert log.deletion.advance_log_start(log.log_end_offset) == 1
    for path in log.deletion_queue.take_due(START_MS + 3_600_000):
        path.unlink(missing_ok=True)
    assert not active(machine).exists()
    machine.kill()


@pytest.mark.parametrize("how", [torn, cut, begun_anew, deleted, rolled, expired])
def test_changes_by_the_process_itself_do_not_count_as_loss(
    machine: Machine, how: Callable[[Machine], None]
) -> None:
    written(machine)
    how(machine)
    logs, previous = machine.opened()
    assert previous == EPOCH
    append(logs, OTHER)


def rebooted(machine: Machine) -> None:
    machine.boot_id = "second"


def unknown_boot(machine: Machine) -> None:
    machine.boot_id = ""


def memory_gone(machine: Machine) -> None:
    """A container of its own is made anew."""
    shutil.rmtree(machine.memory)
    machine.memory.mkdir()


def memory_of_another_layout(machine: Machine) -> None:
    (block,) = machine.memory.iterdir()
    block.write_bytes(b"\2" + block.read_bytes()[1:])


def memory_cut_short(machine: Machine) -> None:
    (block,) = machine.memory.iterdir()
    block.write_bytes(block.read_bytes()[:30])


def lost_a_log(machine: Machine) -> None:
    shutil.rmtree(machine.data[0] / "events-0")


def lost_a_segment(machine: Machine) -> None:
    active(machine).unlink()


def lost_a_tail(machine: Machine) -> None:
    data = active(machine).read_bytes()
    active(machine).write_bytes(data[: len(data) // 2])


def lost_whose_it_is(machine: Machine) -> None:
    (machine.data[0] / "events-0" / "partition.metadata").unlink()


def fsync_failed(machine: Machine) -> None:
    (machine.data[0] / ".fsync-failed").touch()


@pytest.mark.parametrize(
    "how",
    [
        rebooted, unknown_boot, memory_gone, memory_of_another_layout, memory_cut_short, lost_a_log,
        lost_a_segment, lost_a_tail, lost_whose_it_is, fsync_failed,
    ],
)  # fmt: skip
def test_a_possible_loss_clears_the_previous_broker_epoch(
    machine: Machine, how: Callable[[Machine], None]
) -> None:
    written(machine)
    how(machine)
    logs, previous = machine.opened(registers_as=77)
    assert previous == -1
    append(logs, OTHER)
    machine.kill()
    if machine.boot_id:
        (machine.data[0] / ".fsync-failed").unlink(missing_ok=True)
        assert machine.opened()[1] == 77, "what came since is there"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_backup_of_the_running_process_lacks_what_came_later(machine: Machine, in_place: bool) -> None:
    """The same boot, the same broker epoch, the same file names; in place the same inodes, too."""
    logs, _ = machine.opened()
    append(logs)
    backup = machine.data[0].with_name("backup")
    shutil.copytree(machine.data[0], backup)
    append(logs)
    machine.kill()
    if in_place:
        shutil.copytree(backup, machine.data[0], dirs_exist_ok=True)
    else:
        shutil.rmtree(machine.data[0])
        shutil.copytree(backup, machine.data[0])
    assert machine.opened()[1] == -1


def test_a_clone_that_runs_beside_the_original_knows_nothing_and_spoils_nothing(machine: Machine) -> None:
    written(machine)
    shutil.copytree(machine.data[0], machine.data[0].with_name("clone"))
    original, previous = machine.opened(registers_as=41)
    assert previous == EPOCH
    homes, machine.data = machine.data, [machine.data[0].with_name("clone")]
    clone, previous = machine.opened(registers_as=99)
    assert previous == -1
    append(clone)
    append(original, OTHER)
    machine.kill()
    machine.data = homes
    assert machine.opened()[1] == 41


def test_damage_in_the_tail_is_found_when_the_log_is_opened(machine: Machine) -> None:
    """As long as before, so it registered as if it had all; it never serves as such."""
    written(machine)
    data = bytearray(active(machine).read_bytes())
    data[-1] ^= 1
    active(machine).write_bytes(data)
    logs, previous = machine.start(registers_as=41)
    assert previous == EPOCH
    with pytest.raises(StorageError, match="does not reach 6, where it ended before this start"):
        at_once(logs.open_all(lambda topic: LogConfig()))
    machine.kill()
    logs, previous = machine.opened(registers_as=42)
    assert previous == -1
    append(logs)
    machine.kill()
    assert machine.opened()[1] == 42


def test_a_failed_fsync_is_known_at_once_and_not_after_a_restart_alone(machine: Machine) -> None:
    logs, _ = machine.opened()
    append(logs)
    logs._dirs.in_use[0].latch.fail(DiskError("flushing", active(machine), 5))
    machine.kill()
    (machine.data[0] / ".fsync-failed").unlink()
    assert machine.opened()[1] == -1


def test_all_directories_have_to_be_there_and_of_one_process(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    logs, _ = machine.opened()
    append(logs)
    append(logs, OTHER)
    machine.kill()
    logs, previous = machine.opened(registers_as=41)
    assert previous == EPOCH
    machine.kill()
    both, machine.data = machine.data, machine.data[:1]
    logs, previous = machine.opened(registers_as=50)
    assert previous == 41, "one that was taken out of log.dirs is not missed: the controller knows of it"
    machine.kill()
    machine.data = both
    assert machine.opened()[1] == -1, "they are of different processes"


def test_after_a_clean_stop_the_marker_says_it_and_no_memory_is_left(machine: Machine) -> None:
    logs, _ = machine.opened()
    append(logs)
    at_once(logs.close(broker_epoch=EPOCH))
    machine.running.clear()
    assert not list(machine.memory.iterdir())
    assert machine.opened()[1] == EPOCH


def test_many_logs_have_room(machine: Machine) -> None:
    logs, _ = machine.opened()
    tips = [TopicIdPartition(TIP.topic_id, "events", number) for number in range(200)]
    for tip in tips:
        append(logs, tip, 1)
    machine.kill()
    logs, previous = machine.opened(registers_as=41)
    assert previous == EPOCH
    for tip in tips[::2]:
        delete(logs, tip)
    append(logs, OTHER)
    machine.kill()
    assert machine.opened()[1] == 41


def test_without_memory_nothing_is_concluded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    logs, _ = machine.opened()
    append(logs)
    machine.kill()
    assert machine.opened()[1] == -1


def test_memory_of_somebody_else_is_not_taken(tmp_path: Path) -> None:
    memory = SystemSharedMemory(tmp_path)
    (tmp_path / "target").write_bytes(bytes(64))
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "twin").hardlink_to(tmp_path / "target")
    assert memory.open("link") is None
    assert memory.open("twin") is None
    assert SystemSharedMemory(tmp_path / "nowhere").open("x") is None
    first = memory.open("x")
    assert first is not None
    assert memory.open("x") is None, "one process at a time"
    first.close()
    assert memory.open("x") is not None
