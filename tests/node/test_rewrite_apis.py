"""RewriteRange and Erasures at a node: who may ask, and what is refused before anything is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey
from service.wire.erasures import ErasureOp, ErasuresRequest
from service.wire.rewrites import RewriteRangeRequest
from tests.node.conftest import NodeThread
from tests.node.test_client_quotas import ME, Limited
from tests.node.test_open_sessions import CLOSED, Start, admin, allow, client

DESCRIBE, ALTER, CLUSTER_ACTION = 8, 7, 9
BEGIN = RewriteRangeRequest(
    topic_id=UUID(int=7),
    partition=0,
    rewrite_id=UUID(int=8),
    step=0,
    kind=1,
    base_offset=0,
    last_offset=9,
)
LIST = ErasuresRequest(op=ErasureOp.LIST)
START = ErasuresRequest(op=ErasureOp.START, id=UUID(int=9), order=b"gz")
REFUSED, IDLE = ErrorCode.cluster_authorization_failed, ErrorCode.operation_not_attempted


@pytest.fixture
def limited(start: Callable[..., NodeThread]) -> Iterator[Limited]:
    one = Limited(start())
    yield one
    one.talk.client.close()


def test_each_request_takes_its_right_on_the_cluster(start: Start) -> None:
    node = start(**CLOSED)
    with client(node, "eve") as eve, admin(node) as cluster:

        def codes() -> list[Any]:
            return [
                eve.request(ApiKey.REWRITE_RANGE, BEGIN).error_code,
                eve.request(ApiKey.ERASURES, LIST).error_code,
                eve.request(ApiKey.ERASURES, START).error_code,
                eve.request(ApiKey.ERASURES, ErasuresRequest(op=ErasureOp.CANCEL)).error_code,
            ]

        assert codes() == [REFUSED, REFUSED, REFUSED, REFUSED]
        allow(cluster, "User:eve", DESCRIBE)
        assert codes() == [REFUSED, IDLE, REFUSED, REFUSED], "there is no bucket"
        allow(cluster, "User:eve", ALTER)
        assert codes() == [REFUSED, IDLE, IDLE, ErrorCode.invalid_request]
        allow(cluster, "User:eve", CLUSTER_ACTION)
        assert codes() == [IDLE, IDLE, IDLE, ErrorCode.invalid_request]


def test_a_malformed_request_is_refused_with_its_reason(limited: Limited) -> None:
    asking = limited.talk.client
    answer = asking.request(ApiKey.REWRITE_RANGE, replace(BEGIN, step=5))
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.invalid_request,
        "RewriteRange: step 5 is unknown",
    )
    answer = asking.request(ApiKey.ERASURES, ErasuresRequest(op=9))
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.invalid_request,
        "Erasures: operation 9 is unknown",
    )


def test_request_quotas_apply_and_are_told(limited: Limited) -> None:
    limited.set({ME: {"request_percentage": 0.000001}})
    for key, message in ((ApiKey.REWRITE_RANGE, BEGIN), (ApiKey.ERASURES, LIST)):
        answers = [limited.talk.client.request(key, message) for _ in range(2)]
        assert answers[-1].throttle_time.total_seconds() > 0
