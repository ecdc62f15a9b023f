"""Documents of orders: written once, and deleted with all their versions, as they have the keys' hashes.

At the end versions go first, and by their ids: until they are gone the document is there, and whoever comes
next, another keeper or the sweep, finds it and does it again. Then a DELETE leaves nothing but a marker.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from crc32c import crc32c

from service.base.errors import FirnError
from service.remote.catalog import Erasure
from service.remote.format.documents import MAX_STORED_BYTES
from service.remote.format.erase_codec import ErasureOrder, decode_erasure, encode_erasure
from service.remote.format.keys import ERASE_PREFIX
from service.remote.stores import conditional
from service.remote.stores.errors import StoreRefused
from service.remote.stores.store import ObjectStore
from service.tiering.archive_attempt import TieringContext
from service.tiering.erasing.leftovers import VERSION_ACTIONS
from service.tiering.erasing.remains import VersionsOf

log = logging.getLogger(__name__)


class OrderDiffers(FirnError):
    """The bucket has another order under this id."""


def write_order(store: ObjectStore, order: ErasureOrder) -> Erasure:
    """Write the document of an order, or find it as an earlier try has written it. Blocks.

    Raises `OrderDiffers`, and what the store raises.
    """
    key, data = order.key, encode_erasure(order)
    if not conditional.create(store, key, data):
        data = store.get(key, max_size=MAX_STORED_BYTES)
        before = decode_erasure(data)
        if before._replace(stamp=None) != order._replace(stamp=None, started_ms=before.started_ms):
            raise OrderDiffers(f"{key} has another order; give this one another id")
        order = before
    return Erasure(
        id=order.id,
        key=key,
        stored_size=len(data),
        crc32c=crc32c(data),
        keys=order.keys,
        topics=tuple(topic.topic_id for topic in order.topics),
        started_ms=order.started_ms,
        done_ms=-1,
        is_restored=False,
    )


async def remove_versions(context: TieringContext, versions: VersionsOf | None, keys: Sequence[str]) -> None:
    """Remove all versions of these documents, which nothing names any more, in a bucket that keeps some.

    Versions that the store does not remove are logged: its lifecycle rule takes them. Raises `StorageError`
    where the store does not answer.
    """
    if versions is None or not keys:
        return
    wanted = frozenset(keys)
    remove = partial(versions, [ERASE_PREFIX], lambda key, _: key in wanted, takes_current=True)
    try:
        left = await context.pool.watch(remove)
    except StoreRefused as e:
        log.warning(
            "old versions of %s with hashes of keys may stay in the bucket: %s; brokers need %s",
            ", ".join(keys), e, VERSION_ACTIONS,
        )  # fmt: skip
        return
    if left.left:
        log.warning(
            "%d versions of %s with hashes of keys stay in the bucket: %s",
            left.left, ", ".join(keys), "; ".join((left.why, *left.locked)),
        )  # fmt: skip
