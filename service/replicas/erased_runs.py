"""Tails of a restored cluster without the records that its orders of erasure take. Blocking: for threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from service.base.errors import CorruptionError
from service.metadata.image import MetadataImage
from service.records.erasure import ErasureCopier, ErasureKeys
from service.records.kernel_status import Status
from service.records.scan import scan_batches
from service.remote.format.cut_codec import Place
from service.remote.opened_order import OrderDocuments
from service.remote.order_end import OrderEnd
from service.remote.reading.tail_records import TailRun


class TailErasure(NamedTuple):
    """An order as a tail is loaded without its records: its keys, and where it ends in the partition."""

    keys: ErasureKeys
    end: OrderEnd


OrdersOf = Callable[[Place], Awaitable[Sequence[TailErasure]]]
"""Return the orders that concern a partition. `StorageError`, `CorruptionError` if one cannot be read."""


def orders_of(documents: OrderDocuments, image: Callable[[], MetadataImage]) -> OrdersOf:
    """Return the source of the orders that the metadata has, open or done."""

    async def find(place: Place) -> Sequence[TailErasure]:
        found = []
        for erasure in tuple(image().erasures.values()):
            if place[0] in erasure.topics:
                order = await documents.open(erasure)
                found.append(TailErasure(order.keys, order.end(*place)))
        return found

    return find


def without_erased(run: TailRun, orders: Sequence[TailErasure]) -> TailRun:
    """Return the run without the records of `orders`; each batch keeps its header. `CorruptionError` if it
    does not parse."""
    for order in orders:
        end_offset = order.end.in_batches(run.batches)
        if run.batches.base_offsets[0] < end_offset:
            run = _without(run, order.keys, end_offset)
    return run


def _without(run: TailRun, keys: ErasureKeys, end_offset: int) -> TailRun:
    copier = ErasureCopier(keys, end_offset, None, 0, run.batches.end)
    parts = [bytes(part) for part in copier.copy(run.data, run.batches)]
    parts += [bytes(part) for part in copier.rest()]
    if copier.records_kept == copier.records_read:
        return run
    data = memoryview(bytearray().join(parts))
    batches = scan_batches(data, next_offset=run.batches.base_offsets[0])
    if batches.status is not Status.OK or batches.last_offsets != run.batches.last_offsets:
        raise CorruptionError(f"an erasure has produced invalid batches: {batches.status.reason}")
    return TailRun(batches, data)
