"""One writer per prefix: `cluster.json` names the incarnation of the node that may write and delete.

A node takes the prefix over when it starts, after it found that its metadata is not older than the bucket.
Whoever wrote before finds another incarnation there, and stops for good: two nodes with one past (a cloned
disk) would each take the other's objects for garbage. What one of them was doing at that moment is
harmless: every HEAD is written conditionally, and deletions look here first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import ConfigError, CorruptionError, StorageError
from service.remote.format.fields import parse_json_object
from service.remote.format.keys import CLUSTER_KEY
from service.remote.format.manifest_codec import MAX_SMALL_BYTES, decode_cluster, encode_cluster
from service.remote.stores import conditional
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore, Tagged
from service.tiering.offload import OffloadPool

_ATTEMPTS = 5


class Writer(NamedTuple):
    """Who writes to the prefix: a process of a node; `incarnation` is new with each start."""

    node_id: int
    incarnation: UUID


class Displaced(StorageError):
    """Another process has taken the prefix over. It never comes back to this one."""


def claim_prefix(store: ObjectStore, cluster_id: str) -> None:
    """Make the prefix this cluster's, or find that it is; who writes to it is not changed.

    `ConfigError` when it belongs to another cluster; `CorruptionError` when its layout is one that we do
    not know; `StorageError` when the store does not answer. Two clusters that claim an empty prefix at
    once cannot both win.
    """
    if conditional.create(store, CLUSTER_KEY, encode_cluster(cluster_id)):
        return
    _owned(_read(store), cluster_id)


def take_over(
    store: ObjectStore, cluster_id: str, writer: Writer, now_ms: int, *, is_conditional: bool = True
) -> None:
    """Name `writer` in `cluster.json`, whoever was named before. Raises as `claim_prefix`."""
    for _ in range(_ATTEMPTS):
        seen = conditional.tagged_or_none(store, CLUSTER_KEY, max_size=MAX_SMALL_BYTES)
        document = _owned(seen, cluster_id) if seen is not None else json.loads(encode_cluster(cluster_id))
        data = _naming(document, writer, now_ms)
        if not is_conditional:
            store.put(CLUSTER_KEY, data)
            return
        if conditional.write(store, CLUSTER_KEY, data, seen):
            return
    raise StorageError(f"{CLUSTER_KEY} is taken over by others again and again")


def writer_of(store: ObjectStore) -> UUID | None:
    """The incarnation that `cluster.json` names; None where nobody has taken the prefix over yet."""
    with naming(CLUSTER_KEY):
        return _incarnation(parse_json_object(_read(store).data, CLUSTER_KEY))


def _read(store: ObjectStore) -> Tagged:
    return store.get_tagged(CLUSTER_KEY, max_size=MAX_SMALL_BYTES)


def _owned(seen: Tagged, cluster_id: str) -> dict[str, Any]:
    """The document, when it is this cluster's."""
    with naming(CLUSTER_KEY):
        owner = decode_cluster(seen.data)
    if owner != cluster_id:
        raise ConfigError(
            f"firn.remote.url: the prefix belongs to cluster {owner}, this node's is {cluster_id}; "
            f"give each cluster a prefix of its own"
        )
    return parse_json_object(seen.data, CLUSTER_KEY)


def _naming(document: Mapping[str, Any], writer: Writer, now_ms: int) -> bytes:
    """`document` with another writer; whatever else it says stays."""
    who = {"node_id": writer.node_id, "incarnation": str(writer.incarnation), "software": "firn"}
    changed = {**document, "written_ms": now_ms, "writer": who}
    return json.dumps(changed, separators=(",", ":"), ensure_ascii=False).encode()


def _incarnation(document: Mapping[str, Any]) -> UUID | None:
    writer = document.get("writer")
    if writer is None:
        return None
    try:
        return UUID(writer["incarnation"])
    except (TypeError, KeyError, ValueError, AttributeError) as e:
        raise CorruptionError("the writer has no incarnation") from e


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

    async def take_over(self) -> None:
        """Become the writer. Raises as the function of that name."""
        await self._pool.run(
            take_over,
            self._store,
            self._cluster_id,
            self._writer,
            self._clock.now_ms(),
            is_conditional=self.is_conditional,
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
        found = await self._pool.run(writer_of, self._store)
        if found != self._writer.incarnation:
            self.displaced = (
                f"another process ({found}) has taken over the prefix that this one "
                f"({self._writer.incarnation}) wrote to: two nodes on one prefix; "
                "this one copies, expires and sweeps no more"
            )
            raise Displaced(self.displaced)
        self._looked_ms = now_ms
