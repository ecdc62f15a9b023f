"""Walking whole batches of a log: what recovery trusts, and what may go to the bucket."""

import random
import threading

import pytest

from service.records.batch import compute_crc, iter_headers
from service.records.kernel_status import Status
from service.records.scan import SMALL_BATCH_BYTES, scan_batches
from tests.support.built_batches import build_batch


def log_of(sizes: list[int], base_offset: int = 0) -> tuple[bytearray, list[int]]:
    """A log with a batch of two records for each size, and where the batches begin."""
    log, positions = bytearray(), []
    for i, size in enumerate(sizes):
        positions.append(len(log))
        records = [(1000 + i, None, random.Random(i).randbytes(size)), (900 + i, b"k", None)]
        log += build_batch(records, base_offset=base_offset + 2 * i, leader_epoch=i // 3)
    return log, positions


SIZES = [10, 3000, SMALL_BATCH_BYTES + 10, 0, 100_000, 50]


def test_every_batch_is_found_with_its_facts() -> None:
    log, positions = log_of(SIZES, base_offset=70)
    scan = scan_batches(log, next_offset=70)
    headers = list(iter_headers(log))
    assert (scan.status, scan.end, scan.batches) == (Status.OK, len(log), len(SIZES))
    assert list(scan.positions) == positions
    assert list(scan.sizes) == [h.size for h in headers]
    assert list(scan.base_offsets) == [h.base_offset for h in headers]
    assert list(scan.last_offsets) == [h.last_offset for h in headers]
    assert list(scan.leader_epochs) == [h.partition_leader_epoch for h in headers]
    assert list(scan.base_timestamps) == [h.base_timestamp for h in headers]
    assert list(scan.max_timestamps) == [h.max_timestamp for h in headers]
    assert list(scan.record_counts) == [2] * len(SIZES)
    assert list(scan.attributes) == [h.attributes for h in headers]


def test_attributes_come_as_they_are_stored() -> None:
    log, positions = log_of([10, 10])
    log[positions[0] + 21 : positions[0] + 23] = b"\x01\x78"
    rewrite_crc(log, positions[0], positions[1])
    assert list(scan_batches(log).attributes) == [0x0178, 0]


def test_a_batch_may_hold_fewer_records_than_offsets_and_never_more() -> None:
    """So ``record_count == last_offset - first_offset + 1`` over batches says that none is missing."""
    log, positions = log_of([10, 10])
    for count, status in ((0, Status.OK), (1, Status.OK), (2, Status.OK), (3, Status.BAD_COUNT)):
        log[57:61] = count.to_bytes(4, "big")
        rewrite_crc(log, 0, positions[1])
        scan = scan_batches(log)
        assert (scan.status, scan.batches) == ((status, 2) if status is Status.OK else (status, 0))


def rewrite_crc(log: bytearray, position: int, end: int) -> None:
    log[position + 17 : position + 21] = compute_crc(log, position, end - position).to_bytes(4, "big")


def test_a_part_of_a_log_can_be_walked() -> None:
    log, positions = log_of(SIZES)
    scan = scan_batches(bytes(log), positions[1], positions[4])
    assert list(scan.positions) == positions[1:4]
    assert scan.end == positions[4]


def test_nothing_is_a_whole_walk() -> None:
    scan = scan_batches(b"")
    assert (scan.status, scan.end, scan.batches) == (Status.OK, 0, 0)


def test_more_batches_than_one_step_holds_are_all_found() -> None:
    log, _ = log_of([5] * 9000)
    scan = scan_batches(log)
    assert (scan.status, scan.end, scan.batches) == (Status.OK, len(log), 9000)
    log[-1] ^= 1
    assert scan_batches(log).batches == 8999


@pytest.mark.parametrize("size", [10, SMALL_BATCH_BYTES + 10])
def test_a_log_cut_at_any_byte_ends_before_the_torn_batch(size: int) -> None:
    log, positions = log_of([20, size])
    cuts = range(positions[1] + 1, len(log)) if size < 100 else range(positions[1] + 1, len(log), 501)
    for cut in cuts:
        scan = scan_batches(log[:cut])
        assert (scan.status, scan.end, scan.batches) == (Status.TRUNCATED, positions[1], 1)


@pytest.mark.parametrize("index", range(len(SIZES)))
def test_a_flipped_byte_stops_the_walk_at_its_batch(index: int) -> None:
    log, positions = log_of(SIZES)
    log[positions[index] + 70] ^= 1
    scan = scan_batches(log)
    assert (scan.status, scan.end, scan.batches) == (Status.BAD_CRC, positions[index], index)


@pytest.mark.parametrize(
    ("at", "patch", "status"),
    [
        (0, b"\0" * 8, Status.BAD_RANGE),
        (0, b"\x80" + b"\0" * 7, Status.BAD_RANGE),
        (0, b"\x7f" + b"\xff" * 7, Status.BAD_RANGE),
        (8, b"\0\0\0\x30", Status.BAD_LENGTH),
        (8, b"\xff\xff\xff\xff", Status.BAD_LENGTH),
        (8, b"\x7f\xff\xff\xff", Status.TRUNCATED),
        (16, b"\1", Status.BAD_MAGIC),
        (17, b"\0\0\0\0", Status.BAD_CRC),
        (23, b"\xff", Status.BAD_RANGE),
        (57, b"\xff", Status.BAD_COUNT),
        (57, b"\0\0\0\3", Status.BAD_COUNT),
    ],
)
def test_a_bad_header_stops_the_walk_and_says_why(at: int, patch: bytes, status: Status) -> None:
    log, positions = log_of([10, 10, 10])
    log[positions[1] + at : positions[1] + at + len(patch)] = patch
    scan = scan_batches(log)
    assert (scan.status, scan.end, scan.batches) == (status, positions[1], 1)
    assert scan.status.reason


def test_zeros_after_the_last_batch_as_after_a_crash_are_not_a_batch() -> None:
    log, _ = log_of([10])
    assert scan_batches(log + bytes(4096)).status is Status.BAD_LENGTH
    assert scan_batches(log + bytes(4096)).end == len(log)


def test_offsets_must_not_start_before_the_segment() -> None:
    log, _ = log_of([10], base_offset=5)
    assert scan_batches(log, next_offset=6).status is Status.BAD_RANGE
    assert scan_batches(log, next_offset=5).status is Status.OK
    assert scan_batches(log, next_offset=1).status is Status.OK


def test_threads_may_walk_the_same_log() -> None:
    log, _ = log_of([200] * 2000)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(scan_batches(log).batches)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [2000] * 4
