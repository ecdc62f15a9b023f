"""Documents of orders of erasure: read once, verified by what the metadata says, the keys of a few kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError
from service.records.batch import stamp
from service.records.erasure import filter_hash, hash_key
from service.records.scan import scan_batches
from service.remote.catalog import Erasure
from service.remote.format.erase_codec import ErasedTopic, ErasureOrder, encode_erasure
from service.remote.opened_order import end_of
from service.remote.order_end import OrderEnd
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.obstore_store import open_store
from service.remote.stores.store import ObjectStore
from service.tiering.erasing.open_orders import MOST_KEPT, OpenOrders
from tests.support.compaction import START_MS, Pair, make_batch
from tests.support.one_of_three import CLUSTER, TOPIC
from tests.support.world import WORLD
from tests.unit.hot.erasures import ORDER, SECRET


def put(store: ObjectStore, order_id: UUID, *keys: bytes, ends: tuple[int, ...] = (5, 7)) -> Erasure:
    """Write an order's document; what the metadata says of it."""
    order = ErasureOrder(
        CLUSTER, order_id, START_MS, -1, SECRET,
        b"".join(sorted(hash_key(SECRET, key) for key in keys)),
        b"".join(sorted(filter_hash(key).to_bytes(8, "big") for key in keys)),
        (ErasedTopic(TOPIC, "t", ends),),
    )  # fmt: skip
    data = encode_erasure(order)
    store.put(order.key, data)
    return Erasure(order_id, order.key, len(data), crc32c(data), len(keys), (TOPIC,), START_MS)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}", world=WORLD)


def test_a_document_is_read_once(store: ObjectStore) -> None:
    named = put(store, ORDER, b"gone", b"other")

    async def work() -> None:
        documents = OpenOrders(store, WORLD.threads)
        first, second = await asyncio.gather(documents.open(named), documents.open(named))
        assert first is second
        assert first.keys.has(b"gone", START_MS)
        assert not first.keys.has(b"kept", START_MS)
        store.delete([named.key])
        assert await documents.open(named) is first
        assert await documents.ends(named) == {TOPIC: ErasedTopic(TOPIC, "t", (5, 7))}
        documents.keep({ORDER: named})
        assert await documents.open(named) is first
        documents.keep({ORDER: named._replace(done_ms=START_MS)})
        assert await documents.ends(named) == first.ends, "ends stay as long as the order"
        with pytest.raises(ObjectNotFound):
            await documents.open(named)
        documents.keep({})
        with pytest.raises(ObjectNotFound):
            await documents.ends(named)
        documents.close()

    asyncio.run(work())


def test_a_document_that_is_not_the_one_that_is_named_is_refused_and_read_again(store: ObjectStore) -> None:
    named = put(store, ORDER, b"gone")
    other = put(store, UUID(int=40), b"else")
    right = store.get(named.key, max_size=1 << 20)

    async def work() -> None:
        documents = OpenOrders(store, WORLD.threads)
        for wrong in (right[:-1], right + b"x", store.get(other.key, max_size=1 << 20), b""):
            store.put(named.key, wrong)
            with pytest.raises(CorruptionError):
                await documents.open(named)
        store.put(named.key, right)
        assert (await documents.open(named)).keys.has(b"gone", START_MS)
        documents.close()

    asyncio.run(work())


def test_the_keys_of_a_few_orders_are_in_memory(store: ObjectStore) -> None:
    orders = [put(store, UUID(int=n), b"gone") for n in range(1, MOST_KEPT + 3)]

    async def work() -> None:
        documents = OpenOrders(store, WORLD.threads)
        first = await documents.open(orders[0])
        for one in orders[1:]:
            await documents.open(one)
        assert len(documents._reading) == MOST_KEPT
        assert await documents.open(orders[0]) is not first
        documents.close()

    asyncio.run(work())


def test_partitions_that_an_order_does_not_name_end_at_nothing() -> None:
    ends = {TOPIC: ErasedTopic(TOPIC, "t", (5, 7))}
    assert [end_of(ends, TOPIC, n) for n in range(3)] == [OrderEnd(5), OrderEnd(7), OrderEnd(0)]
    assert end_of(ends, UUID(int=3), 0) == OrderEnd(0)
    known = {TOPIC: ErasedTopic(TOPIC, "t", (5, 7), (2, -1))}
    assert [end_of(known, TOPIC, n) for n in range(3)] == [OrderEnd(5, 2), OrderEnd(7), OrderEnd(0)]


@pytest.mark.parametrize(
    ("epochs", "end"),
    [
        ([], 100),
        ([(2, 0)], 100),
        ([(2, 0), (5, 40)], 100),
        ([(2, 0), (6, 80)], 80),
        ([(2, 0), (6, 100)], 100),
        ([(2, 0), (6, 150), (7, 160)], 100),
        ([(6, 0), (7, 20)], 0),
    ],
)
def test_an_order_ends_where_a_later_epoch_begins(epochs: list[tuple[int, int]], end: int) -> None:
    assert OrderEnd(100, 5).within(epochs) == end
    assert OrderEnd(100).within(epochs) == 100, "nothing tells an order of before which records are younger"


def test_an_order_ends_at_the_first_batch_of_a_later_epoch() -> None:
    data = bytearray()
    for base, epoch in ((0, 2), (2, 5), (4, 6), (6, 6)):
        batch = bytearray(make_batch(base, [Pair(b"k", b"v"), Pair(b"k", b"w")]))
        stamp(batch, 0, base, epoch)
        data += batch
    batches = scan_batches(memoryview(data))
    found = [OrderEnd(100, epoch).in_batches(batches) for epoch in (-1, 1, 2, 3, 5, 6, 9)]
    assert found == [100, 0, 2, 2, 4, 100, 100]
    assert OrderEnd(3, 5).in_batches(batches) == 3
