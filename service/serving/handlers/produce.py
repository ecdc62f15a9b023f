"""Produce: appends batches to the partitions that this node leads (`serving/produce_operation.py`)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from service.base.steps import at_once
from service.network.request import Answer, RequestContext
from service.serving.produce_operation import (
    MOST_AT_ONCE,
    ProduceBudget,
    ProduceOperation,
    without_repeats,
)
from service.serving.request_host import Broker
from service.wire.produce import ProduceRequestView

if TYPE_CHECKING:
    from service.serving.transaction_coordinators import TransactionCoordinators


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequestView
) -> Answer | Awaitable[Answer]:
    """Append each batch, with its own error. Returns None for acks=0: no response."""
    topics = request.topics
    if request.transactional_id is not None and broker.transactions is not None:
        module = broker.transactions.produce_module
        if module is None:
            return _load_and_handle(broker, broker.transactions, context, request)
        begun: Answer | Awaitable[Answer] = module.TransactionalProduce(broker, context, request).begin(
            topics
        )
        return begun
    produce = ProduceOperation(broker, context, request)
    if len(topics) == 1 and len(topics[0][1]) == 1:
        produce.topics = topics
        return produce.append_at_once()
    if sum([len(partitions) for _, partitions in topics]) > MOST_AT_ONCE:
        return produce.append_in_slices(topics)
    produce.budget = ProduceBudget(broker)
    produce.topics = at_once(without_repeats(topics))
    if at_once(produce.refuse_transactional()):
        return produce.answer()
    return produce.append_at_once()


async def _load_and_handle(
    broker: Broker,
    transactions: TransactionCoordinators,
    context: RequestContext,
    request: ProduceRequestView,
) -> Answer:
    """Handle the first request of a transaction: a node without them does without the code."""
    transactions.produce_module = await broker.load("service.serving.transactional_produce")
    answer = handle(broker, context, request)
    return await answer if isinstance(answer, Awaitable) else answer
