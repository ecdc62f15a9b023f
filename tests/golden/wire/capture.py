"""Records what real clients and a real Apache Kafka broker say to each other: `captured.jsonl`, beside this
file.

    python tests/golden/wire/capture.py BROKER_PORT PROXY_PORT

The broker must advertise the proxy's port. Each line is one exchange: client, API key, version, and the
request and response frames (without size) in hex; the first of its kind is kept. Exchanges of APIs that Firn
does not serve are left out. The broker of the files at hand was Apache Kafka 4.3.1 (KRaft, one node).
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import struct
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kio.index import load_payload_module
from kio.serial import entity_writer
from kio.static.constants import EntityType

from service.wire.api import APIS, ApiKey, decode_response, encode_request, request_module
from service.wire.frames import frame
from tests.support.built_batches import build_batch

OUT = Path(__file__).with_name("captured.jsonl")


class Recorder:
    """A proxy that pairs frames by correlation id."""

    def __init__(self, broker_port: int) -> None:
        self.broker_port = broker_port
        self.client = ""
        self.kept: dict[tuple[str, int, int], dict[str, Any]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self.broker_port)
        asked: dict[int, bytes] = {}
        client = self.client

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, requests: bool) -> None:
            try:
                while True:
                    size = await source.readexactly(4)
                    body = await source.readexactly(struct.unpack(">i", size)[0])
                    if requests:
                        asked[struct.unpack_from(">i", body, 4)[0]] = body
                    else:
                        self.keep(client, asked.pop(struct.unpack_from(">i", body)[0]), body)
                    sink.write(size + body)
            except (asyncio.IncompleteReadError, ConnectionError):
                sink.close()

        await asyncio.gather(copy(reader, broker_writer, True), copy(broker_reader, writer, False))

    def keep(self, client: str, request: bytes, response: bytes) -> None:
        key, version = struct.unpack_from(">hh", request)
        if key == ApiKey.FETCH and b"golden-" not in response:
            return  # an empty fetch tells little
        if key in APIS and len(request) + len(response) < 20_000:
            line = {"request": request.hex(), "response": response.hex()}
            self.kept.setdefault((client, key, version), line)


def use_confluent(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("golden-confluent", 2, 1)])["golden-confluent"].result()
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for i in range(5):
        producer.produce("golden-confluent", key=b"%d" % i, value=b"golden-%d" % i)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": address, "group.id": "golden", "enable.auto.commit": False})
    consumer.assign([TopicPartition("golden-confluent", p, 0) for p in range(2)])
    got = 0
    while got < 5:
        got += consumer.poll(5) is not None
    consumer.get_watermark_offsets(TopicPartition("golden-confluent", 0))
    consumer.offsets_for_times([TopicPartition("golden-confluent", 0, 1)])
    consumer.close()
    resource = ConfigResource(ConfigResource.Type.TOPIC, "golden-confluent")
    admin.describe_configs([resource])[resource].result()
    admin.describe_cluster().result()
    admin.delete_topics(["golden-confluent"])["golden-confluent"].result()


def use_kafka_python(address: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address)
    producer.send("golden-python", b"golden-value", b"key").get(10)
    producer.close()
    consumer = KafkaConsumer(
        "golden-python", bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=3000
    )
    assert list(consumer)
    consumer.close()


async def use_aiokafka(address: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=address)
    await producer.start()
    await producer.send_and_wait("golden-aio", b"golden-value", b"key")
    await producer.stop()
    consumer = AIOKafkaConsumer("golden-aio", bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.start()
    await consumer.getone()
    await consumer.stop()


def use_every_version(port: int) -> None:
    """Every version of everything, clients written elsewhere speak only a few. Produce and Fetch are kio's
    bytes.
    """
    with socket.create_connection(("127.0.0.1", port)) as connection:

        def ask(key: int, version: int, message: Any) -> bytes:
            module = load_payload_module(key, version, EntityType.request)
            if isinstance(message, dict):  # kio encodes what our generic codec refuses
                entity = getattr(module, f"{APIS[key].name}Request")
                out = io.BytesIO()
                header = entity.__header_schema__(
                    request_api_key=key, request_api_version=version, correlation_id=1, client_id="golden"
                )
                entity_writer(type(header))(out, header)
                entity_writer(entity)(out, entity(**message))
                connection.sendall(frame(out.getvalue()))
            else:
                connection.sendall(encode_request(key, version, 1, "golden", message))
            size = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
            return connection.recv(size, socket.MSG_WAITALL)

        create = request_module(ApiKey.CREATE_TOPICS)
        for version in range(2, 8):
            topic = create.CreatableTopic(
                name=f"golden-{version}", num_partitions=1, replication_factor=1, assignments=(), configs=()
            )
            request = create.CreateTopicsRequest(topics=(topic,), timeout=30_000, validate_only=False)
            ask(ApiKey.CREATE_TOPICS, version, request)
        metadata = request_module(ApiKey.METADATA)
        named = (metadata.MetadataRequestTopic(topic_id=None, name="golden-2"),)
        for version in range(14):
            request = metadata.MetadataRequest(topics=named, include_topic_authorized_operations=version >= 8)
            answer = ask(ApiKey.METADATA, version, request)
        topic_id = decode_response(ApiKey.METADATA, 13, answer)[1].topics[0].topic_id
        for version in range(3, 14):
            ask(ApiKey.PRODUCE, version, produce_request(version, topic_id))
        for version in range(4, 19):
            ask(ApiKey.FETCH, version, fetch_request(version, topic_id))
        for key, message in every_version_of(named[0].name).items():
            api = APIS[key]
            for version in range(api.min_version, api.max_version + 1):
                ask(key, version, message)
        delete = request_module(ApiKey.DELETE_TOPICS)
        for version in range(1, 7):
            state = delete.DeleteTopicState(name=f"golden-{version + 1}", topic_id=None)
            ask(ApiKey.DELETE_TOPICS, version, delete.DeleteTopicsRequest(topics=(state,), timeout=30_000))


def topic_key(version: int, topic_id: UUID, name: str) -> dict[str, Any]:
    return {"topic_id": topic_id} if version >= 13 else {name: "golden-2"}


def produce_request(version: int, topic_id: UUID) -> dict[str, Any]:
    module = load_payload_module(ApiKey.PRODUCE, version, EntityType.request)
    records = bytes(build_batch([(1_700_000_000_000, b"key", b"golden-%d" % version)]))
    partition = module.PartitionProduceData(index=0, records=records)
    topic = module.TopicProduceData(**topic_key(version, topic_id, "name"), partition_data=(partition,))
    return {"transactional_id": None, "acks": 1, "timeout": timedelta(seconds=9), "topic_data": (topic,)}


def fetch_request(version: int, topic_id: UUID) -> dict[str, Any]:
    module = load_payload_module(ApiKey.FETCH, version, EntityType.request)
    partition = module.FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=100)
    topic = module.FetchTopic(**topic_key(version, topic_id, "topic"), partitions=(partition,))
    request: dict[str, Any] = {
        "max_wait": timedelta(0),
        "min_bytes": 0,
        "max_bytes": 1000,
        "topics": (topic,),
    }
    if version <= 14:
        request["replica_id"] = -1
    if version >= 7:
        request["forgotten_topics_data"] = ()
    return request


def every_version_of(topic: str) -> dict[int, Any]:
    """Requests that every version of their API can carry."""
    offsets, epochs = (request_module(k) for k in (ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH))
    configs, alter = (request_module(k) for k in (ApiKey.DESCRIBE_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS))
    setting = alter.AlterableConfig(name="retention.ms", config_operation=0, value="1000")
    changed = alter.AlterConfigsResource(resource_type=2, resource_name=topic, configs=(setting,))
    keys = ("retention.ms", "cleanup.policy")
    asked = configs.DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=keys)
    epoch = epochs.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    offset = offsets.ListOffsetsPartition(partition_index=0, timestamp=1_700_000_000_000)
    partitions = request_module(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    return {
        ApiKey.LIST_OFFSETS: offsets.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=(offsets.ListOffsetsTopic(name=topic, partitions=(offset,)),),
            timeout=1000,
        ),
        ApiKey.API_VERSIONS: request_module(ApiKey.API_VERSIONS).ApiVersionsRequest(
            client_software_name="golden", client_software_version="1"
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: epochs.OffsetForLeaderEpochRequest(
            topics=(epochs.OffsetForLeaderTopic(topic=topic, partitions=(epoch,)),)
        ),
        ApiKey.INIT_PRODUCER_ID: request_module(ApiKey.INIT_PRODUCER_ID).InitProducerIdRequest(
            transactional_id=None, transaction_timeout=1000
        ),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: alter.IncrementalAlterConfigsRequest(
            resources=(changed,), validate_only=False
        ),
        ApiKey.DESCRIBE_CONFIGS: configs.DescribeConfigsRequest(resources=(asked,), include_synonyms=True),
        ApiKey.DESCRIBE_CLUSTER: request_module(ApiKey.DESCRIBE_CLUSTER).DescribeClusterRequest(
            include_cluster_authorized_operations=True, include_fenced_brokers=False
        ),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: partitions.DescribeTopicPartitionsRequest(
            topics=(partitions.TopicRequest(name=topic),), response_partition_limit=10
        ),
    }


async def main(broker_port: int, proxy_port: int) -> None:
    recorder = Recorder(broker_port)
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", proxy_port)
    address = f"127.0.0.1:{proxy_port}"
    recorder.client = "confluent-kafka"
    await asyncio.to_thread(use_confluent, address)
    recorder.client = "kafka-python"
    await asyncio.to_thread(use_kafka_python, address)
    recorder.client = "aiokafka"
    await use_aiokafka(address)
    recorder.client = "every-version"
    await asyncio.to_thread(use_every_version, proxy_port)
    server.close()
    lines = [
        json.dumps({"client": client, "key": key, "version": version, **exchange})
        for (client, key, version), exchange in sorted(recorder.kept.items())
    ]
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
