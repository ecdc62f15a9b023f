"""Round trips until the first record of a cold read, and what manifests cost; for `bench.cold`.

The reader is asked alone, over a store in memory that takes 5 ms for each request. A round trip is a request
that did not begin before another one had ended: what goes side by side is one.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import Protocol
from uuid import UUID

from service.base.types import Buffer, TopicIdPartition
from service.base.world import system_world
from service.records.builder import BatchBuilder
from service.records.txn_rows import ROW
from service.remote.format.keys import SegmentKey, segment_key
from service.remote.format.manifest import SegmentEntry
from service.remote.format.manifest_codec import decode_manifest, encode_manifest, encode_page
from service.remote.format.segment_object import SegmentIdentity, plan_object
from service.remote.reading.log_scan import scan_log
from service.remote.reading.object_reader import entry_of
from service.remote.reading.reader import RemoteReader
from service.remote.stores.memory_store import MemoryStore
from tests.unit.remote.archive import TIP, Archive

LATENCY_S = 0.005


class Note(Protocol):
    """Note a figure."""

    def __call__(self, what: str, value: float, unit: str = "") -> None: ...


class SlowMemory(MemoryStore):
    """Takes its time, and remembers when requests began and ended."""

    def __init__(self) -> None:
        super().__init__(system_world().threads)
        self.calls: list[tuple[float, float]] = []
        self._noting = threading.Lock()

    def _timed(self) -> None:
        began = time.monotonic()
        time.sleep(LATENCY_S)
        with self._noting:
            self.calls.append((began, time.monotonic()))

    def get(self, key: str, *, max_size: int) -> bytes:
        self._timed()
        return super().get(key, max_size=max_size)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        self._timed()
        return super().get_range(key, start, length)

    def round_trips(self) -> int:
        trips, end = 0, 0.0
        for began, ended in sorted(self.calls):
            if began >= end:
                trips += 1
                end = ended
        return trips


def _reader(store: SlowMemory) -> RemoteReader:
    return RemoteReader(store, system_world(), threads=4)


def _read(reader: RemoteReader, store: SlowMemory, tip: TopicIdPartition, key: str, offset: int) -> int:
    store.calls.clear()
    assert reader.read(tip, key, offset, 1 << 20).result(10).data
    return store.round_trips()


def first_record(note: Note) -> None:
    store = SlowMemory()
    archive = Archive(store)
    archive.add_segment(400, value_bytes=20_000)
    archive.add_segment(400, value_bytes=20_000)
    reader = _reader(store)
    note("round trips, cold (goal: ≤ 3)", _read(reader, store, TIP, archive.manifest_key, 7))
    note("round trips, warm (goal: ≤ 1)", _read(reader, store, TIP, archive.manifest_key, 1_500))
    archive.add_segment(10)
    reader.wrote(archive.manifest_key, store.get(archive.manifest_key, max_size=1 << 20))
    note(
        "round trips, right after a commit (goal: ≤ 1)", _read(reader, store, TIP, archive.manifest_key, 900)
    )
    reader.close()
    store = SlowMemory()
    archive = Archive(store)
    _grow(archive, 100_000)
    reader = _reader(store)
    note(
        "round trips, 100,000 segments, oldest (goal: ≤ 3)",
        _read(reader, store, TIP, archive.manifest_key, 7),
    )
    note(
        "round trips, 100,000 segments, warm (goal: ≤ 1)", _read(reader, store, TIP, archive.manifest_key, 60)
    )
    reader.close()


def _grow(archive: Archive, segments: int) -> None:
    """A chain as ten years leave it, of which only the first segment is there."""
    first = archive.add_segment(20, value_bytes=200_000)
    entries, offset = [], archive.next_offset
    for number in range(segments - 1):
        key = SegmentKey(TIP.topic_id, TIP.partition, offset, offset + 99, 0, UUID(int=number))
        entries.append(
            SegmentEntry(
                offset,
                offset + 99,
                1 << 20,
                1 << 19,
                first.max_timestamp + number,
                offset + 99,
                ((0, 0),),
                segment_key(key),
                1 << 19,
                1,
                first.max_timestamp + number,
            )
        )
        offset += 100
    for at in range(0, len(entries), 4096):
        change = archive.manifest.append(
            entries[at : at + 4096], leader_epoch=0, new_uuid=archive.new_uuid, encode_page=encode_page
        )
        for _, ref, data in change.pages:
            archive.store.put(ref.key, data)
        archive.manifest = change.manifest
    archive.commit(archive.manifest)


def manifest_decode(note: Note) -> None:
    archive = Archive(MemoryStore(system_world().threads))
    _grow(archive, 1_024)
    data = encode_manifest(archive.manifest)
    took = []
    for _ in range(20):
        began = time.process_time()
        decode_manifest(data)
        took.append((time.process_time() - began) * 1000)
    note("decoding a manifest of 1,024 segments, CPU", statistics.median(took), "ms")


def _aborted_million(archive: Archive, transactions: int, segments: int) -> None:
    """So many aborted transactions of two offsets each; of their batches one in a thousand is there."""
    each = transactions // segments
    for number in range(segments):
        base = 2 * each * number
        end = base + 2 * each
        log = b"".join(_transactional(offset) for offset in range(base, end, 2000))
        scanned = scan_log(
            lambda position, length, log=log: log[position : position + length],  # type: ignore[misc]
            0,
            len(log),
            first_offset=base,
            last_offset=end - 1,
            name="log",
        )
        rows = b"".join(ROW.pack(0, 7, at, at + 1, at + 2) for at in range(base, end, 2))
        planned = plan_object(
            SegmentIdentity("c-1", *TIP, base, end - 1, 0, archive.new_uuid()),
            log=lambda log=log: [log],  # type: ignore[misc]
            log_length=len(log),
            blocks=scanned.blocks,
            offset_index=b"",
            time_index=b"",
            txn_index=rows,
            leader_epochs=((0, base),),
            transactional_batch_count=scanned.transactional_batch_count,
            open_from=end,
        )
        archive.store.put_stream(planned.key, planned.parts(), planned.size)
        change = archive.manifest.append(
            [entry_of(planned.footer)], leader_epoch=0, new_uuid=archive.new_uuid, encode_page=encode_page
        )
        archive.commit(change.manifest)


def _transactional(offset: int) -> bytes:
    builder = BatchBuilder(offset, leader_epoch=0, producer_id=7, producer_epoch=0, is_transactional=True)
    builder.add(1_700_000_000_000, None, b"v" * 1000)
    return bytes(builder.build())


def aborted_rows(note: Note) -> None:
    """Read committed records alone, in the middle of 1,000,000 aborted transactions."""
    for segments in (1, 64):
        store = SlowMemory()
        archive = Archive(store)
        _aborted_million(archive, 1_000_000 // segments * segments, segments)
        reader = _reader(store)
        middle = archive.manifest.end_offset // 2 // 2000 * 2000
        where = f"1,000,000 aborted in {segments} segment{'s' if segments > 1 else ''}"
        next_offset = reader.read(TIP, archive.manifest_key, middle, 1000).result(30).next_offset
        store.calls.clear()
        began, cpu = time.monotonic(), time.process_time()
        rows = reader.aborted(TIP, archive.manifest_key, middle, next_offset).result(30).rows
        took_ms, cpu_ms = (time.monotonic() - began) * 1000, (time.process_time() - cpu) * 1000
        assert len(rows) == (next_offset - middle) // 2
        note(f"{where}: GETs more (goal: ≤ 1)", len(store.calls))
        note(f"{where}: first look-up", took_ms, "ms")
        note(f"{where}: first look-up, CPU", cpu_ms, "ms")
        warm = []
        for _ in range(20):
            began = time.monotonic()
            reader.aborted(TIP, archive.manifest_key, middle, middle + 200).result(30)
            warm.append((time.monotonic() - began) * 1000)
        note(f"{where}: look-up of 100, in memory (goal: ≤ 2)", statistics.median(warm), "ms")
        reader.close()
