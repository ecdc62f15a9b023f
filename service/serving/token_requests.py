"""Requests for delegation tokens: who may send them, and answers that refuse them.

A broker checks before it forwards, as it alone knows over what its client came; a controller checks again.

Source: Kafka ``KafkaApis.handleCreateTokenRequest``, ``allowTokenRequests`` of both ``Apis``.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.metadata.controller.token_control import MOST_RENEWERS, TokenWanted, check_principals
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.security.principal import ANONYMOUS, Principal
from service.security.session import Session
from service.serving.authorization import AuthorizerHost, is_allowed
from service.wire.api import ApiKey, millis, response_module


def may_ask_for_tokens(session: Session) -> bool:
    """Return whether the client may send requests for tokens: it has logged in, and not by a token.

    The protocol of a forwarded request's client is not known here: its broker has checked it.
    """
    principal, protocol = session.principal, session.protocol
    if principal.is_token or protocol == "PLAINTEXT":
        return False
    return not (protocol == "SSL" and principal[:2] == ANONYMOUS[:2])


def wanted_token(context: RequestContext, request: Any) -> TokenWanted:
    """Return what a CreateDelegationToken request asks for, of too many renewers only so many that it is
    refused."""
    requester = context.session.principal
    owner = requester
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    named = request.renewers[: MOST_RENEWERS + 1]
    renewers = tuple(Principal(one.principal_type, one.principal_name) for one in named)
    return TokenWanted(owner, requester, renewers, millis(request.max_lifetime))


def refused_by_broker(host: AuthorizerHost, context: RequestContext, request: Any) -> Any | None:
    """Return the answer to a request that a broker refuses before the controller sees it, else None."""
    refused = refused_sender(host, context, request)
    if refused is None and context.api_key == ApiKey.CREATE_DELEGATION_TOKEN:
        wanted = wanted_token(context, request)
        try:
            check_principals(wanted)
        except RequestError as e:
            return not_created(wanted, e.code, None)
    return refused


def refused_sender(host: AuthorizerHost, context: RequestContext, request: Any) -> Any | None:
    """Return the answer to a request to create, renew or expire a token whose sender may not, else None.

    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED as `may_ask_for_tokens`; DELEGATION_TOKEN_AUTHORIZATION_FAILED for a
    token of somebody else without CREATE_TOKENS on that user.
    """
    is_creation = context.api_key == ApiKey.CREATE_DELEGATION_TOKEN
    if not may_ask_for_tokens(context.session):
        code = ErrorCode.delegation_token_request_not_allowed
        if is_creation:
            return not_created(wanted_token(context, request), code, None)
        return changed(context.api_key, code, None)
    if is_creation:
        wanted = wanted_token(context, request)
        if wanted.owner[:2] != wanted.requester[:2] and not is_allowed(
            host, context, AclOperation.CREATE_TOKENS, AclResourceType.USER, str(wanted.owner)
        ):
            return not_created(wanted, ErrorCode.delegation_token_authorization_failed, None)
    return None


def not_created(wanted: TokenWanted, code: ErrorCode, time_ms: int | None) -> Any:
    """Return the response to a refused CreateDelegationToken. `time_ms`: in place of times; None for -1."""
    return creation(wanted.owner, wanted.requester, code, (time_ms, time_ms, time_ms))


def creation(
    owner: Principal,
    requester: Principal,
    code: ErrorCode,
    times_ms: tuple[int | None, int | None, int | None],
    token_id: str = "",
    hmac: bytes = b"",
) -> Any:
    """Return a CreateDelegationToken response. `times_ms`: of issue, of expiry, and the last one."""
    issue_ms, expiry_ms, max_ms = times_ms
    return response_module(ApiKey.CREATE_DELEGATION_TOKEN).CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp=issue_ms,
        expiry_timestamp=expiry_ms,
        max_timestamp=max_ms,
        token_id=token_id,
        hmac=hmac,
        throttle_time=0,
    )


def changed(api_key: int, code: ErrorCode, expiry_ms: int | None) -> Any:
    """Return the response to RenewDelegationToken or ExpireDelegationToken; `expiry_ms` None for -1."""
    module = response_module(api_key)
    is_renewal = api_key == ApiKey.RENEW_DELEGATION_TOKEN
    made = module.RenewDelegationTokenResponse if is_renewal else module.ExpireDelegationTokenResponse
    return made(error_code=code, expiry_timestamp=expiry_ms, throttle_time=0)
