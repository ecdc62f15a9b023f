"""The client session: versions, login, pipelined requests, and brokers that break the protocol."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import ConfigError
from service.client import sasl
from service.client.session import ClientSession, UndecodedResponse
from service.wire.api import (
    ApiKey,
    parse_request_header,
    request_module,
    response_frame,
    response_module,
    unsupported_api_versions_frame,
)
from service.wire.errors import MalformedMessage, UnsupportedVersion

KEY = ApiKey.ALLOCATE_PRODUCER_IDS
SERVED = {18: (0, 4), 67: (0, 0), 60: (0, 1), 999: (0, 3)}


def versions_response(request: bytes, served: dict[int, tuple[int, int]] = SERVED, error: int = 0) -> bytes:
    """Return a broker's response to ApiVersions, without its size."""
    module = response_module(ApiKey.API_VERSIONS)
    keys = tuple(
        module.ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in served.items()
    )
    response = module.ApiVersionsResponse(error_code=error, api_keys=keys, throttle_time=0)
    return bytes(response_frame(parse_request_header(request[4:]), response)[4:])


def refusal(request: bytes, newest: int) -> bytes:
    """KIP-511: the answer in version 0 of a broker whose ApiVersions ends at `newest`."""
    frame = unsupported_api_versions_frame(parse_request_header(request[4:]))
    struct.pack_into(">h", frame, len(frame) - 2, newest)
    return bytes(frame[4:])


def allocate(number: int) -> Any:
    return request_module(KEY).AllocateProducerIdsRequest(broker_id=1, broker_epoch=number)


def allocated(request: bytes, first: int) -> bytes:
    response = response_module(KEY).AllocateProducerIdsResponse(
        throttle_time=0, error_code=0, producer_id_start=first, producer_id_len=1000
    )
    return bytes(response_frame(parse_request_header(request[4:]), response)[4:])


def ready() -> ClientSession:
    session = ClientSession("broker:9092", "me")
    assert session.set_up(versions_response(session.start())) is None
    assert session.is_ready
    return session


# -- versions


def test_the_newest_version_of_both_is_chosen() -> None:
    session = ready()
    assert session.versions == {18: (0, 4), 67: (0, 0), 60: (0, 1)}
    assert session.version(60) == 1
    assert session.version(60, 0) == 0
    with pytest.raises(UnsupportedVersion, match=r"broker:9092 does not serve version 2 of .*, but 0 to 1"):
        session.version(60, 2)
    with pytest.raises(UnsupportedVersion, match="does not serve any version of Fetch"):
        session.version(ApiKey.FETCH)


@pytest.mark.parametrize("newest", [0, 2, 3])
def test_a_broker_of_older_api_versions_is_asked_in_its_newest(newest: int) -> None:
    session = ClientSession("b:1", "me")
    again = session.set_up(refusal(session.start(), newest))
    assert again is not None
    assert parse_request_header(again[4:]).api_version == newest
    assert session.set_up(versions_response(again)) is None
    assert session.is_ready


def test_a_broker_that_refuses_its_own_version_is_left() -> None:
    session = ClientSession("b:1", "me")
    again = session.set_up(refusal(session.start(), 2))
    assert again is not None
    with pytest.raises(MalformedMessage, match="refused twice"):
        session.set_up(refusal(again, 1))


@pytest.mark.parametrize(
    ("served", "error", "reason"),
    [
        (SERVED, 29, "ApiVersions was answered with error 29"),
        (dict.fromkeys(range(1001), (0, 1)), 0, "ApiVersions lists more than 1000 APIs"),
    ],
)
def test_versions_that_are_none(served: dict[int, tuple[int, int]], error: int, reason: str) -> None:
    session = ClientSession("b:1", "me")
    with pytest.raises(MalformedMessage, match=reason):
        session.set_up(versions_response(session.start(), served, error))


# -- login


def log_in(mechanism: str = "PLAIN") -> tuple[ClientSession, bytes]:
    """A session whose SaslHandshake was sent, and that request."""
    session = ClientSession("b:1", "me", sasl.login(mechanism, "user", "pencil", "nonce"))
    handshake = session.set_up(versions_response(session.start()))
    assert handshake is not None
    assert not session.is_ready
    return session, handshake


def test_a_login_comes_before_the_first_request() -> None:
    session, handshake = log_in()
    assert handshake[4:] == b"\0\x11\0\x01\0\0\0\x02\0\x02me\0\x05PLAIN"
    login = session.set_up(struct.pack(">ihi", 2, 0, 1) + b"\0\x05PLAIN")
    assert login is not None
    assert login[4:] == b"\0\x24\0\x01\0\0\0\x03\0\x02me\0\0\0\x0c\0user\0pencil"
    assert session.set_up(struct.pack(">ihhiq", 3, 0, -1, 0, 0)) is None
    assert session.is_ready
    assert struct.unpack_from(">i", session.request(KEY, 0, allocate(1)), 8) == (4,)


def test_a_mechanism_that_is_not_offered_is_named_with_those_that_are() -> None:
    session, _ = log_in()
    with pytest.raises(ConfigError, match="b:1 does not offer the SASL mechanism PLAIN, it offers GSSAPI"):
        session.set_up(struct.pack(">ihi", 2, 33, 1) + b"\0\x06GSSAPI")


def test_a_refused_login_is_told_without_the_password() -> None:
    session, _ = log_in()
    session.set_up(struct.pack(">ihi", 2, 0, 1) + b"\0\x05PLAIN")
    with pytest.raises(ConfigError, match="b:1 refuses the login of user: no such user") as refused:
        session.set_up(struct.pack(">ihh", 3, 58, 12) + b"no such user" + struct.pack(">iq", 0, 0))
    assert "pencil" not in str(refused.value)


def test_a_server_that_skips_its_proof_does_not_end_the_login() -> None:
    session, _ = log_in("SCRAM-SHA-256")
    assert session.set_up(struct.pack(">ihi", 2, 0, 1) + b"\0\x05PLAIN") is not None
    with pytest.raises((ConfigError, MalformedMessage)):
        session.set_up(struct.pack(">ihhiq", 3, 0, -1, 0, 0))
    assert not session.is_ready


# -- requests


@given(st.lists(st.booleans(), max_size=60), st.data())
def test_responses_are_those_of_the_requests_in_their_order(steps: list[bool], data: st.DataObject) -> None:
    """True sends a request, False answers the oldest; any other frame is refused, and changes nothing."""
    session = ready()
    flying: list[tuple[int, bytes]] = []
    for number, is_request in enumerate(steps):
        if is_request:
            flying.append((number, session.request(KEY, 0, allocate(number))))
        elif flying:
            if len(flying) > 1 and data.draw(st.booleans()):
                other = data.draw(st.sampled_from(flying[1:]))
                with pytest.raises(MalformedMessage, match="a response to request"):
                    session.receive(allocated(other[1], 1))
            first, request = flying.pop(0)
            is_wanted = data.draw(st.booleans())
            answer = session.receive(allocated(request, first), is_wanted=is_wanted)
            assert (answer.producer_id_start == first) if is_wanted else answer is None
        else:
            with pytest.raises(MalformedMessage, match="that answer no request"):
                session.receive(bytes(8))
        assert len(session.in_flight) == len(flying)


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\x02", b"\0\0\0\x02\0\0\0\0\0"])
def test_a_malformed_response_keeps_its_request_in_flight(frame: bytes) -> None:
    session = ready()
    session.request(KEY, 0, allocate(1))
    with pytest.raises(MalformedMessage):
        session.receive(frame)
    assert len(session.in_flight) == 1


def test_a_response_of_many_elements_is_left_to_the_caller() -> None:
    session = ready()
    session.versions[ApiKey.COMMIT_CATALOG] = (0, 0)
    module = request_module(ApiKey.COMMIT_CATALOG)
    message = module.CommitCatalogRequest(broker_id=1, broker_epoch=1)
    request = session.request(ApiKey.COMMIT_CATALOG, 0, message)
    answer = response_module(ApiKey.COMMIT_CATALOG).CommitCatalogResponse(error_code=0, results=(0,) * 300)
    frame = bytes(response_frame(parse_request_header(request[4:]), answer)[4:])
    assert session.receive(frame, 256) == UndecodedResponse(frame)
    assert not session.in_flight


def test_numbers_of_requests_begin_again_behind_the_last_that_fits() -> None:
    session = ready()
    session._correlation_id = 2**31 - 2
    numbers: list[int] = []
    for number in range(3):
        request = session.request(KEY, 0, allocate(number))
        numbers += struct.unpack_from(">i", request, 8)
        assert session.receive(allocated(request, number)).producer_id_start == number
    assert numbers == [2**31 - 1, 0, 1]


def test_a_message_that_the_version_cannot_carry_leaves_nothing_in_flight() -> None:
    session = ready()
    cluster = request_module(ApiKey.DESCRIBE_CLUSTER).DescribeClusterRequest(
        include_cluster_authorized_operations=False, include_fenced_brokers=True
    )
    with pytest.raises(ValueError, match="include_fenced_brokers"):
        session.request(ApiKey.DESCRIBE_CLUSTER, 1, cluster)
    assert not session.in_flight
