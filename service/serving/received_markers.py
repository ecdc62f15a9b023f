"""Markers that a coordinator of transactions has this node write into the partitions that it leads.

Kafka `KafkaApis.handleWriteTxnMarkersRequest`, with one write for all markers of a partition. Those of
``__consumer_offsets`` go through the runtime of the group coordinator, which applies the offsets of the
transaction. Each partition has its own result, once all in-sync replicas have its markers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.slices import Slice
from service.base.steps import Steps
from service.hot.markers import Marker
from service.partition.partition import Partition
from service.serving.delayed_produce import DelayedProduce
from service.serving.internal_topics import OFFSETS, TRANSACTIONS
from service.serving.request_host import Broker

COMMIT_MS: Final = 30_000
"""Wait for the replicas (Kafka's default of ``request.timeout.ms``)."""
_PARTITIONS_A_STEP: Final = 500
_MARKERS_AT_ONCE: Final = 100
"""Markers of one partition in one write: more would hold the loop for longer than a slice."""
_NOT_HERE_YET: Final = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
    }
)
"""Errors of the group coordinator that a coordinator of transactions would not understand: it asks again
after NOT_LEADER_OR_FOLLOWER."""

_Place: TypeAlias = tuple[str, int]


class _Asked(NamedTuple):
    """Markers of one partition, in the order of the request."""

    markers: list[Marker]
    errors: list[ErrorCode]
    """outcome of each; those that are written may still fail for want of replicas"""


async def write_markers(
    broker: Broker, request: WriteTxnMarkersRequest, has_left: Callable[[], bool] = lambda: False
) -> WriteTxnMarkersResponse:
    """Write the markers of a request, and return the result of each partition.

    `has_left`: whether the connection is gone. Nothing is begun any more then: its coordinator sends again
    what was lost, and a marker of the protocol before TV2 that came later could end the next transaction.
    """
    return await _Writing(broker, has_left).write(request)


class _Writing:
    """One request."""

    def __init__(self, broker: Broker, has_left: Callable[[], bool]) -> None:
        self._broker = broker
        self._has_left = has_left
        self._asked: dict[_Place, _Asked] = {}
        self._found: dict[int, dict[str, dict[int, ErrorCode]]] = {}
        """outcomes by producer, topic and partition"""
        self._delayed = DelayedProduce(broker)
        self._waits = False
        self._flushes: dict[_Place, Partition] = {}
        self._of_groups: list[tuple[_Asked, int, asyncio.Future[None]]] = []

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        piece = Slice()
        await piece.go_on(self._collect(request))
        await piece.go_on(self._append())
        await self._committed()
        return await piece.go_on(self._response())

    def _collect(self, request: WriteTxnMarkersRequest) -> Steps[None]:
        """Put the markers of each partition together."""
        seen = 0
        for one in request.markers:
            marker = Marker(
                one.producer_id,
                one.producer_epoch,
                one.coordinator_epoch,
                one.transaction_result,
                one.transaction_version,
            )
            is_nobody = marker.producer_id < 0 or marker.producer_epoch < 0
            yield
            for topic in one.topics:
                yield
                for index in topic.partition_indexes:
                    seen += 1
                    if not seen % _PARTITIONS_A_STEP:
                        yield
                    if is_nobody:
                        self._note(marker, topic.name, index, ErrorCode.invalid_producer_epoch)
                        continue
                    asked = self._asked.setdefault((topic.name, index), _Asked([], []))
                    asked.markers.append(marker)

    def _append(self) -> Steps[None]:
        for place, asked in self._asked.items():
            for at in range(0, len(asked.markers), _MARKERS_AT_ONCE):
                yield
                yield from self._append_some(place, asked, asked.markers[at : at + _MARKERS_AT_ONCE])

    def _append_some(self, place: _Place, asked: _Asked, markers: list[Marker]) -> Steps[None]:
        partition = self._partition_of(place)
        if isinstance(partition, ErrorCode):
            asked.errors.extend([partition] * len(markers))
        elif place[0] == OFFSETS:
            yield from self._append_to_groups(place[1], asked, markers)
        else:
            self._append_to(partition, place, asked, markers)

    def _partition_of(self, place: _Place) -> Partition | ErrorCode:
        """Return the partition, or why nothing is written there."""
        if self._has_left():
            return ErrorCode.network_exception
        try:
            partition = self._broker.replicas.find(*place)
        except (RequestError, StorageError):
            return ErrorCode.unknown_topic_or_partition
        # Not behind the back of its coordinator.
        return ErrorCode.topic_authorization_failed if place[0] == TRANSACTIONS else partition

    def _append_to(self, partition: Partition, place: _Place, asked: _Asked, markers: list[Marker]) -> None:
        broker = self._broker
        try:
            results = partition.append_markers(markers, broker.clock.now_ms())
        except (RequestError, StorageError, CorruptionError) as e:
            asked.errors.extend([self._error_of(place, e)] * len(markers))
            return
        end_offset = -1
        for result in results:
            if isinstance(result, RequestError):
                asked.errors.append(self._error_of(place, result))
            else:
                asked.errors.append(ErrorCode.none)
                end_offset = result.last_offset + 1
        if end_offset < 0:
            return
        if partition.leading is not None:
            self._delayed.add(partition.leading, end_offset, *place)
            self._waits = True
        if partition.log.flush_due:
            self._flushes[place] = partition

    def _append_to_groups(self, index: int, asked: _Asked, markers: list[Marker]) -> Steps[None]:
        for number, marker in enumerate(markers):
            if number:
                yield
            written = self._broker.groups.runtime.write_marker(index, marker)
            self._of_groups.append((asked, len(asked.errors), written))
            asked.errors.append(ErrorCode.none)

    def _error_of(self, place: _Place, error: FirnError) -> ErrorCode:
        if isinstance(error, RequestError):
            return error.code
        self._broker.log_storage_error("WriteTxnMarkers", *place, error)
        return ErrorCode.kafka_storage_error

    async def _committed(self) -> None:
        """Wait until all replicas in sync have what is appended, and note what fails."""
        if self._waits:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._delayed.begin(COMMIT_MS, partial(_settle, settled)):
                await settled
            for place, error in self._delayed.refused().items():
                _fail(self._asked[place], error)  # type: ignore[index]  # topics are named here
        for place, partition in self._flushes.items():
            try:
                await self._broker.flush(partition.log)
            except StorageError as e:
                _fail(self._asked[place], self._error_of(place, e))
        for asked, number, written in self._of_groups:
            try:
                await written
            except RequestError as e:
                code = ErrorCode.not_leader_or_follower if e.code in _NOT_HERE_YET else e.code
                asked.errors[number] = code

    def _response(self) -> Steps[WriteTxnMarkersResponse]:
        """Return the results by producer; the last one of a partition that a producer's markers repeat."""
        seen = 0
        for (topic, index), asked in self._asked.items():
            for marker, error in zip(asked.markers, asked.errors, strict=True):
                seen += 1
                if not seen % _PARTITIONS_A_STEP:
                    yield
                self._note(marker, topic, index, error)
        return (yield from _response(self._found))

    def _note(self, marker: Marker, topic: str, index: int, error: ErrorCode) -> None:
        self._found.setdefault(marker.producer_id, {}).setdefault(topic, {})[index] = error


def _response(found: dict[int, dict[str, dict[int, ErrorCode]]]) -> Steps[WriteTxnMarkersResponse]:
    markers = []
    for producer_id, topics in found.items():
        yield
        results = yield from _topics(topics)
        markers.append(WritableTxnMarkerResult(producer_id=producer_id, topics=results))
    return WriteTxnMarkersResponse(markers=tuple(markers))


def _topics(topics: dict[str, dict[int, ErrorCode]]) -> Steps[tuple[WritableTxnMarkerTopicResult, ...]]:
    made = []
    for name, partitions in topics.items():
        results: list[WritableTxnMarkerPartitionResult] = []
        for index, error in partitions.items():
            if not len(results) % _PARTITIONS_A_STEP:
                yield
            results.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=error))
        made.append(WritableTxnMarkerTopicResult(name=name, partitions=tuple(results)))
    return tuple(made)


def _settle(settled: asyncio.Future[None]) -> None:
    if not settled.done():
        settled.set_result(None)


def _fail(asked: _Asked, error: ErrorCode) -> None:
    for number, before in enumerate(asked.errors):
        if before is ErrorCode.none:
            asked.errors[number] = error


def refused_markers(request: WriteTxnMarkersRequest, error: ErrorCode) -> Steps[WriteTxnMarkersResponse]:
    """Return `error` for each partition of the request."""
    found: dict[int, dict[str, dict[int, ErrorCode]]] = {}
    for one in request.markers:
        topics = found.setdefault(one.producer_id, {})
        for topic in one.topics:
            partitions = topics.setdefault(topic.name, {})
            yield
            for at in range(0, len(topic.partition_indexes), _PARTITIONS_A_STEP):
                partitions.update(dict.fromkeys(topic.partition_indexes[at : at + _PARTITIONS_A_STEP], error))
                yield
    return (yield from _response(found))
