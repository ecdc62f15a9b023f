"""Tails without the records that orders of erasure take."""

from __future__ import annotations

import pytest

from service.records.batch import stamp
from service.records.decode import iter_records
from service.records.scan import scan_batches
from service.remote.order_end import OrderEnd
from service.remote.reading.tail_records import TailRun
from service.replicas.erased_runs import TailErasure, without_erased
from tests.support.compaction import Pair, make_batch
from tests.unit.hot.erasures import keys_of


def run_of(*batches: tuple[int, tuple[bytes, ...]]) -> TailRun:
    """Batches of a leader epoch and the keys of records."""
    data, base = bytearray(), 0
    for epoch, keys in batches:
        batch = bytearray(make_batch(base, [Pair(key, b"v") for key in keys]))
        stamp(batch, 0, base, epoch)
        data, base = data + batch, base + len(keys)
    return TailRun(scan_batches(memoryview(data)), memoryview(data))


def offsets(run: TailRun) -> list[int]:
    """Offsets of the records of a run."""
    sizes = zip(run.batches.positions, run.batches.sizes, strict=True)
    return [one.offset for start, size in sizes for one in iter_records(run.data[start : start + size])]


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (OrderEnd(9), [1, 3]),
        (OrderEnd(2), [1, 2, 3, 4]),
        (OrderEnd(9, 2), [0, 1, 2, 3, 4]),
        (OrderEnd(9, 3), [1, 2, 3, 4]),
        (OrderEnd(9, 4), [1, 3]),
    ],
)
def test_records_of_a_later_epoch_than_an_orders_stay(end: OrderEnd, left: list[int]) -> None:
    """An unclean election had lost what the order was given for: others have taken their offsets since."""
    run = run_of((3, (b"gone", b"a")), (4, (b"gone", b"b", b"gone")))
    assert offsets(without_erased(run, [TailErasure(keys_of([b"gone"]), end)])) == left
