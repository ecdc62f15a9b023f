"""Asks a fresh Apache Kafka 4.3.1 node (id 1, num.partitions=4) what `test_controller_answers.py` asks ours.

    python tests/golden/metadata/capture.py PORT tests/golden/metadata/kafka-4.3.1/controller-answers.json

The files beside the answers are that node's ``__cluster_metadata-0`` after one more start, with
``metadata.log.max.record.bytes.between.snapshots=4000`` so that there is a snapshot among them.
"""

from __future__ import annotations

import io
import json
import socket
import struct
import sys
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.schema.create_topics.v7 import request as creating
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.delete_topics.v6 import request as deleting
from kio.schema.delete_topics.v6.response import DeleteTopicsResponse
from kio.schema.incremental_alter_configs.v1 import request as altering
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta

connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
TIMEOUT = i32Timedelta.parse(timedelta(seconds=20))
LONGEST = "a" * 249
steps: list[dict[str, Any]] = []
ids: dict[str, str] = {}


def receive(size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


def call(request: Any, response_type: Any) -> Any:
    kind = type(request)
    header = kind.__header_schema__(
        request_api_key=kind.__api_key__,
        request_api_version=kind.__version__,
        correlation_id=1,
        client_id="capture",
    )
    buffer = io.BytesIO()
    entity_writer(type(header))(buffer, header)
    entity_writer(kind)(buffer, request)
    connection.sendall(struct.pack(">i", len(buffer.getvalue())) + buffer.getvalue())
    frame = receive(struct.unpack(">i", receive(4))[0])
    _, position = entity_reader(response_type.__header_schema__)(frame, 0)
    return entity_reader(response_type)(frame, position)[0]


def create(topics: list[Any], validate_only: bool = False) -> None:
    """Topics as [name, partitions, replication factor, assignments, configs]."""
    request = creating.CreateTopicsRequest(
        topics=tuple(
            creating.CreatableTopic(
                name=topic[0],
                num_partitions=topic[1],
                replication_factor=topic[2],
                assignments=tuple(
                    creating.CreatableReplicaAssignment(partition_index=p, broker_ids=tuple(brokers))
                    for p, brokers in (topic[3] if len(topic) > 3 else ())
                ),
                configs=tuple(
                    creating.CreatableTopicConfig(name=key, value=value)
                    for key, value in (topic[4] if len(topic) > 4 else ())
                ),
            )
            for topic in topics
        ),
        timeout=TIMEOUT,
        validate_only=validate_only,
    )
    answers = []
    for answer in call(request, CreateTopicsResponse).topics:
        if answer.error_code.value == 0 and not validate_only:
            ids[answer.name] = str(answer.topic_id)
        answers.append(
            {
                "name": answer.name,
                "error": answer.error_code.name,
                "message": answer.error_message,
                "num_partitions": answer.num_partitions,
                "replication_factor": answer.replication_factor,
            }
        )
    steps.append({"create": topics, "validate_only": validate_only, "answers": answers})


def delete(topics: list[Any]) -> None:
    """Topics as (name, id), an id given by the name of the topic that has it."""
    request = deleting.DeleteTopicsRequest(
        topics=tuple(
            deleting.DeleteTopicState(name=name, topic_id=UUID(ids.get(of, of)) if of else None)
            for name, of in topics
        ),
        timeout=TIMEOUT,
    )
    names = {topic_id: name for name, topic_id in ids.items()}
    answers = [
        {
            "name": answer.name,
            "topic_id": names.get(str(answer.topic_id), str(answer.topic_id)) if answer.topic_id else None,
            "error": answer.error_code.name,
            "message": answer.error_message,
        }
        for answer in call(request, DeleteTopicsResponse).responses
    ]
    steps.append({"delete": topics, "answers": answers})


def alter(resources: list[Any], validate_only: bool = False) -> None:
    """Resources as (type, name, [(key, operation, value)])."""
    request = altering.IncrementalAlterConfigsRequest(
        resources=tuple(
            altering.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    altering.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ),
            )
            for kind, name, changes in resources
        ),
        validate_only=validate_only,
    )
    answers = [
        {
            "resource_type": answer.resource_type,
            "resource_name": answer.resource_name,
            "error": answer.error_code.name,
            "message": answer.error_message,
        }
        for answer in call(request, IncrementalAlterConfigsResponse).responses
    ]
    steps.append({"alter": resources, "validate_only": validate_only, "answers": answers})


create(
    [
        ("plain", 3, 1),
        ("defaults", -1, -1),
        ("with-configs", 2, 1, [], [("retention.ms", "1000"), ("cleanup.policy", "compact")]),
        ("manual", -1, -1, [(0, [1]), (1, [1])]),
    ]
)
create([("only-checked", 3, 1), ("plain", 1, 1)], True)
create(
    [
        ("plain", 1, 1),
        ("", 1, 1),
        (".", 1, 1),
        ("..", 1, 1),
        (LONGEST + "a", 1, 1),
        ("bad name", 1, 1),
        ("b\u00e9", 1, 1),
    ]
)
create([(LONGEST, 1, 1)])
create([("a.b_c", 1, 1)])
create([("a_b.c", 1, 1)])
create([("a_b_c", 1, 1), ("a.b.c", 1, 1)])
create([("x_y", 1, 1), ("x.y", 1, 1)])
create([("p0", 0, 1), ("pm2", -2, 1), ("r0", 1, 0), ("rm2", 1, -2), ("r3", 1, 3), ("both0", 0, 0)])
create([("dup", 1, 1), ("other", 1, 1), ("dup", 2, 1)])
create([("__cluster_metadata", 1, 1), ("ok1", 1, 1)])
create(
    [
        ("m1", 2, -1, [(0, [1])]),
        ("m2", -1, 1, [(0, [1])]),
        ("m3", -1, -1, [(0, [])]),
        ("m4", -1, -1, [(0, [1, 1])]),
        ("m5", -1, -1, [(0, [9])]),
        ("m6", -1, -1, [(1, [1])]),
        ("m7", -1, -1, [(0, [1]), (0, [1])]),
        ("m8", -1, -1, [(0, [1]), (2, [1])]),
        ("m9", -1, -1, [(0, [1]), (-1, [1])]),
    ]
)
create([("n1", 1, 1, [], [("retention.ms", None), ("segment.ms", None)])])
create([("big", 10001, 1)])
create([("cap1", 6000, 1), ("cap2", 6000, 1)], True)
create([("dupconf", 1, 1, [], [("retention.ms", "1"), ("retention.ms", "2")])])
create([])
alter([(2, "plain", [("retention.ms", 0, "5000"), ("cleanup.policy", 2, "compact")])])
alter([(2, "plain", [("cleanup.policy", 3, "delete")]), (2, "defaults", [("segment.bytes", 0, "1048576")])])
alter([(2, "plain", [("retention.ms", 1, None)])])
alter([(2, "plain", [("retention.ms", 0, "77")])], True)
alter([(2, "plain", [("retention.ms", 0, "1"), ("retention.ms", 0, "2")])])
alter([(2, "plain", [("retention.ms", 0, "1")]), (2, "plain", [("segment.ms", 0, "2")])])
alter([(2, "plain", [("retention.ms", 0, None), ("segment.ms", 2, None)])])
alter([(2, "plain", [("retention.ms", 2, "1")])])
alter([(2, "plain", [("retention.ms", 3, "1")])])
alter([(2, "plain", [("retention.ms", 9, "1")])])
alter([(2, "nope", [("retention.ms", 0, "1")])])
alter([(2, "", [("retention.ms", 0, "1")])])
alter([(2, "bad name", [("retention.ms", 0, "1")])])
alter([(77, "plain", [("retention.ms", 0, "1")]), (2, "defaults", [("retention.ms", 0, "9000")])])
alter([(0, "plain", [("retention.ms", 0, "1")])])
alter([(4, "1", [("log.cleaner.threads", 0, "2")])])
alter([(4, "", [("log.retention.ms", 0, "3600000")])])
alter([(4, "9", [("log.cleaner.threads", 0, "2")])])
alter([(4, "x", [("log.cleaner.threads", 0, "2")])])
alter([(4, "-1", [("log.cleaner.threads", 0, "2")])])
alter([(2, "plain", [])])
alter([])
create([("gone1", 2, 1), ("gone2", 1, 1), ("gone3", 1, 1), ("gone4", 1, 1)])
delete([("gone1", None), ("nope", None)])
delete([(None, "gone2")])
delete([(None, "gone2")])
delete([(None, None)])
delete([("gone3", "gone3")])
delete([("gone3", None), ("gone3", None)])
delete([(None, "gone3"), (None, "gone3")])
delete([("gone3", None), (None, "gone3")])
delete([("gone4", None), (None, "gone3")])
delete([(None, "12345678-1234-1234-1234-123456789012")])
delete([("a_b_c", None)])
create([("a_b_c", 1, 1)])
delete([])

with open(sys.argv[2], "w") as file:
    json.dump(steps, file, indent=1)
