"""Requests on a raw socket, encoded by kio alone, so that nothing of Firn judges Firn."""

from __future__ import annotations

import io
import socket
import ssl
import struct
from datetime import timedelta
from typing import Any, Self

from kio.index import load_payload_module, load_response_from_request
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType


class ConnectionLost(Exception):
    """The peer closed, or reset, the connection."""


def connect_all(bootstrap: str, count: int, receive_bytes: int | None = None) -> list[socket.socket]:
    """So many connections that do not block; `receive_bytes` is the size of their receive buffers."""
    host, _, port = bootstrap.rpartition(":")
    found = []
    for _ in range(count):
        one = socket.socket()
        if receive_bytes is not None:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        one.settimeout(30)
        one.connect((host, int(port)))
        one.setblocking(False)
        found.append(one)
    return found


def encode_request(request: Any, correlation_id: int = 1, client_id: str = "firn-test") -> bytes:
    """Header and body of a request, without the length in front."""
    header_type = request.__header_schema__
    header = header_type(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    out = io.BytesIO()
    entity_writer(header_type)(out, header)
    entity_writer(type(request))(out, request)
    return out.getvalue()


def decode_response(request: Any, frame: bytes) -> Any:
    """The response to `request` in a frame (header and body, without the length in front)."""
    response_type = load_response_from_request(type(request))
    header, size = _read(response_type.__header_schema__, frame, 0)
    del header
    response, end = _read(response_type, frame, size)
    assert end == len(frame), f"{len(frame) - end} bytes left over after {response_type.__name__}"
    return response


def _read(schema: Any, data: bytes, position: int) -> tuple[Any, int]:
    value, size = entity_reader(schema)(memoryview(data), position)
    return value, position + size


class RawConnection:
    """One connection, to the first of the addresses; `send` writes bytes as they are, `call` makes a request
    and reads its response."""

    def __init__(self, bootstrap: str, timeout: float = 20, tls: ssl.SSLContext | None = None):
        host, _, port = bootstrap.partition(",")[0].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionLost(str(error)) from error

    def send_frame(self, frame: bytes) -> None:
        self.send(struct.pack(">i", len(frame)) + frame)

    def receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError as error:
                raise ConnectionLost(str(error)) from error
            if not piece:
                raise ConnectionLost(f"closed after {len(data)} of {size} bytes")
            data += piece
        return bytes(data)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self.receive(4))
        return self.receive(size)

    def call(self, request: Any) -> Any:
        self._correlation_id += 1
        self.send_frame(encode_request(request, self._correlation_id))
        frame = self.receive_frame()
        assert struct.unpack_from(">i", frame)[0] == self._correlation_id
        return decode_response(request, frame)

    def is_closed_by_peer(self, timeout: float = 10) -> bool:
        """Return whether the peer closes within `timeout` without sending anything more."""
        self.socket.settimeout(timeout)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


def schema(api_key: int, version: int) -> Any:
    """The kio module of a request, with its nested types in it."""
    return load_payload_module(api_key, version, EntityType.request)


def produce_request(topic: str, partition: int, records: bytes, acks: int = -1, version: int = 9) -> Any:
    """Produce of one partition, by name (3 to 12). What all replicas have can be read once it is answered."""
    module = schema(0, version)
    part = module.PartitionProduceData(index=partition, records=records)
    data = module.TopicProduceData(name=topic, partition_data=(part,))
    return module.ProduceRequest(acks=acks, timeout=timedelta(seconds=10), topic_data=(data,))


def produce(connection: RawConnection, topic: str, partition: int, records: bytes) -> Any:
    """Produces raw record bytes and returns the partition's response."""
    response = connection.call(produce_request(topic, partition, records))
    return response.responses[0].partition_responses[0]


def offsets(connection: RawConnection, topic: str, partition: int, timestamp: int) -> Any:
    """ListOffsets (-1 latest, -2 earliest, -4 earliest local, -5 latest tiered); the partition's response."""
    module = schema(2, 9)
    part = module.ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=-1, timestamp=timestamp
    )
    request = module.ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=(module.ListOffsetsTopic(name=topic, partitions=(part,)),)
    )
    return connection.call(request).topics[0].partitions[0]


def leader_of(bootstrap: str, topic: str, partition: int = 0) -> str:
    """The address of the node that leads a partition; where none does, and of one alone, the first."""
    if "," not in bootstrap:
        return bootstrap
    module = schema(3, 12)
    asked = module.MetadataRequestTopic(topic_id=None, name=topic)
    request = module.MetadataRequest(
        topics=(asked,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    with RawConnection(bootstrap) as connection:
        answer = connection.call(request)
    brokers = {one.node_id: f"{one.host}:{one.port}" for one in answer.brokers}
    leaders = {one.partition_index: one.leader_id for one in answer.topics[0].partitions}
    return brokers.get(leaders.get(partition, -1), bootstrap)


def end_offset(bootstrap: str, topic: str, partition: int) -> int:
    with RawConnection(leader_of(bootstrap, topic, partition)) as connection:
        answer = offsets(connection, topic, partition, -1)
    assert answer.error_code == 0, answer.error_code
    found: int = answer.offset
    return found


def init_producer_id(bootstrap: str) -> int:
    """A producer id that an idempotent producer is given."""
    with RawConnection(bootstrap) as connection:
        request = schema(22, 4).InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout=timedelta(seconds=60),
            producer_id=-1,
            producer_epoch=-1,
        )
        answer = connection.call(request)
    assert int(answer.error_code) == 0, answer.error_code
    found: int = answer.producer_id
    return found


def leader_epoch(bootstrap: str, topic: str, partition: int) -> int:
    """The epoch in which a partition is led, as ListOffsets says it of its end."""
    with RawConnection(leader_of(bootstrap, topic, partition)) as connection:
        answer = offsets(connection, topic, partition, -1)
    assert int(answer.error_code) == 0, answer.error_code
    found: int = answer.leader_epoch
    return found
