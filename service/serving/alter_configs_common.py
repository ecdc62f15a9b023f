"""Parts that AlterConfigs and IncrementalAlterConfigs share: an upper bound, and one error per resource."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import Slice, each_in_slices
from service.metadata.controller.decision import EXCESSIVE
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    AlterResourceResult,
    ResourceType,
)
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import check_config
from service.serving.ports import AdminHost


class Resource(Protocol):
    """A configuration resource in either request."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


R = TypeVar("R", bound=Resource)


async def alter_each(
    host: AdminHost,
    context: RequestContext,
    resources: Sequence[R],
    alter: Callable[[Sequence[R]], Awaitable[Sequence[AlterResourceResult]]],
) -> Sequence[AlterResourceResult]:
    """Return the results of `alter` for the resources that the client may alter, then the errors of others.
    If it refuses the whole request, return its error for each resource.

    More resources than one operation of the controller may write are refused unread: POLICY_VIOLATION.
    """
    try:
        if len(resources) > MAX_RECORDS_PER_OPERATION:
            raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
        allowed, denied = await _asked(host, context, resources)
        return [*(await alter(allowed)), *denied] if allowed or not denied else denied
    except RequestError as e:
        code, message = e.code, e.message
        return await each_in_slices(
            lambda one: AlterResourceResult(one.resource_type, one.resource_name, code, message), resources
        )


async def _asked(
    host: AdminHost, context: RequestContext, resources: Sequence[R]
) -> tuple[Sequence[R], list[AlterResourceResult]]:
    """Return the resources that the client may alter, and the errors of the others. One that is named twice
    is refused for that, whoever names it."""
    if host.authorizer is None:
        return resources, []
    piece, allowed, denied = Slice(), [], []
    times = Counter((one.resource_type, one.resource_name) for one in resources)
    for one in resources:
        if piece.is_over():
            await piece.next_turn()
        kind, name = one.resource_type, one.resource_name
        operation = host.alters_loggers if kind == ResourceType.BROKER_LOGGER else AclOperation.ALTER_CONFIGS
        try:
            if times[kind, name] == 1:
                check_config(host, context, operation, kind, name)
            allowed.append(one)
        except RequestError as e:
            words = None if kind == ResourceType.BROKER_LOGGER else e.message
            denied.append(AlterResourceResult(kind, name, e.code, words))
    return allowed, denied
