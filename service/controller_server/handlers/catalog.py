"""CommitCatalog, an API of Firn's own: brokers change the remote catalog, or use it as a barrier."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.controller_client import remote_log_catalog
from service.controller_server.request_host import ControllerSide
from service.metadata.controller.requests import ZERO_UUID, CatalogSender
from service.network.request import RequestContext
from service.remote.catalog import CatalogResult
from service.wire.catalog import MAX_COMMITS, CommitCatalogRequest, CommitCatalogResponse


def refuse(context: RequestContext, request: Any, code: ErrorCode, message: str) -> CommitCatalogResponse:
    """Return the response to a request that is refused as a whole."""
    refused: CommitCatalogResponse = remote_log_catalog.error_response(code)
    return refused


async def handle(
    side: ControllerSide, context: RequestContext, request: CommitCatalogRequest
) -> CommitCatalogResponse:
    """Handle CommitCatalog: respond with a result per commit, or with one error for the whole request.

    Those are NOT_CONTROLLER, STALE_BROKER_EPOCH and INVALID_REQUEST."""
    sender = CatalogSender(request.broker_id, request.broker_epoch)
    controller = side.controller
    try:
        if len(request.forgotten_topics) > MAX_COMMITS:
            raise RequestError(ErrorCode.invalid_request, f"{len(request.forgotten_topics)} topics to forget")
        loaded = remote_log_catalog.loaded_of(request)
        commits = remote_log_catalog.commits_of(request, lambda topic_id: _topic_name(side, topic_id))
        results: list[CatalogResult] = []
        offset = -1
        if request.forgotten_topics:
            forgotten = [one or ZERO_UUID for one in request.forgotten_topics]
            await controller.catalog.forget_topics(forgotten, sender=sender)
        if loaded:
            await controller.catalog.tails_loaded(loaded, sender=sender)
        if commits or not (request.forgotten_topics or loaded):
            results, offset = await controller.catalog.commit_from(sender, commits)
        else:
            offset = side.image.offset  # what the request told of is committed
    except RequestError as e:
        refused: CommitCatalogResponse = remote_log_catalog.error_response(e.code)
        return refused
    return remote_log_catalog.response_of(results, offset)


def _topic_name(side: ControllerSide, topic_id: UUID) -> str | None:
    topic = side.image.topics_by_id.get(topic_id)
    return None if topic is None else topic.name
