"""Copy the newest snapshot of the cluster's metadata into the bucket, where `cluster.json` names it.

The object is a `.checkpoint` like the metadata log's own snapshots. It is uploaded under a key of its own and
then named by a conditional write; older ones that are no longer named are deleted, except the last. Metadata
older than the bucket's, by life, epoch and offset, is not written: such a node was restored from a backup.
Whoever may read the archive reads it, so it has neither SCRAM credentials nor passwords of brokers' settings
unless the operator wants them there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.clock import Clock
from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import Buffer
from service.remote.format.keys import METADATA_PREFIX, MetadataKey, metadata_key, parse_key
from service.remote.format.manifest_codec import ClusterFile
from service.remote.format.metadata_ref import MAX_METADATA_BYTES, MetadataRef
from service.remote.format.stamp import Writer
from service.remote.stores.store import ObjectStore
from service.tiering.offload_pool import OffloadPool
from service.tiering.prefix_fence import Displaced, Fence, NotNamed, OwnWrites, read_cluster, update_cluster

log = logging.getLogger(__name__)

_KEPT: Final = 2
_BYTES_PER_MS: Final = 5_000
"""Upper bound of the average rate of successive copies."""


class MetadataSnapshot(NamedTuple):
    """All metadata below `end_offset`, whose last record is of `epoch`, in one life of the cluster; `encode`
    gives its bytes, without the credentials of `omitted_users` users and without as many settings of brokers
    that are secret as `omitted_settings` returns. Both are for a thread."""

    end_offset: int
    epoch: int
    encode: Callable[[], Iterable[Buffer]]
    life: int = 0
    omitted_users: int = 0
    omitted_settings: Callable[[], int] = lambda: 0

    @property
    def position(self) -> tuple[int, int, int]:
        """Sort key of snapshots: the newer one has the greater."""
        return self.life, self.epoch, self.end_offset


Removable = Callable[[Sequence[str]], Sequence[str]]
"""Returns those of the superseded snapshots that no cut needs."""


class OlderMetadata(StorageError):
    """The bucket has newer metadata than this node."""


def write_metadata(
    store: ObjectStore,
    cluster_id: str,
    snapshot: MetadataSnapshot,
    writer: Writer,
    uuid: UUID,
    own: OwnWrites,
    *,
    is_conditional: bool = True,
    removable: Removable = list,
) -> MetadataRef:
    """Upload `snapshot`, have `cluster.json` name it, and delete older ones that are not needed. Blocks.

    Raises `OlderMetadata` when `cluster.json` names a newer one, `Displaced` when another process than
    `writer` has the prefix: then at most an unnamed object is left. Otherwise raises as `update_cluster`. A
    snapshot of the same position that is already named is left as it is.
    """
    named = _checked(read_cluster(store), snapshot, writer).metadata
    if named is not None and named.position == snapshot.position:
        return named
    data = b"".join(snapshot.encode())
    if len(data) > MAX_METADATA_BYTES:
        raise StorageError(
            f"metadata of {len(data)} bytes is not copied: at most {MAX_METADATA_BYTES} can be read back"
        )
    key = metadata_key(MetadataKey(snapshot.end_offset, snapshot.epoch, uuid))
    ref = MetadataRef(
        key,
        snapshot.end_offset,
        snapshot.epoch,
        len(data),
        crc32c(data),
        snapshot.life,
        snapshot.omitted_users,
        snapshot.omitted_settings(),
    )
    store.put_stream(key, [data], len(data))

    def name(cluster: ClusterFile) -> ClusterFile:
        return _checked(cluster, snapshot, writer)._replace(metadata=ref)

    update_cluster(store, cluster_id, name, own, is_conditional=is_conditional)
    _remove_others(store, ref, removable)
    return ref


def _checked(cluster: ClusterFile, snapshot: MetadataSnapshot, writer: Writer) -> ClusterFile:
    owner = cluster.stamp.writer.incarnation if cluster.stamp is not None else None
    if owner != writer.incarnation:
        raise Displaced(f"another process ({owner}) has the prefix, this one is {writer.incarnation}")
    named = cluster.metadata
    if named is not None and named.position > snapshot.position:
        raise OlderMetadata(
            f"the bucket has the cluster's metadata up to offset {named.end_offset} of epoch {named.epoch} "
            f"in life {named.life}, this node up to {snapshot.end_offset} of epoch {snapshot.epoch} in life "
            f"{snapshot.life}: it is not overwritten (firn.remote.recover adopts the bucket's)"
        )
    return cluster


def _remove_others(store: ObjectStore, ours: MetadataRef, removable: Removable) -> None:
    """Delete the snapshots stored before `ours`, which is named now, except the last of them, and those that
    cuts need.

    Where `ours` is of a later life than the first, older snapshots go whatever their offsets, which may be of
    an earlier life; otherwise only those of no greater offset. This process does not judge what was stored
    later.
    """
    found = {
        info.key: (info.last_modified_ms, parsed)
        for info in store.list(METADATA_PREFIX)
        if isinstance(parsed := parse_key(info.key), MetadataKey)
    }
    stored_ms, own = found.pop(ours.key, (0, None))
    older = [
        (at_ms, key)
        for key, (at_ms, parsed) in found.items()
        if own is not None
        and at_ms <= stored_ms
        and ((parsed.epoch, parsed.offset) <= (own.epoch, own.offset) or (ours.life and at_ms < stored_ms))
    ]
    store.delete(list(removable([key for _, key in sorted(older)[: -(_KEPT - 1)]])))


class MetadataCopies:
    """Schedule of the metadata's copies. Owned by the event loop; the writing runs on the offload pool."""

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        writer: Writer,
        take: Callable[[], MetadataSnapshot | None],
        new_uuid: Callable[[], UUID],
        pool: OffloadPool,
        fence: Fence,
        clock: Clock,
        interval_ms: int,
        removable: Removable = list,
    ) -> None:
        """`take` returns the committed metadata, None while this node is not the one to write it."""
        self.newest: MetadataRef | None = None
        """the copy that this process wrote last"""
        self._removable = removable
        self._store = store
        self._cluster_id = cluster_id
        self._writer = writer
        self._snapshot = take
        self._new_uuid = new_uuid
        self._pool = pool
        self._fence = fence
        self._clock = clock
        self._interval_ms = interval_ms
        self._written = (-1, -1, -1)
        self.due_ms = self._soonest_ms = clock.monotonic_ms()

    def begin(self) -> None:
        """Schedule a copy, or find that the newest one is there: other processes may have written since."""
        self.newest, self._written = None, (-1, -1, -1)
        self.changed(0)

    def changed(self, in_ms: int) -> None:
        """Schedule a copy in `in_ms`, or later after a large one: metadata worth a copy was committed."""
        self.due_ms = min(self.due_ms, max(self._clock.monotonic_ms() + in_ms, self._soonest_ms))

    async def run_due(self, now_ms: int) -> None:
        """Write a copy if one is due and there is anything new. Raises what `write_metadata` raises."""
        if now_ms < self.due_ms:
            return
        self.due_ms = now_ms + self._interval_ms
        snapshot = self._snapshot()
        if snapshot is None or snapshot.position <= self._written:
            return
        try:
            await self._fence.check()
            written = await self._pool.run(
                write_metadata,
                self._store,
                self._cluster_id,
                snapshot,
                self._writer,
                self._new_uuid(),
                self._fence.own,
                is_conditional=self._fence.is_conditional,
                removable=self._removable,
            )
        except OlderMetadata as e:
            log.error("%s", e)  # only an operator can change that
            return
        except Displaced as e:
            self.due_ms = now_ms
            await self._fence.check()  # tells which process it is, and whether the loss is final
            raise NotNamed(str(e)) from e
        except (StorageError, CorruptionError, RequestError):
            self.due_ms = now_ms
            raise
        self.newest = written
        self._written, self._soonest_ms = snapshot.position, now_ms + written.size // _BYTES_PER_MS
