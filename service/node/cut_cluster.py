"""Cluster of which cuts are taken: this node's metadata, and the brokers that are asked (`tiering/cuts`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from service.base.errors import StorageError
from service.base.slices import Slice
from service.metadata.features import has_cuts
from service.metadata.log_reading import LogPieceGone, read_log
from service.metadata.tail_records import to_be_copied
from service.serving.request_host import Broker
from service.tiering.cuts.ports import CutSettings, MetadataGone, MetadataTail
from service.tiering.cuts.round import Led
from service.wire.apis import ApiKey
from service.wire.cuts import TakeCutRequest, TakeCutResponse
from service.wire.errors import UnsupportedVersion

if TYPE_CHECKING:
    from service.metadata.image import MetadataImage
    from service.serving.broker_channels import BrokerChannels


STUCK_MS: Final = 300_000
"""Time without a tail that was loaded after which no more are waited for."""


class NodeCutCluster:
    """A `tiering.cuts.ports.CutCluster`. Owned by the event loop."""

    def __init__(self, broker: Broker, channels: BrokerChannels, *, has_credentials: bool) -> None:
        """`channels` lead to the other brokers. `has_credentials`: those of users are copied into the bucket
        with the other metadata."""
        self._broker = broker
        self._channels = channels
        self._has_credentials = has_credentials
        self._unloaded, self._unloaded_since_ms = 0, 0
        """how many tails of a restore were not loaded when their number changed last, and when that was"""

    @property
    def _image(self) -> MetadataImage:
        return self._broker.image

    def settings(self) -> CutSettings:
        config = self._broker.config
        # The ends of partitions that load their tails are not the cluster's: the cuts that are there stay.
        interval_ms = -1 if self._waits_for_tails() else config.cut_interval_ms
        return CutSettings(interval_ms, config.cut_hold_max_ms, config.cut_hold_longest_ms)

    def _waits_for_tails(self) -> bool:
        """Return whether tails of a restore are loading. Some that cannot be loaded keep nobody from cuts:
        after a while without any that was, cuts are taken which are loose, and have of these partitions what
        the cut has that they are loaded from."""
        count = len(self._image.restored_tails)
        if not count:
            return False
        now_ms = self._broker.clock.monotonic_ms()
        if count != self._unloaded:
            self._unloaded, self._unloaded_since_ms = count, now_ms
        return now_ms - self._unloaded_since_ms < STUCK_MS

    def why_no_cuts(self) -> str:
        if self._waits_for_tails():
            return "no cut is taken before all restored partitions have loaded their tails"
        if self.cuts_are_off():
            return (
                "no cut is taken, as firn.cut.interval.ms is -1: set it for the whole cluster, such as to "
                "10000, until this order is done"
            )
        return ""

    def cuts_are_off(self) -> bool:
        return not self.is_loading and self._broker.config.cut_interval_ms < 0

    @property
    def is_loading(self) -> bool:
        return bool(self._image.restored_tails)

    @property
    def needs_chains(self) -> bool:
        config = self._broker.config
        # A grace that is over before the next cut says that objects are to go at once.
        return self.is_loading or (
            self.is_enabled() and 0 <= config.cut_interval_ms <= config.remote_object_grace_ms
        )

    def is_enabled(self) -> bool:
        # A node that no other can join has no level: there is no older software to protect.
        plane = self._broker.plane
        return plane.prefix_owner is None or has_cuts(self._image.features)

    @property
    def node_id(self) -> int:
        return self._broker.config.node_id

    @property
    def broker_epoch(self) -> int:
        return self._broker.plane.epoch

    def brokers(self) -> Collection[int]:
        return [one.id for one in self._image.brokers.values() if not one.fenced]

    def partitions(self) -> Iterator[Led]:
        unloaded = self._image.restored_tails
        for topic in self._image.topics_by_id.values():
            for number in range(len(topic.partitions)):
                state = topic.partitions[number]
                leader_id = -1 if (topic.id, number) in unloaded else state.leader
                yield Led(topic.id, number, leader_id, state.leader_epoch)

    def name_of(self, topic_id: UUID, /) -> str:
        topic = self._image.topics_by_id.get(topic_id)
        return str(topic_id) if topic is None else topic.name

    def replicas(self, topic_id: UUID, /) -> Sequence[Sequence[int]]:
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None:
            return ()
        return [topic.partitions[number].replicas for number in range(len(topic.partitions))]

    def fenced_brokers(self) -> Collection[int]:
        return [one.id for one in self._image.brokers.values() if one.fenced]

    @property
    def life(self) -> int:
        return self._image.life

    async def reach(self, metadata_end: int, /) -> None:
        await self._broker.metadata.published(metadata_end - 1)

    async def metadata_tail(self, start: int, end: int, most_bytes: int, /) -> MetadataTail:
        try:
            data = await read_log(self._broker.metadata, start, end, most_bytes)
        except LogPieceGone as e:
            raise MetadataGone(str(e)) from e
        piece = await Slice().go_on(to_be_copied(data, has_credentials=self._has_credentials))
        return MetadataTail(piece.data, piece.records, piece.epoch, piece.max_timestamp, piece.has_news)

    async def ask(self, broker_id: int, request: TakeCutRequest, timeout_ms: int, /) -> TakeCutResponse:
        if broker_id == self.node_id:
            cuts = self._broker.cuts
            if cuts is None:
                raise StorageError("this broker's cold tier does not run")
            return await cuts.answer(request)
        try:
            channel = self._channels.to(broker_id)
            answer: TakeCutResponse = await channel.call(ApiKey.TAKE_CUT, 0, request, timeout_ms=timeout_ms)
        except UnsupportedVersion as e:
            raise StorageError(f"broker {broker_id} is of older software: {e}") from e
        return answer
