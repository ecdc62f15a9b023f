"""Produce: appends batches to the partitions that this node leads (`serving/produce_operation.py`)."""

from __future__ import annotations

from collections.abc import Awaitable

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


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequestView
) -> Answer | Awaitable[Answer]:
    """Append each batch, with its own error. Returns None for acks=0: no response."""
    topics = request.topics
    if request.transactional_id is not None and broker.transactions is not None:
        from service.serving.transactional_produce import TransactionalProduce  # most nodes do without it

        return TransactionalProduce(broker, context, request).begin(topics)
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
