"""Bytes of the records of rewrites and erasures, which never change; and the tails that carry them."""

from __future__ import annotations

from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.base.steps import at_once
from service.metadata.batches import decode_batches, encode_batch
from service.metadata.frames import decode_frame, encode_frame, newest
from service.metadata.image_frames import erasure_record, rewrite_record
from service.metadata.records import ErasedRecord, MetadataRecord, RemoveErasureRecord, RemoveRewriteRecord
from service.metadata.tail_records import to_be_copied
from service.remote.catalog import Erasure, RewriteIntent, RewriteKind

TOPIC, REWRITE, ORDER = UUID(int=0x77), UUID(int=0x1234), UUID(int=0x4321)
TOPIC_ID, REWRITE_ID, ORDER_ID = (f"{one.int:032x}" for one in (TOPIC, REWRITE, ORDER))
RECORDS: list[tuple[MetadataRecord, str]] = [
    (
        rewrite_record((TOPIC, 3), RewriteIntent(REWRITE, 4, 5, RewriteKind.ERASE, 6, 7)),
        f"01 a79c01 00 {TOPIC_ID} 00000003 {REWRITE_ID} 0000000000000004 0000000000000005 02 00000006 "
        f"0000000000000007 00",
    ),
    (
        RemoveRewriteRecord(topic_id=TOPIC, partition_id=3, rewrite_id=REWRITE),
        f"01 a89c01 00 {TOPIC_ID} 00000003 {REWRITE_ID} 00",
    ),
    (
        erasure_record(Erasure(ORDER, "e", 8, 9, 10, (TOPIC,), 11, 12, is_restored=True)),
        f"01 a99c01 00 {ORDER_ID} 02 65 0000000000000008 0000000000000009 0000000a 02 {TOPIC_ID} "
        f"000000000000000b 000000000000000c 01 00",
    ),
    (RemoveErasureRecord(id=ORDER), f"01 aa9c01 00 {ORDER_ID} 00"),
    (
        ErasedRecord(erasure_id=ORDER, broker_id=-1, topic_id=TOPIC, partitions=(3, 4)),
        f"01 ab9c01 00 {ORDER_ID} ffffffff {TOPIC_ID} 03 00000003 00000004 00",
    ),
]


@pytest.mark.parametrize(("record", "golden"), RECORDS)
def test_a_record_has_these_bytes(record: MetadataRecord, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert encode_frame(newest(record)).hex() == data.hex()
    assert decode_frame(data) == newest(record)
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_frame(data[:size])


def test_a_tail_of_the_metadata_keeps_them() -> None:
    """What may leave the cluster: nothing of rewrites and erasures is a secret."""
    frames = [newest(record) for record, _ in RECORDS]
    data = bytes(encode_batch(frames, base_offset=7, epoch=2, timestamp_ms=9))
    piece = at_once(to_be_copied(data, has_credentials=False))
    assert (piece.data, piece.records, piece.has_news) == (data, 5, True)
    assert [frame for batch in decode_batches(piece.data) for frame in batch.frames] == frames
