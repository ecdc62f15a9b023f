"""Find documents of erasures that no order has any more.

The document is written before `CUT` and the metadata name it, and deleted after both have forgotten the
order; so one that neither names is being written now, or was left behind. The sweeper deletes it once two
sweeps, a grace apart, have found it.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from service.remote.format.keys import ERASE_PREFIX, ErasureKey, parse_key
from service.remote.reading.tails import open_cuts
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore
from service.tiering.archive_attempt import TieringContext

MOST_KEYS: Final = 100_000
"""Most documents that are judged at a time."""


async def unnamed_orders(context: TieringContext) -> tuple[str, ...]:
    """Return the keys of documents that neither `CUT` nor the image names. Call it behind a barrier.

    It lists first. Raises what the store raises, and `CorruptionError` for a `CUT` that cannot be read.
    """
    listed = await context.pool.run(_listed, context.store)
    if not listed:
        return ()
    cluster = await context.fence.read()
    owners = (cluster.cluster_id, *(one.cluster_id for one in cluster.ancestors))
    named = set(context.catalog.erasures())
    try:
        cuts = await context.pool.run(open_cuts, context.store, owners)
    except ObjectNotFound:
        pass  # no cut was ever taken
    else:
        named.update(one.id for one in cuts.erasures)
    return tuple(key for key, parsed in listed if parsed.id not in named)


def _listed(store: ObjectStore) -> list[tuple[str, ErasureKey]]:
    """Return the documents in the bucket. Runs on an offload thread."""
    keys = (info.key for info in islice(store.list(ERASE_PREFIX), MOST_KEYS))
    return [(key, parsed) for key in keys if isinstance(parsed := parse_key(key), ErasureKey)]
