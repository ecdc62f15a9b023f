"""The blocking client: versions, errors, answers that are none."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.blocking_client import BlockingClient
from service.network.request import RequestContext, Response
from service.network.server import Server
from service.wire.api import (
    ApiKey,
    decode_request,
    is_served,
    parse_request_header,
    request_module,
    response_frame,
    response_module,
    unsupported_api_versions_frame,
)
from service.wire.errors import FrameError, MalformedMessage

CLUSTER = request_module(ApiKey.DESCRIBE_CLUSTER).DescribeClusterRequest(
    include_cluster_authorized_operations=False, include_fenced_brokers=False
)


class Broker:
    """Serves ApiVersions up to a version, and DescribeCluster with the asked version as its cluster id."""

    def __init__(self, api_versions_max: int, ranges: dict[int, tuple[int, int]]) -> None:
        self.api_versions_max = api_versions_max
        self.ranges = ranges

    def __call__(self, context: RequestContext, request: memoryview) -> Response:
        header = parse_request_header(request)
        if header.api_key == ApiKey.API_VERSIONS:
            if header.api_version > self.api_versions_max or not is_served(header):
                out = unsupported_api_versions_frame(header)
                struct.pack_into(">h", out, len(out) - 2, self.api_versions_max)
                return Response([out])
            m = response_module(ApiKey.API_VERSIONS)
            keys = tuple(
                m.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in self.ranges.items()
            )
            answer = m.ApiVersionsResponse(error_code=0, api_keys=keys, throttle_time=0)
            return Response([response_frame(header, answer)])
        decode_request(header, request)
        m = response_module(ApiKey.DESCRIBE_CLUSTER)
        answer = m.DescribeClusterResponse(
            throttle_time=0,
            error_code=0,
            cluster_id=f"v{header.api_version} to {header.client_id}",
            brokers=(),
        )
        return Response([response_frame(header, answer)])


@contextmanager
def serving(handler: Callable[[RequestContext, memoryview], Response]) -> Iterator[int]:
    loop = asyncio.new_event_loop()
    server = Server("127.0.0.1", 0, handler)
    loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.port
    finally:
        asyncio.run_coroutine_threadsafe(server.close(0.2), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def ask(port: int) -> Any:
    with BlockingClient("127.0.0.1", port, "me") as client:
        client.request(ApiKey.DESCRIBE_CLUSTER, CLUSTER)
        return client.request(ApiKey.DESCRIBE_CLUSTER, CLUSTER).cluster_id


@pytest.mark.parametrize("api_versions_max", [0, 2, 3, 4])
def test_requests_use_the_newest_common_version(api_versions_max: int) -> None:
    with serving(Broker(api_versions_max, {18: (0, 4), 60: (0, 1), 999: (0, 0)})) as port:
        assert ask(port) == "v1 to me"
    with serving(Broker(api_versions_max, {60: (0, 7)})) as port:
        assert ask(port) == "v2 to me"


@pytest.mark.parametrize("ranges", [{}, {60: (3, 5)}])
def test_an_api_with_no_common_version_is_an_error(ranges: dict[int, tuple[int, int]]) -> None:
    with serving(Broker(4, ranges)) as port, pytest.raises(RequestError, match="DescribeCluster") as error:
        ask(port)
    assert error.value.code is ErrorCode.unsupported_version


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (struct.pack(">ii", 8, 1) + b"\x00\x00\x7f\xff", MalformedMessage),
        (struct.pack(">ih", 2, 1), MalformedMessage),
        (struct.pack(">i", -4), FrameError),
        (struct.pack(">i", 2**31 - 1), FrameError),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(answer: bytes, error: type[Exception]) -> None:
    with serving(lambda context, request: Response([answer])) as port, pytest.raises(error):
        ask(port)


def test_a_list_of_half_a_million_is_read() -> None:
    """A node refuses requests of so many elements; an answer may be as long as the cluster is large."""
    module = response_module(ApiKey.LIST_TRANSACTIONS)
    row = module.TransactionState(transactional_id="a", producer_id=1, transaction_state="Empty")
    listed = module.ListTransactionsResponse(
        throttle_time=0, error_code=0, unknown_state_filters=(), transaction_states=(row,) * 500_000
    )
    known = Broker(4, {66: (0, 2)})

    def handler(context: RequestContext, request: memoryview) -> Response:
        header = parse_request_header(request)
        if header.api_key == ApiKey.API_VERSIONS:
            return known(context, request)
        return Response([response_frame(header, listed)])

    wanted = request_module(ApiKey.LIST_TRANSACTIONS).ListTransactionsRequest(
        state_filters=(), producer_id_filters=(), duration_filter=-1
    )
    with serving(handler) as port, BlockingClient("127.0.0.1", port, "me") as client:
        assert len(client.request(ApiKey.LIST_TRANSACTIONS, wanted).transaction_states) == 500_000


def test_a_broker_that_hangs_up_is_a_connection_error() -> None:
    def handler(context: RequestContext, request: memoryview) -> Response:
        raise MalformedMessage("go away")

    with serving(handler) as port, pytest.raises(ConnectionError):
        ask(port)
