"""Open the objects of orders to erase keys: blocking calls, for pool threads and offline tools.

The metadata and `CUT` name an order's object with its size and checksum. It has the keys as hashes under a
secret, so it is read where records are judged, and kept in memory only there.
"""

from __future__ import annotations

from collections.abc import Collection

from service.base.errors import CorruptionError
from service.remote.format.erase_codec import ErasureOrder, OrderReference, open_erasure
from service.remote.stores.errors import naming
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
