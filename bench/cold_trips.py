"""Round trips until the first record of a cold read, and what manifests cost; for `bench.cold`.

The reader is asked alone, over a store in memory that takes 5 ms for each request. A round trip is a request
that did not begin before another one had ended: what goes side by side is one.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from uuid import UUID

from service.base.types import Buffer, TopicIdPartition
from service.base.world import system_world
from service.remote.format.keys import SegmentKey, segment_key
from service.remote.format.manifest import SegmentEntry
from service.remote.format.manifest_codec import decode_manifest, encode_manifest, encode_page
from service.remote.reading.reader import RemoteReader
from service.remote.stores.memory_store import MemoryStore
from tests.unit.remote.archive import TIP, Archive

LATENCY_S = 0.005
Note = Callable[[str, float], None]


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
    note("decoding a manifest of 1,024 segments, ms of CPU", statistics.median(took))
