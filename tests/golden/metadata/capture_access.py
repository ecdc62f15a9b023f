"""Asks a fresh Apache Kafka 4.3.1 node about ACLs, credentials and quotas what `test_access_answers.py` asks.

    python tests/golden/metadata/capture_access.py PORT tests/golden/metadata/kafka-4.3.1/access-answers.json

The node has id 1, ``authorizer.class.name`` Kafka's StandardAuthorizer, ``super.users``
User:ANONYMOUS and ``metadata.log.max.record.bytes.between.snapshots=1000``. Before that its own tools have
made a few changes:

    kafka-acls --add --allow-principal User:alice --operation Read --operation Write --topic orders
    kafka-acls --add --deny-principal 'User:*' --deny-host 192.0.2.7 --operation All --group app- \\
        --resource-pattern-type prefixed
    kafka-acls --add --allow-principal User:CN=node --operation ClusterAction --cluster
    kafka-acls --remove --force --allow-principal User:alice --operation Write --topic orders
    kafka-configs --alter --entity-type users --entity-name alice \\
        --add-config 'SCRAM-SHA-256=[iterations=8192,password=secret]'
    kafka-configs --alter --entity-type users --entity-name alice \\
        --add-config 'SCRAM-SHA-512=[password=other]'
    kafka-configs --alter --entity-type users --entity-name bob --add-config 'SCRAM-SHA-256=[password=gone]'
    kafka-configs --alter --entity-type users --entity-name bob --delete-config SCRAM-SHA-256
    kafka-configs --alter --entity-type users --entity-name alice --entity-type clients --entity-default \\
        --add-config producer_byte_rate=1024,consumer_byte_rate=2048,request_percentage=12.5
    kafka-configs --alter --entity-type users --entity-default --add-config controller_mutation_rate=0.5
    kafka-configs --alter --entity-type ips --entity-name 192.0.2.7 --add-config connection_creation_rate=10
    kafka-configs --alter --entity-type users --entity-name alice --entity-type clients --entity-default \\
        --delete-config consumer_byte_rate

`access/` has that node's ``__cluster_metadata-0``: its log, and its last snapshot.
"""

from __future__ import annotations

import io
import json
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
from kio.schema.alter_user_scram_credentials.v0.response import AlterUserScramCredentialsResponse
from kio.schema.create_acls.v3.response import CreateAclsResponse
from kio.schema.delete_acls.v3.response import DeleteAclsResponse
from kio.schema.describe_acls.v3.response import DescribeAclsResponse
from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse
from kio.schema.describe_user_scram_credentials.v0.response import DescribeUserScramCredentialsResponse
from kio.serial import entity_reader, entity_writer

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.golden.metadata.access_requests import answer_of, request_of

connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
steps: list[list[Any]] = []
ANY = [1, None, 1, None, None, 1, 1]
RESPONSES: dict[str, Any] = {
    "create": CreateAclsResponse,
    "describe": DescribeAclsResponse,
    "delete": DeleteAclsResponse,
    "quotas": AlterClientQuotasResponse,
    "describe_quotas": DescribeClientQuotasResponse,
    "scram": AlterUserScramCredentialsResponse,
    "describe_scram": DescribeUserScramCredentialsResponse,
}


def receive(size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


def ask(kind: str, asked: Any) -> None:
    request, response_type = request_of(kind, asked), RESPONSES[kind]
    own = type(request)
    header = own.__header_schema__(
        request_api_key=own.__api_key__,
        request_api_version=own.__version__,
        correlation_id=1,
        client_id="capture",
    )
    buffer = io.BytesIO()
    entity_writer(type(header))(buffer, header)
    entity_writer(own)(buffer, request)
    connection.sendall(struct.pack(">i", len(buffer.getvalue())) + buffer.getvalue())
    frame = receive(struct.unpack(">i", receive(4))[0])
    _, position = entity_reader(response_type.__header_schema__)(frame, 0)
    steps.append([kind, asked, answer_of(kind, entity_reader(response_type)(frame, position)[0])])


def create(*entries: list[Any]) -> None:
    ask("create", entries)


def describe(*wanted: Any) -> None:
    ask("describe", wanted)


def delete(*filters: list[Any]) -> None:
    ask("delete", filters)


def quotas(*entries: list[Any], validate_only: bool = False) -> None:
    ask("quotas", [entries, validate_only])


def describe_quotas(*components: list[Any], strict: bool = False) -> None:
    ask("describe_quotas", [components, strict])


def scram(deletions: list[Any], upsertions: list[Any]) -> None:
    ask("scram", [deletions, upsertions])


def describe_scram(users: list[str] | None) -> None:
    ask("describe_scram", users)


describe(*ANY)
describe_quotas()
describe_scram(None)

A = [2, "a", 3, "User:a", "*", 3, 3]
create(
    A,
    [2, "ab", 4, "User:a", "*", 3, 3],
    [2, "*", 3, "User:*", "192.0.2.1", 8, 2],
    [3, "g", 3, "User:b", "*", 2, 3],
)
create(A, A)
create(
    [4, "kafka-cluster", 3, "User:b", "*", 7, 3],
    [4, "other", 3, "User:b", "*", 7, 3],
    [4, "", 3, "User:b", "*", 7, 3],
)
create([2, "", 3, "User:a", "*", 3, 3], [9, "x", 3, "User:a", "*", 3, 3], [1, "x", 3, "User:a", "*", 3, 3])
create([2, "x", 1, "User:a", "*", 3, 3], [2, "x", 2, "User:a", "*", 3, 3], [2, "x", 9, "User:a", "*", 3, 3])
create([2, "x", 3, "User:a", "*", 1, 3], [2, "x", 3, "User:a", "*", 99, 3], [2, "x", 3, "User:a", "*", 3, 1])
create([2, "x", 3, "User:a", "*", 3, 9], [2, "x", 3, "alice", "*", 3, 3], [2, "x", 3, "", "*", 3, 3])
create([1, "", 1, "a", "*", 1, 1])
create([5, "t", 3, "Group:a:b", "", 15, 2], [7, "User:a", 3, "User:b", "*", 13, 3])
create()
describe(*ANY)
describe(2, None, 1, None, None, 1, 1)
describe(2, "a", 1, None, None, 1, 1)
describe(2, "a", 2, None, None, 1, 1)
describe(2, "abc", 2, None, None, 1, 1)
describe(2, "*", 2, None, None, 1, 1)
describe(2, "*", 3, None, None, 1, 1)
describe(2, "abc", 3, None, None, 1, 1)
describe(2, "ab", 4, None, None, 1, 1)
describe(1, None, 4, None, None, 1, 1)
describe(1, None, 2, None, None, 1, 1)
describe(1, None, 1, "User:a", None, 1, 1)
describe(1, None, 1, None, "192.0.2.1", 1, 1)
describe(1, None, 1, None, None, 8, 1)
describe(1, None, 1, None, None, 1, 2)
describe(1, "", 1, None, None, 1, 1)
delete([2, "abc", 2, None, None, 1, 1], [9, None, 1, None, None, 1, 1], [1, None, 9, None, None, 1, 1])
delete([1, None, 1, None, None, 99, 1], [1, None, 1, None, None, 1, 9], [3, "g", 3, "User:b", "*", 2, 3])
delete([3, "g", 3, "User:b", "*", 2, 3])
delete([7, None, 1, None, None, 1, 1], [7, "User:a", 3, None, None, 1, 1])
delete()
describe(*ANY)

RATE = "producer_byte_rate"
quotas([[["user", "u"]], [[RATE, 1000.0], ["consumer_byte_rate", 2000.0]]])
quotas([[["user", "u"]], [[RATE, 1000.0]]], [[["user", None]], [["request_percentage", 0.01]]])
quotas([[["user", "u"], ["client-id", None]], [["controller_mutation_rate", 1.5]]])
quotas([[["client-id", "c"], ["user", "u"]], [[RATE, 7.0]]], [[["client-id", "c"]], [[RATE, 8.0]]])
quotas(
    [[["ip", None]], [["connection_creation_rate", 3.0]]],
    [[["ip", "::1"]], [["connection_creation_rate", 4.0]]],
)
quotas([[], [[RATE, 1.0]]], [[["group", "g"]], [[RATE, 1.0]]], [[["user", ""]], [[RATE, 1.0]]])
quotas([[["ip", "127.0.0.1"], ["user", "u"]], [[RATE, 1.0]]], [[["ip", "127.0.0.1"]], [[RATE, 1.0]]])
quotas([[["user", "v"]], [["connection_creation_rate", 1.0]]], [[["user", "w"]], [["nothing", 1.0]]])
quotas([[["user", "v"]], [[RATE, 1.0], [RATE, 2.0]]])
quotas([[["user", "v"]], [[RATE, 0.0]]], [[["user", "w"]], [[RATE, -1.0]]], [[["user", "x"]], [[RATE, 1.5]]])
quotas([[["user", "v"]], [[RATE, 1e19]]], [[["ip", "::1"]], [["connection_creation_rate", 3e9]]])
quotas([[["user", "v"]], [[RATE, 9223372036854775808.0]]], [[["user", "w"]], [[RATE, 1.0000001]]])
quotas([[["user", "d"]], [[RATE, 5.0]]], [[["user", "d"]], [[RATE, 6.0]]])
quotas([[["user", "d"]], [[RATE, None], ["consumer_byte_rate", None], ["nothing", None]]])
quotas([[["user", "checked"]], [[RATE, 5.0]]], validate_only=True)
quotas([[["user", "half"]], [[RATE, 5.0], ["nothing", 1.0]]])
quotas([[["user", "none"]], []])
quotas()
describe_quotas()
describe_quotas(strict=True)
describe_quotas(["user", 0, "u"])
describe_quotas(["user", 0, "u"], strict=True)
describe_quotas(["user", 1, None])
describe_quotas(["user", 2, None])
describe_quotas(["user", 2, None], strict=True)
describe_quotas(["user", 2, None], ["client-id", 2, None])
describe_quotas(["user", 0, "u"], ["client-id", 1, None], strict=True)
describe_quotas(["ip", 2, None])
describe_quotas(["ip", 0, "::1"])
describe_quotas(["", 2, None])
describe_quotas(["group", 2, None])
describe_quotas(["user", 2, None], ["user", 0, "u"])
describe_quotas(["user", 0, None])
describe_quotas(["user", 1, "u"])
describe_quotas(["user", 2, "u"])
describe_quotas(["user", 3, None])
describe_quotas(["user", 2, None], ["ip", 2, None])

scram([], [["s", 1, 4096, "salt", "salted"], ["t", 2, 16384, "", "password"]])
scram([["s", 1]], [["s", 1, 4096, "salt", "salted"]])
scram([["s", 1], ["s", 1]], [["u", 1, 4096, "a", "b"], ["u", 2, 4096, "a", "b"]])
scram([["", 1], ["nobody", 1], ["s", 2], ["t", 3]], [["", 1, 4096, "a", "b"]])
scram(
    [],
    [["v", 0, 4096, "a", "b"], ["w", 1, 4095, "a", "b"], ["x", 2, 16385, "a", "b"], ["y", 2, 4096, "a", "b"]],
)
scram([["nobody", 1]], [["nobody", 1, 4096, "a", "b"]])
scram([["y", 1]], [["s", 1, 8192, "other", "salted"]])
scram([["y", 2]], [])
scram([], [])
describe_scram(None)
describe_scram([])
describe_scram(["s", "nobody", "t"])
describe_scram(["s", "s", "t", "nobody", "nobody"])

with open(sys.argv[2], "w") as file:
    file.write("[\n" + ",\n".join(json.dumps(step, separators=(",", ":")) for step in steps) + "\n]\n")
