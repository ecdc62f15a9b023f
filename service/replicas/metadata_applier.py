"""Applies each committed image to this node: opens, changes and closes partitions, in the order of changes.

Called on the loop with each new image; the request for the change is answered when that is done, so a created
topic can be used when CreateTopics returns. Only what a delta names is processed. Changes are applied one
after the other: small ones at once; those that need files, or have many partitions, in slices, with the
disk's part on `log-io` threads. `replica_opener` has the partitions, `settings_applier` the settings.

A partition that a change takes from this node is closed, and its files are deleted. Files of a partition that
is unknown without such a change are set aside and never deleted (`LogManager.set_aside_unknown`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from service.base.errors import StorageError
from service.base.purgatory import Purgatory
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.config.settings import BrokerConfig, LogConfig
from service.hot.manager import LogManager
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage, TopicImage
from service.replicas.archive_restore import Checked
from service.replicas.partition_registry import Replicas
from service.replicas.replica_opener import Coming, ReplicaOpener
from service.replicas.settings_applier import SettingsApplier, configured_topics

if TYPE_CHECKING:
    from service.remote.reading.reader import RemoteReader
    from service.replicas.replica_manager import ReplicaManager

log = logging.getLogger(__name__)


class ApplierListener(Protocol):
    """Listener for applied metadata. Called on the loop; it takes note and acts later."""

    def applied(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """Handle that the node has applied `image`."""

    def came_online(self, image: MetadataImage, tips: Sequence[TopicIdPartition]) -> None:
        """Handle partitions that could be opened after a retry."""


_SMALL: Final = 100
"""Most partitions that are changed at once, on the loop."""


class Applier:
    """Keeps `replicas` and the logs on disk in step with the image. Owned by the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        replicas: Replicas,
        reader: RemoteReader | None,
        purgatory: Purgatory,
        replication: ReplicaManager | None = None,
        checked: Checked | None = None,
    ) -> None:
        """`replication`: None on a node without other brokers. `checked`: for `ArchiveRestore`."""
        self.settings = SettingsApplier(config, logs, replicas, purgatory, replication)
        self.opener = ReplicaOpener(
            lambda: self._image, self.settings, logs, replicas, reader, purgatory, replication, checked,
            self._came_online,
        )  # fmt: skip
        self._node_id = config.node_id
        self._replication = replication
        self._logs = logs
        self._replicas = replicas
        self._image = MetadataImage()
        self._listeners: list[ApplierListener] = []
        self._under_way = 0
        """changes that wait for their turn, or have it"""

    def watch(self, listener: ApplierListener) -> None:
        """Call `listener` from now on, after those that watch already."""
        self._listeners.append(listener)

    def _notify(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        for listener in self._listeners:
            listener.applied(before, image, delta)

    def _came_online(self, tips: Sequence[TopicIdPartition]) -> None:
        for listener in self._listeners:
            listener.came_online(self._image, tips)

    async def start(self, image: MetadataImage) -> None:
        """Bring every partition of `image` online. Later changes follow."""
        async with self.opener.turn:
            self._image = image
            self.settings.start(image)
            if self._replication is not None:
                self._replication.update_brokers(image, image.brokers)
            topics = image.topics_by_id.values()
            await self._apply_topics(((topic, topic.partitions) for topic in topics), image)

    def apply(
        self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta
    ) -> Awaitable[None] | None:
        """Apply the change from the image `before` to `image`; `delta` names what changed. Returns an
        awaitable of its completion, or None if it is done."""
        if self._under_way or self.opener.turn.locked() or not self._is_small(before, image, delta):
            self._under_way += 1
            return asyncio.get_running_loop().create_task(
                self._apply_in_turn(before, image, delta), name="applier"
            )
        self._image = image
        for topic_id in delta.topics:
            topic = image.topics_by_id[topic_id]
            for index in delta.changed_partitions(topic_id):
                known = self._replicas.get(topic_id, index)
                if known is not None:
                    self.opener.change(known, topic.partitions[index])
        for topic in configured_topics(image, delta):
            self.settings.configure(self._image, topic, self.opener.take_offline)
        for topic_id, index in delta.remote:
            self._commit(topic_id, index)
        for topic_id, index in delta.restored_tails:
            self.opener.tail_changed(topic_id, index)
        self._notify(before, image, delta)
        return None

    def _is_small(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> bool:
        """Return whether the change needs no files and little time."""
        entries = len(delta.configs) + len(delta.remote) + len(delta.restored_tails)
        if delta.deleted_topics or delta.brokers or entries > _SMALL:
            return False
        changed = 0
        for topic_id in delta.topics:
            for index in delta.changed_partitions(topic_id):
                changed += 1
                if changed > _SMALL:
                    return False
                is_ours, is_here = self._has(image, topic_id, index), self._replicas.get(topic_id, index)
                if (is_here is None) if is_ours else self._has(before, topic_id, index):
                    return False
        topics = [self._image.topics_by_name.get(name) for _, name in delta.configs]
        topics += [self._image.topics_by_id.get(topic_id) for topic_id in delta.recovered]
        sizes = sum(len(topic.partitions) for topic in topics if topic is not None)
        return sizes <= _SMALL and not self.settings.concern_node(delta)

    async def _apply_in_turn(self, before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        try:
            async with self.opener.turn:
                self._image = image
                concerned: Sequence[TopicIdPartition] = ()
                if self._replication is not None:
                    concerned = self._replication.update_brokers(image, delta.brokers)
                await self._delete(delta.deleted_topics.values())
                self.opener.created.update(one for one in delta.topics if one not in before.topics_by_id)
                topics = (
                    (image.topics_by_id[topic_id], delta.changed_partitions(topic_id))
                    for topic_id in delta.topics
                )
                await self._apply_topics(topics, before)
                await self._configure(delta)
                piece = Slice()
                for topic_id, index in delta.remote:
                    if piece.is_over():
                        await piece.next_turn()
                    self._commit(topic_id, index)
                for topic_id, index in delta.restored_tails:
                    if piece.is_over():
                        await piece.next_turn()
                    self.opener.tail_changed(topic_id, index)
                if self._replication is not None:
                    await piece.go_on(self._replication.reevaluate(concerned))
                self._notify(before, image, delta)
        finally:
            self._under_way -= 1

    def holds(self, topic_id: UUID, index: int) -> bool:
        """Return whether the image assigns the partition to this node, online or not."""
        return self._has(self._image, topic_id, index)

    def _has(self, image: MetadataImage, topic_id: UUID, index: int) -> bool:
        replica = image.partition(topic_id, index)
        return replica is not None and self._node_id in replica.replicas

    # -- partitions

    async def _apply_topics(
        self,
        topics: Iterable[tuple[TopicImage, Iterable[int]]],
        before: MetadataImage,
    ) -> None:
        """Apply changed partitions of topics, by index: open, change or close them. `before` tells which
        topics are new, and which partitions this node had."""
        piece = Slice()
        coming: list[Coming] = []
        going: list[TopicIdPartition] = []
        for topic, indices in topics:
            is_topic_new = topic.id not in before.topics_by_id
            for index in indices:
                if piece.is_over():
                    await piece.next_turn()
                replica = topic.partitions[index]
                tip = TopicIdPartition(topic.id, topic.name, index)
                if self._node_id not in replica.replicas:
                    if self._has(before, topic.id, index):
                        log.info(
                            "%s was reassigned from this node to %s, deleting its files",
                            tip,
                            replica.replicas,
                        )
                        self.opener.close(tip)
                        going.append(tip)
                    continue
                known = self._replicas.get(topic.id, index)
                if known is None:
                    is_reassigned = not is_topic_new and not self._has(before, topic.id, index)
                    is_new = is_topic_new or self._is_grown_by(tip, before)
                    coming.append(Coming(tip, replica, is_new, is_reassigned))
                else:
                    self.opener.change(known, replica)
        if going:
            await self._logs.delete(going)
        await self.opener.bring_online(coming)

    def _is_grown_by(self, tip: TopicIdPartition, before: MetadataImage) -> bool:
        """Return whether the partition was added to its topic since the image `before`, so the bucket has
        nothing of it. For a topic that a recovery restored, the bucket's contents are not known yet."""
        if before.partition(tip.topic_id, tip.partition) is not None or self.opener.entry(tip) is not None:
            return False
        recovered = self._image.recovered.get(tip.topic_id)
        return recovered is None or tip.partition not in recovered.unchecked_partitions

    async def _delete(self, topics: Iterable[TopicImage]) -> None:
        piece = Slice()
        tips = []
        for topic in topics:
            self.opener.created.discard(topic.id)
            self.settings.throttle(topic, LogConfig())
            for index in topic.partitions:
                if piece.is_over():
                    await piece.next_turn()
                tip = TopicIdPartition(topic.id, topic.name, index)
                self.opener.close(tip)
                tips.append(tip)
        if tips:
            await self._logs.delete(tips)

    def _commit(self, topic_id: UUID, index: int) -> None:
        partition = self._replicas.get(topic_id, index)
        if partition is None:
            return
        entry = self.opener.entry(partition.tip)
        try:
            if partition.is_leader or entry is None:
                partition.unified.remote_committed(entry)
            else:
                # The leader writes HEAD, and the next leader writes it again: a committed archive stays, so
                # local bytes below its end may be deleted.
                partition.archive.remote_committed(entry)
                if self._replication is not None:
                    self._replication.moved_start(partition.tip)
        except StorageError as e:
            log.error(
                "deleting local segments of %s that expired in its archive failed: %s", partition.tip, e
            )
        self._replicas.notify(partition)

    # -- settings

    async def _configure(self, delta: MetadataDelta) -> None:
        """Apply changed settings. Broker settings are defaults of topics, so their change reconfigures every
        topic."""
        topics: Iterable[TopicImage] = configured_topics(self._image, delta)
        piece = Slice()
        if self.settings.concern_node(delta):
            await self.settings.update(self._image, piece)
            topics = self._image.topics_by_id.values()
        for topic in topics:
            if piece.is_over():
                await piece.next_turn()
            self.settings.configure(self._image, topic, self.opener.take_offline)
