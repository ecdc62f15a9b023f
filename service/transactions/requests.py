"""Requests to a transaction coordinator and its answers, and what it tells other parts of a node. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.types import NO_EPOCH, NO_PRODUCER_ID
from service.transactions.metadata import Partition


class ProducerIdNeeded(RequestError):
    """A decision that needs a new producer id: the caller gets one and asks again with it."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.coordinator_not_available, "a new producer id is needed")


def check_id(transactional_id: str) -> None:
    """Raise `RequestError` INVALID_REQUEST unless it is the name of something."""
    if not transactional_id:
        raise RequestError(ErrorCode.invalid_request)


class TransactionalProducer(NamedTuple):
    """Producer id and epoch of a client; without, one that is new or does not say."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


NO_PRODUCER: Final = TransactionalProducer()


class InitTransactions(NamedTuple):
    """InitProducerId with a transactional id. `producer`: what the client had before, if it says."""

    transactional_id: str
    timeout_ms: int
    producer: TransactionalProducer = NO_PRODUCER


class AddPartitions(NamedTuple):
    """AddPartitionsToTxn of one transaction, or AddOffsetsToTxn. `client_version`: TV0 or TV2."""

    transactional_id: str
    producer: TransactionalProducer
    partitions: frozenset[Partition]
    client_version: int


class EndTransaction(NamedTuple):
    """EndTxn. `client_version`: TV0, or TV2 where the client takes a new epoch from the answer."""

    transactional_id: str
    producer: TransactionalProducer
    is_commit: bool
    client_version: int


class DescribedTransaction(NamedTuple):
    """Answer for one id of DescribeTransactions."""

    state: str
    timeout_ms: int
    start_ms: int
    producer: TransactionalProducer
    partitions: frozenset[Partition]


class ListedTransaction(NamedTuple):
    """One id of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str
