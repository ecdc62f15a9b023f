"""Compaction answers alike in all lives of its kernels, and as a few lines over decoded records would."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.records import compaction_kernel, key_kernel
from service.records.batch import CompressionType
from service.records.compaction import CopyRules
from service.records.kernel_status import CopyState, MapState, Status
from service.records.scan import scan_batches
from tests.support.compaction import (
    START_MS,
    Pair,
    header_rows,
    key_map,
    last_of_each,
    make_batch,
    recopied,
    records_of,
)
from tests.support.kernels import interpreted

LIVES: list[dict[str, ModuleType]] = [
    {"key_kernel": key_kernel, "compaction_kernel": compaction_kernel},
    *(interpreted(with_cython=found) for found in (True, False)),
]
SECRET = array("Q", bytes(range(16)))

pairs = st.builds(
    Pair,
    st.one_of(st.none(), st.binary(max_size=1), st.integers(0, 9).map(lambda n: b"a longer key %d" % n)),
    st.one_of(st.none(), st.binary(max_size=20)),
)


@st.composite
def logs(draw: st.DrawFn, codecs: tuple[CompressionType, ...] = (CompressionType.NONE,)) -> bytes:
    """Batches with gaps between their offsets, of producers and of nobody."""
    log, offset = b"", draw(st.integers(0, 2**40))
    for records in draw(st.lists(st.lists(pairs, min_size=1, max_size=6), min_size=1, max_size=8)):
        offset += draw(st.sampled_from((0, 0, 3)))
        producer = draw(st.sampled_from(((-1, -1, -1), (1, 0, offset & 0xFFFF), (2, 5, 7))))
        stamp = draw(st.sampled_from((None, None, START_MS + 9)))
        codec = draw(st.sampled_from(codecs))
        log += make_batch(offset, records, codec=codec, producer=producer, log_append_time=stamp)
        offset += len(records)
    return log


def run(life: dict[str, Any], log: bytes, slots: int, room: int, marks: int, now_ms: int) -> tuple[Any, ...]:
    """Everything that the loops say and write, for one log."""
    found = scan_batches(log)
    table = array("Q", bytes(24 * slots))
    state = array("q", (0, slots - 1, -1, 0))
    mapped = life["key_kernel"].map_batches(
        log, found.positions, found.sizes, 0, found.base_offsets[0] + 1, SECRET, table, state
    )
    out, copied = bytearray(room), array("q", bytes(8 * len(CopyState)))
    times = array("q", (now_ms, now_ms + 1000))
    copy = life["compaction_kernel"].copy_batches(
        log, found.positions, found.sizes, 0, 0, 0, times, found.last_offsets[-1] + 1, SECRET, table,
        state[MapState.LATEST], array("q", (1,)), array("q", (found.last_offsets[0],)), bytearray(marks), out,
        copied,
    )  # fmt: skip
    return mapped, list(table), list(state), copy, bytes(out), list(copied)


@settings(max_examples=150, deadline=None)
@given(logs(), st.integers(2, 12), st.sampled_from((61, 300, 4096)), st.sampled_from((1, 3, 64)))
def test_all_lives_answer_alike(log: bytes, slots: int, room: int, marks: int) -> None:
    first, *others = (run(life, log, slots, room, marks, START_MS + 50) for life in LIVES)
    for other in others:
        assert other == first


@settings(max_examples=150, deadline=None)
@given(logs(), st.data())
def test_bad_records_are_a_status_in_all_lives(log: bytes, data: st.DataObject) -> None:
    """A byte of a batch's records is another, and its checksum right all the same."""
    found = scan_batches(log)
    damaged = bytearray(log)
    damaged[data.draw(st.integers(61, found.sizes[0] - 1))] ^= data.draw(st.integers(1, 255))
    table = array("Q", bytes(24 * 64))
    answers = []
    for life in LIVES:
        state = array("q", (0, 60, -1, 0))
        answers.append(
            life["key_kernel"].map_batches(
                bytes(damaged), found.positions, found.sizes, 0, 0, SECRET, array("Q", table), state
            )
        )
        judged, marks = array("q", bytes(24)), bytearray(64)
        records = bytes(damaged[61 : found.sizes[0]])
        header = bytes(damaged[:61])
        status = life["compaction_kernel"].judge_records(
            records, header, 0, START_MS, SECRET, table, 2**62, marks, judged
        )
        out = bytearray(len(records) + 16 * 64)
        written = life["compaction_kernel"].write_records(
            records, found.record_counts[0], bytes([1] * 64), 1 if status == Status.OK else 0, out
        )
        answers[-1] = (*answers[-1], status, bytes(marks), list(judged), written, bytes(out))
    assert answers[1:] == answers[:-1]


@pytest.mark.parametrize("life", LIVES, ids=("as it is", "with Cython's shadow", "without"))
def test_the_hash_is_siphash_with_128_bits(life: dict[str, Any]) -> None:
    """The reference's vector for fifteen bytes (`vectors_sip128`)."""
    log = make_batch(0, [Pair(bytes(range(15)), b"")])
    found = scan_batches(log)
    table, state = array("Q", bytes(24 * 4)), array("q", (0, 3, -1, 0))
    life["key_kernel"].map_batches(log, found.positions, found.sizes, 0, 0, SECRET, table, state)
    words = next(table[at : at + 2] for at in range(0, 12, 3) if table[at + 2])
    assert words.tobytes().hex() == "5493e99933b0a8117e08ec0f97cfc3d9"


@settings(max_examples=200, deadline=None)
@given(logs(tuple(CompressionType)), st.integers(2, 40), st.sampled_from((61, 400, 1 << 16)))
def test_compaction_keeps_what_the_model_keeps(log: bytes, slots: int, buffer_bytes: int) -> None:
    keys = key_map(log, most=24 * slots)
    records = records_of(log)
    end_offset = scan_batches(log).last_offsets[-1] + 1
    rules = CopyRules(START_MS, 1000, end_offset)
    out = recopied(log, keys, rules, buffer_bytes=buffer_bytes)
    last = last_of_each(record for record in records if record.offset <= keys.latest)
    assert records_of(out) == [
        record
        for record in records
        if record.offset > keys.latest
        or (record.key is not None and last[bytes(record.key)].offset == record.offset)
    ]
    rows = {row[:4] for row in header_rows(log)}
    assert {row[:4] for row in header_rows(out)} <= rows
    assert header_rows(out)[-1][1] == end_offset - 1
    assert recopied(out, key_map(out, most=1 << 16), rules, buffer_bytes=buffer_bytes) is not None
