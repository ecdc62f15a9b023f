from __future__ import annotations

from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.remote.format.block_table import BlockTable
from service.remote.reading.chunk import Chunk, ChunkRange, split_chunks, verify_chunk
from service.remote.reading.read_ahead import IDLE_MS, MAX_STREAMS, Stream, StreamReadAhead
from tests.unit.remote.archive import batch_of, blocks_of

ONE, TWO = (UUID(int=1), 0), (UUID(int=2), 0)


def plan(**change: int) -> StreamReadAhead:
    return StreamReadAhead(**{"chunk_bytes": 10, "max_window_bytes": 80, "budget_bytes": 1000, **change})


def go_on(ahead: StreamReadAhead, stream: Stream, times: int, now_ms: int = 0) -> Stream:
    for _ in range(times):
        ahead.ended(stream, stream.at + 100)
        stream = ahead.begin(stream.partition, stream.at + 100, now_ms)
    return stream


def test_the_window_doubles_with_each_read_that_goes_on_up_to_its_maximum() -> None:
    ahead = plan()
    stream = ahead.begin(ONE, 0, 0)
    windows = [ahead.window(stream)]
    for _ in range(6):
        stream = go_on(ahead, stream, 1)
        windows.append(ahead.window(stream))
    assert windows == [0, 10, 20, 40, 80, 80, 80]


def test_asking_again_neither_grows_nor_loses_the_stream() -> None:
    ahead = plan()
    stream = go_on(ahead, ahead.begin(ONE, 0, 0), 2)
    ahead.ended(stream, 300)
    assert ahead.begin(ONE, 200, 0) is stream
    assert ahead.window(stream) == 20
    assert ahead.begin(ONE, 300, 0) is stream
    assert ahead.window(stream) == 40
    assert ahead.active == 1


def test_a_jump_is_a_new_stream_and_partitions_do_not_mix() -> None:
    ahead = plan()
    stream = go_on(ahead, ahead.begin(ONE, 0, 0), 3)
    assert ahead.begin(ONE, 5, 0) is not stream
    assert ahead.begin(TWO, stream.at, 0) is not stream
    assert ahead.active == 3


def test_each_reader_gets_less_as_readers_grow_more() -> None:
    ahead = plan(budget_bytes=400)
    stream = go_on(ahead, ahead.begin(ONE, 0, 0), 5)
    shares = [ahead.window(stream)]
    for number in range(119):
        ahead.begin((UUID(int=100 + number), 0), 0, 0)
        shares.append(ahead.window(stream))
    assert shares[0] == 80
    assert shares == sorted(shares, reverse=True)
    assert shares[19] == 10, "half of the budget over twenty readers"
    assert shares[-1] == 0, "less than a quarter of a chunk is nothing"


def test_readers_that_went_away_free_their_share() -> None:
    ahead = plan(budget_bytes=100)
    for number in range(39):
        ahead.begin((UUID(int=100 + number), 0), 0, 0)
    stream = go_on(ahead, ahead.begin(ONE, 0, 0), 5)
    assert ahead.window(stream) == 0
    stream = go_on(ahead, stream, 1, IDLE_MS - 1)
    assert ahead.window(stream) == 0
    stream = go_on(ahead, stream, 1, IDLE_MS)
    assert ahead.active == 1
    assert ahead.window(stream) == 50


def test_the_number_of_remembered_readers_is_bounded() -> None:
    ahead = plan()
    for number in range(MAX_STREAMS + 500):
        ahead.ended(ahead.begin(ONE, number * 1000, 0), number * 1000 + 1)
    assert ahead.active <= MAX_STREAMS
    assert len(ahead._by_offset) <= 2 * MAX_STREAMS


def log_with_holes() -> bytes:
    """Batches at 10..14, 20..24, … 90..94: what compaction leaves."""
    return b"".join(batch_of(base, 5, 700, 0, 1_000 + base) for base in range(10, 100, 10))


def whole_chunk(log: bytes) -> Chunk:
    table = BlockTable.of(blocks_of(log, 8_000))
    return verify_chunk(log, ChunkRange(0, len(table), 0, len(log)), table)


@pytest.mark.parametrize(
    ("offset", "base"),
    [(0, 10), (10, 10), (14, 10), (15, 20), (19, 20), (20, 20), (24, 20), (89, 90), (94, 90)],
)
def test_a_hole_is_skipped_to_the_next_batch(offset: int, base: int) -> None:
    log = log_with_holes()
    found = whole_chunk(log).read(offset, 1, at_least_one=True)
    assert found is not None
    size = len(log) // 9
    assert found.data == log[(base // 10 - 1) * size : base // 10 * size]
    assert found.at_end is (base == 90)


def test_a_chunk_knows_where_it_ends() -> None:
    chunk = whole_chunk(log_with_holes())
    assert chunk.read(95, 1, at_least_one=True) is None
    assert chunk.read(90, 1, at_least_one=False) is None
    everything = chunk.read(0, 1 << 20, at_least_one=False)
    assert everything is not None
    assert (everything.next_offset, everything.at_end) == (95, True)


@pytest.mark.parametrize("target", [1, 4_000, 8_000, 20_000, 1 << 30])
def test_chunks_cover_the_table_in_order(target: int) -> None:
    table = BlockTable.of(blocks_of(log_with_holes(), 4_000))
    chunks = split_chunks(table, target)
    assert [chunk.first_block for chunk in chunks] == [0, *(chunk.last_block for chunk in chunks)][:-1]
    assert [chunk.position for chunk in chunks] == [0, *(c.position + c.length for c in chunks)][:-1]
    assert chunks[-1].last_block == len(table)
    for chunk in chunks:
        assert chunk.length <= target or chunk.last_block == chunk.first_block + 1
        for block in range(chunk.first_block, chunk.last_block):
            assert table[block].position >= chunk.position


def test_blocks_whose_checksums_hold_but_whose_batches_do_not_are_refused() -> None:
    log = log_with_holes()
    table = BlockTable.of(blocks_of(log, 8_000))
    shifted = b"".join([log[: len(log) // 9], log[: len(log) // 9], log[2 * len(log) // 9 :]])
    blocks = [b._replace(crc32c=blocks_of_bytes(shifted[b.position : b.end])) for b in table]
    lying = BlockTable.of(blocks)
    with pytest.raises(CorruptionError, match="bad batch"):
        verify_chunk(shifted, ChunkRange(0, len(lying), 0, len(shifted)), lying)
    moved = BlockTable.of([*list(table)[:-1], table[-1]._replace(last_offset=99)])
    with pytest.raises(CorruptionError, match="hold offsets"):
        verify_chunk(log, ChunkRange(0, len(moved), 0, len(log)), moved)


def test_a_batch_is_not_checksummed_again_where_its_block_is_right() -> None:
    log = bytearray(log_with_holes())
    log[100] ^= 1  # in a batch, whose own checksum is wrong from here on
    table = [block._replace(crc32c=blocks_of_bytes(bytes(log[block.position : block.end]))) for block in
             BlockTable.of(blocks_of(log_with_holes(), 8_000))]  # fmt: skip
    chunk = verify_chunk(log, ChunkRange(0, len(table), 0, len(log)), BlockTable.of(table))
    assert bytes(chunk.data) == log


def blocks_of_bytes(data: bytes) -> int:
    from crc32c import crc32c

    return int(crc32c(data))
