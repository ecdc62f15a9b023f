"""One segment becomes one object: verification, layout, cost."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.hot.log import LocalLog
from service.records.batch import iter_headers
from service.records.builder import BatchBuilder
from service.records.decode import iter_records
from service.remote.format.segment_object import SegmentIdentity
from service.remote.reading.log_scan import scan_log
from service.remote.reading.object_reader import open_footer_of, read_section
from service.remote.stores.memory_store import MemoryStore
from service.tiering.copier import CallCancelled, CallProgress, copy_segment
from service.tiering.planner import Copy
from tests.unit.hot.logs import START_MS, TIP, batch, open_log

IDENTITY = SegmentIdentity("cluster-1", TIP.topic_id, TIP.topic, 0, 0, 0, 4, TIP.topic_id)


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    """Two epochs; three sealed segments of several kilobytes, with index entries in them."""
    log = open_log(tmp_path, segment_bytes=20_000, index_interval_bytes=1000)
    epoch = 2
    while len(log.sealed.describe_all()) < 3:
        log.append(batch(3, timestamp=START_MS + log.log_end_offset), epoch, START_MS)
        epoch = 3 if log.log_end_offset > 40 else 2
    return log


def copied(log: LocalLog, index: int, from_offset: int | None = None, store: MemoryStore | None = None):  # type: ignore[no-untyped-def]
    segment = log.sealed.describe_all()[index]
    start = segment.base_offset if from_offset is None else from_offset
    identity = IDENTITY._replace(base_offset=start, last_offset=segment.last_offset)
    store = store if store is not None else MemoryStore(SystemThreads())
    entry = copy_segment(store, Copy(segment, start), identity, CallProgress(), 1000)
    return segment, store, entry, open_footer_of(store, entry)


def test_the_object_begins_with_the_bytes_of_the_log_file_and_carries_its_indexes(log: LocalLog) -> None:
    segment, store, entry, footer = copied(log, 1)
    data = store.get(entry.key, max_size=1 << 30)
    assert data[: footer.log_length] == segment.log_file.path.read_bytes()
    for name, path in (
        ("offset_index", segment.log_file.path.with_suffix(".index")),
        ("time_index", segment.log_file.path.with_suffix(".timeindex")),
        ("producer_snapshot", segment.producer_snapshot_path),
    ):
        assert read_section(store, entry.key, footer.sections[name]) == path.read_bytes(), name
    assert footer.sections["offset_index"].length > 8
    assert footer.sections["producer_snapshot"].length > 0


def test_blocks_lie_at_batch_borders_and_say_what_they_hold(log: LocalLog) -> None:
    segment, store, entry, footer = copied(log, 0)
    data = store.get(entry.key, max_size=1 << 30)
    assert len(footer.blocks) > 10
    for block in footer.blocks:
        headers = list(iter_headers(data, block.position, block.end))
        assert (headers[0].base_offset, headers[-1].last_offset) == (block.first_offset, block.last_offset)
        assert max(header.max_timestamp for header in headers) == block.max_timestamp
    assert footer.record_count == segment.last_offset + 1


def test_leader_epochs_are_those_of_the_batches(log: LocalLog) -> None:
    _, _, entry, _ = copied(log, 0)
    assert entry.leader_epochs == ((2, 0), (3, 42))
    _, _, second, _ = copied(log, 1)
    assert second.leader_epochs == ((3, second.base_offset),), "as far as they lie in this object"


def test_the_record_with_the_greatest_timestamp_is_named_exactly(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=2000)
    times = [5, 9, 7, 9, 1]
    while not log.sealed.describe_all():
        builder = BatchBuilder()
        for time in times:
            builder.add(START_MS + time, None, b"v" * 100)
        one = batch(5)
        data = memoryview(builder.build())
        header = next(iter_headers(data))
        log.append(one._replace(data=data, header=header, max_timestamp=START_MS + 9), 0, START_MS)
    _, _, entry, _ = copied(log, 0)
    assert (entry.max_timestamp, entry.max_timestamp_offset) == (START_MS + 9, 1)


def test_the_tail_of_a_segment_gets_indexes_that_count_from_where_it_begins(log: LocalLog) -> None:
    segment = log.sealed.describe_all()[1]
    start = segment.base_offset + 33
    _, store, entry, footer = copied(log, 1, start)
    data = store.get(entry.key, max_size=1 << 30)[: footer.log_length]
    assert segment.log_file.path.read_bytes().endswith(data)
    headers = {header.position: header for header in iter_headers(data)}
    assert headers[0].base_offset == start
    index = read_section(store, entry.key, footer.sections["offset_index"])
    assert len(index) >= 16
    for relative, position in struct.iter_unpack(">ii", index):
        assert headers[position].last_offset == start + relative
    times = list(struct.iter_unpack(">qi", read_section(store, entry.key, footer.sections["time_index"])))
    assert times == sorted(times)
    assert times[-1] == (entry.max_timestamp, entry.last_offset - start)
    assert next(iter_records(data)).offset == start


def test_a_chain_that_does_not_end_at_a_batch_border_is_refused(log: LocalLog) -> None:
    with pytest.raises(CorruptionError, match="no batch begins at"):
        copied(log, 1, log.sealed.describe_all()[1].base_offset + 1)


@pytest.mark.parametrize("position", [0, 10, 16, 25, 70, 5000, -1])
def test_damage_of_any_kind_keeps_a_segment_from_being_uploaded(log: LocalLog, position: int) -> None:
    path = log.sealed.describe_all()[0].log_file.path
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)
    store = MemoryStore(SystemThreads())
    with pytest.raises(CorruptionError):
        copied(log, 0, store=store)
    assert not list(store.list(""))


def test_bytes_that_change_between_proof_and_upload_are_caught(log: LocalLog) -> None:
    class Meddling(MemoryStore):
        def put_stream(self, key, parts, size):  # type: ignore[no-untyped-def]
            path = log.sealed.describe_all()[0].log_file.path
            data = bytearray(path.read_bytes())
            data[9000] ^= 1
            path.write_bytes(data)
            super().put_stream(key, parts, size)

    store = Meddling(SystemThreads())
    with pytest.raises(CorruptionError, match="changed while they were read"):
        copied(log, 0, store=store)
    assert not list(store.list(""))


def test_an_upload_that_is_given_up_stops_at_the_next_block(log: LocalLog) -> None:
    progress = CallProgress()

    class Stopping(MemoryStore):
        def put_stream(self, key, parts, size):  # type: ignore[no-untyped-def]
            next(iter(parts))
            progress.cancelled = True
            super().put_stream(key, parts, size)

    segment = log.sealed.describe_all()[0]
    identity = IDENTITY._replace(last_offset=segment.last_offset)
    with pytest.raises(CallCancelled):
        copy_segment(Stopping(SystemThreads()), Copy(segment, 0), identity, progress, 1000)


def test_a_segment_deleted_meanwhile_is_still_read_through_its_open_file(log: LocalLog) -> None:
    segment = log.sealed.describe_all()[0]
    whole = segment.log_file.path.read_bytes()
    assert os.fstat(segment.log_file.fd).st_size == len(whole), "open before the file is deleted"
    for suffix in (".log", ".index", ".timeindex"):
        segment.log_file.path.with_suffix(suffix).unlink()
    store = MemoryStore(SystemThreads())
    identity = IDENTITY._replace(last_offset=segment.last_offset)
    entry = copy_segment(store, Copy(segment, 0), identity, CallProgress(), 1000)
    assert store.get(entry.key, max_size=1 << 30)[: entry.log_length] == whole


def test_a_batch_larger_than_a_block_is_a_block_of_its_own() -> None:
    sizes = [10, 4000, 10]
    data = bytearray()
    for offset, size in enumerate(sizes):
        builder = BatchBuilder(base_offset=offset)
        builder.add(START_MS, None, b"v" * size)
        data += builder.build()
    reads: list[int] = []

    def read(position: int, length: int) -> bytes:
        reads.append(length)
        return bytes(data[position : position + length])

    found = scan_log(read, 0, len(data), first_offset=0, last_offset=2, name="test", block_bytes=200)
    assert [block.batch_count for block in found.blocks] == [1, 1, 1]
    assert found.length == len(data)
    assert max(reads) == found.blocks[1].length


def test_batches_of_transactions_and_their_markers_are_counted() -> None:
    kinds = [(False, False), (True, False), (True, True), (False, False), (False, True), (True, False)]
    data = bytearray()
    for offset, (transactional, control) in enumerate(kinds):
        builder = BatchBuilder(
            offset, producer_id=5, producer_epoch=0, is_transactional=transactional, is_control=control
        )
        builder.add(START_MS, b"key", b"v" * 100)
        data += builder.build()
    found = scan_log(
        lambda position, length: data[position : position + length],
        0, len(data), first_offset=0, last_offset=5, name="test", block_bytes=400,
    )  # fmt: skip
    assert len(found.blocks) > 1
    assert (found.batch_count, found.transactional_batch_count) == (6, 4)


@pytest.mark.parametrize("claim", [0, 40, 1 << 30, (1 << 31) - 1, -5])
def test_a_length_that_lies_is_not_believed(claim: int) -> None:
    data = bytearray(batch(2).data)
    data[8:12] = claim.to_bytes(4, "big", signed=True)
    reads: list[int] = []

    def read(position: int, length: int) -> bytes:
        reads.append(length)
        return bytes(data[position : position + length])

    with pytest.raises(CorruptionError):
        scan_log(read, 0, len(data), first_offset=0, last_offset=9, name="test", block_bytes=100)
    assert max(reads) <= len(data)


def test_offsets_outside_of_the_segment_are_refused() -> None:
    data = bytes(batch(3).data)
    for first, last in ((1, 9), (0, 1)):
        with pytest.raises(CorruptionError):
            scan_log(
                lambda position, length: data[position : position + length],
                0, len(data), first_offset=first, last_offset=last, name="test",
            )  # fmt: skip


def test_an_object_has_the_leader_epochs_of_the_log_up_to_its_end(log: LocalLog) -> None:
    store = MemoryStore(SystemThreads())
    known = log.epochs.entries
    assert [epoch for epoch, _ in known] == [2, 3]
    later = (*known, (9, log.log_end_offset))
    found = []
    for segment in log.sealed.describe_all():
        identity = IDENTITY._replace(base_offset=segment.base_offset, last_offset=segment.last_offset)
        entry = copy_segment(
            store, Copy(segment, segment.base_offset), identity, CallProgress(), 1000, None, later
        )
        found.append(read_section(store, entry.key, open_footer_of(store, entry).sections["epoch_history"]))
    assert found[0].startswith(b"0\n1\n2 0\n") or found[0].startswith(b"0\n2\n2 0\n3 ")
    assert found[-1] == b"0\n2\n2 0\n3 %d\n" % known[1][1]
    assert later[-1][1] > segment.last_offset, "the last epoch began behind all segments"


def test_a_history_that_does_not_fit_the_batches_is_left_out(log: LocalLog) -> None:
    segment, _, _, footer = copied(log, 2)
    assert "epoch_history" not in footer.sections, "nothing is known"
    identity = IDENTITY._replace(base_offset=segment.base_offset, last_offset=segment.last_offset)
    store = MemoryStore(SystemThreads())
    entry = copy_segment(
        store, Copy(segment, segment.base_offset), identity, CallProgress(), 1000, None, ((7, 0),)
    )
    assert "epoch_history" not in open_footer_of(store, entry).sections
