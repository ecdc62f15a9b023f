"""Records that compaction keeps, and the batches that it makes of them."""

from __future__ import annotations

import tracemalloc

import pytest

from service.base.errors import CorruptionError
from service.hot.cleaning.transactions import CleanedTransactions
from service.records.batch import HEADER_SIZE, CompressionType, read_header, verify_crc
from service.records.compaction import CopyRules, filling_batch, sealed_batch
from service.records.scan import scan_batches
from service.records.txn_rows import AbortedEntry
from tests.support.compaction import (
    START_MS,
    Pair,
    header_rows,
    key_map,
    last_of_each,
    make_batch,
    make_marker,
    recopied,
    records_of,
)

DAY_MS = 86_400_000
RULES = CopyRules(START_MS + 1000, DAY_MS, 10**9)


def pairs(*texts: str) -> list[Pair]:
    """ "k=v", or "k" for a tombstone."""
    split = (text.partition("=") for text in texts)
    return [Pair(key.encode(), value.encode() if sign else None) for key, sign, value in split]


def test_compaction_keeps_the_last_record_of_each_key_at_its_offset() -> None:
    for codec in CompressionType:
        log = make_batch(0, pairs("a=1", "b=1", "a=2"), codec=codec)
        log += make_batch(3, pairs("b=2", "c=1"), codec=codec) + make_batch(
            5, pairs("d=1", "e=1"), codec=codec
        )
        out = recopied(log, key_map(log), RULES)
        before = {record.offset: record for record in records_of(log)}
        after = records_of(out)
        assert [record.offset for record in after] == [2, 3, 4, 5, 6]
        assert after == [before[record.offset] for record in after]
        assert header_rows(out) == [(0, 2, -1, -1, 1), (3, 4, -1, -1, 2), (5, 6, -1, -1, 2)]
        second = log.index(make_batch(3, pairs("b=2", "c=1"), codec=codec))
        assert out.endswith(log[second:]), "what stays whole stays byte by byte"


def test_an_empty_compacted_batch_is_kept_only_for_a_sequence_or_the_end() -> None:
    log = b"".join(
        make_batch(base, pairs(f"a={base}"), producer=(7, 3, base), codec=codec)
        for base, codec in enumerate(
            [
                CompressionType.NONE,
                CompressionType.ZSTD,
                CompressionType.NONE,
                CompressionType.GZIP,
                CompressionType.NONE,
            ]
        )
    )
    keys = key_map(log + make_batch(5, pairs("a=5")))
    assert recopied(log, keys, RULES) == b""
    assert header_rows(recopied(log, keys, RULES, producers={7: (1, 3)})) == [(1, 1, 7, 1, 0)]
    out = recopied(log, keys, RULES._replace(end_offset=4))
    assert header_rows(out) == [(3, 3, 7, 3, 0)]
    header = read_header(out)
    assert (header.attributes, header.base_timestamp, header.max_timestamp) == (0, -1, START_MS)
    assert header.partition_leader_epoch == 4
    assert recopied(out, keys, RULES) == b"", "an empty batch goes once nobody needs it"


@pytest.mark.parametrize("codec", CompressionType)
def test_nothing_is_allocated_for_records_that_a_batch_only_claims(codec: CompressionType) -> None:
    """Two billion records, by its header, whose checksum is right: 2 GB of marks, and 32 GB of room."""
    log = make_batch(0, pairs("a=1"), codec=codec)
    claims = read_header(log)._replace(last_offset_delta=2**31 - 2, record_count=2**31 - 1)
    hostile = bytes(sealed_batch(claims, log[HEADER_SIZE:]))
    keys = key_map(log)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError, match="batch at offset 0"):
            recopied(hostile, keys, RULES)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_records_beyond_the_key_map_are_kept() -> None:
    log = make_batch(0, pairs("a=1")) + make_batch(1, pairs("a=2")) + make_batch(2, pairs("a=3"))
    keys = key_map(log[: len(log) // 3 * 2])
    assert [record.offset for record in records_of(recopied(log, keys, RULES))] == [1, 2]


def test_a_full_map_says_how_far_it_came() -> None:
    log = b"".join(make_batch(3 * n, pairs(f"a{n}=1", f"b{n}=1", "same=1")) for n in range(10))
    keys = key_map(log, most=24 * 10)
    assert keys.is_full
    assert keys.entries == 9
    out = recopied(log, keys, RULES)
    kept = {record.offset for record in records_of(out)}
    assert kept >= set(range(keys.latest + 1, 30))
    assert last_of_each(records_of(out)) == last_of_each(records_of(log))


def test_tombstones_go_in_two_steps() -> None:
    for codec in (CompressionType.NONE, CompressionType.LZ4):
        log = make_batch(0, pairs("a=1", "b=1")) + make_batch(2, pairs("a", "b=2", "c=1"), codec=codec)
        keys = key_map(log)
        once = recopied(log, keys, RULES)
        header = read_header(once)
        assert header.delete_horizon_ms == RULES.now_ms + DAY_MS
        assert (header.base_offset, header.last_offset) == (2, 4)
        assert records_of(once) == records_of(log)[2:], "timestamps are what they were"
        again = recopied(once, keys, RULES._replace(now_ms=RULES.now_ms + DAY_MS - 1))
        assert again == once
        later = RULES._replace(now_ms=RULES.now_ms + DAY_MS)
        gone = recopied(once, keys, later)
        assert records_of(gone) == records_of(log)[3:]
        assert read_header(gone).delete_horizon_ms == header.delete_horizon_ms
        assert recopied(gone, keys, later) == gone


def test_the_time_of_appending_stays_that_of_the_batch() -> None:
    log = make_batch(0, pairs("a=1", "b=1", "a"), log_append_time=START_MS + 77)
    out = recopied(log, key_map(log), RULES)
    assert {record.timestamp for record in records_of(out)} == {START_MS + 77}
    assert read_header(out).max_timestamp == START_MS + 77
    assert [record.offset for record in records_of(out)] == [1, 2]


def test_the_greatest_timestamp_is_that_of_what_stays() -> None:
    log = make_batch(0, pairs("a=1", "b=1"), timestamp=START_MS) + make_batch(2, pairs("b=2"))
    assert read_header(recopied(log, key_map(log), RULES)).max_timestamp == START_MS


def test_a_record_without_a_key_goes() -> None:
    log = make_batch(0, [Pair(None, b"1"), Pair(b"", b"2"), Pair(b"k", b"3")])
    assert [record.offset for record in records_of(recopied(log, key_map(log), RULES))] == [1, 2]


def test_aborted_records_are_removed_before_their_marker() -> None:
    log = make_batch(0, pairs("a=1"))
    log += make_batch(1, pairs("a=2"), producer=(5, 0, 0), transactional=True)
    log += make_batch(2, pairs("b=1"), producer=(6, 0, 0), transactional=True)
    log += make_marker(3, 5, commit=False) + make_marker(4, 6, commit=True)
    row = AbortedEntry(5, 1, 3, 3)

    def walk() -> CleanedTransactions:
        fates = CleanedTransactions()
        fates.add([row])
        return fates

    keys = key_map(log, fates=walk())
    fates = walk()
    once = recopied(log, keys, RULES, fates=fates)
    assert [(one[0], one[4]) for one in header_rows(once)] == [(0, 1), (2, 1), (3, 1), (4, 1)]
    assert fates.kept == [row]
    assert last_of_each(records_of(once))[b"a"].value == b"1"

    fates = walk()
    twice = recopied(once, keys, RULES, fates=fates)
    found = scan_batches(twice)
    marker = read_header(twice, found.positions[2])
    assert marker.delete_horizon_ms == RULES.now_ms + DAY_MS
    assert fates.kept == [], "nothing of the transaction is left"

    later = RULES._replace(now_ms=RULES.now_ms + DAY_MS)
    gone = recopied(twice, keys, later, fates=CleanedTransactions())
    assert [one[0] for one in header_rows(gone)] == [0, 2, 4]
    assert [one[0] for one in header_rows(recopied(twice, keys, later, producers={5: (-1, 0)}))] == [
        0,
        2,
        3,
        4,
    ]


def test_batches_larger_than_the_buffers() -> None:
    values = [Pair(b"k%d" % (n % 5000), b"v" * 20) for n in range(9000)]
    log = (
        make_batch(0, values)
        + make_batch(9000, values[:10], codec=CompressionType.GZIP)
        + make_batch(9010, values)
    )
    out = recopied(log, key_map(log), RULES, buffer_bytes=100)
    assert records_of(out) == sorted(last_of_each(records_of(log)).values())


def test_an_empty_batch_fills_a_gap() -> None:
    batch = filling_batch(10, 10 + 2**31 - 1, 4)
    header = read_header(batch)
    assert verify_crc(batch, header)
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 10 + 2**31 - 1, 0)
