"""ListTransactions (KIP-664, KIP-994, KIP-1152): the transactional ids that this node coordinates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.list_transactions.v2.response import ListTransactionsResponse, TransactionState

from service.base.errors import RequestError
from service.base.slices import Slice
from service.base.steps import Steps
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed
from service.serving.request_host import NO_THROTTLE, Broker
from service.serving.transactional_requests import coordinator_of
from service.transactions.listing import TransactionFilter, transaction_filter
from service.transactions.requests import ListedTransaction

if TYPE_CHECKING:
    from service.coordinator.runtime import Runtime
    from service.transactions.shard import TransactionShard


async def handle(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """Return the ids that match the filters, of all partitions that this node coordinates, and that the
    client may describe.

    COORDINATOR_LOAD_IN_PROGRESS while any of them is being loaded: the list would be incomplete.
    """
    piece = Slice()
    try:
        runtime = coordinator_of(broker).runtime
        if runtime.is_loading:
            raise RequestError(ErrorCode.coordinator_load_in_progress)
        wanted = await piece.go_on(
            transaction_filter(
                request.producer_id_filters,
                request.state_filters,
                request.duration_filter,
                request.transactional_id_pattern,
            )
        )
        found = await piece.go_on(_found(broker, context, runtime, wanted))
    except RequestError as e:
        return _answer(e.code)
    rows = []
    for one in found:
        name = one.transactional_id
        if wanted.takes_long(name) and not await broker.search_thread(
            partial(wanted.pattern.fullmatch, name)
        ):
            continue
        if piece.is_over():
            await piece.next_turn()
        rows.append(
            TransactionState(transactional_id=name, producer_id=one.producer_id, transaction_state=one.state)
        )
    return _answer(ErrorCode.none, wanted.unknown_states, tuple(rows))


def _found(
    broker: Broker, context: RequestContext, runtime: Runtime[TransactionShard], wanted: TransactionFilter
) -> Steps[list[ListedTransaction]]:
    """Return the ids that the client may describe. Raises `RequestError`."""
    found: list[ListedTransaction] = []
    resource = AclResourceType.TRANSACTIONAL_ID
    for partition in runtime.partitions():
        yield
        try:
            steps = runtime.read(partition, lambda shard, now_ms: shard.list_transactions(wanted, now_ms))
        except RequestError as e:
            if e.code is ErrorCode.not_coordinator:
                continue
            raise
        for one in (yield from steps):
            yield
            if is_allowed(broker, context, AclOperation.DESCRIBE, resource, one.transactional_id, quiet=True):
                found.append(one)
    return found


def _answer(
    error: ErrorCode, unknown: tuple[str, ...] = (), rows: tuple[TransactionState, ...] = ()
) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        unknown_state_filters=unknown,
        transaction_states=rows,
    )
