"""The loops of recovery over sound batches give the same answers in every life of their source."""

from __future__ import annotations

from array import array
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.records import index_kernel
from service.records.batch import read_header
from service.records.builder import BatchBuilder
from service.records.index_kernel import ENTRY_FIELDS, TABLE_FIELDS
from tests.support.kernels import interpreted

LIVES = [index_kernel, *(interpreted(with_cython=found)["index_kernel"] for found in (True, False))]


@given(
    rows=st.lists(st.tuples(st.integers(61, 9000), st.integers(0, 40), st.integers(-1, 2**62)), max_size=60),
    interval=st.integers(0, 9000),
    start=st.integers(0, 2**40),
    cut=st.integers(0, 60),
)
def test_entries_are_the_same_in_every_life_and_in_any_pieces(
    rows: list[tuple[int, int, int]], interval: int, start: int, cut: int
) -> None:
    sizes = [size for size, _, _ in rows]
    positions = [sum(sizes[:n]) for n in range(len(rows))]
    lasts = [n + sum(delta for _, delta, _ in rows[: n + 1]) for n in range(len(rows))]
    times = [time for _, _, time in rows]
    found = []
    for life in LIVES:
        for pieces in ([(0, len(rows))], [(0, min(cut, len(rows))), (min(cut, len(rows)), len(rows))]):
            state, entries = array("q", (0, -1, 7)), list[int]()
            for first, last in pieces:
                columns = [array("q", column[first:last]) for column in (positions, sizes, lasts, times)]
                out = array("q", bytes(8 * ENTRY_FIELDS * (last - first)))
                count = life.index_entries(*columns, start, interval, state, out)
                entries += out[: count * ENTRY_FIELDS]
            found.append((entries, list(state)))
    assert all(one == found[0] for one in found)


@given(
    producers=st.lists(st.sampled_from([-1, 0, 1, 2, 2**40, 2**63 - 1]), max_size=50),
    transactional=st.sets(st.integers(0, 50)),
    most=st.integers(1, 6),
    slots=st.sampled_from([1, 2, 64]),
)
def test_the_last_batches_of_each_producer_are_found(
    producers: list[int], transactional: set[int], most: int, slots: int
) -> None:
    data, positions = bytearray(), array("q")
    for n, producer in enumerate(producers):
        builder = BatchBuilder(producer_id=producer, producer_epoch=0, base_sequence=0)
        builder.add(1000, b"k", b"v")
        one = bytearray(builder.build())
        if n in transactional:
            one[22] |= 0x10
        positions.append(len(data))
        data += one
    answers = []
    for life in LIVES:
        out = array("q", bytes(8 * len(producers)))
        table = array("q", bytes(8 * TABLE_FIELDS * slots))
        answers.append(list(out[: life.recent_producers(data, positions, most, table, out)]))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0] == sorted(answers[0], reverse=True)
    needed = set()
    for producer in {one for one in producers if one >= 0}:
        mine = [n for n, one in enumerate(producers) if one == producer]
        needed |= {n for n in mine if n in transactional}
        needed |= set([n for n in mine if n not in transactional][-most:])
    assert needed <= set(answers[0])
    assert all(read_header(data, positions[n]).producer_id >= 0 for n in answers[0])
    if slots == 64:
        assert needed == set(answers[0])


@pytest.mark.parametrize("life", LIVES)
def test_arguments_that_do_not_fit_are_refused(life: ModuleType) -> None:
    one = array("q", [0])
    with pytest.raises(IndexError):
        life.index_entries(one, one, one, one, 0, 0, array("q", (0, -1, 0)), array("q"))
    with pytest.raises(IndexError):
        life.index_entries(one, one, array("q"), one, 0, 0, array("q", (0, -1, 0)), array("q", bytes(32)))
    with pytest.raises(IndexError):
        life.recent_producers(bytearray(60), one, 5, array("q", bytes(16)), array("q", bytes(8)))
    with pytest.raises(IndexError):
        life.recent_producers(bytearray(61), one, 5, array("q", bytes(48)), array("q", bytes(8)))
