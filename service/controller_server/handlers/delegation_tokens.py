"""CreateDelegationToken, RenewDelegationToken and ExpireDelegationToken (KIP-48)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.controller_server.request_host import ControllerSide
from service.network.request import RequestContext
from service.security.change_audit import Requester, tell
from service.security.tokens import DelegationToken, token_rules
from service.serving.change_words import changed_token
from service.serving.token_requests import (
    changed,
    creation,
    not_created,
    refused_sender,
    wanted_token,
)
from service.wire.api import ApiKey, millis
from service.wire.refusals import refusal

_OF_THE_CONTROLLER: Final = frozenset({ErrorCode.not_controller, ErrorCode.request_timed_out})
"""Errors that do not come of the decision: the answer says nothing of the request."""


async def create(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle CreateDelegationToken: create a token of the sender, or of somebody whose tokens it may
    create."""
    if (refused := refused_sender(side, context, request)) is not None:
        return refused
    context = context.kept()
    wanted, api_key = wanted_token(context, request), context.api_key
    try:
        token = await side.controller.access.tokens.create(wanted)
    except RequestError as e:
        if e.code in _OF_THE_CONTROLLER:
            return refusal(api_key, request, e.code)
        return not_created(wanted, e.code, 0)
    secret = token_rules(side.config.tokens).secret
    assert secret is not None  # or no token is created
    _tell(context, "created", token)
    times_ms = (token.issue_ms, token.expiry_ms, token.max_ms)
    return creation(
        wanted.owner, wanted.requester, ErrorCode.none, times_ms, token.id, secret.hmac_of(token.id)
    )


async def renew(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle RenewDelegationToken: let a token of the sender end later."""
    if (refused := refused_sender(side, context, request)) is not None:
        return refused
    context, tokens = context.kept(), side.controller.access.tokens
    change = tokens.renew(bytes(request.hmac), context.session.principal, millis(request.renew_period))
    return await _changed(context, change)


async def expire(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle ExpireDelegationToken: let a token of the sender end at another time, or now."""
    if (refused := refused_sender(side, context, request)) is not None:
        return refused
    context, tokens = context.kept(), side.controller.access.tokens
    period_ms = millis(request.expiry_time_period)
    return await _changed(context, tokens.expire(bytes(request.hmac), context.session.principal, period_ms))


async def _changed(context: RequestContext, change: Awaitable[DelegationToken]) -> Any:
    try:
        token = await change
    except RequestError as e:
        return changed(context.api_key, e.code, 0)
    is_renewal = context.api_key == ApiKey.RENEW_DELEGATION_TOKEN
    _tell(context, "renewed" if is_renewal else "expired", token)
    return changed(context.api_key, ErrorCode.none, token.expiry_ms)


def _tell(context: RequestContext, what: str, token: DelegationToken) -> None:
    tell(changed_token(what, token), Requester.of(context.session, context.client_id))
