"""Erasure answers alike in all lives of its kernels, and as a few lines over decoded records would."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.records import erasure_kernel
from service.records.batch import CompressionType, read_header
from service.records.decode import Record, iter_records
from service.records.erasure import count_hits, hash_key
from service.records.kernel_status import CopyState, Status
from service.records.scan import scan_batches
from tests.support.compaction import START_MS, Pair, header_rows, make_batch, make_marker
from tests.support.erasure import SECRET, erased, erasure_keys, goes
from tests.support.kernels import interpreted

LIVES: list[dict[str, ModuleType]] = [
    {"erasure_kernel": erasure_kernel},
    *(interpreted(with_cython=found) for found in (True, False)),
]
KEYS = (b"", b"a", b"b", b"a longer key, of more than 32 bytes, 1", b"a longer key, of more than 32 bytes, 2")

pairs = st.builds(
    Pair,
    st.one_of(st.none(), st.sampled_from(KEYS), st.binary(max_size=9)),
    st.one_of(st.none(), st.binary(max_size=20)),
)
keys = st.sets(st.sampled_from(KEYS), max_size=3)


@st.composite
def logs(draw: st.DrawFn, codecs: tuple[CompressionType, ...] = (CompressionType.NONE,)) -> bytes:
    """Batches with gaps between their offsets, of producers, transactions and nobody."""
    log, offset = b"", draw(st.integers(0, 2**40))
    for records in draw(st.lists(st.lists(pairs, min_size=1, max_size=6), min_size=1, max_size=8)):
        offset += draw(st.sampled_from((0, 0, 3)))
        producer = draw(st.sampled_from(((-1, -1, -1), (1, 0, offset & 0xFFFF), (2, 5, 7))))
        stamp = draw(st.sampled_from((None, None, START_MS + 9)))
        codec = draw(st.sampled_from(codecs))
        transactional = producer[0] >= 0 and draw(st.booleans())
        log += make_batch(
            offset,
            records,
            codec=codec,
            timestamp=draw(st.sampled_from((START_MS, START_MS + 5, -9))),
            producer=producer,
            log_append_time=stamp,
            transactional=transactional,
        )
        offset += len(records)
        if transactional and draw(st.booleans()):
            log += make_marker(offset, producer[0], commit=draw(st.booleans()))
            offset += 1
    return log


def words(data: bytes) -> array[int]:
    return array("Q", data)


def run(
    life: dict[str, Any], log: bytes, hashes: bytes, end_offset: int, room: int, marks: int, before_ms: int
) -> tuple[Any, ...]:
    """Everything that the loops say and write, for one log."""
    kernel, found, secret = life["erasure_kernel"], scan_batches(log), words(SECRET)
    table = array("Q", bytes(24 * (len(hashes) // 16 + 2)))
    entries = kernel.fill_table(words(hashes), table)
    answers: list[Any] = []
    for keeps_all in (0, 1):
        out, copied = bytearray(room), array("q", bytes(8 * len(CopyState)))
        copy = kernel.copy_kept(
            log, found.positions, found.sizes, 0, before_ms, end_offset, found.last_offsets[-1] + 1,
            keeps_all, secret, table, array("q", (1,)), array("q", (found.last_offsets[0],)),
            bytearray(marks), out, copied,
        )  # fmt: skip
        answers += (copy, bytes(out), list(copied))
    counted = array("q", bytes(8 * len(CopyState)))
    count = kernel.count_erased(
        log, found.positions, found.sizes, 0, before_ms, end_offset, secret, table, bytearray(marks), counted
    )
    found_keys = [kernel.has_hash(*kernel.hash_words(key, secret), table) for key in KEYS]
    return entries, list(table), answers, count, list(counted), found_keys


@settings(max_examples=150, deadline=None)
@given(
    logs((CompressionType.NONE, CompressionType.NONE, CompressionType.GZIP)),
    keys,
    st.integers(0, 60),
    st.sampled_from((61, 300, 4096)),
    st.sampled_from((1, 3, 64)),
    st.sampled_from((-1, 0, START_MS + 6)),
)
def test_all_lives_answer_alike(
    log: bytes, erased_keys: set[bytes], end: int, room: int, marks: int, before_ms: int
) -> None:
    hashes = b"".join(hash_key(SECRET, key) for key in erased_keys)
    end_offset = scan_batches(log).base_offsets[0] + end
    first, *others = (run(life, log, hashes, end_offset, room, marks, before_ms) for life in LIVES)
    for other in others:
        assert other == first
    assert first[0] == len(erased_keys)
    assert first[5] == [key in erased_keys for key in KEYS]


@settings(max_examples=150, deadline=None)
@given(logs(), st.data())
def test_bad_records_are_a_status_in_all_lives(log: bytes, data: st.DataObject) -> None:
    """A byte of a batch's records, or of its record count, is another, and its checksum right all the
    same."""
    found = scan_batches(log)
    damaged = bytearray(log)
    damaged[data.draw(st.integers(57, found.sizes[0] - 1))] ^= data.draw(st.integers(1, 255))
    count = int.from_bytes(damaged[57:61], "big", signed=True)
    table = array("Q", bytes(24 * 4))
    answers = []
    for life in LIVES:
        kernel = life["erasure_kernel"]
        state, out = array("q", bytes(8 * len(CopyState))), bytearray(len(log))
        answer: list[Any] = [
            kernel.copy_kept(
                bytes(damaged), found.positions, found.sizes, 0, -1, 2**62, -1, 0, words(SECRET), table,
                array("q"), array("q"), bytearray(4096), out, state,
            ),
            bytes(out),
        ]  # fmt: skip
        if 0 <= count <= 4096:
            judged, marks = array("q", bytes(24)), bytearray(4096)
            records, header = bytes(damaged[61 : found.sizes[0]]), bytes(damaged[:61])
            status = kernel.judge_records(records, header, -1, 2**62, words(SECRET), table, marks, judged)
            answer += (status, bytes(marks), list(judged))
        answers.append(answer)
    assert answers[1:] == answers[:-1]


@pytest.mark.parametrize("life", LIVES, ids=("as it is", "with Cython's shadow", "without"))
def test_the_hash_is_siphash_with_128_bits(life: dict[str, Any]) -> None:
    """The reference's vectors for zero and for fifteen bytes (`vectors_sip128`)."""
    hashed = [
        array("Q", life["erasure_kernel"].hash_words(bytes(range(size)), words(SECRET))).tobytes().hex()
        for size in (0, 15)
    ]
    assert hashed == ["a3817f04ba25a8e66df67214c7550293", "5493e99933b0a8117e08ec0f97cfc3d9"]


def judged_records(log: bytes) -> list[tuple[Record, bool]]:
    """All records, each with whether it is a control batch's."""
    found = []
    for position, size in zip(*scan_batches(log)[2:4], strict=True):
        batch = log[position : position + size]
        is_control = read_header(batch).is_control
        found += [(record, is_control) for record in iter_records(batch, include_control=True)]
    return found


@settings(max_examples=300, deadline=None)
@given(
    logs(tuple(CompressionType)),
    keys,
    st.integers(0, 60),
    st.sampled_from((-1, 0, START_MS + 6)),
    st.sampled_from((61, 400, 1 << 16)),
    st.booleans(),
)
def test_erasure_keeps_what_the_model_keeps(
    log: bytes, erased_keys: set[bytes], end: int, before_ms: int, buffer_bytes: int, keeps_all: bool
) -> None:
    found = scan_batches(log)
    end_offset, keep_to = found.base_offsets[0] + end, found.last_offsets[-1] + 1
    order = erasure_keys(erased_keys, before_ms)
    out = erased(log, order, end_offset, keep_to=keep_to, buffer_bytes=buffer_bytes, keeps_all=keeps_all)
    stays = [
        record
        for record, is_control in judged_records(log)
        if not goes(record, erased_keys, end_offset, before_ms, is_control=is_control)
    ]
    assert list(iter_records(out, include_control=True)) == stays
    hits = len(judged_records(log)) - len(stays)
    assert count_hits(order, memoryview(log), found, end_offset) == hits
    after = scan_batches(out)
    assert after.status is Status.OK
    assert count_hits(order, memoryview(out), after, end_offset) == 0
    assert after.last_offsets[-1] + 1 == keep_to
    if keeps_all:
        assert [row[:4] for row in header_rows(out)] == [row[:4] for row in header_rows(log)]
    assert {row[:4] for row in header_rows(out)} <= {row[:4] for row in header_rows(log)}
    if not hits:
        assert out == log


@settings(max_examples=100, deadline=None)
@given(logs(tuple(CompressionType)), keys)
def test_a_batch_that_loses_nothing_is_the_same_bytes(log: bytes, erased_keys: set[bytes]) -> None:
    found = scan_batches(log)
    order = erasure_keys(erased_keys)
    out = erased(log, order)
    for position, size in zip(found.positions, found.sizes, strict=True):
        batch = log[position : position + size]
        if count_hits(order, memoryview(batch), scan_batches(batch), 2**62) == 0:
            assert batch in out
