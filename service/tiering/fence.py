"""One writer per prefix: `cluster.json` names the incarnation of the node that may write and delete.

A node takes the prefix over when it starts, after it found that its metadata is not older than the bucket.
Whoever wrote before finds another incarnation there, and stops for good: two nodes with one past (a cloned
disk) would each take the other's objects for garbage. What one of them was doing at that moment is
harmless: every HEAD is written conditionally, and deletions look here first.
"""

from __future__ import annotations

from collections.abc import Callable

from service.base.clock import Clock
from service.base.errors import ConfigError, StorageError
from service.remote.format.keys import CLUSTER_KEY
from service.remote.format.manifest_codec import MAX_SMALL_BYTES, ClusterFile, decode_cluster, encode_cluster
from service.remote.format.stamp import Stamp, Writer
from service.remote.stores import conditional
from service.remote.stores.errors import StoreUnavailable, naming
from service.remote.stores.store import ObjectStore, Tagged
from service.tiering.offload import OffloadPool

_ATTEMPTS = 5


class Displaced(StorageError):
    """Another process has taken the prefix over. It never comes back to this one."""


def claim_prefix(store: ObjectStore, cluster_id: str) -> None:
    """Make the prefix this cluster's, or find that it is; who writes to it is not changed.

    `ConfigError` when it belongs to another cluster; `CorruptionError` when its layout is one that we do
    not know; `StorageError` when the store does not answer. Two clusters that claim an empty prefix at
    once cannot both win.
    """
    if not conditional.create(store, CLUSTER_KEY, encode_cluster(ClusterFile(cluster_id))):
        _check_owner(read_cluster(store), cluster_id)


def read_cluster(store: ObjectStore) -> ClusterFile:
    """`cluster.json`; `ObjectNotFound`, `CorruptionError`."""
    return _decode(store.get_tagged(CLUSTER_KEY, max_size=MAX_SMALL_BYTES))


def update_cluster(
    store: ObjectStore,
    cluster_id: str,
    change: Callable[[ClusterFile], ClusterFile],
    *,
    is_conditional: bool = True,
) -> None:
    """Replace `cluster.json` by what `change` makes of it, and nothing that was written meanwhile.

    Raises as `claim_prefix`, and what `change` raises.
    """
    for _ in range(_ATTEMPTS):
        seen = conditional.tagged_or_none(store, CLUSTER_KEY, max_size=MAX_SMALL_BYTES)
        cluster = _decode(seen) if seen is not None else ClusterFile(cluster_id)
        _check_owner(cluster, cluster_id)
        data = encode_cluster(change(cluster))
        if not is_conditional:
            store.put(CLUSTER_KEY, data)
            return
        if conditional.write(store, CLUSTER_KEY, data, seen):
            return
    raise StoreUnavailable(f"{CLUSTER_KEY} is written by others again and again")


def take_over(
    store: ObjectStore,
    cluster_id: str,
    stamp: Stamp,
    *,
    is_conditional: bool = True,
    is_recovered: bool = False,
) -> None:
    """Name the writer of `stamp` in `cluster.json`, whoever was named before. Raises as `claim_prefix`.

    `is_recovered`: its metadata begins anew, so the snapshot of the one before is not named any more.
    """

    def change(old: ClusterFile) -> ClusterFile:
        return old._replace(stamp=stamp, metadata=None if is_recovered else old.metadata)

    update_cluster(store, cluster_id, change, is_conditional=is_conditional)


def _decode(seen: Tagged) -> ClusterFile:
    with naming(CLUSTER_KEY):
        return decode_cluster(seen.data)


def _check_owner(cluster: ClusterFile, cluster_id: str) -> None:
    if cluster.cluster_id != cluster_id:
        raise ConfigError(
            f"firn.remote.url: the prefix belongs to cluster {cluster.cluster_id}, this node's is "
            f"{cluster_id}; give each cluster a prefix of its own"
        )


class Fence:
    """Whether this process is the one that may write. Owned by the event loop."""

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        writer: Writer,
        clock: Clock,
        pool: OffloadPool,
        *,
        is_conditional: bool,
    ) -> None:
        self.is_conditional = is_conditional
        self.displaced: str | None = None
        """why this process writes no more, for good"""
        self._store = store
        self._cluster_id = cluster_id
        self._writer = writer
        self._clock = clock
        self._pool = pool
        self._is_ours = False
        self._looked_ms = 0

    @property
    def is_ours(self) -> bool:
        """Whether the prefix was taken over, and nobody is known to have done so since."""
        return self._is_ours and self.displaced is None

    async def take_over(self, *, is_recovered: bool) -> None:
        """Become the writer. As the function of that name."""
        await self._pool.run(
            take_over,
            self._store,
            self._cluster_id,
            Stamp(self._clock.now_ms(), self._writer),
            is_conditional=self.is_conditional,
            is_recovered=is_recovered,
        )
        self._is_ours = True
        self._looked_ms = self._clock.monotonic_ms()

    async def check(self, max_age_ms: int = 0) -> None:
        """`Displaced` when another process is the writer by now; what was seen `max_age_ms` ago counts.

        Raises what the store raises: then nobody knows, and nothing may be written or deleted.
        """
        if self.displaced is not None:
            raise Displaced(self.displaced)
        if not self._is_ours:
            raise StorageError("the prefix was not taken over yet")
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < max_age_ms:
            return
        stamp = (await self._pool.run(read_cluster, self._store)).stamp
        found = stamp.writer.incarnation if stamp is not None else None
        if found != self._writer.incarnation:
            self.displaced = (
                f"another process ({found}) has taken over the prefix that this one "
                f"({self._writer.incarnation}) wrote to: two nodes on one prefix; "
                "this one copies, expires and sweeps no more"
            )
            raise Displaced(self.displaced)
        self._looked_ms = now_ms
