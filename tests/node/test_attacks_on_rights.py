"""Clients without a right that try to have it all the same, or to learn what they may not know."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest
from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.errors import ErrorCode

from service.controller_client.forwarding import write_principal
from service.security.acls import AclSet
from service.security.principal import Principal
from service.serving.fetch_read import FetchRead
from service.wire.api import (
    APIS,
    ApiKey,
    decode_response,
    encode_request,
    encode_response,
    request_module,
)
from service.wire.catalog import CommitCatalogRequest
from tests.node.conftest import NodeThread, Talk
from tests.node.test_authorization import SETTINGS, People, of_a_cluster
from tests.node.test_fetch_sessions import Session
from tests.support.acl_admin_requests import beat, commit
from tests.support.acl_requests import NOW_MS, Asker
from tests.support.processes import wait_until

DENIED = ErrorCode.topic_authorization_failed
NOT_THE_CLUSTER = ErrorCode.cluster_authorization_failed


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> People:
    return People(monkeypatch)


@pytest.fixture
def node(start: Callable[..., NodeThread], people: People) -> NodeThread:
    return start(**SETTINGS)


@pytest.fixture
def asker(node: NodeThread, people: People) -> Iterator[Asker]:
    with ExitStack() as stack:
        admin, alice = (Talk(stack.enter_context(people.client(node, name))) for name in ("admin", "alice"))
        yield Asker(admin, alice)


# -- nodes' rights


@pytest.fixture
def controller(start: Callable[..., NodeThread], people: People) -> Iterator[Callable[[str], Talk]]:
    """`controller("alice")` is a client of a controller's listener."""
    settings = of_a_cluster()
    node = start(**SETTINGS, **settings)
    port = int(settings["controller_quorum_voters"].rpartition(":")[2])
    with ExitStack() as stack:

        def client(name: str) -> Talk:
            people.next = Principal("User", name)
            own = node.client()
            own.close()
            return Talk(stack.enter_context(type(own)(node.host, port, "test", timeout_s=20)))

        yield client


def ask_as_a_node(talk: Talk) -> dict[str, int]:
    """What only nodes ask a controller, and the errors."""
    vote, alter = request_module(ApiKey.VOTE), request_module(ApiKey.ALTER_PARTITION)
    beat_, ids = request_module(ApiKey.BROKER_HEARTBEAT), request_module(ApiKey.ALLOCATE_PRODUCER_IDS)
    asked: dict[ApiKey, Any] = {
        ApiKey.VOTE: vote.VoteRequest(cluster_id=None, topics=()),
        ApiKey.ALTER_PARTITION: alter.AlterPartitionRequest(broker_id=1, broker_epoch=1, topics=()),
        ApiKey.BROKER_HEARTBEAT: beat_.BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=1, current_metadata_offset=1, want_fence=True, want_shut_down=True
        ),
        ApiKey.ALLOCATE_PRODUCER_IDS: ids.AllocateProducerIdsRequest(broker_id=1, broker_epoch=1),
        ApiKey.COMMIT_CATALOG: CommitCatalogRequest(broker_id=1, broker_epoch=1, commits=()),
    }
    return {key.name: talk.client.request(key, message).error_code for key, message in asked.items()}


def test_a_user_is_no_node_for_a_controller(controller: Callable[[str], Talk]) -> None:
    found = ask_as_a_node(controller("alice"))
    assert found == dict.fromkeys(found, NOT_THE_CLUSTER)
    found = ask_as_a_node(controller("admin"))
    assert NOT_THE_CLUSTER not in found.values()


def forwarded(name: str) -> bytes:
    """A CreateTopics request as its client would send it."""
    module = request_module(ApiKey.CREATE_TOPICS)
    topic = module.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    message = module.CreateTopicsRequest(topics=(topic,))
    return bytes(encode_request(ApiKey.CREATE_TOPICS, 7, 5, "x", message))[4:]


def envelope(
    talk: Talk, frame: bytes, principal: bytes, address: bytes = bytes((127, 0, 0, 1))
) -> tuple[ErrorCode, ErrorCode | None]:
    """Error of the Envelope, and that of the topic in the inner response."""
    message = EnvelopeRequest(request_data=frame, request_principal=principal, client_host_address=address)
    answer = talk.client.request(ApiKey.ENVELOPE, message)
    inner = None
    if answer.response_data is not None:
        data = memoryview(answer.response_data)
        inner = decode_response(ApiKey.CREATE_TOPICS, 7, data)[1].topics[0].error_code
    return ErrorCode(answer.error_code), inner


def test_an_envelope_is_opened_for_nodes_alone(controller: Callable[[str], Talk]) -> None:
    as_admin = write_principal(Principal("User", "admin"))
    assert envelope(controller("alice"), forwarded("t"), as_admin) == (NOT_THE_CLUSTER, None)
    of_node = controller("admin")
    assert envelope(of_node, forwarded("t"), as_admin) == (ErrorCode.none, ErrorCode.none)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("User", "alice"), ("Group", "admin"), ("user", "admin"), ("User", "Admin"), ("", "User:admin")],
)
def test_the_request_in_an_envelope_has_the_rights_of_its_client(
    controller: Callable[[str], Talk], kind: str, name: str
) -> None:
    principal = write_principal(Principal(kind, name))
    assert envelope(controller("admin"), forwarded("t"), principal) == (ErrorCode.none, DENIED)


def test_a_principal_or_an_address_that_cannot_be_is_refused(controller: Callable[[str], Talk]) -> None:
    of_node, admin = controller("admin"), write_principal(Principal("User", "admin"))
    of_version_7 = b"\0\7" + admin[2:]
    failed = ErrorCode.principal_deserialization_failure
    assert envelope(of_node, forwarded("t"), of_version_7) == (failed, None)
    assert envelope(of_node, forwarded("t"), b"") == (failed, None)
    assert envelope(of_node, forwarded("t"), admin, bytes(3)) == (ErrorCode.invalid_request, None)


def test_an_envelope_has_no_other_one_in_it(controller: Callable[[str], Talk]) -> None:
    as_admin = write_principal(Principal("User", "admin"))
    inner = EnvelopeRequest(
        request_data=forwarded("t"), request_principal=as_admin, client_host_address=bytes(4)
    )
    frame = bytes(encode_request(ApiKey.ENVELOPE, 0, 5, "x", inner))[4:]
    assert envelope(controller("admin"), frame, as_admin) == (ErrorCode.invalid_request, None)
    for key, name in ((ApiKey.BROKER_HEARTBEAT, "BrokerHeartbeatRequest"), (ApiKey.VOTE, "VoteRequest")):
        fields: dict[str, Any] = {"cluster_id": None, "topics": ()}
        if key is ApiKey.BROKER_HEARTBEAT:
            fields = {"broker_id": 1, "broker_epoch": 1, "current_metadata_offset": 1}
            fields |= {"want_fence": True, "want_shut_down": True}
        message = getattr(request_module(key), name)(**fields)
        frame = bytes(encode_request(key, APIS[key].max_version, 5, "x", message))[4:]
        assert envelope(controller("admin"), frame, as_admin) == (ErrorCode.invalid_request, None)


def test_no_broker_takes_an_envelope(asker: Asker) -> None:
    message = EnvelopeRequest(
        request_data=forwarded("t"),
        request_principal=write_principal(Principal("User", "admin")),
        client_host_address=bytes(4),
    )
    with pytest.raises(Exception, match="Envelope"):
        asker.alice.client.request(ApiKey.ENVELOPE, message)


def test_a_consumer_that_says_it_is_a_replica_gets_nothing_and_moves_nothing(
    node: NodeThread, asker: Asker
) -> None:
    topic, topic_id = asker.new_topic()
    asker.admin.produce(topic_id, [b"a", b"b"], NOW_MS)
    asker.allow(f"T {topic} ALL")
    module = request_module(ApiKey.FETCH)
    state = module.ReplicaState(replica_id=2, replica_epoch=1)
    broker = node.node.parts.broker
    assert broker is not None
    partition = broker.replicas.get(topic_id, 0)
    assert partition is not None
    before = partition.leading.shape if partition.leading is not None else None
    for epoch in (-1, 0):
        answer = asker.alice.fetch(topic_id, 1, replica_state=state, session_epoch=epoch, whole=True)
        one = answer.responses[0].partitions[0]
        assert (one.error_code, one.records or b"", answer.session_id) == (DENIED, b"", 0)
        assert one.high_watermark == -1
    assert len(broker.fetch_sessions) == 0
    assert partition.high_watermark == 2
    assert (partition.leading.shape if partition.leading is not None else None) == before


def test_a_consumer_that_says_it_is_a_replica_is_no_less_throttled(node: NodeThread, asker: Asker) -> None:
    _, topic_id = asker.new_topic()
    limits = {("alice", "", ""): {"request_percentage": 0.001}}
    node._loop.call_soon_threadsafe(node.node.parts.broker.quotas.apply, limits)
    state = request_module(ApiKey.FETCH).ReplicaState(replica_id=2, replica_epoch=1)
    answers = (asker.alice.fetch(topic_id, 0, replica_state=state, whole=True) for _ in range(50))
    throttled = next(one for one in answers if one.throttle_time)
    assert throttled.responses[0].partitions[0].error_code == DENIED


def test_the_client_id_of_admin_clients_gives_no_right_to_internal_topics(
    node: NodeThread, people: People, asker: Asker
) -> None:
    asker.wait_for_groups()
    people.next = Principal("User", "alice")
    own = node.client()
    with type(own)(node.host, node.port, "__admin_client", timeout_s=20) as client:
        own.close()
        talk = Talk(client)
        topic_id = asker.admin.topic_id("__consumer_offsets")
        assert talk.produce(topic_id, [b"x"], NOW_MS).error_code == DENIED
        asker.allow("T __consumer_offsets WRITE")
        assert talk.produce(topic_id, [b"x"], NOW_MS).error_code == ErrorCode.invalid_record  # has no key
    assert asker.alice.produce(topic_id, [b"x"], NOW_MS).error_code == ErrorCode.invalid_topic_exception


def test_a_node_lends_no_right_to_what_stands_beside_its_own_settings(
    start: Callable[..., NodeThread], people: People
) -> None:
    """A broker sends settings of its own to the controller as itself, with the rest of the request."""
    node = start(**SETTINGS, **of_a_cluster())
    with people.client(node, "admin") as first, people.client(node, "alice") as second:
        asker = Asker(Talk(first), Talk(second))
        topic, _ = asker.new_topic()
        asker.allow("C ALTER_CONFIGS")
        for key, name in (
            (ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigsRequest"),
            (ApiKey.ALTER_CONFIGS, "AlterConfigsRequest"),
        ):
            module = request_module(key)
            more = {"config_operation": 0} if key is ApiKey.INCREMENTAL_ALTER_CONFIGS else {}

            def settings(kind: int, of: str, config: str, module: Any = module, more: Any = more) -> Any:
                change = module.AlterableConfig(name=config, value="15001", **more)
                return module.AlterConfigsResource(resource_type=kind, resource_name=of, configs=(change,))

            resources = settings(4, "1", "log.cleaner.backoff.ms"), settings(2, topic, "retention.ms")
            answer = asker.alice(key, name, resources=resources, validate_only=False)
            found = {one.resource_type: one.error_code for one in answer.responses}
            assert found == {4: ErrorCode.none, 2: DENIED}
        described = request_module(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource(
            resource_type=2, resource_name=topic, configuration_keys=("retention.ms",)
        )
        told = asker.admin(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigsRequest", resources=(described,))
        assert told.results[0].configs[0].value == "-1"


# -- what is revoked


def test_a_fetch_that_waits_is_asked_again(asker: Asker) -> None:
    topic, topic_id = asker.new_topic()
    asker.allow(f"T {topic} READ")
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(asker.alice.fetch(topic_id, 0, max_wait=15_000, min_bytes=1))
    )
    waiting.start()
    time.sleep(0.2)
    asker.allow(f"-T {topic} READ")
    asker.admin.produce(topic_id, [b"secret"], NOW_MS)
    waiting.join(20)
    [one] = answers
    assert one.error_code == DENIED
    assert not one.records


@pytest.mark.parametrize("partitions", [3, 600], ids=["few", "many"])
def test_an_open_session_is_looked_at_again_under_other_acls(asker: Asker, partitions: int) -> None:
    name = f"wide-{partitions}"
    topic_id = asker.admin.create(name, partitions).topic_id
    asker.allow(f"T {name} READ")
    session = Session(asker.alice, {(topic_id, index): 0 for index in range(partitions)})
    assert {one.error_code for one in session.fetch().values()} == {ErrorCode.none}
    assert session.fetch() == {}
    asker.allow(f"-T {name} READ")
    asker.admin.produce(topic_id, [b"secret"], NOW_MS)
    told = session.fetch()
    assert len(told) == partitions
    assert {one.error_code for one in told.values()} == {DENIED}
    assert not any(one.records for one in told.values())
    asker.forbid_all()
    asker.allow(f"T {name} READ")
    told = {}
    for _ in range(5):
        told |= session.fetch()
    assert {one.error_code for one in told.values()} == {ErrorCode.none}
    assert b"secret" in bytes(told[topic_id, 0].records)


def test_another_client_on_a_session_has_its_own_rights(
    node: NodeThread, people: People, asker: Asker
) -> None:
    topic, topic_id = asker.new_topic()
    asker.allow(f"T {topic} READ")
    session = Session(asker.alice, {(topic_id, 0): 0})
    session.fetch()
    asker.admin.produce(topic_id, [b"secret"], NOW_MS)
    with people.client(node, "mallory") as client:
        session.talk = Talk(client)
        told = session.fetch()
    assert [one.error_code for one in told.values()] == [DENIED]


def test_the_id_of_a_deleted_topic_tells_nothing_of_the_next_one_of_its_name(asker: Asker) -> None:
    topic, topic_id = asker.new_topic()
    asker.allow(f"T {topic} READ")
    session = Session(asker.alice, {(topic_id, 0): 0})
    session.fetch()
    asker.forbid_all()
    module = request_module(ApiKey.DELETE_TOPICS)
    gone = (module.DeleteTopicState(name=topic, topic_id=None),)
    asker.admin(ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", topics=gone, timeout=10_000)
    after_deletion = [one.error_code for one in session.fetch().values()]
    asker.admin.create(topic)
    after_creation = [one.error_code for one in session.fetch().values()]
    assert after_deletion == after_creation == [DENIED]


def test_a_commit_has_its_rights_at_each_moment_on_both_paths(asker: Asker) -> None:
    """The first commits load the module and make the group; those after them go the quick way."""
    asker.wait_for_groups()
    topic, topic_id = asker.new_topic()
    ok, no_group = "none", "group_authorization_failed"
    asker.allow("G g READ", f"T {topic} READ")
    assert [commit(asker.alice, "g", topic_id) for _ in range(5)] == [ok] * 5
    asker.allow(f"-T {topic} READ")
    assert [commit(asker.alice, "g", topic_id) for _ in range(3)] == ["topic_authorization_failed"] * 3
    asker.allow("-G g READ")
    assert [commit(asker.alice, "g", topic_id) for _ in range(3)] == [no_group] * 3
    asker.forbid_all()
    assert commit(asker.alice, "g", topic_id) == no_group
    asker.allow("G g* READ", "T * READ")
    assert [commit(asker.alice, "g", topic_id) for _ in range(3)] == [ok] * 3


# -- what exists


def requests_about(name: str) -> Iterator[tuple[ApiKey, str, dict[str, Any]]]:
    """Requests about a topic or group: key, class and fields."""
    metadata, partitions = request_module(ApiKey.METADATA), request_module(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    deletes, configs = request_module(ApiKey.DELETE_TOPICS), request_module(ApiKey.DESCRIBE_CONFIGS)
    offsets, creates = request_module(ApiKey.LIST_OFFSETS), request_module(ApiKey.CREATE_PARTITIONS)
    yield (
        ApiKey.METADATA, "MetadataRequest",
        {
            "topics": (metadata.MetadataRequestTopic(topic_id=None, name=name),),
            "allow_auto_topic_creation": True, "include_topic_authorized_operations": True,
        },
    )  # fmt: skip
    yield (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitionsRequest",
        {"topics": (partitions.TopicRequest(name=name),), "cursor": None, "response_partition_limit": 10},
    )  # fmt: skip
    topic = deletes.DeleteTopicState(name=name, topic_id=None)
    yield ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", {"topics": (topic,), "timeout": 1000}
    more = creates.CreatePartitionsTopic(name=name, count=2, assignments=None)
    yield (
        ApiKey.CREATE_PARTITIONS, "CreatePartitionsRequest",
        {"topics": (more,), "timeout": 1000, "validate_only": False},
    )  # fmt: skip
    described = configs.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
    yield ApiKey.DESCRIBE_CONFIGS, "DescribeConfigsRequest", {"resources": (described,)}
    end = offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    yield (
        ApiKey.LIST_OFFSETS, "ListOffsetsRequest",
        {
            "replica_id": -1, "isolation_level": 0, "timeout": 1000,
            "topics": (offsets.ListOffsetsTopic(name=name, partitions=(end,)),),
        },
    )  # fmt: skip
    with_operations = {"include_authorized_operations": True}
    yield ApiKey.DESCRIBE_GROUPS, "DescribeGroupsRequest", {"groups": (name,), **with_operations}
    group_ids = {"group_ids": (name,), **with_operations}
    yield ApiKey.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribeRequest", group_ids
    yield ApiKey.DELETE_GROUPS, "DeleteGroupsRequest", {"groups_names": (name,)}


def answers_about(talk: Talk, name: str) -> dict[ApiKey, bytes]:
    """The responses, encoded again, so without what differs by itself."""
    return {
        key: bytes(encode_response(key, APIS[key].max_version, talk(key, of, **fields)))
        for key, of, fields in requests_about(name)
    }


def test_hidden_and_absent_are_the_same_bytes(asker: Asker) -> None:
    """Names of one length, of topics and of groups."""
    asker.wait_for_groups()
    there, absent = "hidden-1", "absent-1"
    topic_id = asker.admin.create(there).topic_id
    assert commit(asker.admin, there, topic_id) == "none"
    found = answers_about(asker.alice, there)
    hidden = {key: data.replace(there.encode(), absent.encode()) for key, data in found.items()}
    assert hidden == answers_about(asker.alice, absent)


def test_the_order_of_deletions_does_not_tell_what_exists(asker: Asker) -> None:
    asker.admin.create("b-there")
    names = ["a-absent", "b-there", "c-absent"]
    module = request_module(ApiKey.DELETE_TOPICS)
    topics = tuple(module.DeleteTopicState(name=name, topic_id=None) for name in names)
    answer = asker.alice(ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", topics=topics, timeout=1000)
    assert [(one.name, one.error_code) for one in answer.responses] == [(name, DENIED) for name in names]


def test_a_regular_expression_reads_topics_that_its_member_may_describe(asker: Asker) -> None:
    asker.wait_for_groups()
    shown, hidden = (asker.admin.create(name).topic_id for name in ("logs-shown", "logs-hidden"))
    asker.allow("G readers READ", "T logs-shown DESCRIBE")
    joined = beat(asker.alice, "readers", regex="logs-.*")
    assert joined.error_code == ErrorCode.none
    given: set[UUID] = set()
    epoch = joined.member_epoch

    def assigned() -> bool:
        nonlocal epoch
        answer = beat(asker.alice, "readers", epoch=epoch)
        epoch = answer.member_epoch
        if answer.assignment is not None:
            given.update(one.topic_id for one in answer.assignment.topic_partitions)
        return bool(given)

    wait_until("an assignment", assigned, 20)
    assert given == {shown}
    assert hidden not in given


# -- names


@pytest.mark.parametrize(
    ("principal", "name", "pattern", "is_allowed"),
    [
        ("User:alice", "orders", 3, True),
        ("User:*", "orders", 3, True),
        ("user:alice", "orders", 3, False),
        ("User:Alice", "orders", 3, False),
        ("User:\u0430lice", "orders", 3, False),
        ("User:alice ", "orders", 3, False),
        ("User:alice:x", "orders", 3, False),
        ("Group:alice", "orders", 3, False),
        ("User:alice", "*", 3, True),
        ("User:alice", "*", 4, False),
        ("User:alice", "ord*", 3, False),
        ("User:alice", "ord", 4, True),
        ("User:alice", "Orders", 3, False),
    ],
)
def test_names_are_compared_as_they_are(
    asker: Asker, principal: str, name: str, pattern: int, is_allowed: bool
) -> None:
    topic_id = asker.admin.create("orders").topic_id
    one = request_module(ApiKey.CREATE_ACLS).AclCreation(
        resource_type=2, resource_name=name, resource_pattern_type=pattern, principal=principal, host="*",
        operation=3, permission_type=3,
    )  # fmt: skip
    made = asker.admin(ApiKey.CREATE_ACLS, "CreateAclsRequest", creations=(one,))
    assert made.results[0].error_code == ErrorCode.none
    assert (asker.alice.fetch(topic_id, 0).error_code == ErrorCode.none) is is_allowed


def test_a_client_that_is_called_like_everybody_has_what_everybody_has(
    node: NodeThread, people: People, asker: Asker
) -> None:
    topic, topic_id = asker.new_topic()
    asker.allow(f"T {topic} READ")
    with people.client(node, "*") as client:
        assert Talk(client).fetch(topic_id, 0).error_code == DENIED
        asker.allow(f"T {topic} READ", principal="User:*")
        assert Talk(client).fetch(topic_id, 0).error_code == ErrorCode.none


@pytest.mark.parametrize("kind", ["a full fetch", "a session"])
def test_a_right_that_is_revoked_amid_a_look_holds_for_the_rest_of_it(
    node: NodeThread, asker: Asker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A look at many partitions takes several turns: what is appended after the revocation is not read."""
    topic_id = asker.admin.create("wide", 600).topic_id
    asker.allow("T wide READ")
    session = Session(asker.alice, {(topic_id, index): 0 for index in range(600)})
    broker = node.node.parts.broker
    assert broker is not None
    authorizer = broker.authorizer
    assert authorizer is not None
    if kind == "a session":
        session.fetch()
        asker.admin.produce(topic_id, [b"before"], NOW_MS, 0)
        asker.allow("T other READ")  # so that all partitions are looked at again
    looked: list[int] = []
    read = FetchRead.read_partition

    def revoking(one: FetchRead, topic: Any, asked: Any, **more: Any) -> Any:
        looked.append(asked.partition)
        if len(looked) == 300:
            authorizer._acls = lambda: AclSet.EMPTY
        return read(one, topic, asked, **more)

    monkeypatch.setattr(FetchRead, "read_partition", revoking)
    told = session.fetch()
    assert len(looked) == 600
    assert [told[topic_id, index].error_code for index in looked[299:]] == [DENIED] * 301
