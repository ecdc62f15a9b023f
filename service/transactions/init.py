"""InitProducerId with a transactional id: fences the producer before and gives the new one its epoch. [P]

Source: Apache Kafka ``TransactionCoordinator.handleInitProducerId``. No pair of id and epoch is given twice:
it is in a committed record before anybody is told of it (invariant X8).
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.types import NO_EPOCH
from service.transactions.config import TransactionSettings
from service.transactions.metadata import LAST_CLIENT_EPOCH, TransactionMetadata
from service.transactions.requests import (
    NO_PRODUCER,
    InitTransactions,
    ProducerIdNeeded,
    TransactionalProducer,
    check_id,
)
from service.transactions.states import ONGOING


def check_init(request: InitTransactions, max_timeout_ms: int) -> None:
    """Check what needs no state. Raises `RequestError` INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT."""
    check_id(request.transactional_id)
    if not 0 < request.timeout_ms <= max_timeout_ms:
        raise RequestError(ErrorCode.invalid_transaction_timeout)


def init(
    request: InitTransactions,
    before: TransactionMetadata | None,
    settings: TransactionSettings,
    fresh_id: int | None,
    now_ms: int,
) -> TransactionMetadata:
    """Return the next state: Empty, or PrepareAbort, after which the client has to ask again.

    `before`: no Prepare state, and committed; None for a new id. Raises `RequestError` PRODUCER_FENCED,
    UNKNOWN_SERVER_ERROR, and `ProducerIdNeeded` if `fresh_id` is missing.
    """
    given = request.producer
    if before is None:
        producer_id = needed(fresh_id)
        new = TransactionMetadata(producer_id, NO_EPOCH, request.timeout_ms)
        return new.initialized(producer_id, 0, NO_EPOCH, request.timeout_ms, now_ms)
    if given != NO_PRODUCER and not _may_be(given, before):
        raise RequestError(ErrorCode.producer_fenced)
    if before.state is ONGOING:
        return fence(before, settings, fresh_id, now_ms)
    if before.is_exhausted:
        return _with_new_id(request, before, fresh_id, now_ms)
    return _with_next_epoch(request, before, now_ms)


def fence(
    before: TransactionMetadata, settings: TransactionSettings, fresh_id: int | None, now_ms: int
) -> TransactionMetadata:
    """Return the PrepareAbort state that fences the producer of an ongoing transaction. Raises
    `ProducerIdNeeded`."""
    next_id = -1
    if settings.bumps_epochs and before.is_exhausted:
        next_id = needed(fresh_id)
    return before.fenced(settings.transaction_version, next_id, now_ms)


def needed(fresh_id: int | None) -> int:
    """Return the new producer id. Raises `ProducerIdNeeded`."""
    if fresh_id is None:
        raise ProducerIdNeeded
    return fresh_id


def _may_be(given: TransactionalProducer, before: TransactionMetadata) -> bool:
    """Return whether the client has the present producer id, or one whose epochs were used up."""
    return given.producer_id == before.producer_id or (
        given.producer_id == before.previous_producer_id and given.producer_epoch >= LAST_CLIENT_EPOCH
    )


def _with_new_id(
    request: InitTransactions, before: TransactionMetadata, fresh_id: int | None, now_ms: int
) -> TransactionMetadata:
    given = request.producer
    if given != NO_PRODUCER and given.producer_epoch != before.producer_epoch:
        # Kafka's coordinator fails here, too: there is no further epoch to give.
        raise RequestError(ErrorCode.unknown_server_error)
    last_epoch = NO_EPOCH if given == NO_PRODUCER else before.producer_epoch
    return before.initialized(needed(fresh_id), 0, last_epoch, request.timeout_ms, now_ms)


def _with_next_epoch(
    request: InitTransactions, before: TransactionMetadata, now_ms: int
) -> TransactionMetadata:
    given, epoch = request.producer, before.producer_epoch
    if given == NO_PRODUCER:
        following = epoch + 1, NO_EPOCH
    elif given.producer_epoch == epoch:
        following = epoch + 1, epoch
    elif given.producer_epoch == before.last_producer_epoch:
        following = epoch, before.last_producer_epoch  # a repeat: its answer was lost
    else:
        raise RequestError(ErrorCode.producer_fenced)
    return before.initialized(before.producer_id, *following, request.timeout_ms, now_ms)
