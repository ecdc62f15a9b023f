"""Parts that handlers of transactional requests share: the coordinator, and decisions that take an id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.coordinator.answers import settled
from service.coordinator.shard import CoordinatorResult
from service.serving.ports import CoordinatedTransactions
from service.serving.request_host import Broker
from service.transactions.requests import ProducerIdNeeded

if TYPE_CHECKING:
    from service.transactions.shard import TransactionShard

R = TypeVar("R")


def coordinator_of(broker: Broker) -> CoordinatedTransactions:
    """Return the node's coordinator. Raises `RequestError` COORDINATOR_NOT_AVAILABLE if it has none."""
    if broker.transactions is None:
        raise RequestError(ErrorCode.coordinator_not_available, "transactions are not served")
    return broker.transactions


async def decided(
    broker: Broker,
    transactional_id: str,
    decide: Callable[[TransactionShard, int | None, int], CoordinatorResult[R]],
) -> R:
    """Return the answer of ``decide(shard, fresh_id, now_ms)``, once its records are committed.

    A decision that needs a new producer id is made again with one: ids come from the controller in blocks.
    Raises `RequestError`.
    """
    coordinator = coordinator_of(broker)
    try:
        return await settled(
            coordinator.write(transactional_id, lambda shard, _, now_ms: decide(shard, None, now_ms))
        )
    except ProducerIdNeeded:
        fresh_id = await broker.producer_ids.next()
    return await settled(
        coordinator.write(transactional_id, lambda shard, _, now_ms: decide(shard, fresh_id, now_ms))
    )


def max_timeout_ms(settings: Mapping[str, Any]) -> int:
    """Return ``transaction.max.timeout.ms``."""
    return int(settings["transaction.max.timeout.ms"])


def error_for(code: ErrorCode, api_version: int, fenced_since: int) -> ErrorCode:
    """Return the error in words that the client's version has: PRODUCER_FENCED is new in
    `fenced_since`."""
    if code is ErrorCode.producer_fenced and api_version < fenced_since:
        return ErrorCode.invalid_producer_epoch
    return code
