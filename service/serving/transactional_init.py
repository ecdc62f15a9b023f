"""InitProducerId of a transactional producer, loaded with the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

from service.base.errors import RequestError
from service.coordinator.shard import CoordinatorResult
from service.network.request import RequestContext
from service.security.change_audit import Requester, tell
from service.serving.change_words import terminated_transaction
from service.serving.request_host import Broker
from service.serving.transactional_requests import decided, error_for, max_timeout_ms
from service.transactions.init import check_init
from service.transactions.requests import NO_PRODUCER, InitTransactions, TransactionalProducer
from service.wire.schema import millis

if TYPE_CHECKING:
    from service.transactions.metadata import TransactionMetadata
    from service.transactions.shard import TransactionShard

_FENCED_SINCE: Final = 4


async def init_producer_id(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> TransactionalProducer:
    """Return the producer of a transactional id, and fence the one before. Raises `RequestError`."""
    assert request.transactional_id is not None
    version = context.api_version
    asked = InitTransactions(
        request.transactional_id,
        millis(request.transaction_timeout),
        TransactionalProducer(request.producer_id, request.producer_epoch),
    )
    ended: TransactionMetadata | None = None

    def decide(
        shard: TransactionShard, fresh_id: int | None, now_ms: int
    ) -> CoordinatorResult[TransactionalProducer]:
        nonlocal ended
        before = shard.ids.newest(asked.transactional_id)
        result = shard.init_producer_id(asked, fresh_id, now_ms)
        ended = before if isinstance(result.response, RequestError) else None
        return result

    try:
        check_init(asked, max_timeout_ms(broker.config.transactions))
        return await decided(broker, asked.transactional_id, decide)
    except RequestError as e:
        is_another = asked.producer == NO_PRODUCER and e.code is ErrorCode.concurrent_transactions
        if ended is not None and is_another:
            change = terminated_transaction(asked.transactional_id, ended.producer_id, ended.producer_epoch)
            tell(change, Requester.of(context.session, context.client_id))
        raise RequestError(error_for(e.code, version, _FENCED_SINCE), e.message or "") from e
