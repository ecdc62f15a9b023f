"""EndTxn: the decision to commit or abort, by the rules of the client's transaction version. [P]

Up to TV1 an end leaves the epoch as it is, so the same end twice is answered alike. From TV2 on each end
raises it (KIP-890): a client that repeats an end is one epoch behind, or has the id before whose last epoch
the end used up; the present epoch means the next end. What is answered there, where nothing is ongoing::

                      abort             commit
                      repeat  present   repeat  present
    Empty             PF      aborts    PF      ITS
    CompleteAbort     NONE    aborts    ITS     ITS
    CompleteCommit    ITS     aborts    NONE    ITS

PF is PRODUCER_FENCED, ITS INVALID_TXN_STATE; "aborts" writes PrepareAbort without partitions, so that the
epoch is raised. Source: Apache Kafka ``TransactionCoordinator.endTransaction``.
"""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.types import NO_PRODUCER_ID
from service.transactions.init import needed
from service.transactions.metadata import LAST_CLIENT_EPOCH, MAX_EPOCH, TransactionMetadata
from service.transactions.requests import NO_PRODUCER, EndTransaction, TransactionalProducer
from service.transactions.states import COMPLETE_ABORT, COMPLETE_COMMIT, EMPTY, ONGOING


class End(NamedTuple):
    """Result of an EndTxn: the next state, None if there is none; and the producer in the answer."""

    metadata: TransactionMetadata | None
    producer: TransactionalProducer = NO_PRODUCER


def end_keeping_epoch(
    request: EndTransaction, committed: TransactionMetadata | None, is_pending: bool, now_ms: int
) -> End:
    """Decide as TV0 and TV1 do: id and epoch are checked before what is pending.

    Raises `RequestError` INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
    INVALID_TXN_STATE.
    """
    if committed is None or committed.producer_id != request.producer.producer_id:
        raise RequestError(ErrorCode.invalid_producer_id_mapping)
    if committed.producer_epoch != request.producer.producer_epoch:
        raise RequestError(ErrorCode.producer_fenced)
    if is_pending:
        raise RequestError(ErrorCode.concurrent_transactions)
    if committed.state is ONGOING:
        return End(committed.prepared(request.is_commit, request.client_version, NO_PRODUCER_ID, now_ms))
    if committed.state is (COMPLETE_COMMIT if request.is_commit else COMPLETE_ABORT):
        return End(None)
    raise RequestError(ErrorCode.invalid_txn_state)


def end_raising_epoch(
    request: EndTransaction,
    committed: TransactionMetadata | None,
    is_pending: bool,
    fresh_id: int | None,
    now_ms: int,
) -> End:
    """Decide as TV2 does: what is pending comes first, as the client may have the id that is pending.

    Raises `RequestError` as `end_keeping_epoch` does, UNKNOWN_SERVER_ERROR, and `ProducerIdNeeded`.
    """
    if is_pending:
        raise RequestError(ErrorCode.concurrent_transactions)
    given = request.producer
    if committed is None:
        raise RequestError(ErrorCode.invalid_producer_id_mapping)
    took_new_id = (
        given.producer_id == committed.previous_producer_id
        and given.producer_epoch == LAST_CLIENT_EPOCH
        and committed.producer_epoch == 0
    )
    is_behind = given.producer_epoch + 1 == committed.producer_epoch
    if given.producer_id != committed.producer_id and not took_new_id:
        raise RequestError(ErrorCode.invalid_producer_id_mapping)
    is_present = given.producer_epoch == committed.producer_epoch
    is_repeat = is_behind or took_new_id
    may_repeat = committed.state in (COMPLETE_COMMIT, COMPLETE_ABORT)
    if not is_present and not (is_repeat and may_repeat):
        raise RequestError(ErrorCode.producer_fenced)
    if is_repeat and may_repeat:
        if committed.state is not (COMPLETE_COMMIT if request.is_commit else COMPLETE_ABORT):
            raise RequestError(ErrorCode.invalid_txn_state)
        return End(None, TransactionalProducer(committed.producer_id, committed.producer_epoch))
    if request.is_commit and committed.state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
        raise RequestError(ErrorCode.invalid_txn_state)
    if request.is_commit and committed.producer_epoch == MAX_EPOCH:
        # No client has this epoch. Kafka fails here, too: there is no next one to mark the commit with.
        raise RequestError(ErrorCode.unknown_server_error)
    next_id = needed(fresh_id) if committed.is_exhausted else NO_PRODUCER_ID
    prepared = committed.prepared(request.is_commit, request.client_version, next_id, now_ms)
    after = prepared.completed(now_ms)
    return End(prepared, TransactionalProducer(after.producer_id, after.producer_epoch))
