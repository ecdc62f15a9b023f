"""AddPartitionsToTxn and AddOffsetsToTxn: partitions become part of a transaction, or are looked for. [P]

Source: Apache Kafka ``TransactionCoordinator.handleAddPartitionsToTransaction``,
``handleVerifyPartitionsInTransaction``.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.transactions.metadata import Partition, TransactionMetadata
from service.transactions.requests import AddPartitions, TransactionalProducer
from service.transactions.states import ONGOING, PREPARED


def add(
    request: AddPartitions, before: TransactionMetadata | None, now_ms: int
) -> TransactionMetadata | None:
    """Return the Ongoing state with the partitions; None if they are part of it already.

    `before`: the newest state, committed or made by an add of the same producer. Raises `RequestError`
    INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    before = _checked(before, request.producer)
    if before.state is ONGOING and before.partitions >= request.partitions:
        return None
    return before.added(request.partitions, request.client_version, now_ms)


def verify(
    committed: TransactionMetadata | None,
    producer: TransactionalProducer,
    partitions: frozenset[Partition],
) -> dict[Partition, ErrorCode]:
    """Return for each partition whether it is part of the transaction, as far as that is committed:
    otherwise a batch could be appended for an add that is reverted.

    Raises `RequestError` as `add` does.
    """
    there = _checked(committed, producer)
    return {
        partition: ErrorCode.none if partition in there.partitions else ErrorCode.transaction_abortable
        for partition in partitions
    }


def _checked(there: TransactionMetadata | None, producer: TransactionalProducer) -> TransactionMetadata:
    if there is None or there.producer_id != producer.producer_id:
        raise RequestError(ErrorCode.invalid_producer_id_mapping)
    if there.producer_epoch != producer.producer_epoch:
        raise RequestError(ErrorCode.producer_fenced)
    if there.state in PREPARED:
        raise RequestError(ErrorCode.concurrent_transactions)
    return there
