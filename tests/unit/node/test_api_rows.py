"""Each API has one row, which says who serves it, and a handler on each listener that its row names."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from service.base.errors import InvariantError
from service.controller_server.api_table import CONTROLLER_APIS
from service.metadata.features import cluster_features
from service.network.request import RequestContext
from service.node.quorum_control_plane import MEMBER_APIS
from service.node.standalone_apis import alone_apis
from service.partition.metrics import ServingMetrics
from service.security.operations import AclOperation
from service.security.session import anonymous
from service.serving.api_table import BROKER_APIS
from service.serving.authorization import ASKS_ITSELF, BY_CONTROLLER, NOTHING, Authorization, OfCluster
from service.serving.dispatch import Dispatcher
from service.serving.served_api import Served
from service.wire.api import encode_request, request_module
from service.wire.apis import APIS, ApiKey, ListenerType, RequestEffect, served_on

SIDE: Any = None
TABLES: dict[str, tuple[ListenerType, Mapping[int, Served]]] = {
    "a broker alone": (ListenerType.BROKER, alone_apis(SIDE)),
    "a broker in a cluster": (ListenerType.BROKER, MEMBER_APIS),
    "a controller": (ListenerType.CONTROLLER, CONTROLLER_APIS),
}


def test_every_key_has_one_row() -> None:
    assert list(APIS) == [api.key for api in APIS.values()] == list(ApiKey)


def test_rows_say_what_brokers_and_controllers_serve() -> None:
    """ApiMessageType.ListenerType of 4.3.1, and our own."""
    brokers = {
        0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
        31, 32, 33, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 55, 57, 60, 61, 64,
        65, 66, 68, 69, 74, 75, 80, 81, 20001, 20002, 20003, 20004, 20005, 20006,
    }  # fmt: skip
    controllers = {
        1, 17, 18, 19, 20, 29, 30, 31, 32, 33, 36, 37, 38, 39, 40, 41, 43, 44, 45, 46, 49, 50, 51, 52, 53, 54,
        55, 56, 57, 58, 59, 60, 62, 63, 64, 67, 70, 73, 80, 81, 82, 20000, 20001, 20002,
    }  # fmt: skip
    assert {api.key for api in served_on(ListenerType.BROKER)} == brokers
    assert {api.key for api in served_on(ListenerType.CONTROLLER)} == controllers


def test_rows_say_what_is_forwarded_and_what_may_be_sent_again() -> None:
    rows = APIS.values()
    forwardable = {19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 67, 80, 81}
    assert {api.key for api in rows if api.is_forwardable} == forwardable
    safe = {30, 33, 45, 46, 49, 55, 64, 67}
    assert {api.key for api in rows if api.is_forwardable and api.is_safe_again} == safe
    idempotent = {30, 33, 45, 49, 62, 63, 64, 67, 70, 73, 20000, 20004, 20005, 20006}
    assert {api.key for api in rows if api.effect is RequestEffect.IDEMPOTENT} == idempotent
    reads = {
        1, 2, 3, 9, 10, 15, 16, 17, 18, 23, 29, 32, 35, 36, 41, 46, 48, 50, 55, 59, 60, 61, 65, 66, 69, 74,
        75, 20001, 20003,
    }  # fmt: skip
    assert {api.key for api in rows if api.effect is RequestEffect.READS} == reads


@pytest.mark.parametrize("where", TABLES)
def test_a_listener_has_a_handler_for_each_row_that_names_it(where: str) -> None:
    listener, table = TABLES[where]
    assert set(table) == {api.key for api in served_on(listener)}
    without = Served(BY_CONTROLLER).handle
    assert not [key for key, row in table.items() if row.handle is without and not (row.late or row.forwards)]


def test_a_row_without_an_authorization_cannot_be_made() -> None:
    without: Any = Served
    with pytest.raises(TypeError, match="authorizes"):
        without()


def test_a_row_that_reads_bytes_asks_for_itself() -> None:
    """The check of a row is made before its handler, and not before `quick`."""
    with pytest.raises(InvariantError, match="ask for itself"):
        Served(OfCluster(AclOperation.DESCRIBE), quick=lambda *_: None).asked()
    module: Any = SimpleNamespace(handle=lambda *_: None, quick=lambda *_: None)
    with pytest.raises(InvariantError, match="ask for itself"):
        Served(OfCluster(AclOperation.DESCRIBE), late="x").loaded(module)
    assert Served(ASKS_ITSELF, late="x").loaded(module).quick is module.quick


def test_each_row_of_every_table_names_its_authorization() -> None:
    for listener, rows in TABLES.values():
        for api in served_on(listener):
            assert isinstance(rows[api.key].authorizes, Authorization | OfCluster), api.name


ON_THE_CLUSTER = {
    "a broker alone": {
        "describe": {29, 35, 50, 20001, 20003}, "describe configs": {48, 74}, "alter": {57, 20002},
        "cluster action": {20004, 20005},
    },
    "a broker in a cluster": {
        "describe": {29, 35, 50, 20001, 20003}, "describe configs": {48, 74}, "alter": {20002},
        "cluster action": {20004, 20005},
    },
    "a controller": {
        "alter": {30, 31, 43, 45, 51, 57, 60, 64, 80, 81, 20002},
        "alter configs": {49},
        "describe": {29, 46, 50, 55, 20001},
        "cluster action": {1, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 20000},
    },
}  # fmt: skip
"""What a whole request takes on the cluster, by listener (KafkaApis and ControllerApis of 4.3.1)."""
ASKED_BY_HANDLERS = {
    "a broker alone": {
        0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 32, 33, 37, 41,
        42, 44, 47, 60, 61, 65, 66, 68, 69, 75, 20006,
    },
    "a broker in a cluster": {
        0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 21, 22, 23, 24, 25, 26, 27, 28, 32, 33, 41, 42, 44, 47,
        60, 61, 65, 66, 68, 69, 75, 20006,
    },
    "a controller": {19, 20, 32, 33, 37, 38, 39, 40, 41, 44},
}  # fmt: skip


@pytest.mark.parametrize("where", TABLES)
def test_rows_ask_what_kafka_asks(where: str) -> None:
    rows = TABLES[where][1]
    on_the_cluster: dict[str, set[int]] = {}
    for key, row in rows.items():
        if isinstance(row.authorizes, OfCluster):
            operation = row.authorizes.operation.name.lower().replace("_", " ")
            on_the_cluster.setdefault(operation, set()).add(key)
    assert on_the_cluster == ON_THE_CLUSTER[where]
    assert {key for key, row in rows.items() if row.authorizes is ASKS_ITSELF} == ASKED_BY_HANDLERS[where]
    assert {key for key, row in rows.items() if row.authorizes is NOTHING} == {17, 18, 36}
    rest = {key for key, row in rows.items() if row.authorizes is BY_CONTROLLER}
    assert all(key in TABLES["a controller"][1] for key in rest)


def test_apis_without_a_broker_handler_are_forwarded() -> None:
    for api in served_on(ListenerType.BROKER):
        assert api.key in BROKER_APIS or (api.is_forwardable and api.key in CONTROLLER_APIS), api.name
    assert not [api.name for api in APIS.values() if api.is_forwardable and api.key not in CONTROLLER_APIS]


def test_a_broker_in_a_cluster_forwards_what_its_rows_say() -> None:
    forwarded = {19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 80, 81}
    assert {key for key, row in MEMBER_APIS.items() if row.forwards} == forwarded


def test_each_handler_of_brokers_answers_one_api() -> None:
    assert len({(row.handle, row.late) for row in BROKER_APIS.values()}) == len(BROKER_APIS)


# -- ApiVersions

BROKER_VERSIONS = """
    0 Produce 0-13
    1 Fetch 4-18
    2 ListOffsets 1-11
    3 Metadata 0-13
    8 OffsetCommit 2-10
    9 OffsetFetch 1-10
    10 FindCoordinator 0-6
    11 JoinGroup 0-9
    12 Heartbeat 0-4
    13 LeaveGroup 0-5
    14 SyncGroup 0-5
    15 DescribeGroups 0-6
    16 ListGroups 0-5
    17 SaslHandshake 0-1
    18 ApiVersions 0-4
    19 CreateTopics 2-7
    20 DeleteTopics 1-6
    21 DeleteRecords 0-2
    22 InitProducerId 0-5
    23 OffsetForLeaderEpoch 2-4
    24 AddPartitionsToTxn 0-5
    25 AddOffsetsToTxn 0-4
    26 EndTxn 0-5
    27 WriteTxnMarkers 1-2
    28 TxnOffsetCommit 0-5
    29 DescribeAcls 1-3
    30 CreateAcls 1-3
    31 DeleteAcls 1-3
    32 DescribeConfigs 1-4
    33 AlterConfigs 0-2
    35 DescribeLogDirs 1-5
    36 SaslAuthenticate 0-2
    37 CreatePartitions 0-3
    38 CreateDelegationToken 1-3
    39 RenewDelegationToken 1-2
    40 ExpireDelegationToken 1-2
    41 DescribeDelegationToken 1-3
    42 DeleteGroups 0-2
    43 ElectLeaders 0-2
    44 IncrementalAlterConfigs 0-1
    45 AlterPartitionReassignments 0-1
    46 ListPartitionReassignments 0-0
    47 OffsetDelete 0-0
    48 DescribeClientQuotas 0-1
    49 AlterClientQuotas 0-1
    50 DescribeUserScramCredentials 0-0
    51 AlterUserScramCredentials 0-0
    55 DescribeQuorum 0-2
    57 UpdateFeatures 0-2
    60 DescribeCluster 0-2
    61 DescribeProducers 0-0
    64 UnregisterBroker 0-0
    65 DescribeTransactions 0-0
    66 ListTransactions 0-2
    68 ConsumerGroupHeartbeat 0-1
    69 ConsumerGroupDescribe 0-1
    74 ListConfigResources 0-1
    75 DescribeTopicPartitions 0-0
    80 AddRaftVoter 0-1
    81 RemoveRaftVoter 0-0
    20001 ListSessions 0-0
    20002 EndSessions 0-0
    20003 DescribeHealth 0-0
    20004 TakeCut 0-0
    20005 RewriteRange 0-0
    20006 Erasures 0-0
"""
CONTROLLER_VERSIONS = """
    1 Fetch 4-18
    17 SaslHandshake 0-1
    18 ApiVersions 0-4
    19 CreateTopics 2-7
    20 DeleteTopics 1-6
    29 DescribeAcls 1-3
    30 CreateAcls 1-3
    31 DeleteAcls 1-3
    32 DescribeConfigs 1-4
    33 AlterConfigs 0-2
    36 SaslAuthenticate 0-2
    37 CreatePartitions 0-3
    38 CreateDelegationToken 1-3
    39 RenewDelegationToken 1-2
    40 ExpireDelegationToken 1-2
    41 DescribeDelegationToken 1-3
    43 ElectLeaders 0-2
    44 IncrementalAlterConfigs 0-1
    45 AlterPartitionReassignments 0-1
    46 ListPartitionReassignments 0-0
    49 AlterClientQuotas 0-1
    50 DescribeUserScramCredentials 0-0
    51 AlterUserScramCredentials 0-0
    52 Vote 0-2
    53 BeginQuorumEpoch 0-1
    54 EndQuorumEpoch 0-1
    55 DescribeQuorum 0-2
    56 AlterPartition 2-3
    57 UpdateFeatures 0-2
    58 Envelope 0-0
    59 FetchSnapshot 0-1
    60 DescribeCluster 0-2
    62 BrokerRegistration 0-4
    63 BrokerHeartbeat 0-2
    64 UnregisterBroker 0-0
    67 AllocateProducerIds 0-0
    70 ControllerRegistration 0-0
    73 AssignReplicasToDirs 0-0
    80 AddRaftVoter 0-1
    81 RemoveRaftVoter 0-0
    82 UpdateRaftVoter 0-0
    20000 CommitCatalog 0-0
    20001 ListSessions 0-0
    20002 EndSessions 0-0
"""
VERSIONS = {
    "a broker alone": BROKER_VERSIONS,
    "a broker in a cluster": BROKER_VERSIONS,
    "a controller": CONTROLLER_VERSIONS,
}
"""What ApiVersions says of the APIs of each listener: key, name, lowest and highest version."""
ALONE = [
    ["group.version 0-1", "metadata.version 30-30", "transaction.version 0-2"],
    77,
    ["metadata.version 30-30", "group.version 1-1"],
]
IN_A_CLUSTER = [
    [
        "eligible.leader.replicas.version 0-1",
        "firn.catalog.version 0-3",
        "firn.records.version 0-1",
        "group.version 0-1",
        "kraft.version 0-1",
        "metadata.version 30-30",
        "transaction.version 0-2",
    ],
    77,
    ["metadata.version 30-30", "group.version 1-1", "kraft.version 1-1"],
]
FEATURES = {"a broker alone": ALONE, "a broker in a cluster": IN_A_CLUSTER, "a controller": IN_A_CLUSTER}
"""Supported features, the epoch of the finalized ones, and these: name, lowest and highest level."""


class Reader:
    """Reads the bytes of a response in order; each of them is returned or compared."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, layout: str) -> tuple[Any, ...]:
        fields = struct.unpack_from(f">{layout}", self.data, self.position)
        self.position += struct.calcsize(f">{layout}")
        return fields

    def varint(self) -> int:
        low = int(self.take("B")[0])
        return low if low < 128 else low - 128 + 128 * self.varint()

    def apis(self, *, is_flexible: bool) -> list[str]:
        (count,) = self.take("B" if is_flexible else "i")
        found = []
        for _ in range(count - is_flexible):
            key, lowest, highest = self.take("hhh")
            found.append(f"{key} {APIS[key].name} {lowest}-{highest}")
            if is_flexible:
                assert self.take("B") == (0,), "no tagged fields"
        return found

    def features(self, *, is_highest_first: bool) -> list[str]:
        found = []
        for _ in range(self.take("B")[0] - 1):
            (name,) = self.take(f"{self.take('B')[0] - 1}s")
            first, second = self.take("hh")
            lowest, highest = (second, first) if is_highest_first else (first, second)
            found.append(f"{name.decode()} {lowest}-{highest}")
            assert self.take("B") == (0,), "no tagged fields"
        return found

    def tagged_features(self) -> list[Any]:
        found: list[Any] = []
        assert self.take("B") == (3,), "three tagged fields"
        for number in range(3):
            (tag,) = self.take("B")
            assert tag == number
            size = self.varint()
            end = self.position + size
            found.append(self.take("q")[0] if tag == 1 else self.features(is_highest_first=tag == 2))
            assert self.position == end
        return found


def api_versions(where: str, version: int) -> bytes:
    image = SimpleNamespace(features={"metadata.version": 30, "group.version": 1}, offset=77)
    metadata = SimpleNamespace(image=image, kraft_version=1)
    node: Any = SimpleNamespace(
        image=image,
        metadata=metadata,
        kraft_version=1,
        supported=cluster_features(),
        metrics=ServingMetrics(),
        quotas=SimpleNamespace(active=False),
    )
    message = request_module(ApiKey.API_VERSIONS).ApiVersionsRequest(
        client_software_name="x", client_software_version="1"
    )
    frame = memoryview(encode_request(ApiKey.API_VERSIONS, version, 7, "c", message))[4:]
    context = RequestContext(1, "192.0.2.9", 5, "L", anonymous("192.0.2.9", "L"))
    answer: Any = Dispatcher(node, TABLES[where][1])(context, frame)
    [data] = answer.parts
    return bytes(data)


@pytest.mark.parametrize("version", [0, 4])
@pytest.mark.parametrize("where", TABLES)
def test_api_versions_lists_the_rows_of_its_listener(where: str, version: int) -> None:
    """Key names are written out above, so that a renamed or renumbered API fails, too."""
    response = Reader(api_versions(where, version))
    assert response.take("iih") == (len(response.data) - 4, 7, 0), "size, correlation id, no error"
    listed = response.apis(is_flexible=version >= 3)
    assert listed == [line.strip() for line in VERSIONS[where].strip().splitlines()]
    if version >= 3:
        assert response.take("i") == (0,), "no throttle time"
        assert response.tagged_features() == FEATURES[where]
    assert response.position == len(response.data)
