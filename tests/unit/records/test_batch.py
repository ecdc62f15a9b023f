"""The header view: reading, walking, verifying and stamping batches in place."""

import pytest

from service.base.errors import CorruptionError
from service.records.batch import (
    HEADER_SIZE,
    CompressionType,
    complete_headers,
    iter_headers,
    read_header,
    set_log_append_time,
    size_at,
    stamp,
    verify_crc,
)
from service.records.builder import BatchBuilder
from tests.support.built_batches import build_batch

ONE = bytes(build_batch([(1000, b"k", b"v"), (1005, None, b"w")], base_offset=40, leader_epoch=3))


def test_a_header_says_what_the_batch_holds() -> None:
    header = read_header(b"junk" + ONE, 4)
    assert (header.position, header.size, header.end) == (4, len(ONE), 4 + len(ONE))
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 41, 42)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1005)
    assert (header.partition_leader_epoch, header.record_count) == (3, 2)
    assert header.codec is CompressionType.NONE
    assert not (header.is_control)
    assert not (header.is_transactional)
    assert not (header.is_log_append_time)
    assert (header.producer_id, header.base_sequence) == (-1, -1)


def test_flags_and_producer_fields_are_read() -> None:
    builder = BatchBuilder(
        0, CompressionType.ZSTD, 0, 7, 2, 5, is_transactional=True, is_control=True, log_append_time=9
    )
    builder.add(1, None, None)
    header = read_header(builder.build())
    assert header.is_transactional
    assert header.is_control
    assert header.is_log_append_time
    assert header.codec is CompressionType.ZSTD
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.max_timestamp) == (
        7,
        2,
        5,
        9,
    )


def test_the_last_sequence_wraps_after_two_to_the_31() -> None:
    header = read_header(ONE)
    assert header.last_sequence == -1
    assert header._replace(base_sequence=2**31 - 1, last_offset_delta=2).last_sequence == 1
    assert header._replace(base_sequence=2**31 - 3, last_offset_delta=2).last_sequence == 2**31 - 1


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_an_unassigned_codec_is_named_when_asked_for(codec_id: int) -> None:
    header = read_header(ONE)._replace(attributes=codec_id)
    with pytest.raises(CorruptionError, match=f"codec {codec_id}"):
        _ = header.codec


@pytest.mark.parametrize("size", range(HEADER_SIZE))
def test_less_than_a_header_is_corruption(size: int) -> None:
    with pytest.raises(CorruptionError, match="a header takes 61"):
        read_header(ONE[:size])


@pytest.mark.parametrize(
    ("at", "patch", "reason"),
    [
        (8, b"\x00\x00\x00\x30", "length 48"),
        (8, b"\xff\xff\xff\xff", "length -1"),
        (8, b"\x80\x00\x00\x00", "length -2147483648"),
        (16, b"\x01", "magic is 1"),
        (16, b"\xff", "magic is -1"),
        (23, b"\xff\xff\xff\xff", "delta -1"),
        (57, b"\xff\xff\xff\xfe", "count -2"),
    ],
)
def test_an_impossible_header_says_why(at: int, patch: bytes, reason: str) -> None:
    bad = bytearray(ONE)
    bad[at : at + len(patch)] = patch
    with pytest.raises(CorruptionError, match=reason):
        read_header(bad)


def test_walking_needs_whole_batches_unless_a_cut_is_expected() -> None:
    log = ONE * 3
    assert [h.position for h in iter_headers(log)] == [0, len(ONE), 2 * len(ONE)]
    for cut in range(1, len(ONE)):
        torn = log[: 2 * len(ONE) + cut]
        assert len(list(complete_headers(torn))) == 2
        with pytest.raises(CorruptionError):
            list(iter_headers(torn))
    assert [h.position for h in iter_headers(log, len(ONE), 2 * len(ONE))] == [len(ONE)]


def test_garbage_between_batches_is_corruption_for_both_walks() -> None:
    log = ONE + b"\x7f" * 80 + ONE
    for walk in (iter_headers, complete_headers):
        with pytest.raises(CorruptionError):
            list(walk(log))


def test_a_length_of_two_gib_allocates_nothing_and_is_torn() -> None:
    bad = ONE[:8] + b"\x7f\xff\xff\xff" + ONE[12:]
    assert not verify_crc(bad, read_header(bad))
    assert list(complete_headers(bad)) == []
    assert size_at(bad) == 2**31 - 1 + 12


def test_the_size_is_known_from_twelve_bytes() -> None:
    assert size_at(ONE[:12]) == len(ONE)
    with pytest.raises(CorruptionError):
        size_at(ONE[:11])
    with pytest.raises(CorruptionError):
        size_at(bytes(12))


def test_stamping_leaves_the_checksum_right() -> None:
    log = bytearray(ONE + ONE)
    stamp(log, len(ONE), 2**40, 17)
    first, second = iter_headers(log)
    assert (second.base_offset, second.partition_leader_epoch) == (2**40, 17)
    assert verify_crc(log, first)
    assert verify_crc(log, second)
    assert log[: len(ONE)] == ONE


@pytest.mark.parametrize("bit", range(8 * 21, 8 * len(ONE), 7))
def test_any_flipped_bit_under_the_checksum_is_seen(bit: int) -> None:
    bad = bytearray(ONE)
    bad[bit // 8] ^= 1 << bit % 8
    try:
        header = read_header(bad)
    except CorruptionError:
        return
    assert not verify_crc(bad, header)


def test_append_time_replaces_the_max_timestamp_and_renews_the_checksum() -> None:
    log = bytearray(ONE + ONE)
    set_log_append_time(log, len(ONE), 77_000)
    first, second = iter_headers(log)
    assert second.is_log_append_time
    assert second.max_timestamp == 77_000
    assert second.base_timestamp == 1000
    assert verify_crc(log, second)
    assert first == read_header(ONE)
