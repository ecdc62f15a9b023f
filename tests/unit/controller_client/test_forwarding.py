"""Forwarding: what a broker wraps and gives back, what a controller unwraps, and what goes wrong between."""

from __future__ import annotations

import asyncio
import struct
from random import Random
from typing import Any

import pytest
from kio.schema.default_principal_data.v0.data import DefaultPrincipalData
from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.controller_client.controller_channel import OutcomeUnknown
from service.controller_client.forwarding import (
    Forwarder,
    envelope_error,
    read_principal,
    timeout_of,
    unwrap,
    wrap,
    wrap_response,
    write_principal,
)
from service.network.request import RequestContext
from service.security.principal import Principal
from service.security.session import anonymous
from service.wire.api import (
    APIS,
    ApiKey,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    parse_request_header,
    request_module,
    response_frame,
    response_module,
)
from service.wire.errors import MalformedMessage, UnsupportedRequest, UnsupportedVersion
from service.wire.refusals import refusal
from tests.property.wire.schema_strategies import kio_bytes
from tests.support.virtual_loop import run_virtually

CREATE = ApiKey.CREATE_TOPICS
ALICE = Principal("User", "alice")
ANONYMOUS = bytes.fromhex("00 00 05 55 73 65 72 0a 41 4e 4f 4e 59 4d 4f 55 53 00 00")


def create_topics(*names: str, timeout_ms: int = 5_000) -> Any:
    module = request_module(CREATE)
    topics = tuple(
        module.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
        for name in names
    )
    return module.CreateTopicsRequest(topics=topics, timeout=timeout_ms)


def framed(message: Any, key: int = CREATE, version: int | None = None) -> bytes:
    """A client's frame, without its size."""
    chosen = APIS[key].max_version if version is None else version
    return encode_request(key, chosen, 77, "admin-1", message)[4:]


def created(*names: str, code: ErrorCode = ErrorCode.none) -> Any:
    module = response_module(CREATE)
    topics = [
        module.CreatableTopicResult(
            name=name, topic_id=None, error_code=code, error_message=None, configs=None
        )
        for name in names
    ]
    return module.CreateTopicsResponse(throttle_time=0, topics=tuple(topics))


class Controller:
    """The other end of the queue: unwraps, answers and seals as a controller does."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, int, int | None]] = []
        self.caught_up = 0
        self.catching_up_s = 0.0

    async def ask(self, api_key: int, message: Any, *, timeout_ms: int, inner_key: int | None = None) -> Any:
        assert api_key == ApiKey.ENVELOPE
        self.asked.append((message, timeout_ms, inner_key))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        inner = await unwrap(message)
        return wrap_response(inner.header, created(*(one.name for one in inner.request.topics)))

    async def catch_up(self) -> None:
        await asyncio.sleep(self.catching_up_s)
        self.caught_up += 1


async def forward(controller: Controller, message: Any, key: int = CREATE, version: int | None = None) -> Any:
    """Return the client's response: (response frame, canonical)."""
    frame = framed(message, key, version)
    header = parse_request_header(frame)
    context = RequestContext(1, "10.1.2.3", 999, "PLAINTEXT", anonymous("10.1.2.3", "PLAINTEXT"))
    forwarder = Forwarder(controller, controller.catch_up)
    response = await forwarder.forward(context, header, memoryview(frame), decode_request(header, frame))
    whole = b"".join(part for part in response.parts if isinstance(part, bytes | bytearray | memoryview))
    assert struct.unpack_from(">ii", whole) == (len(whole) - 4, 77)
    return decode_response(key, header.api_version, whole[4:])[1]


# -- bytes


def test_the_principal_is_kafkas_bytes() -> None:
    data = DefaultPrincipalData(type_="User", name="ANONYMOUS", token_authenticated=False)
    assert b"\0\0" + kio_bytes(data) == ANONYMOUS
    assert write_principal(Principal("User", "ANONYMOUS")) == ANONYMOUS
    assert read_principal(ANONYMOUS) == ("User", "ANONYMOUS", False)
    assert read_principal(write_principal(Principal("User", "a\nb", True))) == ("User", "a\nb", True)


def test_an_envelope_has_the_requests_own_bytes() -> None:
    frame = framed(create_topics("a"), version=5)
    envelope = wrap(memoryview(frame), "10.1.2.3", ALICE)
    assert envelope.request_data == frame
    assert envelope.client_host_address == bytes((10, 1, 2, 3))
    assert envelope.request_principal.hex(" ") == "00 00 05 55 73 65 72 06 61 6c 69 63 65 00 00"
    assert wrap(frame, "fe80::1%eth0", ALICE).client_host_address == bytes.fromhex("fe80" + "00" * 13 + "01")
    assert wrap(frame, "?", ALICE).client_host_address == bytes(4)


def test_timeouts_are_the_requests_own() -> None:
    assert timeout_of(create_topics("a", timeout_ms=1234)) == 1234
    assert timeout_of(decode_request(*_headed(create_topics("a", timeout_ms=1234)))) == 1234
    assert timeout_of(request_module(ApiKey.DESCRIBE_QUORUM).DescribeQuorumRequest(topics=())) == 60_000


def test_a_forwarded_request_waits_at_most_a_minute() -> None:
    async def scenario() -> None:
        controller = Controller()
        await forward(controller, create_topics("a", timeout_ms=2**31 - 1))
        assert [timeout_ms for _, timeout_ms, _ in controller.asked] == [60_000]

    asyncio.run(scenario())


def _headed(message: Any) -> tuple[RequestHeader, bytes]:
    frame = framed(message)
    return parse_request_header(frame), frame


# -- a broker's side


@pytest.mark.parametrize("version", [2, 5, 7])
def test_the_inner_answer_is_given_back_once_the_change_is_known_here(version: int) -> None:
    async def scenario() -> None:
        controller = Controller()
        answer = await forward(controller, create_topics("a", "b"), version=version)
        assert [one.name for one in answer.topics] == ["a", "b"]
        assert controller.caught_up == 1
        assert [(timeout_ms, inner) for _, timeout_ms, inner in controller.asked] == [(5_000, CREATE)]

    run_virtually(scenario())


def test_an_image_that_does_not_keep_up_costs_the_rest_of_the_clients_time() -> None:
    async def scenario() -> None:
        controller = Controller()
        controller.catching_up_s = 1_000
        began = asyncio.get_running_loop().time()
        answer = await forward(controller, create_topics("a"))
        assert answer.topics[0].error_code == ErrorCode.none  # it is done
        assert asyncio.get_running_loop().time() - began == pytest.approx(5, abs=0.01)
        assert controller.caught_up == 0

    run_virtually(scenario())


def test_reads_do_not_wait_for_the_image_and_are_safe_to_be_sent_again() -> None:
    async def scenario() -> None:
        key = ApiKey.DESCRIBE_QUORUM
        message = request_module(key).DescribeQuorumRequest(topics=())
        header = parse_request_header(framed(message, key))
        quorum = response_module(key).DescribeQuorumResponse(
            error_code=0, error_message=None, topics=(), nodes=()
        )
        controller = Controller(wrap_response(header, quorum))
        assert (await forward(controller, message, key)).topics == ()
        assert controller.caught_up == 0
        assert controller.asked[0][2] == ApiKey.DESCRIBE_QUORUM

    run_virtually(scenario())


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (RequestError(ErrorCode.request_timed_out, "no controller"), ErrorCode.request_timed_out),
        (OutcomeUnknown("its answer was lost"), ErrorCode.request_timed_out),
        (UnsupportedVersion("no envelopes"), ErrorCode.unknown_server_error),
        (envelope_error(ErrorCode.principal_deserialization_failure), ErrorCode.unknown_server_error),
        (envelope_error(ErrorCode.cluster_authorization_failed), ErrorCode.unknown_server_error),
        (envelope_error(ErrorCode.none), ErrorCode.unknown_server_error),
    ],
)
def test_a_failed_forward_is_reported_for_every_topic(answer: Any, code: ErrorCode) -> None:
    async def scenario() -> None:
        got = await forward(Controller(answer), create_topics("a", "b"))
        assert [(one.name, one.error_code) for one in got.topics] == [("a", code), ("b", code)]

    run_virtually(scenario())


def test_a_version_that_the_controller_does_not_know_costs_the_client_its_connection() -> None:
    async def scenario() -> None:
        with pytest.raises(UnsupportedRequest, match="CreateTopics version 7"):
            await forward(Controller(envelope_error(ErrorCode.unsupported_version)), create_topics("a"))

    run_virtually(scenario())


def test_an_inner_answer_that_is_none_never_reaches_the_client() -> None:
    header = parse_request_header(framed(create_topics("a")))
    whole = bytes(response_frame(header, created("a")))[4:]
    other = struct.pack(">i", 78) + whole[4:]

    async def scenario() -> None:
        for data in (b"", b"\0\0", other, whole[:-3], whole[:6]):
            envelope = wrap_response(header, created("a"))
            broken = type(envelope)(response_data=data, error_code=ErrorCode.none)
            got = await forward(Controller(broken), create_topics("a"))
            assert got.topics[0].error_code == ErrorCode.unknown_server_error

    run_virtually(scenario())


@pytest.mark.parametrize("key", [api.key for api in APIS.values() if api.is_forwardable])
def test_every_forwarded_api_has_an_answer_for_each_error(key: int) -> None:
    module = request_module(key)
    request = getattr(module, f"{APIS[key].name}Request")
    message = _FULL[key](module, request)
    answer = refusal(key, message, ErrorCode.request_timed_out, "late")
    for version in range(APIS[key].min_version, APIS[key].max_version + 1):
        frame = response_frame(RequestHeader(key, version, 5, "", 0), answer)
        _, read = decode_response(key, version, memoryview(frame)[4:])
        assert "request_timed_out" in repr(read), f"version {version} does not say it"


_FULL: dict[int, Any] = {
    ApiKey.CREATE_DELEGATION_TOKEN: lambda module, request: request(
        owner_principal_type=None, owner_principal_name=None, renewers=(), max_lifetime=-1
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: lambda module, request: request(hmac=b"mac", renew_period=-1),
    ApiKey.EXPIRE_DELEGATION_TOKEN: lambda module, request: request(hmac=b"mac", expiry_time_period=-1),
    ApiKey.CREATE_ACLS: lambda module, request: request(
        creations=(
            module.AclCreation(
                resource_type=2,
                resource_name="a",
                resource_pattern_type=3,
                principal="User:u",
                host="*",
                operation=3,
                permission_type=3,
            ),
        ),
    ),
    ApiKey.DELETE_ACLS: lambda module, request: request(
        filters=(
            module.DeleteAclsFilter(
                resource_type_filter=2,
                resource_name_filter="a",
                pattern_type_filter=3,
                principal_filter=None,
                host_filter=None,
                operation=3,
                permission_type=3,
            ),
        ),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: lambda module, request: request(
        entries=(
            module.EntryData(
                entity=(module.EntityData(entity_type="user", entity_name="u"),),
                ops=(module.OpData(key="producer_byte_rate", value=1.0, remove=False),),
            ),
        ),
        validate_only=False,
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda module, request: request(
        deletions=(module.ScramCredentialDeletion(name="u", mechanism=1),), upsertions=()
    ),
    ApiKey.CREATE_TOPICS: lambda module, request: create_topics("a"),
    ApiKey.DELETE_TOPICS: lambda module, request: request(
        topics=(module.DeleteTopicState(name="a", topic_id=None),), timeout=1
    ),
    ApiKey.CREATE_PARTITIONS: lambda module, request: request(
        topics=(module.CreatePartitionsTopic(name="a", count=2, assignments=None),),
        timeout=1,
        validate_only=False,
    ),
    ApiKey.ALTER_CONFIGS: lambda module, request: request(
        resources=(module.AlterConfigsResource(resource_type=2, resource_name="a", configs=()),),
        validate_only=False,
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda module, request: request(
        resources=(module.AlterConfigsResource(resource_type=2, resource_name="a", configs=()),),
        validate_only=False,
    ),
    ApiKey.ELECT_LEADERS: lambda module, request: request(
        election_type=0, topic_partitions=(module.TopicPartitions(topic="a", partitions=(0,)),)
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda module, request: request(
        topics=(
            module.ReassignableTopic(
                name="a", partitions=(module.ReassignablePartition(partition_index=0, replicas=(1,)),)
            ),
        )
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda module, request: request(topics=None),
    ApiKey.DESCRIBE_QUORUM: lambda module, request: request(topics=()),
    ApiKey.UPDATE_FEATURES: lambda module, request: request(feature_updates=()),
    ApiKey.UNREGISTER_BROKER: lambda module, request: request(broker_id=3),
    ApiKey.ALLOCATE_PRODUCER_IDS: lambda module, request: request(broker_id=3, broker_epoch=1),
    ApiKey.ADD_RAFT_VOTER: lambda module, request: request(
        cluster_id="c", timeout=1, voter_id=1, voter_directory_id=None, listeners=()
    ),
    ApiKey.REMOVE_RAFT_VOTER: lambda module, request: request(
        cluster_id="c", voter_id=1, voter_directory_id=None
    ),
}


# -- the controller's side


def test_an_envelope_round_trips() -> None:
    async def scenario() -> None:
        inner = await unwrap(wrap(framed(create_topics("a"), version=4), "10.1.2.3", ALICE))
        assert inner.header[:4] == (CREATE, 4, 77, "admin-1")
        assert inner.request.topics[0].name == "a"
        assert (inner.client_host, inner.principal) == ("10.1.2.3", ("User", "alice", False))

    run_virtually(scenario())


GOOD = framed(create_topics("a"))
NESTED = framed(wrap(GOOD, "10.0.0.1", ALICE), ApiKey.ENVELOPE)
PRODUCE = struct.pack(">hhih", ApiKey.PRODUCE, 13, 1, -1) + b"\0" * 9
BAD = {
    "no principal": (GOOD, None, b"\x0a\0\0\1", ErrorCode.principal_deserialization_failure),
    "principal of a later version": (GOOD, b"\0\1" + ANONYMOUS[2:], b"\x0a\0\0\1", 97),
    "cut principal": (GOOD, ANONYMOUS[:-3], b"\x0a\0\0\1", ErrorCode.principal_deserialization_failure),
    "principal before the address": (GOOD, b"", b"", ErrorCode.principal_deserialization_failure),
    "no address": (GOOD, ANONYMOUS, b"", ErrorCode.invalid_request),
    "odd address": (GOOD, ANONYMOUS, bytes(5), ErrorCode.invalid_request),
    "nothing": (b"", ANONYMOUS, bytes(4), ErrorCode.unsupported_version),
    "cut header": (GOOD[:9], ANONYMOUS, bytes(4), ErrorCode.unsupported_version),
    "unknown key": (struct.pack(">hhih", 999, 0, 1, -1), ANONYMOUS, bytes(4), 35),
    "unknown version": (struct.pack(">hhih", CREATE, 99, 1, -1), ANONYMOUS, bytes(4), 35),
    "not forwardable": (PRODUCE, ANONYMOUS, bytes(4), ErrorCode.invalid_request),
    "not forwardable, unknown version": (b"\0\0\0\x63" + PRODUCE[4:], ANONYMOUS, bytes(4), 42),
    "nested": (NESTED, ANONYMOUS, bytes(4), ErrorCode.invalid_request),
    "ApiVersions": (struct.pack(">hhih", 18, 0, 1, -1), ANONYMOUS, bytes(4), ErrorCode.invalid_request),
    "truncated": (GOOD[:-4], ANONYMOUS, bytes(4), ErrorCode.unsupported_version),
    "huge array": (GOOD[:20] + b"\xff\xff\xff\xff\x07" + GOOD[21:], ANONYMOUS, bytes(4), 35),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_envelopes_are_refused_by_name(kind: str) -> None:
    data, principal, address, code = BAD[kind]

    async def scenario() -> None:
        envelope = EnvelopeRequest(
            request_data=data, request_principal=principal, client_host_address=address
        )
        with pytest.raises(RequestError) as caught:
            await unwrap(envelope)
        assert caught.value.code == code

    run_virtually(scenario())


def test_not_controller_is_said_on_the_outside() -> None:
    header = parse_request_header(GOOD)
    envelope = wrap_response(header, created("a", code=ErrorCode.not_controller))
    assert (envelope.error_code, envelope.response_data) == (ErrorCode.not_controller, None)


def test_any_bytes_are_an_envelope_or_an_error() -> None:
    random = Random(141)

    async def scenario() -> None:
        for _ in range(3_000):
            data = bytearray(GOOD)
            for _ in range(random.randrange(4)):
                data[random.randrange(len(data))] = random.randrange(256)
            principal = bytearray(ANONYMOUS)
            principal[random.randrange(len(principal))] ^= random.choice((0, 0, 1, 128))
            envelope = EnvelopeRequest(
                request_data=bytes(data[: random.randrange(len(data) + 1)]),
                request_principal=bytes(principal),
                client_host_address=bytes(random.choice((4, 4, 16, 3))),
            )
            try:
                inner = await unwrap(envelope)
            except RequestError:
                continue
            assert APIS[inner.header.api_key].is_forwardable

    run_virtually(scenario())


def test_garbled_principals_are_malformed() -> None:
    for size in range(len(ANONYMOUS)):
        with pytest.raises(MalformedMessage):
            read_principal(ANONYMOUS[:size])
