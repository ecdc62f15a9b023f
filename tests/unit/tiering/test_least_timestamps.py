"""Least timestamps of blocks at offload; no batch keeps a segment from being offloaded."""

from __future__ import annotations

from collections.abc import Sequence

import cramjam
import pytest

from service.base.types import NO_TIMESTAMP
from service.records.batch import CompressionType
from service.records.compression import compress
from service.remote.format.block_table import LogBlock
from service.remote.reading.log_scan import MAX_INFLATED_BYTES, scan_log
from tests.support import batches
from tests.support.batches import GZIP, LZ4, NONE, SNAPPY, ZSTD, record

NOW = 1_700_000_000_000
CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]


def blocks_of(*parts: bytes, block_bytes: int = 1 << 20) -> tuple[LogBlock, ...]:
    """The blocks of a log of these batches, each of three offsets."""
    log = b"".join((3 * number).to_bytes(8, "big") + part[8:] for number, part in enumerate(parts))
    return scan_log(
        lambda position, length: log[position : position + length],
        0,
        len(log),
        first_offset=0,
        last_offset=3 * len(parts),
        name="test",
        block_bytes=block_bytes,
    ).blocks


def least(*parts: bytes) -> int:
    (block,) = blocks_of(*parts)
    return block.min_timestamp


def records_at(times: Sequence[int]) -> bytes:
    return b"".join(record(i, b"v" * 20, None, time - times[0]) for i, time in enumerate(times))


def stamped(times: Sequence[int], codec: int = NONE, **header: int) -> bytes:
    """A batch of records at these times after `NOW`; its first record gives the base, as clients have it."""
    return batches.batch(
        payload=bytes(compress(CompressionType(codec), records_at(times))),
        **{
            "attributes": codec,
            "count": len(times),
            "base_timestamp": NOW + times[0],
            "max_timestamp": NOW + max(times),
            **header,
        },  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("codec", CODECS)
def test_the_first_record_need_not_be_the_oldest(codec: int) -> None:
    assert least(stamped([5, -90_000, 7], codec)) == NOW - 90_000
    assert least(stamped([5, 4, 7], codec), stamped([1, 2, 3], codec), stamped([9, 8, 9], codec)) == NOW + 1


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_without_a_time_or_of_before_1970_leaves_it_unknown(codec: int) -> None:
    for time in (-NOW - 1, -NOW - 2, -2 * NOW):
        assert least(stamped([5, 6, 7]), stamped([5, time, 7], codec), stamped([5, 6, 7])) == NO_TIMESTAMP
    assert least(stamped([5, -NOW, 7], codec)) == 0, "1970 itself is a time like any other"


@pytest.mark.parametrize("codec", CODECS)
def test_times_of_the_broker_are_in_the_header(codec: int) -> None:
    broker = 8 | codec
    assert least(stamped([5, -10, 7], codec, attributes=broker, max_timestamp=NOW + 99)) == NOW + 99
    undecodable = batches.batch(
        payload=b"\xff" * 30, count=3, attributes=broker, base_timestamp=NOW, max_timestamp=NOW + 99
    )
    assert least(undecodable) == NOW + 99
    assert least(stamped([5, 6, 7], codec, attributes=broker, max_timestamp=-1)) == NO_TIMESTAMP


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_alone_has_its_batchs_time(codec: int) -> None:
    assert least(stamped([5], codec)) == NOW + 5
    assert least(stamped([-NOW - 1], codec)) == NO_TIMESTAMP


def test_a_single_compressed_record_is_not_inflated() -> None:
    broken = batches.batch(payload=b"\xff" * 30, count=1, attributes=ZSTD, base_timestamp=NOW)
    assert least(broken) == NOW


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_an_empty_batch_that_compaction_left_keeps_the_time_it_says(codec: int) -> None:
    empty = batches.batch(
        payload=b"", count=0, last_offset_delta=2, attributes=codec, base_timestamp=NOW, max_timestamp=NOW + 3
    )
    assert least(empty) == NOW + 3
    assert least(stamped([9, 8, 9]), empty) == NOW + 3


def test_times_after_a_delete_horizon_count_from_it() -> None:
    """Compaction puts the horizon where the base timestamp was, and new deltas into the records (KIP-534)."""
    assert least(stamped([0, -900, -800], attributes=0x40, max_timestamp=NOW)) == NOW - 900


LINKED_LZ4 = bytes(cramjam.lz4.compress(records_at([5, 6, 7])))
"""Blocks that depend on each other: Kafka's readers refuse them, its brokers do not look."""


@pytest.mark.parametrize(
    "what",
    [
        stamped([5, 6, 7], LZ4, attributes=ZSTD),
        batches.batch(payload=LINKED_LZ4, count=3, attributes=LZ4, base_timestamp=NOW),
        stamped([5, 6, 7], ZSTD)[:-3],
        stamped([5, 6, 7], attributes=5),
        stamped([5, 6, 7], attributes=7),
        stamped([5, 6], count=3),
        stamped([5, 6, 7], count=2),
        stamped([5, 6], GZIP, count=3),
        stamped([5, 6, 7], max_timestamp=NOW + 4),
        stamped([5, 6, 7], ZSTD, max_timestamp=NOW + 4),
        batches.batch(payload=b"", count=3, attributes=ZSTD, base_timestamp=NOW),
        batches.batch(payload=b"\x80" * 40, count=3, base_timestamp=NOW),
        batches.batch(payload=record(0, b"", None, 2**62) * 3, count=3, base_timestamp=2**62),
    ],
    ids=lambda _: "",
)
def test_a_batch_that_does_not_decode_is_kept_and_leaves_it_unknown(what: bytes) -> None:
    """Its checksum and its offsets are right: brokers that do not look inside have stored it."""
    batch = what if what[8:12] == (len(what) - 12).to_bytes(4, "big") else resealed(what)
    good = stamped([5, 6, 7])
    assert least(good, batch, good) == NO_TIMESTAMP
    alone = blocks_of(good, batch, good, block_bytes=len(good))
    assert [block.min_timestamp for block in alone] == [NOW + 5, NO_TIMESTAMP, NOW + 5]
    assert [block.record_count for block in alone][::2] == [3, 3]


def resealed(data: bytes) -> bytes:
    """A batch that was cut, whose length and checksum are those of what is left."""
    count, base, newest = (int.from_bytes(data[at : at + n], "big") for at, n in ((57, 4), (27, 8), (35, 8)))
    return batches.batch(
        payload=data[61:], count=count, attributes=data[22], base_timestamp=base, max_timestamp=newest
    )


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD])
def test_a_batch_that_inflates_beyond_the_bound_is_not_read(codec: CompressionType) -> None:
    records = record(0, bytes(MAX_INFLATED_BYTES), None, 0) + record(1, b"")
    bomb = batches.batch(
        payload=bytes(compress(codec, records, 1)), count=2, attributes=codec, base_timestamp=NOW
    )
    assert least(bomb) == NO_TIMESTAMP


def test_a_piece_of_many_batches_has_the_least_of_them_all() -> None:
    parts = [stamped([5000 - i, 6000, 7000], CODECS[i % 5]) for i in range(2000)]
    found = blocks_of(*parts, block_bytes=20_000)
    assert len(found) > 5
    for block in found:
        assert block.min_timestamp == NOW + 5000 - block.last_offset // 3
