"""Indexes are compared with the log before they are archived, in the scan that verifies the batches."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.hot.log import LocalLog
from service.records.scan import scan_batches
from service.records.segment_indexes import IndexBuilder, IndexBytes, IndexProof
from service.remote.format.segment_object import SegmentIdentity
from service.remote.reading.object_reader import open_footer_of, read_section
from service.remote.stores.memory_store import MemoryStore
from service.tiering.copier import CallProgress, copy_segment
from service.tiering.planner import Copy
from tests.support.batches import batch as wire_batch
from tests.unit.hot.logs import START_MS, TIP, batch, open_log


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    log = open_log(tmp_path, segment_bytes=200_000, index_interval_bytes=1000)
    while not log.sealed.describe_all():
        log.append(batch(3, timestamp=START_MS + log.log_end_offset), 0, START_MS)
    return log


def archived(log: LocalLog) -> tuple[IndexBytes, int]:
    """The indexes in the object of the first segment, and how many bytes of the log were read for it."""
    segment = log.sealed.describe_all()[0]
    identity = SegmentIdentity(
        "c", TIP.topic_id, TIP.topic, 0, segment.base_offset, segment.last_offset, 0, TIP.topic_id
    )
    store, progress = MemoryStore(SystemThreads()), CallProgress()
    entry = copy_segment(store, Copy(segment, segment.base_offset), identity, progress, 1000)
    sections = open_footer_of(store, entry).sections
    offsets, times = (
        read_section(store, entry.key, sections[f"{name}_index"]) for name in ("offset", "time")
    )
    return IndexBytes(offsets, times), progress.moved_bytes


def files(log: LocalLog) -> tuple[Path, Path]:
    path = log.sealed.describe_all()[0].log_file.path
    return path.with_suffix(".index"), path.with_suffix(".timeindex")


def test_indexes_that_are_true_are_archived_as_they_are_for_one_look_at_the_log(log: LocalLog) -> None:
    stored = IndexBytes(*(path.read_bytes() for path in files(log)))
    size = log.sealed.describe_all()[0].size
    found, read = archived(log)
    assert found == stored
    assert len(found.offset_index) > 8 * 10
    assert 2 * size <= read < 2.2 * size, "once to prove it, once to send it"


def flipped(data: bytes) -> bytes:
    return data[:20] + bytes([data[20] ^ 1]) + data[21:]


DAMAGES: list[Callable[[bytes], bytes]] = [
    flipped,
    lambda data: b"",
    lambda data: data[:-5],
    lambda data: data[: len(data) // 24 * 12],
    lambda data: data + struct.pack(">qi", 1 << 40, 1 << 20),
    lambda data: bytes(len(data)),
]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("damage", DAMAGES)
def test_wrong_indexes_are_rebuilt_for_the_archive(
    log: LocalLog, which: int, damage: Callable[[bytes], bytes]
) -> None:
    sound = IndexBytes(*(path.read_bytes() for path in files(log)))
    path = files(log)[which]
    path.write_bytes(damage(path.read_bytes()))
    found, _ = archived(log)
    assert found == sound


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_index_is_rebuilt_for_the_archive(log: LocalLog, which: int) -> None:
    sound = IndexBytes(*(path.read_bytes() for path in files(log)))
    files(log)[which].unlink()
    assert archived(log)[0] == sound


def test_a_damaged_log_file_is_not_archived(log: LocalLog) -> None:
    path = log.sealed.describe_all()[0].log_file.path
    path.write_bytes(flipped(path.read_bytes()))
    with pytest.raises(CorruptionError):
        archived(log)


@pytest.mark.parametrize("seed", range(12))
def test_no_flipped_bit_of_an_index_goes_unnoticed(seed: int) -> None:
    """Over batches of all sizes and times that go back; the interval decides which of them have an entry."""
    rng = random.Random(seed)
    interval, offset, log = rng.choice([1, 300, 4096]), 0, bytearray()
    times = []
    for _ in range(60):
        values = [b"v" * rng.choice([1, 50, 900])] * rng.randint(1, 5)
        times.append(rng.choice([START_MS + offset, START_MS + rng.randint(-900, 900)]))
        log += wire_batch(values, base_offset=offset, base_timestamp=times[-1])
        offset += len(values)
    cuts = [0, *sorted(rng.sample(range(1, len(log)), 3)), len(log)]

    def feed(take: IndexBuilder | IndexProof) -> None:
        start = 0
        for cut in cuts[1:]:
            found = scan_batches(memoryview(log)[start:cut])
            if found.batches:
                take.add(found, start)
                start += found.end
        assert start == len(log)

    builder = IndexBuilder(0, interval)
    feed(builder)
    sound = builder.finish()

    def proved(indexes: IndexBytes) -> bool:
        try:
            proof = IndexProof(0, indexes, interval)
            feed(proof)
            proof.finish()
        except CorruptionError:
            return False
        return True

    assert proved(sound)
    for which in (0, 1):
        for _ in range(60):
            data = bytearray(sound[which])
            bit = rng.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
            damaged = IndexBytes(bytes(data), sound[1]) if which == 0 else IndexBytes(sound[0], bytes(data))
            assert not proved(damaged), (which, bit)


def test_a_damaged_producer_snapshot_is_refused_and_named(log: LocalLog) -> None:
    path = log.sealed.describe_all()[0].producer_snapshot_path
    assert path is not None
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=f"{path}: producer snapshot"):
        archived(log)
    path.unlink()
    archived(log)
