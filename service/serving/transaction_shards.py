"""Construction of transaction shards, and what else of transactions a node needs with its first one.

This module is imported on a thread, and with it what `node/transactions.py` makes on the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from service.client import node_channel, node_security
from service.coordinator.answers import settled
from service.serving import (
    broker_channels,
    listener_logins,
    received_markers,
    transaction_marker_sender,
    transaction_verifier,
)
from service.serving.topic_coordinator import number_of
from service.transactions.config import TV0, TV2, TransactionSettings
from service.transactions.metrics import TransactionMetrics
from service.transactions.requests import AddPartitions, TransactionalProducer
from service.transactions.shard import TransactionShard
from service.transactions.verification import Errors, Mode, RetrySettings, TransactionQuestion

if TYPE_CHECKING:
    from service.serving.transaction_coordinators import TransactionCoordinators


LOADED: Final = (node_channel, node_security, broker_channels, listener_logins)
"""Modules with which the loop makes connections to other coordinators and brokers."""
make_shard = TransactionShard
new_metrics = TransactionMetrics
new_sender = transaction_marker_sender.TransactionMarkerSender
new_verifier = transaction_verifier.TransactionVerifier
write_markers = received_markers.write_markers


def settings_of(keys: Mapping[str, object], transaction_version: int) -> TransactionSettings:
    """Return the settings from a node's keys and the cluster's feature level."""
    names = [field for field in TransactionSettings._fields if field != "transaction_version"]
    values = {name: number_of(keys, name.replace("_", ".")) for name in names}
    return TransactionSettings(**values, transaction_version=transaction_version)


def retries_of(keys: Mapping[str, object]) -> RetrySettings:
    """Return how adds are repeated while the transaction before is being completed."""
    prefix = "add.partitions.to.txn.retry.backoff"
    return RetrySettings(number_of(keys, f"{prefix}.ms"), number_of(keys, f"{prefix}.max.ms"))


async def ask_own(coordinators: TransactionCoordinators, question: TransactionQuestion) -> Errors:
    """Ask this node's own coordinator about partitions. Raises `RequestError`."""
    transactional_id, mode = question.transactional_id, question.mode
    asked = AddPartitions(
        transactional_id,
        TransactionalProducer(question.producer_id, question.producer_epoch),
        frozenset(question.partitions),
        TV2 if mode is Mode.ADD else TV0,
    )
    if mode is not Mode.ADD:
        return coordinators.read(transactional_id, lambda shard, _: shard.verify_partitions(asked))
    await settled(
        coordinators.write(transactional_id, lambda shard, _, now_ms: shard.add_partitions(asked, now_ms))
    )
    return dict.fromkeys(question.partitions, ErrorCode.none)
