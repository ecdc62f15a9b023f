"""DescribeTransactions (KIP-664): state, producer and partitions of transactional ids."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import (
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, topics_allowed
from service.serving.request_host import NO_THROTTLE, Broker
from service.serving.transactional_requests import coordinator_of
from service.transactions.requests import NO_PRODUCER, DescribedTransaction, check_id
from service.transactions.shard import TransactionShard

_A_STEP: Final = 500
"""Partitions that are looked at without a look at the clock."""


def handle(
    broker: Broker, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse | Awaitable[DescribeTransactionsResponse]:
    """Return the committed state of each id, with the topics that the client may describe."""
    return in_slices(_steps(broker, context, request))


def _steps(
    broker: Broker, context: RequestContext, request: DescribeTransactionsRequest
) -> Steps[DescribeTransactionsResponse]:
    found = []
    resource = AclResourceType.TRANSACTIONAL_ID
    for name in request.transactional_ids:
        yield
        try:
            if not is_allowed(broker, context, AclOperation.DESCRIBE, resource, name):
                raise RequestError(ErrorCode.transactional_id_authorization_failed)
            check_id(name)
            there = coordinator_of(broker).read(name, partial(_describe, name))
        except RequestError as e:
            found.append(_row(name, e.code, _NOTHING, ()))
            continue
        topics = yield from _topics(broker, context, there)
        found.append(_row(name, ErrorCode.none, there, topics))
    return DescribeTransactionsResponse(throttle_time=NO_THROTTLE, transaction_states=tuple(found))


_NOTHING = DescribedTransaction("", 0, 0, NO_PRODUCER._replace(producer_id=0, producer_epoch=0), frozenset())


def _describe(name: str, shard: TransactionShard, now_ms: int) -> DescribedTransaction:
    return shard.describe(name)


def _topics(
    broker: Broker, context: RequestContext, there: DescribedTransaction
) -> Steps[tuple[TopicData, ...]]:
    may_describe = topics_allowed(broker, context, AclOperation.DESCRIBE, quiet=True)
    by_topic: dict[str, list[int]] = {}
    for number, (topic, index) in enumerate(there.partitions):
        if not number % _A_STEP:
            yield
        by_topic.setdefault(topic, []).append(index)
    found = []
    for topic in sorted(by_topic):
        yield
        if may_describe is None or may_describe(topic):
            found.append(TopicData(topic=topic, partitions=tuple(sorted(by_topic[topic]))))
    return tuple(found)


def _row(
    name: str, error: ErrorCode, there: DescribedTransaction, topics: tuple[TopicData, ...]
) -> TransactionState:
    return TransactionState(
        error_code=error,
        transactional_id=name,
        transaction_state=there.state,
        transaction_timeout=timedelta(milliseconds=there.timeout_ms),
        transaction_start_time=cast("Any", there.start_ms),
        producer_id=there.producer.producer_id,
        producer_epoch=there.producer.producer_epoch,
        topics=topics,
    )
