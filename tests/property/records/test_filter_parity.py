"""The walk over records for keys and least timestamps answers alike in all lives."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.records import filter_kernel, key_walk_kernel
from service.records.batch import CompressionType
from service.records.kernel_status import KeyWalk
from service.records.scan import scan_batches
from service.remote.format.key_filter import KeyFilter, KeyFilterBuilder, LeastTimestamps
from tests.property.records.test_erasure_parity import judged_records, logs
from tests.property.records.test_kernel_parity import payloads
from tests.support.kernels import interpreted

LIVES: list[dict[str, Any]] = [
    {"filter_kernel": filter_kernel, "key_walk_kernel": key_walk_kernel},
    *(interpreted(with_cython=found) for found in (True, False)),
]


@pytest.mark.parametrize("life", LIVES, ids=("as it is", "with Cython's shadow", "without"))
def test_the_hash_is_xxhash64_in_all_lives(life: dict[str, Any]) -> None:
    """Vectors for each way through the hash: no bytes, single ones, four, eight, whole stripes and a rest."""
    hashed = [
        life["filter_kernel"].xxhash64(key)
        for key in (b"", b"abc", b"message digest", b"abcdefghijklmnopqrstuvwxyz", b"1234567890" * 8)
    ]
    assert hashed == [
        *(0xEF46DB3751D8E999, 0x44BC2CF5AD770999, 0x066ED728FCEEB3BE),
        *(0xCFE1F278FA89835C, 0xE04A477F19EE145D),
    ]


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=100), st.sampled_from((8, 64, 1024)), st.lists(st.integers(0, 2**64 - 1), max_size=20)
)
def test_hashes_and_filters_are_the_same_bits(key: bytes, size: int, hashes: list[int]) -> None:
    answers = []
    for life in LIVES:
        kernels, words = life["filter_kernel"], array("Q", bytes(4 * size))
        for one in (*hashes, kernels.xxhash64(key)):
            kernels.insert(words, one)
        folded = array("Q", bytes(4 * 8))
        kernels.fold(words, folded)
        there = [kernels.find_any(words, array("Q", (one,))) for one in (*hashes, 5)]
        answers.append((list(words), list(folded), kernels.count_bits(words), there))
        assert there[:-1] == [0] * len(hashes)
        assert kernels.find_any(folded, array("Q", hashes)) == (0 if hashes else -1)
    assert answers[1:] == answers[:-1]


def walked(life: dict[str, Any], log: bytes, blocks: int, room: int) -> tuple[Any, ...]:
    words, seen = array("Q", bytes(32 * blocks)), array("q", bytes(8 * len(KeyWalk)))
    least, left = array("q", bytes(8 * room)), array("q", bytes(8 * room))
    count = life["key_walk_kernel"].add_batches(log, 0, len(log), words, seen, least, left)
    return count, list(words), list(seen), list(least), list(left)


@settings(max_examples=200, deadline=None)
@given(logs(tuple(CompressionType)), st.sampled_from((0, 1, 16)), st.sampled_from((1, 64)))
def test_all_lives_answer_alike(log: bytes, blocks: int, room: int) -> None:
    first, *others = (walked(life, log, blocks, room) for life in LIVES)
    for other in others:
        assert other == first


@settings(max_examples=300, deadline=None)
@given(logs(), st.data())
def test_bad_records_are_noted_in_all_lives(log: bytes, data: st.DataObject) -> None:
    """A byte of a batch is another."""
    found = scan_batches(log)
    damaged = bytearray(log)
    damaged[data.draw(st.integers(22, found.sizes[0] - 1))] ^= data.draw(st.integers(1, 255))
    first, *others = (walked(life, bytes(damaged), 16, 64) for life in LIVES)
    for other in others:
        assert other == first


@settings(max_examples=200, deadline=None)
@given(st.one_of(logs(), st.binary(max_size=200)), st.integers(-3, 400), st.integers(-3, 400))
def test_any_span_is_walked_alike(log: bytes, begin: int, end: int) -> None:
    answers: list[Any] = []
    for life in LIVES:
        words, seen = array("Q", bytes(64)), array("q", bytes(8 * len(KeyWalk)))
        least, left = array("q", bytes(8 * 8)), array("q", bytes(8 * 8))
        try:
            count = life["key_walk_kernel"].add_batches(log, begin, end, words, seen, least, left)
        except IndexError as e:
            count = str(e)
        answers.append((count, list(words), list(seen), list(least), list(left)))
    assert answers[1:] == answers[:-1]


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(payloads(), st.tuples(st.binary(max_size=60), st.integers(-2, 2**40))),
    st.integers(-(2**63), 2**63 - 1),
)
def test_any_records_are_walked_alike(payload: tuple[bytes, int], base: int) -> None:
    answers = []
    for life in LIVES:
        words, seen = array("Q", bytes(64)), array("q", bytes(8 * len(KeyWalk)))
        least = life["key_walk_kernel"].add_records(*payload, base, words, seen)
        answers.append((least, list(words), list(seen)))
    assert answers[1:] == answers[:-1]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 5), st.sampled_from((0, -9, 2**63 - 1)))
def test_any_bytes_are_no_records_in_all_lives(data: bytes, count: int, base: int) -> None:
    answers = []
    for life in LIVES:
        words, seen = array("Q", bytes(32)), array("q", bytes(8 * len(KeyWalk)))
        least = life["key_walk_kernel"].add_records(data, count, base, words, seen)
        answers.append((least, list(words), list(seen)))
    assert answers[1:] == answers[:-1]


@settings(max_examples=200, deadline=None)
@given(payloads(), st.integers(0, 80))
def test_the_start_of_a_record_is_walked_alike_and_says_what_the_whole_says(
    payload: tuple[bytes, int], cut: int
) -> None:
    """Of a record that parses, any start says nothing, or the same as the whole."""
    data, count = payload
    answers = []
    for life in LIVES:
        words, seen = array("Q", bytes(64)), array("q", bytes(8 * len(KeyWalk)))
        done = life["key_walk_kernel"].add_start(data[:cut], words, seen)
        answers.append((done, list(words), list(seen)))
    assert answers[1:] == answers[:-1]
    words, seen = array("Q", bytes(64)), array("q", bytes(8 * len(KeyWalk)))
    key_walk_kernel.add_records(data, count, 0, words, seen)
    if not answers[0][0]:
        assert answers[0] == (False, [0] * 8, [0, 0, 0])
    elif count == 1 and not seen[KeyWalk.BROKEN]:
        assert answers[0] == (True, list(words), list(seen))


@settings(max_examples=300, deadline=None)
@given(logs(tuple(CompressionType)), st.integers(1, 3))
def test_a_filter_has_each_key_of_its_log(log: bytes, pieces: int) -> None:
    """Keys of control batches aside, in however many pieces the log comes."""
    found = scan_batches(log)
    borders = [0, *found.positions[1:][:pieces], len(log)]
    offsets = found.last_offsets[-1] + 1 - found.base_offsets[0]
    builder = KeyFilterBuilder(len(log), offsets, 1 << 20)
    for begin, end in pairwise(borders):
        piece = memoryview(log)[begin:end]
        batches = scan_batches(piece)
        assert builder.add(piece, batches) == LeastTimestamps(1 << 20).add(piece, batches)
    keys = [bytes(one.key) for one, control in judged_records(log) if one.key is not None and not control]
    assert builder.keyed_record_count == len(keys)
    section = builder.finish()
    assert bool(section) == bool(keys)
    if keys:
        key_filter = KeyFilter.open(section)
        assert all(key_filter.may_have(filter_kernel.xxhash64(key)) for key in keys)
