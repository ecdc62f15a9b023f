"""The golden buckets: what we would write today, and what was written before; we can read both."""

from __future__ import annotations

import gzip
import json
import struct

import pytest
import zstandard

from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.remote.format.keys import HeadKey, SegmentKey, parse_key
from service.remote.format.manifest import live_segments
from service.remote.format.manifest_codec import ClusterFile, encode_head, encode_manifest
from service.remote.reading.object_reader import (
    open_chain,
    open_cluster_file,
    open_footer,
    open_footer_of,
    open_head,
    open_page,
    open_topics,
)
from service.remote.reading.reader import RemoteReader
from service.remote.stores.memory_store import MemoryStore
from tests.golden.remote.generate import (
    CLUSTER_ID,
    FOLDERS,
    PARTITION,
    STAMP,
    TOPIC,
    TOPIC_ID,
    content,
    readable,
)
from tests.support.older_format import version_1
from tests.support.world import WORLD

VERSIONS = sorted(FOLDERS)


def stored(version: int) -> dict[str, bytes]:
    folder = FOLDERS[version]
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def golden_store(version: int) -> MemoryStore:
    store = MemoryStore(SystemThreads())
    for key, data in stored(version).items():
        store.put(key, data)
    return store


def test_we_write_the_same_objects_under_the_same_names() -> None:
    assert sorted(content()) == sorted(stored(2))


@pytest.mark.parametrize("key", sorted(content()))
def test_we_write_the_same_bytes(key: str) -> None:
    assert readable(key, content()[key]) == readable(key, stored(2)[key])


def test_the_same_bucket_in_version_1_is_the_one_that_was_written_then() -> None:
    older, golden = version_1(content()), stored(1)
    assert sorted(older) == sorted(golden)
    for key, data in golden.items():
        assert readable(key, older[key]) == readable(key, data), key


@pytest.mark.parametrize("version", VERSIONS)
def test_every_golden_key_names_what_it_is(version: int) -> None:
    assert all(parse_key(key) is not None for key in stored(version))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_golden_bucket_reads_from_head_to_the_last_record(version: int) -> None:
    store = golden_store(version)
    head = open_head(store, HeadKey(TOPIC_ID, PARTITION))
    chain = open_chain(store, head.manifest_key)
    manifest, size = chain.manifest, chain.head.stored_size
    assert (manifest.version, size) == (head.version, head.stored_size)
    assert (manifest.start_offset, manifest.end_offset, manifest.cluster_id) == (0, 75, CLUSTER_ID)
    entries = list(live_segments(manifest, lambda ref: open_page(store, ref, manifest)))
    assert [entry.base_offset for entry in entries] == [0, 15, 30, 45, 60]
    assert [open_footer_of(store, e) for e in entries] == [open_footer(store, e.key) for e in entries]
    logs = b"".join(stored(version)[entry.key][: entry.log_length] for entry in entries)
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


def test_documents_name_their_writer_time_and_parent() -> None:
    store = golden_store(2)
    chain = open_chain(store, open_head(store, HeadKey(TOPIC_ID, PARTITION)).manifest_key)
    manifest = chain.manifest
    assert manifest.stamp == chain.head.stamp == open_topics(store).stamp == STAMP
    parent = parse_key(str(manifest.parent_key))
    assert parent is not None
    assert parent[:3] == (TOPIC_ID, PARTITION, 4)
    assert open_footer(store, manifest.entries[0].key).stamp == STAMP
    cluster = open_cluster_file(store)
    assert (cluster.cluster_id, cluster.stamp) == (CLUSTER_ID, STAMP)
    assert cluster.metadata is not None
    assert store.head(cluster.metadata.key).size == cluster.metadata.size


def test_documents_of_version_1_without_a_writer_are_read() -> None:
    store = golden_store(1)
    chain = open_chain(store, open_head(store, HeadKey(TOPIC_ID, PARTITION)).manifest_key)
    assert (chain.manifest.stamp, chain.manifest.parent_key, chain.head.stamp) == (None, None, None)
    assert open_cluster_file(store) == ClusterFile(CLUSTER_ID, None, None)
    # The next version goes on from it, and HEAD may be written again before there is one.
    assert chain.head == open_head(store, HeadKey(TOPIC_ID, PARTITION))
    store.put(f"data/{TOPIC_ID}/{PARTITION}/HEAD", encode_head(chain.head))
    assert open_head(store, HeadKey(TOPIC_ID, PARTITION)) == chain.head
    drop = chain.manifest.drop_before(
        20, leader_epoch=3, load=lambda ref: open_page(store, ref, chain.manifest), stamp=STAMP
    )
    key = drop.manifest.key(STAMP.writer.incarnation)
    store.put(key, encode_manifest(drop.manifest))
    after = open_chain(store, key).manifest
    assert (after, after.parent_key) == (drop.manifest, chain.key)
    entries = list(live_segments(after, lambda ref: open_page(store, ref, after)))
    assert [entry.base_offset for entry in entries] == [15, 30, 45, 60]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_layout_can_be_read_without_this_code(version: int) -> None:
    """What docs/bucket-format.md tells a stranger, step by step, with struct, json and gzip (or zstd)."""
    objects = stored(version)
    inflate = gzip.decompress if version == 2 else zstandard.ZstdDecompressor().decompress
    head = json.loads(objects[f"data/{TOPIC_ID}/{PARTITION}/HEAD"])
    manifest = json.loads(inflate(objects[head["manifest"]]))
    rows = []
    for page in manifest["pages"]:
        rows += json.loads(inflate(objects[page["key"]]))["children"]
    rows += manifest["segments"]
    assert [row["base_offset"] for row in rows] == [0, 15, 30, 45, 60]
    data = objects[rows[-1]["key"]]
    length, _, magic = struct.unpack(">II8s", data[-16:])
    assert magic == b"FIRNSEG%d" % version
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


def test_every_field_that_is_written_is_told_in_the_page_about_the_format() -> None:
    page = (FOLDERS[2].parents[3] / "docs" / "bucket-format.md").read_text()
    documents = []
    for key, data in stored(2).items():
        if key.endswith(".seg"):
            length = int.from_bytes(data[-16:-12], "big")
            documents.append(data[-16 - length : -16])
        elif not key.endswith(".checkpoint"):
            documents.append(gzip.decompress(data) if key.endswith(".gz") else data)

    def names(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {name for one in value.values() for name in names(one)}
        return {name for one in value for name in names(one)} if isinstance(value, list) else set()

    written = {name for data in documents for name in names(json.loads(data))}
    assert len(written) > 60
    assert {name for name in written if name not in page} == set()
