"""A time means the same offset to a broker and to Spark, and finding it reads no more than it must."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import CorruptionError
from service.base.types import TopicIdPartition
from service.records.batch import HEADER_SIZE, compute_crc
from service.remote.format.keys import HeadKey
from service.remote.format.manifest import ManifestLimits, live_segments
from service.remote.reading.object_reader import open_head
from service.remote.reading.reader import RemoteReader
from service.spark.options import Subscribe
from service.spark.plan.archive import ArchiveReader
from tests.support.built_batches import build_batch
from tests.support.world import WORLD
from tests.unit.spark.bucket import START_MS, Bucket, plain


def by_broker(bucket: Bucket, timestamp_ms: int) -> int | None:
    tip = TopicIdPartition(bucket.topic_id("t"), "t", 0)
    reader = RemoteReader(bucket.store, WORLD, threads=1)
    try:
        key = open_head(bucket.store, HeadKey(tip.topic_id, 0)).manifest_key
        found = reader.offset_for_timestamp(tip, key, timestamp_ms).result(20)
    finally:
        reader.close()
    return None if found is None else found.offset


def by_spark(bucket: Bucket, timestamp_ms: int) -> int | None:
    with ArchiveReader(bucket.store, threads=1) as archive:
        snapshots = archive.snapshots(archive.choose(Subscribe(("t",))))
        return archive.offsets_for_timestamps(snapshots, [timestamp_ms])[0]


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=5), min_size=1
    ),
    st.integers(0, 80),
    st.integers(-1, 61),
)
@settings(max_examples=60, deadline=None)
def test_a_broker_and_spark_find_the_first_live_record_not_older(
    segments: list[list[list[int]]], drop: int, time: int
) -> None:
    bucket = Bucket(block_bytes=200, limits=ManifestLimits(entries=2, page_refs=2))
    bucket.topic("t")
    rows: list[tuple[int, int]] = []
    for batches in segments:
        built = []
        for times in batches:
            base = len(rows)
            rows += enumerate((START_MS + one for one in times), base)
            built.append(
                bytes(build_batch([(row[1], b"k", b"v" * 60) for row in rows[base:]], base_offset=base))
            )
        bucket.add("t", batches=built)
    dropped = min(drop, len(rows) - 1)
    bucket.drop_before("t", dropped)
    expected = next((o for o, at in rows if o >= dropped and at >= START_MS + time), None)
    assert by_spark(bucket, START_MS + time) == by_broker(bucket, START_MS + time) == expected


def test_only_blocks_that_reach_the_time_are_read() -> None:
    bucket = Bucket(block_bytes=1000)
    bucket.topic("t")
    entries = [bucket.add("t") for _ in range(5)]
    bucket.store.reset()
    assert by_spark(bucket, START_MS + 1000 * 333) == 333
    gets = bucket.store.got(".seg")
    assert gets == {entries[3].key: 2}, "the footer and one block of one segment"
    assert bucket.store.bytes[entries[3].key] < entries[3].size


@pytest.mark.parametrize("side", [by_broker, by_spark])
def test_a_batch_that_does_not_parse_is_an_error_that_names_its_object(side: object) -> None:
    """Its checksum is right: whoever wrote it wrote nonsense."""
    assert callable(side)
    bad = bytearray(plain(0, START_MS))
    bad[HEADER_SIZE] = 0x7F
    struct.pack_into(">I", bad, 17, compute_crc(bad, 0, len(bad)))
    bucket = Bucket()
    bucket.topic("t")
    bucket.add("t", batches=[bytes(bad)])
    (entry,) = live_segments(bucket.manifest("t", 0), lambda ref: pytest.fail(ref.key))
    with pytest.raises(CorruptionError, match=entry.key):
        side(bucket, START_MS)
