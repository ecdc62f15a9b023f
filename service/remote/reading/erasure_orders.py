"""Open the objects of orders to erase keys: blocking calls, for pool threads and offline tools.

The metadata and `CUT` name an order's object with its size and checksum. It has the keys as hashes under a
secret, so it is read where records are judged, and kept in memory only there.

A cut may be older than an order, and what a restore brings back may have the keys. So every order that is not
gone comes back with it, open, and is carried out before a record is shown. An order whose object cannot be
read stops a restore: nobody would know which records have to go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from crc32c import crc32c

from service.base.errors import ConfigError, CorruptionError
from service.remote.catalog import Erasure
from service.remote.format.cut_codec import Cuts, ErasureRef
from service.remote.format.documents import MAX_STORED_BYTES
from service.remote.format.erase_codec import ErasureOrder, OrderReference, open_erasure
from service.remote.format.keys import ERASE_PREFIX, ErasureKey, parse_key
from service.remote.stores.errors import UNREADABLE, ObjectNotFound, naming, raise_of_the_store
from service.remote.stores.store import ObjectStore


def open_order(
    store: ObjectStore, ref: OrderReference, owners: Collection[str] | None = None
) -> ErasureOrder:
    """Return the order that `ref` names, its bytes checked against it.

    Raises `ObjectNotFound` where its object is gone, `CorruptionError` where it is another one, or, where
    `owners` are given, of another cluster.
    """
    with naming(ref.key):
        order = open_erasure(store.get(ref.key, max_size=ref.stored_size), ref)
        if owners is not None and order.cluster_id not in owners:
            raise CorruptionError(f"of cluster {order.cluster_id}, not of {', '.join(sorted(owners))}")
    return order


def orders_to_restore(store: ObjectStore, cuts: Cuts | None, owners: Collection[str]) -> tuple[Erasure, ...]:
    """Return the orders of `read_orders`, which has the errors."""
    return tuple(erasure for erasure, _ in read_orders(store, cuts, owners))


def read_orders(
    store: ObjectStore, cuts: Cuts | None, owners: Collection[str]
) -> Iterator[tuple[Erasure, ErasureOrder]]:
    """Yield the orders that `CUT` lists; those whose objects are in the bucket where it cannot be read,
    `cuts` being None. Each with its document.

    Raises `ConfigError` for one that cannot be read, and what a store raises that does not answer.
    """
    listed = tuple(_in_the_bucket(store)) if cuts is None else cuts.erasures
    for named in listed:
        try:
            order = open_order(store, named, owners)
        except UNREADABLE as e:
            raise_of_the_store(e)
            raise ConfigError(
                f"an order to erase keys cannot be read, and a restore without it would bring them back: {e}"
            ) from e
        yield erasure_of(order, named), order


def _in_the_bucket(store: ObjectStore) -> Iterator[ErasureRef]:
    for info in store.list(ERASE_PREFIX):
        parsed = parse_key(info.key)
        if isinstance(parsed, ErasureKey):
            try:
                data = store.get(info.key, max_size=MAX_STORED_BYTES)
            except ObjectNotFound:
                continue  # an order that is over goes at last, as nothing has its keys any more
            except CorruptionError as e:
                raise ConfigError(f"an order to erase keys cannot be read: {e}") from e
            yield ErasureRef(parsed.id, info.key, len(data), crc32c(data))


def erasure_of(order: ErasureOrder, named: ErasureRef) -> Erasure:
    """Return what the metadata says of an order that is open."""
    return Erasure(
        id=order.id,
        key=named.key,
        stored_size=named.stored_size,
        crc32c=named.crc32c,
        keys=order.keys,
        topics=tuple(topic.topic_id for topic in order.topics),
        started_ms=order.started_ms,
    )
