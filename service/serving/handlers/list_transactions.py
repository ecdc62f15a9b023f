"""ListTransactions (KIP-664, KIP-994, KIP-1152): the transactional ids that this node coordinates."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.list_transactions.v2.response import ListTransactionsResponse, TransactionState

from service.base.errors import RequestError
from service.base.slices import in_slices
from service.base.steps import Steps
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed
from service.serving.request_host import NO_THROTTLE, Broker
from service.serving.transactional_requests import coordinator_of
from service.transactions.listing import transaction_filter
from service.transactions.requests import ListedTransaction


def handle(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse | Awaitable[ListTransactionsResponse]:
    """Return the ids that match the filters, of all partitions that this node coordinates, and that the
    client may describe.

    COORDINATOR_LOAD_IN_PROGRESS while any of them is being loaded: the list would be incomplete.
    """
    return in_slices(_steps(broker, context, request))


def _steps(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest
) -> Steps[ListTransactionsResponse]:
    try:
        runtime = coordinator_of(broker).runtime
        if runtime.is_loading:
            raise RequestError(ErrorCode.coordinator_load_in_progress)
        wanted = transaction_filter(
            request.producer_id_filters,
            request.state_filters,
            request.duration_filter,
            request.transactional_id_pattern,
        )
    except RequestError as e:
        return _answer(e.code)
    found: list[ListedTransaction] = []
    for partition in runtime.partitions():
        yield
        try:
            steps = runtime.read(partition, lambda shard, now_ms: shard.list_transactions(wanted, now_ms))
        except RequestError as e:
            if e.code is ErrorCode.not_coordinator:
                continue
            return _answer(e.code)
        found += yield from steps
    rows = []
    resource = AclResourceType.TRANSACTIONAL_ID
    for name, producer_id, state in found:
        yield
        if is_allowed(broker, context, AclOperation.DESCRIBE, resource, name, quiet=True):
            rows.append(
                TransactionState(transactional_id=name, producer_id=producer_id, transaction_state=state)
            )
    return _answer(ErrorCode.none, wanted.unknown_states, tuple(rows))


def _answer(
    error: ErrorCode, unknown: tuple[str, ...] = (), rows: tuple[TransactionState, ...] = ()
) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        unknown_state_filters=unknown,
        transaction_states=rows,
    )
