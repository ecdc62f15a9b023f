"""Every flipped bit of the metadata's files is reported by name, or harmless."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from service.base.disk import Disk, Open, SystemDisk
from service.base.errors import CorruptionError, FirnError
from service.hot.log_dir import LogDir, read_meta
from service.hot.names import CLUSTER_METADATA_DIR
from service.metadata.batches import decode_batches, encode_batch
from service.metadata.frames import newest
from service.metadata.image import MetadataImage
from service.metadata.publication import apply_batch
from service.metadata.raft.durable_offset import decode_durable_offset, read_durable_offset
from service.metadata.raft.log import MetadataLog
from service.metadata.raft.log_check import Durable, LogEnd, check_log
from service.metadata.raft.snapshots import list_snapshots, read_snapshot
from service.metadata.raft.state import QuorumState, decode_state
from service.metadata.raft.state_file import read_state
from service.metadata.records import TopicRecord
from service.metadata.snapshot_codec import decode_snapshot
from service.records.batch import iter_headers
from tests.support.world import make_world
from tests.unit.metadata.controllers import CLUSTER_ID, running
from tests.unit.metadata.test_recovery import LOG, content, fill, image_of, written_snapshots

SEED = random.randrange(1 << 32)


class WithoutDevice(SystemDisk):
    """No machine crashes here, so nothing need reach the device: it takes ten times as long."""

    def fsync(self, fd: int) -> None:
        """Nothing to wait for."""

    fdatasync = fsync

    def fsync_dir(self, path: Path) -> None:
        """Nothing to wait for."""


class FlippingDisk(SystemDisk):
    """The disk of this machine, on which one bit of one file reads wrong."""

    def __init__(self, path: Path, bit: int) -> None:
        super().__init__()
        self._path, self._byte, self._mask = path, bit // 8, 1 << bit % 8

    def pread(self, fd: int, size: int, position: int) -> bytes:
        data = super().pread(fd, size, position)
        at = self._byte - position
        if self._paths.get(fd) != self._path or not 0 <= at < len(data):
            return data
        return data[:at] + bytes([data[at] ^ self._mask]) + data[at + 1 :]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory that was left in good order, with two snapshots and a log behind them."""
    directory = tmp_path_factory.mktemp("clean")

    async def scenario() -> None:
        async with running(directory, snapshot_max_bytes=2500) as controller:
            await fill(controller, 3)
            await written_snapshots(controller, directory / CLUSTER_METADATA_DIR, 2)
        async with running(directory):
            pass

    asyncio.run(scenario())
    return directory


def bits_of(path: Path) -> range:
    size = path.stat().st_size
    assert size > 0, path
    return range(8 * size)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def durable_of(directory: Path) -> Durable:
    disk = SystemDisk()
    start = list_snapshots(disk, directory)[-1].end_offset
    noted, state = read_durable_offset(disk, directory), read_state(disk, directory)
    assert noted is not None
    assert state is not None
    return Durable(start, noted, True, state.epoch)


def read_through(disk: Disk, directory: Path, durable: Durable) -> tuple[LogEnd, MetadataImage]:
    """What a start makes of the log: the newest snapshot, and all behind it."""
    end = check_log(disk, directory, durable)
    snapshot = list_snapshots(disk, directory)[-1]
    image = decode_snapshot(read_snapshot(disk, directory, snapshot), **snapshot._asdict())
    for path in sorted(directory.glob("*.log")):
        fd = disk.open(path)
        data = disk.pread(fd, disk.size(fd), 0)
        disk.close(fd)
        for batch in decode_batches(data):
            if batch.base_offset > image.offset:
                image, _ = apply_batch(image, batch)
    return end, image


def test_every_bit_of_the_log_counts(clean: Path) -> None:
    directory = clean / CLUSTER_METADATA_DIR
    durable = durable_of(directory)
    end, expected = read_through(SystemDisk(), directory, durable)
    assert end.offset == durable.offset
    path = sorted(directory.glob("*.log"))[-1]
    noticed = harmless = 0
    for bit in bits_of(path):
        refused, image = None, expected
        try:
            image = read_through(FlippingDisk(path, bit), directory, durable)[1]
        except CorruptionError as e:
            refused = str(e)
        assert refused is None or f"{path}, position" in refused
        assert content(image) == content(expected), f"bit {bit} of {path.name}"
        noticed, harmless = noticed + (refused is not None), harmless + (refused is None)
    print(f"{path.name}: {noticed} noticed, {harmless} harmless")
    assert noticed > 50 * harmless, "an epoch between two others, at most"


def test_every_bit_of_a_snapshot_counts(clean: Path) -> None:
    directory = clean / CLUSTER_METADATA_DIR
    snapshot = list_snapshots(SystemDisk(), directory)[-1]
    path = directory / snapshot.file_name
    for bit in bits_of(path):
        with pytest.raises(CorruptionError):
            decode_snapshot(read_snapshot(FlippingDisk(path, bit), directory, snapshot), **snapshot._asdict())


def test_every_bit_of_quorum_state_is_noticed_or_changes_the_epoch_alone(clean: Path) -> None:
    path = clean / CLUSTER_METADATA_DIR / "quorum-state"
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            state = decode_state(bytes(flipped))
        except CorruptionError:
            continue
        assert isinstance(state, QuorumState)
        assert 0 <= state.epoch < 2**31 - 1


def test_every_bit_of_the_durable_offset_is_noticed(clean: Path) -> None:
    data = (clean / CLUSTER_METADATA_DIR / "durable-offset").read_bytes()
    assert decode_durable_offset(data) is not None
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_durable_offset(bytes(flipped)) is None


def test_flips_anywhere_and_a_start(clean: Path, tmp_path: Path) -> None:
    """Whole starts: refused with the file's name and nothing changed, or everything is there."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    expected = content(asyncio.run(image_of(shutil.copytree(clean, tmp_path / "expected"))))
    files = sorted(p.relative_to(clean) for p in clean.rglob("*") if p.is_file() and p.stat().st_size)
    for number in range(40):
        copy = shutil.copytree(clean, tmp_path / str(number))
        path = copy / files[number % len(files)]
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        before = path.read_bytes()
        refused, found = None, expected
        try:
            found = content(asyncio.run(image_of(copy, world=make_world(disk=WithoutDevice()))))
        except FirnError as e:
            refused = str(e)
        assert found == expected, f"bit {bit} of {path}, seed {SEED}"
        if refused is not None:
            assert path.name in refused, f"bit {bit} of {path}, seed {SEED}"
            assert path.read_bytes() == before
        shutil.rmtree(copy)


def filled(directory: Path) -> tuple[Path, int]:
    """A log of some batches, all flushed and noted, and where the last of them begins."""

    async def scenario() -> None:
        async with running(directory) as controller:
            await fill(controller, 4)

    asyncio.run(scenario())
    path = directory / CLUSTER_METADATA_DIR / LOG
    return path, positions(path)[-1]


def positions(path: Path) -> list[int]:
    """Where the batches of a segment begin."""
    return [header.position for header in iter_headers(path.read_bytes())]


def test_an_acknowledged_batch_at_the_very_end_is_not_taken_for_a_torn_tail(tmp_path: Path) -> None:
    path, position = filled(tmp_path)
    flip(path, 8 * (position + 70))
    before = path.read_bytes()
    with pytest.raises(CorruptionError, match=rf"{LOG}, position {position}: .*damaged at offset"):
        asyncio.run(image_of(tmp_path))
    assert path.read_bytes() == before


def test_damage_that_was_found_stays_damage_after_a_power_loss(tmp_path: Path) -> None:
    """How far the log was durable is not written through each time: it must be once it is all that tells
    damage from a torn tail."""

    class Flushed(SystemDisk):
        """Knows which files were made durable."""

        def __init__(self) -> None:
            super().__init__()
            self.paths: dict[int, Path] = {}
            self.durable: set[str] = set()

        def open(self, path: Path, how: Open = Open.READ) -> int:
            fd = super().open(path, how)
            self.paths[fd] = path
            return fd

        def fsync(self, fd: int) -> None:
            super().fsync(fd)
            self.durable.add(self.paths[fd].name)

    path, position = filled(tmp_path)
    flip(path, 8 * (position + 70))
    disk = Flushed()
    with pytest.raises(CorruptionError, match="damaged at offset"):
        MetadataLog.open(
            path.parent,
            make_world(disk=disk),
            segment_bytes=1 << 20,
            snapshots=[],
            snapshot=None,
            state=read_state(disk, path.parent),
        )
    assert disk.durable == {"durable-offset"}


def test_without_the_durable_offset_a_batch_with_a_valid_one_behind_it_is_damage(tmp_path: Path) -> None:
    path, position = filled(tmp_path)
    (path.parent / "durable-offset").unlink()
    data = path.read_bytes()
    middle = positions(path)[3]
    for bit in (8 * (middle + 100), 8 * (middle + 9), 8 * (middle + 16), 8 * (middle + 7)):
        flip(path, bit)
        with pytest.raises(CorruptionError, match=f"position {middle}"):
            asyncio.run(image_of(tmp_path))
        flip(path, bit)
    os.truncate(path, len(data) - 5)
    asyncio.run(image_of(tmp_path))
    assert path.stat().st_size >= position


def test_a_log_that_was_rolled_back_below_its_durable_end_is_refused(tmp_path: Path) -> None:
    path, position = filled(tmp_path)
    os.truncate(path, position)
    with pytest.raises(CorruptionError, match="the log ends here"):
        asyncio.run(image_of(tmp_path))


def test_a_lost_segment_is_damage(tmp_path: Path) -> None:
    directory = tmp_path / CLUSTER_METADATA_DIR

    async def scenario() -> None:
        async with running(tmp_path, segment_bytes=8 << 20) as controller:
            await fill(controller, 3)

    asyncio.run(scenario())
    (directory / LOG).unlink()
    with pytest.raises(CorruptionError, match="the log ends here"):
        asyncio.run(image_of(tmp_path))


def test_an_unflushed_tail_over_the_border_of_two_segments_is_torn(tmp_path: Path) -> None:
    directory = tmp_path / CLUSTER_METADATA_DIR

    async def scenario() -> MetadataImage:
        async with running(tmp_path) as controller:
            await fill(controller, 3)
            return controller.image

    before = asyncio.run(scenario())
    end = before.offset + 1
    record = newest(TopicRecord(name="unflushed", topic_id=UUID(int=9)))
    lost = encode_batch([record], base_offset=end, epoch=1, timestamp_ms=0)
    behind = encode_batch([record], base_offset=end + 1, epoch=1, timestamp_ms=0)
    with open(directory / LOG, "ab") as file:
        file.write(lost[:40])
    (directory / f"{end + 1:020d}.log").write_bytes(behind)
    assert content(asyncio.run(image_of(tmp_path))) == content(before)


def test_a_damaged_snapshot_is_not_replaced_by_one_that_the_log_does_not_reach(
    clean: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(clean, tmp_path / "copy")
    directory = copy / CLUSTER_METADATA_DIR
    older, newest_one = list_snapshots(SystemDisk(), directory)
    bases = sorted(int(p.name[:20]) for p in directory.glob("*.log"))
    assert bases[-1] > older.end_offset
    for base in bases[:-1]:
        (directory / f"{base:020d}.log").unlink()
    flip(directory / newest_one.file_name, 800)
    names = sorted(os.listdir(directory))
    with pytest.raises(CorruptionError) as refused:
        asyncio.run(image_of(copy))
    assert newest_one.file_name in str(refused.value)
    assert f"ends at {older.end_offset}" in str(refused.value)
    assert sorted(os.listdir(directory)) == names, "nothing was renamed or removed"


def test_a_snapshot_of_other_epochs_or_offsets_than_its_name_says_is_damaged(clean: Path) -> None:
    directory = clean / CLUSTER_METADATA_DIR
    snapshot = list_snapshots(SystemDisk(), directory)[-1]
    runs = list(read_snapshot(SystemDisk(), directory, snapshot))
    with pytest.raises(CorruptionError, match="instead of"):
        decode_snapshot(runs, end_offset=snapshot.end_offset, epoch=snapshot.epoch + 1)


def test_a_new_directory_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / CLUSTER_METADATA_DIR).mkdir()
    asyncio.run(image_of(tmp_path))


def test_every_bit_of_meta_properties_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    home = LogDir(tmp_path, make_world())
    meta = home.claim(CLUSTER_ID, 1)
    home.close()
    path = tmp_path / "meta.properties"
    for bit in bits_of(path):
        try:
            found = read_meta(FlippingDisk(path, bit), tmp_path)
        except FirnError as e:
            assert "meta.properties" in str(e)  # noqa: PT017 - only some are refused
            found = meta
        assert found == meta, f"bit {bit}"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n")
    assert read_meta(SystemDisk(), tmp_path) == meta, "as Kafka writes it"
