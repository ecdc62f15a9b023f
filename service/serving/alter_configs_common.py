"""What both requests that alter configurations share: a bound, and a refusal that each resource hears."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import each_in_slices
from service.metadata.controller.decision import EXCESSIVE
from service.metadata.controller.requests import MAX_RECORDS_PER_OPERATION, AlterResourceResult


class Resource(Protocol):
    """As it was asked for, in either request."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


async def alter_each(
    resources: Sequence[Resource], alter: Callable[[], Awaitable[Sequence[AlterResourceResult]]]
) -> Sequence[AlterResourceResult]:
    """What `alter` answers; where it refuses the request, that for each of its resources.

    More than an operation of the controller may write is refused before it is looked at: POLICY_VIOLATION.
    """
    try:
        if len(resources) > MAX_RECORDS_PER_OPERATION:
            raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
        return await alter()
    except RequestError as e:
        code, message = e.code, e.message
        return await each_in_slices(
            lambda one: AlterResourceResult(one.resource_type, one.resource_name, code, message), resources
        )
