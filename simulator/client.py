"""A client of the world: canonical messages over the in-memory network, one request at a time."""

from __future__ import annotations

import asyncio
import io
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final, NamedTuple
from uuid import UUID

from kio.index import load_response_from_request
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from service.base.errors import CorruptionError
from service.records.batch import complete_headers, verify_crc
from service.records.decode import records_of
from service.wire.api import APIS, ApiKey, decode_response, encode_request, request_module

EARLIEST: Final = -2
LATEST: Final = -1
_TIMEOUT: Final = timedelta(seconds=10)
_ANSWER_S: Final = 20.0
_ENDS: Final = {b"\0\0\0\0": "abort", b"\0\0\0\1": "commit"}
"""Keys of control records: version, kind."""


class NoAnswer(Exception):
    """No response: the connection ended, or the timeout passed. The request may have been processed."""


class Produced(NamedTuple):
    """Response to Produce."""

    error: ErrorCode
    base_offset: int


class Record(NamedTuple):
    """One record as a consumer sees it."""

    offset: int
    timestamp_ms: int
    value: bytes
    leader_epoch: int = -1
    producer: tuple[int, int] | None = None
    """producer id and epoch of a transactional record, or of a marker"""
    marker: str = ""
    """``commit`` or ``abort``, of the one record of a control batch"""


class Fetched(NamedTuple):
    """Response to Fetch, for one partition."""

    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    records: list[Record]
    next_offset: int
    """offset after the last batch of the response, which may have no record"""


Streams = tuple[asyncio.StreamReader, Any]
"""where responses come from, and what has `write` and `close`"""


async def _open(address: tuple[str, int]) -> Streams:
    return await asyncio.open_connection(*address)


class Client:
    """One connection, opened at the first request and again after a failure."""

    door: ClassVar[Callable[[tuple[str, int]], Awaitable[Streams]]] = staticmethod(_open)
    """opens a connection to an address; a world whose listeners are secured puts another one here"""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self._streams: Streams | None = None
        self._correlation_id = 0

    async def ask(
        self, key: ApiKey, message: Any, answer_s: float = _ANSWER_S, *, version: int | None = None
    ) -> Any:
        """Send a request, in the newest version if none is named; return the response. Raises `NoAnswer`."""
        self._correlation_id += 1
        version = APIS[key].max_version if version is None else version
        frame = encode_request(key, version, self._correlation_id, "sim", message)
        if self._streams is not None and asyncio.get_running_loop().time() >= self._until_s():
            self.close()
        try:
            async with asyncio.timeout(answer_s):
                if self._streams is None:
                    self._streams = await self.open()
                reader, writer = self._streams
                writer.write(frame)
                size = int.from_bytes(await reader.readexactly(4), "big")
                body = await reader.readexactly(size)
        except (OSError, EOFError, TimeoutError) as e:
            self.close()
            raise NoAnswer(f"{key.name}: {type(e).__name__}") from e
        correlation_id, answer = decode_response(key, version, body)
        assert correlation_id == self._correlation_id, "an answer to another request"
        return answer

    async def open(self) -> Streams:
        """Open a connection on which requests may be sent. Raises `OSError`, `EOFError`."""
        return await type(self).door(self.address)

    def _until_s(self) -> float:
        """Return the time at which the login of the connection is about to end."""
        return math.inf if self._streams is None else getattr(self._streams[1], "until_s", math.inf)

    async def call(self, request: Any, answer_s: float = _ANSWER_S) -> Any:
        """Send a request of kio's in its own version; return the response. Raises `NoAnswer`."""
        kind, reply = type(request), load_response_from_request(type(request))
        out = io.BytesIO()
        header = kind.__header_schema__(
            request_api_key=kind.__api_key__,
            request_api_version=kind.__version__,
            correlation_id=1,
            client_id="sim",
        )
        entity_writer(kind.__header_schema__)(out, header)
        entity_writer(kind)(out, request)
        frame = out.getvalue()
        try:
            async with asyncio.timeout(answer_s):
                if self._streams is None:
                    self._streams = await self.open()
                reader, writer = self._streams
                writer.write(len(frame).to_bytes(4, "big") + frame)
                size = int.from_bytes(await reader.readexactly(4), "big")
                body = memoryview(await reader.readexactly(size))
        except (OSError, EOFError, TimeoutError) as e:
            self.close()
            raise NoAnswer(f"{kind.__name__}: {type(e).__name__}") from e
        _, position = entity_reader(reply.__header_schema__)(body, 0)
        return entity_reader(reply)(body, position)[0]

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    # Administration

    async def create_topic(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int = 1,
        *,
        brokers: Sequence[int] = (),
    ) -> tuple[ErrorCode, UUID | None]:
        """Send CreateTopics. `brokers`: a broker for the one replica of each partition; else the controller
        chooses."""
        m = request_module(ApiKey.CREATE_TOPICS)
        topic = m.CreatableTopic(
            name=name,
            num_partitions=-1 if brokers else partitions,
            replication_factor=-1 if brokers else replication_factor,
            assignments=tuple(
                m.CreatableReplicaAssignment(partition_index=index, broker_ids=(broker,))
                for index, broker in enumerate(brokers)
            ),
            configs=tuple(m.CreatableTopicConfig(name=k, value=v) for k, v in configs.items()),
        )
        answer = await self.ask(ApiKey.CREATE_TOPICS, m.CreateTopicsRequest(topics=(topic,)))
        return answer.topics[0].error_code, answer.topics[0].topic_id

    async def elect(self, name: str, partition: int, *, unclean: bool = False) -> ErrorCode:
        """Send ElectLeaders: elect the preferred replica, or with `unclean` any living one if none leads."""
        m = request_module(ApiKey.ELECT_LEADERS)
        topics = (m.TopicPartitions(topic=name, partitions=(partition,)),)
        request = m.ElectLeadersRequest(election_type=int(unclean), topic_partitions=topics, timeout=_TIMEOUT)
        answer = await self.ask(ApiKey.ELECT_LEADERS, request)
        results = [
            one.error_code for told in answer.replica_election_results for one in told.partition_result
        ]
        code: ErrorCode = results[0] if results else answer.error_code
        return code

    async def reassign(self, name: str, partition: int, replicas: Sequence[int] | None) -> ErrorCode:
        """Have these brokers hold it; None: give up what is under way."""
        m = request_module(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
        one = m.ReassignablePartition(
            partition_index=partition, replicas=None if replicas is None else tuple(replicas)
        )
        topics = (m.ReassignableTopic(name=name, partitions=(one,)),)
        request = m.AlterPartitionReassignmentsRequest(
            timeout=_TIMEOUT, allow_replication_factor_change=True, topics=topics
        )
        answer = await self.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
        if answer.error_code is not ErrorCode.none:
            top: ErrorCode = answer.error_code
            return top
        code: ErrorCode = answer.responses[0].partitions[0].error_code
        return code

    async def delete_topic(self, topic_id: UUID) -> ErrorCode:
        m = request_module(ApiKey.DELETE_TOPICS)
        state = m.DeleteTopicState(name=None, topic_id=topic_id)
        answer = await self.ask(
            ApiKey.DELETE_TOPICS, m.DeleteTopicsRequest(topics=(state,), timeout=_TIMEOUT)
        )
        code: ErrorCode = answer.responses[0].error_code
        return code

    async def topics(self) -> dict[str, UUID]:
        """Return the ids of all topics, by name."""
        m = request_module(ApiKey.METADATA)
        answer = await self.ask(
            ApiKey.METADATA,
            m.MetadataRequest(
                topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
            ),
        )
        return {topic.name: topic.topic_id for topic in answer.topics}

    async def alter_config(
        self, resource_type: int, name: str, configs: Mapping[str, str | None]
    ) -> ErrorCode:
        """Set, or with None delete, overrides of a topic (2) or a broker (4; "" for all)."""
        m = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
        altered = tuple(
            m.AlterableConfig(name=k, config_operation=0 if v is not None else 1, value=v)
            for k, v in configs.items()
        )
        resource = m.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=altered)
        answer = await self.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            m.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False),
        )
        code: ErrorCode = answer.responses[0].error_code
        return code

    async def init_producer_id(self) -> tuple[ErrorCode, int, int]:
        m = request_module(ApiKey.INIT_PRODUCER_ID)
        answer = await self.ask(
            ApiKey.INIT_PRODUCER_ID,
            m.InitProducerIdRequest(transactional_id=None, transaction_timeout=_TIMEOUT),
        )
        return answer.error_code, answer.producer_id, answer.producer_epoch

    # Records

    async def produce(self, topic_id: UUID, partition: int, batch: bytes, acks: int = -1) -> Produced:
        m = request_module(ApiKey.PRODUCE)
        data = m.PartitionProduceData(index=partition, records=batch)
        topic = m.TopicProduceData(topic_id=topic_id, partition_data=(data,))
        answer = await self.ask(
            ApiKey.PRODUCE, m.ProduceRequest(acks=acks, timeout=_TIMEOUT, topic_data=(topic,))
        )
        found = answer.responses[0].partition_responses[0]
        return Produced(found.error_code, found.base_offset)

    async def fetch(
        self, topic_id: UUID, partition: int, offset: int, *, max_bytes: int = 1 << 20, max_wait_ms: int = 0
    ) -> Fetched:
        """Records from `offset` on. `CorruptionError` where what came is not batches that are whole."""
        m = request_module(ApiKey.FETCH)
        wanted = m.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = m.FetchRequest(
            max_wait=timedelta(milliseconds=max_wait_ms),
            min_bytes=1,
            max_bytes=max_bytes,
            topics=(m.FetchTopic(topic_id=topic_id, partitions=(wanted,)),),
            forgotten_topics_data=(),
        )
        answer = await self.ask(ApiKey.FETCH, request)
        found = answer.responses[0].partitions[0]
        data = found.records or b""
        records = records_in(data, offset)
        next_offset = max((header.next_offset for header in complete_headers(data)), default=offset)
        return Fetched(found.error_code, found.high_watermark, found.log_start_offset, records, next_offset)

    async def offset(self, name: str, partition: int, timestamp: int) -> tuple[ErrorCode, int, int]:
        """Error, offset and leader epoch of ListOffsets."""
        m = request_module(ApiKey.LIST_OFFSETS)
        asked = m.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        request = m.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=(m.ListOffsetsTopic(name=name, partitions=(asked,)),),
            timeout=_TIMEOUT,
        )
        found = (await self.ask(ApiKey.LIST_OFFSETS, request)).topics[0].partitions[0]
        return found.error_code, found.offset, found.leader_epoch

    async def delete_records(self, name: str, partition: int, offset: int) -> tuple[ErrorCode, int]:
        """Error and low watermark of DeleteRecords; -1: up to the high watermark."""
        m = request_module(ApiKey.DELETE_RECORDS)
        asked = m.DeleteRecordsPartition(partition_index=partition, offset=offset)
        topic = m.DeleteRecordsTopic(name=name, partitions=(asked,))
        request = m.DeleteRecordsRequest(topics=(topic,), timeout=_TIMEOUT)
        found = (await self.ask(ApiKey.DELETE_RECORDS, request)).topics[0].partitions[0]
        return found.error_code, found.low_watermark

    async def end_of_epoch(self, name: str, partition: int, epoch: int) -> tuple[ErrorCode, int, int]:
        """Error, epoch and end offset of OffsetForLeaderEpoch."""
        m = request_module(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        asked = m.OffsetForLeaderPartition(partition=partition, current_leader_epoch=-1, leader_epoch=epoch)
        topic = m.OffsetForLeaderTopic(topic=name, partitions=(asked,))
        request = m.OffsetForLeaderEpochRequest(replica_id=-1, topics=(topic,))
        found = (await self.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, request)).topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset


def records_in(data: bytes, offset: int) -> list[Record]:
    """Return the records of the complete batches in `data` from `offset` on; verify every checksum."""
    found: list[Record] = []
    for header in complete_headers(data):
        if not verify_crc(data, header):
            raise CorruptionError(f"a batch at {header.base_offset} that was served has a wrong checksum")
        producer = (header.producer_id, header.producer_epoch) if header.is_transactional else None
        found += (
            Record(
                record.offset,
                record.timestamp,
                record.value or b"",
                header.partition_leader_epoch,
                producer,
                _ENDS.get(record.key or b"", "unknown") if header.is_control else "",
            )
            for record in records_of(data, header)
            if record.offset >= offset
        )
    return found


__all__: Sequence[str] = ("EARLIEST", "LATEST", "Client", "Fetched", "NoAnswer", "Produced", "Record")
