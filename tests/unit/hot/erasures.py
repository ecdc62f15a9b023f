"""Orders of erasure, and how one log carries them out at once, for tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from service.hot.cleaning.erasing import Erasing, LocalErasure
from service.hot.cleaning.log_rewrite import CleanerSettings, Throttle
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.records.batch import BatchHeader
from service.records.erasure import ANY_TIME, ErasureKeys, hash_key
from tests.unit.hot.logs import at_once, headers_from

SECRET = bytes(range(16))
ORDER = UUID(int=39)


def keys_of(keys: Iterable[bytes], before_ms: int = ANY_TIME) -> ErasureKeys:
    """Keys of an order."""
    return ErasureKeys.of(SECRET, b"".join(sorted(hash_key(SECRET, key) for key in set(keys))), before_ms)


def order_of(*keys: bytes, end: int, order_id: UUID = ORDER, before_ms: int = ANY_TIME) -> LocalErasure:
    """An order that takes the records of `keys` below `end`."""
    return LocalErasure(order_id, keys_of(keys, before_ms), end)


async def _flush(log: LocalLog) -> None:
    log.durability.flush()


def delete_queued(log: LocalLog) -> None:
    """Delete the files in a log's deletion queue, as its node does."""
    for path in log.deletion_queue.take_due(1 << 62):
        path.unlink(missing_ok=True)


def erase(
    log: LocalLog,
    order: LocalErasure,
    *,
    open_orders: Collection[UUID] | None = None,
    buffer_bytes: int = 64 << 10,
    delete_queued: Callable[[LocalLog], None] = delete_queued,
) -> Erasing:
    """Carry an order out, the only one there is without `open_orders`; raises what an erasure raises."""
    orders = (order.order_id,) if open_orders is None else open_orders

    async def work() -> Erasing:
        world = log.state.world
        io = LogIo(world.threads, 1)
        settings = CleanerSettings(buffer_bytes=buffer_bytes)
        run = Erasing(log, io, io, world, lambda: settings, Throttle(world.clock), lambda _: True)
        try:
            await run.run(order, lambda: orders, _flush, delete_queued)
        finally:
            await io.finish()
        return run

    return at_once(work())


def frame(header: BatchHeader) -> tuple[int, ...]:
    """What an erasure leaves of any batch: its offsets, leader epoch, producer, epoch and sequence."""
    return (
        header.base_offset, header.last_offset, header.partition_leader_epoch, header.producer_id,
        header.producer_epoch, header.base_sequence,
    )  # fmt: skip


def frames(log: LocalLog) -> list[tuple[int, ...]]:
    return [frame(header) for header in headers_from(log, log.local_log_start_offset)]
