"""DescribeDelegationToken (KIP-48): tokens of the image, with their HMACs, that the client may see.

Those in which it has a part; others if it may DESCRIBE the token, or DESCRIBE_TOKENS of the owner.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from kio.schema.describe_delegation_token.v3.request import DescribeDelegationTokenRequest
from kio.schema.describe_delegation_token.v3.response import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenResponse,
)
from kio.schema.errors import ErrorCode

from service.base.slices import in_slices
from service.base.steps import Steps
from service.config.settings import BrokerConfig
from service.metadata.controller.token_control import describe_tokens
from service.metadata.image import MetadataImage
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.security.tokens import DelegationToken, TokenSecret, token_rules
from service.serving.authorization import AuthorizerHost, is_allowed
from service.serving.request_host import NO_THROTTLE
from service.serving.token_requests import may_ask_for_tokens


class DescribingHost(AuthorizerHost, Protocol):
    """Interface of a node, broker or controller, to this handler."""

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def image(self) -> MetadataImage: ...


def handle(
    host: DescribingHost, context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse | Awaitable[DescribeDelegationTokenResponse]:
    """Return the tokens of the named owners, all if the owners are null, none if they are empty.

    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED as `may_ask_for_tokens`, DELEGATION_TOKEN_AUTH_DISABLED without a
    key.
    """
    if not may_ask_for_tokens(context.session):
        return _response(ErrorCode.delegation_token_request_not_allowed)
    secret = token_rules(host.config.tokens).secret
    if secret is None:
        return _response(ErrorCode.delegation_token_auth_disabled)
    if request.owners is not None and not request.owners:
        return _response()
    return in_slices(_steps(host, context, request, secret))


def _steps(
    host: DescribingHost,
    context: RequestContext,
    request: DescribeDelegationTokenRequest,
    secret: TokenSecret,
) -> Steps[DescribeDelegationTokenResponse]:
    owners: set[tuple[str, str]] | None = None
    if request.owners is not None:
        owners = set()
        for one in request.owners:
            yield
            owners.add((one.principal_type, one.principal_name))
    asker = context.kept()  # the connection's own is that of the next request by then

    def may_describe(token: DelegationToken) -> bool:
        return is_allowed(
            host, asker, AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, token.id, quiet=True
        ) or is_allowed(
            host, asker, AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, str(token.owner), quiet=True
        )

    found = yield from describe_tokens(host.image.tokens, asker.session.principal, owners, may_describe)
    described = []
    for token in found:
        yield
        described.append(_described(token, secret))
    return _response(tokens=tuple(described))


def _described(token: DelegationToken, secret: TokenSecret) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        principal_type=token.owner.type,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.type,
        token_requester_principal_name=token.requester.name,
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        token_id=token.id,
        hmac=secret.hmac_of(token.id),
        renewers=tuple(
            DescribedDelegationTokenRenewer(principal_type=one.type, principal_name=one.name)
            for one in token.renewers
        ),
    )


def _response(
    code: ErrorCode = ErrorCode.none, tokens: tuple[DescribedDelegationToken, ...] = ()
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=code, tokens=tokens, throttle_time=NO_THROTTLE)
