"""DescribeUserScramCredentials (KIP-554): mechanisms and iterations of users' credentials, from the image."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.response import (
    CredentialInfo,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from kio.schema.errors import ErrorCode

from service.base.slices import in_slices
from service.base.steps import Steps
from service.metadata.controller.scram_control import describe_scram_credentials
from service.metadata.image import MetadataImage
from service.network.request import RequestContext
from service.serving.request_host import NO_THROTTLE


class CredentialHost(Protocol):
    """Interface of a node, broker or controller, to this handler."""

    @property
    def image(self) -> MetadataImage: ...


def handle(
    host: CredentialHost, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse | Awaitable[DescribeUserScramCredentialsResponse]:
    """Return the credentials of the named users, of all users if the request names none.

    DUPLICATE_RESOURCE for a user that is named twice, RESOURCE_NOT_FOUND for one without credentials.
    """
    return in_slices(_steps(host.image, request))


def _steps(
    image: MetadataImage, request: DescribeUserScramCredentialsRequest
) -> Steps[DescribeUserScramCredentialsResponse]:
    users = None if request.users is None else [one.name for one in request.users]
    results = []
    for user, code, message, credentials in (yield from describe_scram_credentials(image, users)):
        yield
        results.append(
            DescribeUserScramCredentialsResult(
                user=user,
                error_code=code,
                error_message="" if code is ErrorCode.none else message,
                credential_infos=tuple(
                    CredentialInfo(mechanism=one.mechanism, iterations=one.iterations) for one in credentials
                ),
            )
        )
    return DescribeUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message="",
        results=tuple(results),
    )
