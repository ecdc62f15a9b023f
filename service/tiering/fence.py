"""One writer per prefix: `cluster.json` names the incarnation of the node that may write and delete.

A node takes the prefix over when it starts, after it found that its metadata is not older than the bucket.
Whoever wrote before finds another incarnation there, and stops for good: two nodes with one past (a cloned
disk) would each take the other's objects for garbage. What one of them was doing at that moment is
harmless: every HEAD is written conditionally, and deletions look here first.

A `cluster.json` that is damaged says nothing about who writes. Where it is what this process wrote but for a
few bytes, it is written again; otherwise it is left for `firn repair`, and nothing is written or deleted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from service.base.clock import Clock
from service.base.errors import ConfigError, CorruptionError, StorageError, UnknownVersion
from service.remote.format.documents import is_damage_of
from service.remote.format.keys import CLUSTER_KEY
from service.remote.format.manifest_codec import MAX_SMALL_BYTES, ClusterFile, decode_cluster, encode_cluster
from service.remote.format.stamp import Stamp, Writer
from service.remote.stores import conditional
from service.remote.stores.errors import StoreUnavailable, naming
from service.remote.stores.store import ObjectStore, Tagged
from service.tiering.offload import OffloadPool

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
_REMEMBERED: Final = 4
"""One write may be under way while another is looked at, and each may have to be sent again."""


class Displaced(StorageError):
    """Another process has taken the prefix over. It never comes back to this one."""


def read_cluster(store: ObjectStore) -> ClusterFile:
    """`cluster.json`; `ObjectNotFound`, `CorruptionError`."""
    return _decode(store.get_tagged(CLUSTER_KEY, max_size=MAX_SMALL_BYTES))


class OwnWrites:
    """The newest few `cluster.json` that this process wrote or tried to write. Safe from any thread."""

    def __init__(self) -> None:
        self._written: deque[ClusterFile] = deque(maxlen=_REMEMBERED)

    def add(self, cluster: ClusterFile) -> None:
        self._written.append(cluster)

    def before_damage(self, found: bytes) -> ClusterFile | None:
        """What was written where `found` is now, None where that is not surely ours."""
        ours = (one for one in tuple(self._written) if is_damage_of(found, encode_cluster(one)))
        return next(ours, None)


def claim_prefix(store: ObjectStore, cluster_id: str) -> None:
    """Make the prefix this cluster's, or find that it is; who writes to it is not changed.

    `ConfigError` when it belongs to another cluster; `CorruptionError` when it does not say whose it is, or
    its layout is one that we do not know; `StorageError` when the store does not answer. Two clusters that
    claim an empty prefix at once cannot both win. A claim of this cluster that was damaged on its way, before
    anybody took the prefix over, is made again.
    """
    first, own = ClusterFile(cluster_id), OwnWrites()
    if conditional.create(store, CLUSTER_KEY, encode_cluster(first)):
        return
    own.add(first)
    try:
        _check_owner(read_cluster(store), cluster_id)
    except UnknownVersion:
        raise
    except CorruptionError:
        update_cluster(store, cluster_id, lambda old: old, own)


def update_cluster(
    store: ObjectStore,
    cluster_id: str,
    change: Callable[[ClusterFile], ClusterFile],
    own: OwnWrites,
    *,
    is_conditional: bool = True,
) -> None:
    """Replace `cluster.json` by what `change` makes of it, and nothing that was written meanwhile.

    What is damaged and is one of `own` counts as it was. Raises as `claim_prefix`, and what `change` raises.
    """
    for _ in range(_ATTEMPTS):
        seen = conditional.tagged_or_none(store, CLUSTER_KEY, max_size=MAX_SMALL_BYTES)
        cluster = _decode_or_own(seen, own) if seen is not None else ClusterFile(cluster_id)
        _check_owner(cluster, cluster_id)
        changed = change(cluster)
        data = encode_cluster(changed)
        own.add(changed)
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
    own: OwnWrites,
    *,
    is_conditional: bool = True,
    is_recovered: bool = False,
) -> None:
    """Name the writer of `stamp` in `cluster.json`, whoever was named before. Raises as `claim_prefix`.

    `is_recovered`: its metadata begins anew, so the snapshot of the one before is not named any more.
    """

    def change(old: ClusterFile) -> ClusterFile:
        return old._replace(stamp=stamp, metadata=None if is_recovered else old.metadata)

    update_cluster(store, cluster_id, change, own, is_conditional=is_conditional)


def _decode(seen: Tagged) -> ClusterFile:
    try:
        with naming(CLUSTER_KEY):
            return decode_cluster(seen.data)
    except UnknownVersion:
        raise
    except CorruptionError as e:
        raise CorruptionError(
            f"{e}: it does not say whose prefix this is and who writes (firn repair)"
        ) from e


def _decode_or_own(seen: Tagged, own: OwnWrites) -> ClusterFile:
    try:
        return _decode(seen)
    except CorruptionError as e:
        before = own.before_damage(seen.data)
        if before is None:
            raise
        log.warning("%s; it is what this process wrote with a few bytes changed, and is written again", e)
        return before


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
        self.own = OwnWrites()

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
            self.own,
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
        stamp = (await self._pool.run(self._read)).stamp
        found = stamp.writer.incarnation if stamp is not None else None
        if found != self._writer.incarnation:
            self.displaced = (
                f"another process ({found}) has taken over the prefix that this one "
                f"({self._writer.incarnation}) wrote to: two nodes on one prefix; "
                "this one copies, expires and sweeps no more"
            )
            raise Displaced(self.displaced)
        self._looked_ms = now_ms

    def _read(self) -> ClusterFile:
        """`cluster.json`, written again where it is ours and damaged. On an offload thread."""
        try:
            return read_cluster(self._store)
        except UnknownVersion:
            raise
        except CorruptionError:
            update_cluster(
                self._store, self._cluster_id, lambda old: old, self.own, is_conditional=self.is_conditional
            )
            return read_cluster(self._store)
