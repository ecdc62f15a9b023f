"""Deletion of orders' documents: with all their versions, as they have the keys' hashes and the secret.

The versions go first, and by their ids: until they are gone the document is there, and whoever comes next,
another keeper or the sweep, finds it and does it again. Then a DELETE leaves nothing behind but a marker.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from service.remote.format.keys import ERASE_PREFIX
from service.remote.stores.errors import StoreRefused
from service.tiering.archive_attempt import TieringContext
from service.tiering.erasing.remains import VERSION_ACTIONS, VersionsOf

log = logging.getLogger(__name__)


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
