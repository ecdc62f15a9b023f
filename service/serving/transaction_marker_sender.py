"""Sending of markers: the shell of `transactions.markers`.

Markers for partitions that this node leads are written by a call, those for others go to their leaders in
WriteTxnMarkers requests. When all of a transaction are written, its coordinator is told. Owned by the event
loop; it is loaded with the first transaction of a node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v2.request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

from service.base.clock import Clock
from service.base.errors import FirnError, RequestError
from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.task_set import TaskSet
from service.base.turn_queues import turn_queues
from service.metadata.image import MetadataImage
from service.serving.broker_channels import BrokerChannels
from service.transactions.marker_requests import (
    Disconnect,
    MarkerEffect,
    MarkerRefused,
    MarkersOfTransaction,
    MarkersWritten,
    PreparedTransaction,
    SendMarkers,
)
from service.transactions.markers import MarkerResult, TransactionMarkers
from service.wire.apis import ApiKey

_log = logging.getLogger(__name__)

WriteHere: TypeAlias = Callable[[WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]
"""Writes markers into the logs of this node, and returns once they are committed or refused."""
Complete: TypeAlias = Callable[[PreparedTransaction], Awaitable[object]]
"""Has the coordinator write that a transaction is complete. Raises `RequestError`."""

_GONE: Final = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress})
"""The coordinator is elsewhere, or reads its log and will tell of the transaction itself."""


class TransactionMarkerSender:
    """Markers that this node sends, as the coordinator of transactional ids."""

    def __init__(
        self,
        own_id: int,
        image: Callable[[], MetadataImage],
        brokers: BrokerChannels,
        write_here: WriteHere,
        complete: Complete,
        clock: Clock,
    ) -> None:
        self._own_id = own_id
        self._image = image
        self._brokers = brokers
        self._write_here = write_here
        self._complete = complete
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.machine = TransactionMarkers(self._leader_of)
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskSet(self._loop)
        self._is_closed = False
        self._warnings = RateLimitedLog(_log, now=self._loop.time)

    def prepared(self, shard: int, transaction: PreparedTransaction) -> None:
        """Begin to send the markers of a transaction whose decision is committed; `shard`: its partition of
        ``__transaction_state``."""
        self.machine.prepared(shard, transaction, self._clock.monotonic_ms())
        self._go_on()

    def deposed(self, shard: int) -> None:
        """Send nothing more for a partition that this node no longer coordinates."""
        self.machine.deposed(shard)

    def image_changed(self, topics: Iterable[str] | None) -> None:
        """Look for the leaders of these topics (None: all) again; call it with the image already new."""
        self.machine.image_changed(topics)
        self._go_on()

    async def close(self) -> None:
        """Stop. Requests under way end without an effect here."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()
        await self._brokers.close()

    def _leader_of(self, topic: str, partition: int) -> int | None:
        known = self._image().topics_by_name.get(topic)
        found = None if known is None else known.partitions.get(partition)
        return None if found is None else found.leader

    # -- effects

    def _go_on(self) -> None:
        """Carry out effects soon: what happens meanwhile goes into the same requests."""
        if not self._is_due and self.machine.has_work and not self._is_closed:
            self._is_due = True
            turn_queues(self._loop).calls.add(self._work)

    def _work(self) -> None:
        self._is_due = False
        if self._is_closed:
            return
        for effect in self.machine.advance(self._clock.monotonic_ms()):
            self._carry_out(effect)
        self._go_on()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self.machine.due_ms
        if due_ms is not None:
            wait_s = max(0, due_ms - self._clock.monotonic_ms()) / 1000
            self._timer = self._loop.call_later(wait_s, self._timed)

    def _timed(self) -> None:
        self._timer = None
        if not self._is_due and not self._is_closed:
            self._is_due = True
            turn_queues(self._loop).calls.add(self._work)

    def _carry_out(self, effect: MarkerEffect) -> None:
        if isinstance(effect, SendMarkers):
            self._tasks.begin(self._send(effect), "transaction markers")
        elif isinstance(effect, MarkersWritten):
            self._tasks.begin(self._finish(effect), "completion of a transaction")
        elif isinstance(effect, MarkerRefused):
            transaction = effect.transaction
            self._warnings.warning(
                "%s-%d refused the marker of transactional id %s (producer %d, epoch %d): %s",
                effect.topic, effect.partition, printable(transaction.transactional_id),
                transaction.producer_id, transaction.producer_epoch, _name_of(effect.error),
            )  # fmt: skip
        else:
            assert isinstance(effect, Disconnect)
            self._brokers.disconnect(effect.broker, "it leads none of the partitions any more")

    async def _send(self, effect: SendMarkers) -> None:
        broker = effect.broker
        request = WriteTxnMarkersRequest(markers=tuple([_message(one) for one in effect.markers]))
        try:
            if broker == self._own_id:
                response = await self._write_here(request)
            else:
                channel = self._brokers.to(broker)
                response = await channel.call(ApiKey.WRITE_TXN_MARKERS, None, request)
        except (OSError, FirnError) as e:
            self._warnings.log(logging.INFO, "markers for broker %d are sent again: %s", broker, printable(e))
            self.machine.lost(broker, self._clock.monotonic_ms())
        else:
            self.machine.answered(broker, _results(response), self._clock.monotonic_ms())
        self._go_on()

    async def _finish(self, effect: MarkersWritten) -> None:
        transaction = effect.transaction
        if not self.machine.is_to_complete(effect.shard, transaction):
            return
        try:
            await self._complete(transaction)
        except RequestError as e:
            if e.code not in _GONE:
                self._warnings.log(
                    logging.INFO,
                    "the completion of transactional id %s is written again: %s",
                    printable(transaction.transactional_id), printable(e),
                )  # fmt: skip
                self.machine.not_completed(effect.shard, transaction, self._clock.monotonic_ms())
                self._timed()
                return
        self.machine.completed(effect.shard, transaction.transactional_id)


def _message(one: MarkersOfTransaction) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        transaction_result=one.is_commit,
        topics=tuple(
            [
                WritableTxnMarkerTopic(name=topic, partition_indexes=partitions)
                for topic, partitions in one.topics
            ]
        ),
        coordinator_epoch=one.coordinator_epoch,
        transaction_version=one.transaction_version,
    )


def _results(response: WriteTxnMarkersResponse) -> Iterable[MarkerResult]:
    for marker in response.markers:
        for topic in marker.topics:
            for one in topic.partitions:
                yield marker.producer_id, topic.name, one.partition_index, one.error_code


def _name_of(error: ErrorCode | int) -> str:
    return error.name.upper() if isinstance(error, ErrorCode) else str(error)
