"""The loop that proves indexes answers alike in all of its lives, and takes what the builder makes."""

from __future__ import annotations

from array import array
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.base.types import NO_TIMESTAMP
from service.records import index_kernel
from service.records.kernel_status import IndexFault, IndexState, Status
from service.records.scan import BatchScan
from service.records.segment_indexes import IndexBuilder, IndexBytes
from tests.support.kernels import interpreted

LIVES = [index_kernel, *(interpreted(with_cython=found)["index_kernel"] for found in (True, False))]
BASE = 1000


@st.composite
def runs(draw: st.DrawFn) -> tuple[BatchScan, IndexBytes, int]:
    """Batches of one piece, their indexes, perhaps with a byte changed, and the interval."""
    steps = draw(
        st.lists(
            st.tuples(st.integers(61, 900), st.integers(1, 5), st.integers(-1, 2**62)),
            min_size=1,
            max_size=40,
        )
    )
    positions, sizes, lasts, times = (array("q") for _ in range(4))
    at, offset = 0, BASE
    for size, records, timestamp in steps:
        positions.append(at)
        sizes.append(size)
        lasts.append(offset + records - 1)
        times.append(timestamp)
        at += size
        offset += records
    other = array("q", bytes(8 * len(steps)))
    scan = BatchScan(Status.OK, at, positions, sizes, other, lasts, other, other, times, other, other)
    interval = draw(st.sampled_from([1, 300, 4096]))
    builder = IndexBuilder(BASE, interval)
    builder.add(scan, 0)
    indexes = list(builder.finish())
    which = draw(st.integers(0, 1))
    if indexes[which] and draw(st.booleans()):
        damaged = bytearray(indexes[which])
        damaged[draw(st.integers(0, len(damaged) - 1))] ^= draw(st.integers(1, 255))
        indexes[which] = bytes(damaged)
    return scan, IndexBytes(*indexes), interval


def prove(life: ModuleType, scan: BatchScan, indexes: IndexBytes, interval: int) -> tuple[int, list[int]]:
    state = array("q", bytes(8 * len(IndexState)))
    state[IndexState.NEWEST] = NO_TIMESTAMP
    columns = (scan.positions, scan.sizes, scan.last_offsets, scan.max_timestamps)
    fault = life.prove_indexes(
        *columns, 0, BASE, 2 * interval, indexes.offset_index, indexes.time_index, state
    )
    return fault, list(state)


@given(run=runs())
def test_every_life_finds_the_same(run: tuple[BatchScan, IndexBytes, int]) -> None:
    scan, indexes, interval = run
    found = [prove(life, scan, indexes, interval) for life in LIVES]
    assert found[0] == found[1] == found[2]
    builder = IndexBuilder(BASE, interval)
    builder.add(scan, 0)
    fault, state = found[0]
    if builder.finish() == indexes:
        assert fault == IndexFault.NONE
        assert state[IndexState.PLACES] * 8 == len(indexes.offset_index)
        assert state[IndexState.TIMES] * 12 == len(indexes.time_index)


@pytest.mark.skipif(not index_kernel.COMPILED, reason="the kernel is not compiled on this machine")
def test_the_compiled_module_is_the_one_in_use() -> None:
    assert not index_kernel.__file__.endswith(".py")
