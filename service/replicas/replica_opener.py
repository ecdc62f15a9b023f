"""Opens the partitions of this node, gives them their role and settings, and closes them.

A leader's log that lacks the end of its archive waits for `archive_restore`. A disk that fails, or settings
that are invalid on this node, take the one partition offline; what may pass is retried (`run`). Owned by the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError, CorruptionError, StorageError
from service.base.purgatory import Purgatory
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.metadata.image import MetadataImage, PartitionImage
from service.partition.partition import Partition
from service.remote.catalog import CatalogEntry
from service.replicas.archive_restore import ArchiveRestore, Checked
from service.replicas.erasure_guard import ErasureGuard
from service.replicas.partition_registry import Replicas
from service.replicas.settings_applier import SettingsApplier
from service.replication.leader import MOVED

if TYPE_CHECKING:
    from service.remote.reading.reader import RemoteReader
    from service.replicas.replica_manager import ReplicaManager
    from service.replicas.tail_loading import TailLoader

log = logging.getLogger("service.replicas.metadata_applier")

RETRY_S: Final = 2.0
_HELD: Final = "its HEAD in the bucket has not been compared with the metadata yet"


class Coming(NamedTuple):
    """A partition to be brought online."""

    tip: TopicIdPartition
    replica: PartitionImage
    is_new: bool = False
    """it is created by this change, with its topic or by adding partitions"""
    is_reassigned: bool = False
    """it is assigned to this node by this change"""


class ReplicaOpener:
    """Partitions of this node: online in `replicas`, or offline with a reason."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        settings: SettingsApplier,
        logs: LogManager,
        replicas: Replicas,
        reader: RemoteReader | None,
        purgatory: Purgatory,
        replication: ReplicaManager | None,
        checked: Checked | None,
        came_online: Callable[[Sequence[TopicIdPartition]], None],
    ) -> None:
        """`image`: the one that is applied. `came_online` is called with partitions that a retry opened."""
        self._image = image
        self._settings = settings
        self._logs = logs
        self._replicas = replicas
        self._reader = reader
        self._purgatory = purgatory
        self._replication = replication
        self._came_online = came_online
        self.archives = ArchiveRestore(self, logs, image, reader, checked)
        self.tails: TailLoader | None = None
        """loads tails of a restore; None: this node has no bucket"""
        self.erasures = ErasureGuard(settings.config.node_id, image)
        self.turn = asyncio.Lock()
        """held by each change of partitions"""
        self.created: set[UUID] = set()
        """topics created since this process started: none of their files is older"""
        self._reassigned: set[TopicIdPartition] = set()
        """partitions reassigned to this node since: they have no older files either"""
        self._pending: dict[TopicIdPartition, None] = {}
        """offline for a reason that may pass"""

    def entry(self, tip: TopicIdPartition) -> CatalogEntry | None:
        """Return the committed end of the partition's archive."""
        return self._image().remote.get((tip.topic_id, tip.partition))

    # -- online

    async def bring_online(self, coming: Sequence[Coming]) -> None:
        """Bring partitions online, or take them offline with a reason."""
        settings: dict[str, LogConfig | ConfigError] = {}
        wanted: list[tuple[TopicIdPartition, LogConfig]] = []
        piece, image = Slice(), self._image()
        for one in coming:
            if piece.is_over():
                await piece.next_turn()
            name = one.tip.topic
            if one.is_reassigned:
                self._reassigned.add(one.tip)
            if name not in settings:
                settings[name] = self._settings.of(image, name)
                topic = image.topics_by_name.get(name)
                if topic is not None:
                    self._settings.throttle(topic, settings[name])
            config = settings[name]
            if isinstance(config, LogConfig):
                wanted.append((one.tip, config))
            else:
                self.take_offline(one.tip, str(config), passes=True)
        logs = await self._logs.create(
            wanted, lambda tip: tip.topic_id in self.created or tip in self._reassigned
        )
        by_tip = {tip: (config, log) for (tip, config), log in zip(wanted, logs, strict=True)}
        for one in coming:
            if one.tip not in by_tip:
                continue
            if piece.is_over():
                await piece.next_turn()
            config, local = by_tip[one.tip]
            try:
                if not isinstance(local, LocalLog):
                    raise local
                self._open(one, local, config)
            except (StorageError, CorruptionError, ConfigError) as e:
                self.take_offline(one.tip, str(e), passes=not isinstance(e, CorruptionError))

    def _open(self, coming: Coming, local: LocalLog, config: LogConfig) -> None:
        tip, replica = coming.tip, coming.replica
        remote, tail = self.entry(tip), self._image().restored_tails.get((tip.topic_id, tip.partition))
        if self._leads(replica) or len(replica.replicas) == 1:
            reason = self.archives.why_behind(tip, local, remote)
            if reason is not None:
                self.archives.wait(tip, reason, remote)
                return
        if remote is None or remote.is_given_up:
            # Without an archive the log begins with its files, even if a checkpoint is missing.
            local.deletion.advance_log_start(local.local_log_start_offset)
        self.archives.wait_no_more(tip)
        if len(replica.replicas) > 1 and self._replication is None:
            raise ConfigError(f"its replicas are on {replica.replicas}, and this node runs without a cluster")
        mark = self._mark_at_start(tip, replica, local, remote)
        if mark is not None and self._logs.high_watermark(tip) is None:
            local.state.producers.doubt_from(mark)
        partition = Partition(
            tip,
            local,
            self._reader,
            replica.leader_epoch,
            len(replica.isr),
            self._settings.config.max_inflated_batch_bytes,
            self._purgatory,
            is_leader=False,
            high_watermark=mark,
        )
        partition.replica_count = len(replica.replicas)
        partition.configure(config)
        partition.unified.remote_committed(remote)
        is_archived = config.remote_storage_enable or remote is not None
        if self._reader is not None and not coming.is_new and is_archived:
            partition.archive.hold_appends(_HELD)
        partition.unified.hides_archive = partial(self.erasures.hides_archive, tip.topic_id, tip.partition)
        local.sealed.may_copy = partial(self.erasures.may_copy, tip.topic_id, tip.partition, local.state)
        local.has_erased_records = partial(
            self.erasures.has_erased_records, tip.topic_id, tip.partition, local.state
        )
        partition.archive.loader = self.tails
        partition.archive.load_up_to(None if tail is None else tail.go_on)
        self._take_role(partition, replica)
        self._replicas.add(partition)
        self._watch(tip, local)

    def _mark_at_start(
        self, tip: TopicIdPartition, replica: PartitionImage, local: LocalLog, remote: CatalogEntry | None
    ) -> int | None:
        """Return the last known high watermark; None: the log's end, as there is no other replica."""
        if len(replica.replicas) == 1:
            return None
        least = max(self._logs.high_watermark(tip) or 0, local.log_start_offset)
        # A log without an epoch as new as the archive's may end in a diverged tail.
        if remote is not None and (
            self._settings.config.node_id in replica.isr or local.epochs.newest >= remote.leader_epoch
        ):
            least = max(least, remote.end_offset)
        return min(least, local.log_end_offset)

    def _watch(self, tip: TopicIdPartition, local: LocalLog) -> None:
        """Handle a failed log, which may fail on any thread."""
        loop = asyncio.get_running_loop()

        def failed() -> None:
            loop.call_soon_threadsafe(self._log_failed, tip)

        local.state.on_failure = failed
        if local.failure is not None:
            failed()

    def _log_failed(self, tip: TopicIdPartition) -> None:
        partition = self._replicas.get(tip.topic_id, tip.partition)
        if partition is None or partition.log.failure is None:
            return  # another one has its place
        self._replicas.note_failure(partition)
        replica = self._image().partition(tip.topic_id, tip.partition)
        if replica is not None and self._replication is not None:
            self._replication.failed(partition, replica)

    # -- changes

    def change(self, partition: Partition, replica: PartitionImage) -> None:
        """Apply changed metadata of a partition that is online."""
        partition.isr_size, partition.replica_count = len(replica.isr), len(replica.replicas)
        tip = partition.tip
        remote = self.entry(tip)
        if self._leads(replica) and not partition.is_leader:
            reason = self.archives.why_behind(tip, partition.log, remote)
            if reason is not None:
                self.archives.wait(tip, reason, remote)
                return
        try:
            self._take_role(partition, replica)
        except StorageError as e:
            self.take_offline(tip, str(e), passes=True)

    def tail_changed(self, topic_id: UUID, index: int) -> None:
        """Apply that the metadata has a tail to load for a partition, or has it loaded, from now on."""
        partition = self._replicas.get(topic_id, index)
        image = self._image()
        replica, tail = image.partition(topic_id, index), image.restored_tails.get((topic_id, index))
        if partition is None or replica is None:
            return
        partition.archive.load_up_to(None if tail is None else tail.go_on)
        if self.tails is not None:
            self.tails.changed(partition)
        if not partition.is_leader:
            return
        try:
            self._lead_or_follow(partition, replica)
        except StorageError as e:
            self.take_offline(partition.tip, str(e), passes=True)
            return
        partition.happened(MOVED)
        partition.changed()

    async def load_anew(self, tip: TopicIdPartition, reason: str) -> None:
        """Have the log of a partition that loads its tail begin where that begins, in turn with changes of
        the metadata: what was loaded proved to be damaged, or may be incomplete."""
        async with self.turn:
            partition = self._replicas.get(tip.topic_id, tip.partition)
            tail = self._image().restored_tails.get((tip.topic_id, tip.partition))
            if partition is None or tail is None or partition.log.log_end_offset == tail.chain_end:
                return
            self.archives.wait(tip, reason, self.entry(tip))

    def _take_role(self, partition: Partition, replica: PartitionImage) -> None:
        """Make the partition lead or follow, and load its tail if it leads. Raises `StorageError`."""
        self._lead_or_follow(partition, replica)
        if self.tails is not None:
            self.tails.changed(partition)

    def _lead_or_follow(self, partition: Partition, replica: PartitionImage) -> None:
        if self._replication is None:
            if self._leads(replica):
                if partition.archive.loads_to is None:
                    partition.log.appender.note_leader_epoch(replica.leader_epoch)
                partition.lead(replica.leader_epoch, None)
            else:
                partition.follow(replica.leader_epoch)
            return
        if self._leads(replica):
            self._replication.lead(partition, replica)
        else:
            is_unclean = partition.config.unclean_leader_election_enable
            self._replication.follow(partition, replica, is_unclean=is_unclean)
        self._replication.note_directory(partition, replica)

    def _leads(self, replica: PartitionImage) -> bool:
        """Return whether this node leads; while it is fenced, the metadata names no leader."""
        return replica.leader == self._settings.config.node_id

    # -- offline

    def take_offline(self, tip: TopicIdPartition, reason: str, *, passes: bool, is_lost: bool = True) -> None:
        """Take a partition offline and log why. `passes`: retry to open it. `is_lost`: another replica should
        lead meanwhile."""
        if reason != self._replicas.why_offline(tip.topic_id, tip.partition):
            log.error("%s is offline: %s", tip, reason)
        if self._replication is not None:
            self._replication.leave(tip)
            replica = self._image().partition(tip.topic_id, tip.partition)
            if is_lost and replica is not None and self._settings.config.node_id in replica.replicas:
                self._replication.lost(tip, replica)
        self._replicas.take_offline(tip, reason)
        if passes:
            self._pending[tip] = None

    def close(self, tip: TopicIdPartition) -> None:
        """Close a partition that is no longer on this node, online or not."""
        self._pending.pop(tip, None)
        self.archives.forget(tip)
        if self.tails is not None:
            self.tails.forget(tip)
        self._reassigned.discard(tip)
        if self._replication is not None:
            self._replication.leave(tip)
        partition = self._replicas.get(tip.topic_id, tip.partition)
        if partition is not None:
            self._replicas.remove(partition)
            partition.close()
        self._replicas.forget(tip)

    async def run(self) -> None:
        """Retry partitions that are offline, until cancelled."""
        while True:
            await self.archives.run_once()
            await self.retry()
            await asyncio.sleep(RETRY_S)

    async def retry(self) -> None:
        """Open the partitions whose reason to be offline may have passed, in turn with changes of the
        metadata."""
        async with self.turn:
            pending, self._pending = self._pending, {}
            await self._open_again(pending)

    async def try_again(self, tips: Iterable[TopicIdPartition]) -> None:
        """Open offline partitions, in turn with changes of the metadata."""
        async with self.turn:
            await self._open_again(tips)

    async def _open_again(self, tips: Iterable[TopicIdPartition]) -> None:
        coming, image = [], self._image()
        for tip in tips:
            replica = image.partition(tip.topic_id, tip.partition)
            if replica is None or self._settings.config.node_id not in replica.replicas:
                continue  # removed meanwhile
            if self._replicas.get(tip.topic_id, tip.partition) is None:
                coming.append(Coming(tip, replica))
        await self.bring_online(coming)
        tips = [one.tip for one in coming]
        online = [tip for tip in tips if self._replicas.get(tip.topic_id, tip.partition) is not None]
        for tip in online:
            log.info("%s is online again", tip)
        if online:
            self._came_online(online)
