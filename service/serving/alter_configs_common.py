"""Parts that AlterConfigs and IncrementalAlterConfigs share: an upper bound, and one error per resource."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import each_in_slices
from service.metadata.controller.decision import EXCESSIVE
from service.metadata.controller.requests import MAX_RECORDS_PER_OPERATION, AlterResourceResult


class Resource(Protocol):
    """A configuration resource in either request."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


async def alter_each(
    resources: Sequence[Resource], alter: Callable[[], Awaitable[Sequence[AlterResourceResult]]]
) -> Sequence[AlterResourceResult]:
    """Return the results of `alter`. If it refuses the whole request, return its error for each resource.

    More resources than one operation of the controller may write are refused unread: POLICY_VIOLATION.
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
