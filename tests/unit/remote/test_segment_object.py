from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.remote.format.block_table import BatchFacts, BlockTable, BlockTableBuilder, LogBlock
from service.remote.format.segment_object import (
    SECTION_NAMES,
    SUFFIX_HINT,
    TRAILER,
    PlannedObject,
    decode_footer,
    encode_footer,
    plan_object,
    tail_length,
)
from service.remote.reading.object_reader import entry_of, open_footer, open_footer_of, read_section
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.memory_store import MemoryStore
from tests.unit.remote.archive import batch_of, blocks_of, plan_segment


def small_log(batches: int = 6) -> bytes:
    return b"".join(batch_of(100 + 5 * i, 5, 50, i // 3, 1_000 + 10 * i) for i in range(batches))


def planned(log: bytes | None = None, block_bytes: int = 700) -> PlannedObject:
    log = small_log() if log is None else log
    last = blocks_of(log, 1 << 20)[-1].last_offset
    return plan_segment(
        log,
        base_offset=100,
        last_offset=last,
        epochs=((0, 90), (1, 115)),
        uuid=UUID(int=9),
        block_bytes=block_bytes,
    )


def test_an_object_begins_with_the_log_as_kafka_wrote_it() -> None:
    log, plan = small_log(), planned()
    data = b"".join(plan.parts())
    assert len(data) == plan.size == plan.footer.object_size
    assert data[: plan.footer.log_length] == log


def test_an_object_is_opened_from_its_last_bytes_alone() -> None:
    plan = planned()
    data = b"".join(plan.parts())
    tail = data[plan.footer.tail_position :]
    assert tail == plan.tail
    assert decode_footer(tail, len(data)) == plan.footer
    assert decode_footer(data, len(data)) == plan.footer
    footer = plan.footer
    assert (footer.record_count, footer.batch_count) == (30, 6)
    assert footer.max_timestamp == 1_054
    assert footer.leader_epochs == ((0, 90), (1, 115))


def test_sections_lie_where_the_footer_says(tmp_path: Path) -> None:
    plan = planned()
    data = b"".join(plan.parts())
    store = MemoryStore(SystemThreads())
    store.put(plan.key, data)
    footer = open_footer(store, plan.key)
    assert list(footer.sections) == list(SECTION_NAMES)
    assert read_section(store, plan.key, footer.sections["producer_snapshot"]) == b"snapshot"
    assert read_section(store, plan.key, footer.sections["txn_index"]) == b""
    assert read_section(store, plan.key, footer.sections["leader_epochs"]) == b"0\n2\n0 90\n1 115\n"


def test_a_tail_larger_than_the_first_guess_takes_a_second_request() -> None:
    log = b"".join(batch_of(100 + i, 1, 10, 0, 1_000) for i in range(2_000))
    plan = plan_segment(
        log, base_offset=100, last_offset=2099, epochs=((0, 100),), uuid=UUID(int=9), block_bytes=64
    )
    assert len(plan.tail) > SUFFIX_HINT
    store = MemoryStore(SystemThreads())
    store.put_stream(plan.key, plan.parts(), plan.size)
    assert open_footer(store, plan.key) == plan.footer
    assert open_footer_of(store, entry_of(plan.footer)) == plan.footer


def test_each_short_suffix_says_how_much_is_needed() -> None:
    data = b"".join(planned().parts())
    for length in range(TRAILER.size, len(data)):
        suffix = data[-length:]
        needed = tail_length(suffix, len(data))
        if needed > length:
            with pytest.raises(CorruptionError, match="given"):
                decode_footer(suffix, len(data))
        else:
            decode_footer(suffix, len(data))


def test_an_object_under_another_name_is_refused() -> None:
    plan = planned()
    store = MemoryStore(SystemThreads())
    other = plan.key.replace("00000000000000000100", "00000000000000000099")
    store.put_stream(other, plan.parts(), plan.size)
    with pytest.raises(CorruptionError, match="footer is of"):
        open_footer(store, other)
    with pytest.raises(ObjectNotFound):
        open_footer(store, plan.key)


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 16, b"x" * 4096])
def test_data_that_is_no_segment_object_is_corruption(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_footer(data, len(data))


def test_a_log_of_another_length_than_planned_is_noticed_while_it_is_read() -> None:
    log = small_log()
    for given in (log[:-1], log + b"x"):
        plan = plan_object(
            planned().footer.identity,
            log=lambda given=given: [given],  # type: ignore[misc]
            log_length=len(log),
            blocks=blocks_of(log, 700),
            offset_index=b"",
            time_index=b"",
            leader_epochs=((0, 100),),
            transactional_batch_count=0,
        )
        with pytest.raises(CorruptionError, match="off the planned"):
            list(plan.parts())


@pytest.mark.parametrize(
    "change",
    [
        {"log_length": 0},
        {"log_length": 1 << 31},
        {"blocks": ()},
        {"leader_epochs": ()},
        {"leader_epochs": ((0, 101),)},
        {"leader_epochs": ((1, 90), (1, 110))},
        {"leader_epochs": ((0, 90), (1, 500))},
        {"transactional_batch_count": -1},
        {"transactional_batch_count": 7},
    ],
)
def test_an_object_that_no_reader_would_open_is_not_planned(change: dict[str, object]) -> None:
    log = small_log()
    arguments: dict[str, object] = {
        "log": lambda: [log],
        "log_length": len(log),
        "blocks": blocks_of(log, 700),
        "offset_index": b"",
        "time_index": b"",
        "leader_epochs": ((0, 100),),
        "transactional_batch_count": 0,
    }
    with pytest.raises(ValueError, match=r".+"):
        plan_object(planned().footer.identity, **{**arguments, **change})  # type: ignore[arg-type]


def test_blocks_end_at_batch_borders_near_the_target() -> None:
    log = small_log(40)
    blocks = blocks_of(log, 1_000)
    assert [block.position for block in blocks] == [0, *(block.end for block in blocks)][:-1]
    assert blocks[-1].end == len(log)
    assert all(block.length <= 1_000 for block in blocks)
    assert all(block.crc32c == crc32c(log[block.position : block.end]) for block in blocks)
    assert sum(block.record_count for block in blocks) == 200
    single = blocks_of(log, 1)
    assert [block.batch_count for block in single] == [1] * 40, "a batch is never cut"


def test_runs_of_batches_may_be_added_at_once() -> None:
    log = small_log(4)
    expected = blocks_of(log, 1 << 20)
    first = blocks_of(log, 700)[0]
    builder = BlockTableBuilder(1 << 20)
    rest = blocks_of(log, 1 << 20)[0]
    builder.add_run(
        BatchFacts(0, first.length, 100, first.last_offset, 1_000, first.max_timestamp, first.record_count),
        first.batch_count,
        log[: first.length],
    )
    builder.add_run(
        BatchFacts(
            first.length,
            len(log) - first.length,
            first.last_offset + 1,
            rest.last_offset,
            1_010,
            rest.max_timestamp,
            rest.record_count - first.record_count,
        ),
        rest.batch_count - first.batch_count,
        log[first.length :],
    )
    assert builder.finish() == expected
    with pytest.raises(ValueError, match="bytes for batches"):
        builder.add(BatchFacts(0, 5, 0, 0, 0, 0, 0), b"abc")


def row(**change: int) -> LogBlock:
    return replace_block(LogBlock(0, 100, 1, 10, 19, 5, 9, 10, 2), **change)


def replace_block(block: LogBlock, **change: int) -> LogBlock:
    return block._replace(**change)


@pytest.mark.parametrize(
    "rows",
    [
        [row(position=1)],
        [row(length=0)],
        [row(length=99)],
        [row(first_offset=9)],
        [row(last_offset=9)],
        [row(last_offset=21)],
        [row(batch_count=0)],
        [row(min_timestamp=10)],
        [row(min_timestamp=-2)],
        [row(length=50), row(position=50, length=50)],
        [row(length=50), row(position=51, length=49, first_offset=20, last_offset=20)],
    ],
)
def test_a_block_table_that_does_not_fit_its_log_is_refused(rows: list[LogBlock]) -> None:
    with pytest.raises(CorruptionError):
        BlockTable.of(rows).verify(100, 10, 20)


def test_offsets_and_times_are_found_in_a_table_with_holes() -> None:
    table = BlockTable.of(
        [
            LogBlock(0, 10, 0, 5, 9, -1, -1, 1, 1),
            LogBlock(10, 10, 0, 20, 29, 3, 7, 1, 1),
            LogBlock(20, 10, 0, 30, 30, 2, 5, 1, 1),
        ]
    )
    table.verify(30, 0, 40)
    assert [table.index_of(offset) for offset in (0, 5, 9, 10, 19, 20, 29, 30, 31, 40)] == [
        0, 0, 0, 1, 1, 1, 1, 2, 3, 3,
    ]  # fmt: skip
    assert [table.index_of_timestamp(ts) for ts in (-1, 0, 5, 7, 8)] == [0, 1, 1, 1, 3]
    assert table.index_of_timestamp(5, 2) == 2
    assert table[-1].first_offset == 30
    with pytest.raises(IndexError):
        table[3]


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"record_count": 31}, "totals"),
        ({"batch_count": 5}, "totals"),
        ({"max_timestamp": 9}, "totals"),
        ({"transactional_batch_count": 7}, "transactional_batch_count"),
        ({"transactional_batch_count": -1}, "transactional_batch_count"),
        ({"transactional_batch_count": True}, "transactional_batch_count"),
        ({"open_from": -2}, "open_from"),
        ({"open_from": 1 << 40}, "open_from"),
        ({"open_from": True}, "open_from"),
    ],
)
def test_totals_that_cannot_be_the_tables_are_refused(lie: dict[str, int], reason: str) -> None:
    plan = planned()
    head = b"".join(plan.parts())[: plan.footer.sections["block_table"].end]
    lying = encode_footer(replace(plan.footer, **lie))  # type: ignore[arg-type]
    with pytest.raises(CorruptionError, match=reason):
        decode_footer(head + lying, len(head) + len(lying))


@pytest.mark.parametrize("open_from", [-1, 0, 99])
def test_the_footer_says_where_transactions_are_open(open_from: int) -> None:
    plan = planned()
    head = b"".join(plan.parts())[: plan.footer.sections["block_table"].end]
    footer = encode_footer(replace(plan.footer, open_from=open_from))
    assert (b'"open_from"' in footer) is (open_from >= 0), "plain objects are written as ever"
    assert decode_footer(head + footer, len(head) + len(footer)).open_from == open_from


@pytest.mark.parametrize("count", [0, 6])
def test_the_footer_says_how_many_batches_are_transactional(count: int) -> None:
    log = small_log()
    plan = plan_object(
        planned().footer.identity,
        log=lambda: [log],
        log_length=len(log),
        blocks=blocks_of(log, 700),
        offset_index=b"",
        time_index=b"",
        leader_epochs=((0, 100),),
        transactional_batch_count=count,
    )
    assert decode_footer(plan.tail, plan.size).transactional_batch_count == count


def test_a_footer_of_before_transactional_batches_were_counted_is_read() -> None:
    plan = planned()
    head = b"".join(plan.parts())[: plan.footer.sections["block_table"].end]
    length, _, magic = TRAILER.unpack(plan.tail[-TRAILER.size :])
    document = json.loads(plan.tail[-TRAILER.size - length : -TRAILER.size])
    del document["transactional_batch_count"]
    body = json.dumps(document, separators=(",", ":")).encode()
    crc = crc32c(len(body).to_bytes(4, "big"), crc32c(body))
    data = head + body + TRAILER.pack(len(body), crc, magic)
    footer = decode_footer(data, len(data))
    assert footer.transactional_batch_count is None
    assert (footer.record_count, footer.blocks) == (plan.footer.record_count, plan.footer.blocks)
    assert encode_footer(footer) == data[len(head) :], "not known is not written"
