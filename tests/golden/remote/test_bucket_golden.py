"""The golden bucket is what we would write today, and we can read it."""

from __future__ import annotations

import json
import struct

import pytest
import zstandard

from service.base.types import TopicIdPartition
from service.remote.format.keys import HeadKey, SegmentKey, parse_key
from service.remote.format.manifest import live_segments
from service.remote.reading.object_reader import (
    open_footer,
    open_footer_of,
    open_head,
    open_manifest,
    open_page,
)
from service.remote.reading.reader import RemoteReader
from service.remote.stores.memory_store import MemoryStore
from tests.golden.remote.generate import CLUSTER_ID, FOLDER, PARTITION, TOPIC, TOPIC_ID, content, readable
from tests.support.worlds import WORLD


def stored() -> dict[str, bytes]:
    return {str(path.relative_to(FOLDER)): path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}


def test_we_write_the_same_objects_under_the_same_names() -> None:
    assert sorted(content()) == sorted(stored())


@pytest.mark.parametrize("key", sorted(content()))
def test_we_write_the_same_bytes(key: str) -> None:
    assert readable(key, content()[key]) == readable(key, stored()[key])


def test_every_golden_key_names_what_it_is() -> None:
    assert all(parse_key(key) is not None for key in stored())


def golden_store() -> MemoryStore:
    store = MemoryStore()
    for key, data in stored().items():
        store.put(key, data)
    return store


def test_the_golden_bucket_reads_from_head_to_the_last_record() -> None:
    store = golden_store()
    head = open_head(store, HeadKey(TOPIC_ID, PARTITION))
    manifest, size = open_manifest(store, head.manifest_key)
    assert (manifest.version, size) == (head.version, head.stored_size)
    assert (manifest.start_offset, manifest.end_offset, manifest.cluster_id) == (0, 75, CLUSTER_ID)
    entries = list(live_segments(manifest, lambda ref: open_page(store, ref, manifest)))
    assert [entry.base_offset for entry in entries] == [0, 15, 30, 45, 60]
    assert [open_footer_of(store, e) for e in entries] == [open_footer(store, e.key) for e in entries]
    logs = b"".join(stored()[entry.key][: entry.log_length] for entry in entries)
    reader = RemoteReader(store, WORLD, threads=2)
    try:
        tip = TopicIdPartition(TOPIC_ID, TOPIC, PARTITION)
        offset, got = 0, b""
        while offset < manifest.end_offset:
            read = reader.read(tip, head.manifest_key, offset, 1 << 20).result(10)
            got += b"".join(read.data)
            offset = read.next_offset
        assert got == logs
    finally:
        reader.close()


def test_the_layout_can_be_read_without_this_code() -> None:
    """What docs/bucket-format.md tells a stranger, step by step, with nothing but struct, json and zstd."""
    objects = stored()
    head = json.loads(objects[f"data/{TOPIC_ID}/{PARTITION}/HEAD"])
    manifest = json.loads(zstandard.ZstdDecompressor().decompress(objects[head["manifest"]]))
    rows = []
    for page in manifest["pages"]:
        rows += json.loads(zstandard.ZstdDecompressor().decompress(objects[page["key"]]))["children"]
    rows += manifest["segments"]
    assert [row["base_offset"] for row in rows] == [0, 15, 30, 45, 60]
    data = objects[rows[-1]["key"]]
    length, _, magic = struct.unpack(">II8s", data[-16:])
    assert magic == b"FIRNSEG1"
    footer = json.loads(data[-16 - length : -16])
    assert footer["log_length"] == rows[-1]["log_length"]
    table = footer["sections"]["block_table"]
    blocks = list(
        struct.iter_unpack(">qIIqqqqII", data[table["position"] : table["position"] + table["length"]])
    )
    assert [(block[3], block[4]) for block in blocks] == [(60, 65), (66, 71), (72, 74)]
    assert sum(block[1] for block in blocks) == footer["log_length"]
    assert struct.unpack(">q", data[:8]) == (60,), "the object begins with the segment's first batch"
    assert isinstance(parse_key(rows[-1]["key"]), SegmentKey)
