"""CommitCatalog, an API of Firn's own: brokers change the remote catalog, or use it as a barrier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.controller_client import remote_log_catalog, rewrite_messages
from service.controller_server.request_host import ControllerSide
from service.metadata.controller.remote_catalog import ControllerCatalog
from service.metadata.controller.requests import ZERO_UUID, CatalogSender
from service.network.request import RequestContext
from service.remote.catalog import CatalogResult, RewriteAnswer
from service.wire.catalog import (
    MAX_COMMITS,
    CatalogErasure,
    CommitCatalogRequest,
    CommitCatalogResponse,
    OrderOp,
)


def refuse(context: RequestContext, request: Any, code: ErrorCode, message: str) -> CommitCatalogResponse:
    """Return the response to a request that is refused as a whole."""
    refused: CommitCatalogResponse = remote_log_catalog.error_response(code)
    return refused


async def handle(
    side: ControllerSide, context: RequestContext, request: CommitCatalogRequest
) -> CommitCatalogResponse:
    """Handle CommitCatalog: respond with a result per commit, or with one error for the whole request.

    Those are NOT_CONTROLLER, STALE_BROKER_EPOCH and INVALID_REQUEST; of rewrites and erasures, too,
    UNSUPPORTED_VERSION below their level, and what `erase_control.start_erasure` raises.
    """
    sender = CatalogSender(request.broker_id, request.broker_epoch)
    controller = side.controller
    try:
        if len(request.forgotten_topics) > MAX_COMMITS:
            raise RequestError(ErrorCode.invalid_request, f"{len(request.forgotten_topics)} topics to forget")
        loaded = remote_log_catalog.loaded_of(request)
        commits = remote_log_catalog.commits_of(request, lambda topic_id: _topic_name(side, topic_id))
        rewrites = rewrite_messages.rewrites_of(request, lambda topic_id: _topic_name(side, topic_id))
        erased = rewrite_messages.erased_of(request)
        erasures = rewrite_messages.erasures_of(request)
        told = (request.forgotten_topics, loaded, rewrites, erased, erasures)
        results: list[CatalogResult] = []
        answers: list[RewriteAnswer] = []
        offset = -1
        if request.forgotten_topics:
            forgotten = [one or ZERO_UUID for one in request.forgotten_topics]
            await controller.catalog.forget_topics(forgotten, sender=sender)
        if loaded:
            await controller.catalog.tails_loaded(loaded, sender=sender)
        if rewrites:
            answers = await controller.catalog.change_rewrites(rewrites, sender=sender)
        if erased:
            await controller.catalog.note_erased_from(sender, erased)
        for change in erasures:
            await _change_erasure(controller.catalog, change, sender)
        if commits or not any(told):
            results, offset = await controller.catalog.commit_from(sender, commits)
        else:
            offset = side.image.offset  # what the request told of is committed
    except RequestError as e:
        refused: CommitCatalogResponse = remote_log_catalog.error_response(e.code, e.message)
        return refused
    response = remote_log_catalog.response_of(results, offset)
    return replace(response, rewrite_answers=rewrite_messages.answer_numbers(answers))


async def _change_erasure(catalog: ControllerCatalog, change: CatalogErasure, sender: CatalogSender) -> None:
    erasure_id = change.id or ZERO_UUID
    if change.op == OrderOp.STARTED:
        await catalog.start_erasure(rewrite_messages.started_of(change), sender=sender)
    elif change.op == OrderOp.DONE:
        await catalog.finish_erasure(erasure_id, change.done_ms, sender=sender)
    else:
        await catalog.remove_erasure(erasure_id, sender=sender)


def _topic_name(side: ControllerSide, topic_id: UUID) -> str | None:
    topic = side.image.topics_by_id.get(topic_id)
    return None if topic is None else topic.name
