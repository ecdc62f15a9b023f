"""Questions of request handlers to their node's authorizer, and what a row of a table asks by itself.

Without an authorizer everything is allowed. Handlers ask before they look at what exists, so that a refusal
is the same for what there is and what there is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import Slice
from service.base.steps import Steps
from service.network.request import RequestContext
from service.security.operations import CLUSTER_NAME, SUPPORTED, AclOperation, AclResourceType
from service.wire.refusals import refusal

if TYPE_CHECKING:
    from service.security.authorizer import Authorizer

T = TypeVar("T")

Refuse = Callable[[RequestContext, Any, ErrorCode, str], Any]
"""Makes the response to a request that is refused as a whole."""

DENIED_MESSAGES: Final = {
    ErrorCode.topic_authorization_failed: "Topic authorization failed.",
    ErrorCode.group_authorization_failed: "Group authorization failed.",
    ErrorCode.cluster_authorization_failed: "Cluster authorization failed.",
}
"""Kafka's messages of the errors, where a response has one."""
DENIED: Final = {
    AclResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    AclResourceType.GROUP: ErrorCode.group_authorization_failed,
    AclResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    AclResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}
NOT_ASKED: Final = -(1 << 31)
"""Authorized operations in a response to a request that did not ask for them."""


class AuthorizerHost(Protocol):
    """Interface of a node, broker or controller, to what asks its authorizer."""

    @property
    def authorizer(self) -> Authorizer | None:
        """The authorizer; None: everything is allowed."""


class Authorization(Enum):
    """Authorization of a row whose check is not made before its handler."""

    ASKS_ITSELF = auto()
    """the handler asks, since the names are in the request"""
    BY_CONTROLLER = auto()
    """the request goes to the controller, which asks for the session that the Envelope names"""
    NOTHING = auto()
    """nobody has to be allowed it: versions, logins"""


def _refuse(context: RequestContext, request: Any, code: ErrorCode, message: str) -> Any:
    return refusal(context.api_key, request, code, message)


def refuse_without_words(context: RequestContext, request: Any, code: ErrorCode, message: str) -> Any:
    """Return the response with the error alone, as Kafka's of some APIs."""
    return refusal(context.api_key, request, code)


def refuse_shortly(context: RequestContext, request: Any, code: ErrorCode, message: str) -> Any:
    """Return the response with the error and its own words, as Kafka's of some APIs."""
    return refusal(context.api_key, request, code, DENIED_MESSAGES.get(code, message))


class OfCluster(NamedTuple):
    """An operation on the cluster that the whole request takes; `refuse` makes the response without it."""

    operation: AclOperation
    refuse: Refuse = _refuse


Authorizes = Authorization | OfCluster

ASKS_ITSELF: Final = Authorization.ASKS_ITSELF
BY_CONTROLLER: Final = Authorization.BY_CONTROLLER
NOTHING: Final = Authorization.NOTHING


def asking(
    handle: Callable[[Any, RequestContext, Any], Any], authorizes: Authorizes
) -> Callable[[Any, RequestContext, Any], Any]:
    """Return `handle` behind the check that its row names."""
    if not isinstance(authorizes, OfCluster):
        return handle
    operation, refuse = authorizes

    def ask(host: AuthorizerHost, context: RequestContext, request: Any) -> Any:
        if host.authorizer is not None:
            try:
                check_cluster(host, context, operation)
            except RequestError as e:
                return refuse(context, request, e.code, e.message or "")
        return handle(host, context, request)

    return ask


def is_allowed(
    host: AuthorizerHost,
    context: RequestContext,
    operation: AclOperation,
    resource: AclResourceType,
    name: str,
    *,
    quiet: bool = False,
    count: int = 1,
) -> bool:
    """Return whether the client may do `operation`. `quiet`: a denial is not written to the audit log.
    `count`: how often the request names the resource. Raises `AuthorizerNotReady`.
    """
    authorizer = host.authorizer
    return authorizer is None or authorizer.allows(
        context.session, operation, resource, name, quiet=quiet, api=context.api_key, count=count
    )


def is_allowed_on_cluster(
    host: AuthorizerHost, context: RequestContext, operation: AclOperation, *, quiet: bool = False
) -> bool:
    return is_allowed(host, context, operation, AclResourceType.CLUSTER, CLUSTER_NAME, quiet=quiet)


def check(
    host: AuthorizerHost,
    context: RequestContext,
    operation: AclOperation,
    resource: AclResourceType,
    name: str,
    *,
    count: int = 1,
) -> None:
    """Raise `RequestError` with the resource's error unless the client may do `operation`."""
    if not is_allowed(host, context, operation, resource, name, count=count):
        raise RequestError(DENIED[resource], DENIED_MESSAGES.get(DENIED[resource], ""))


def check_cluster(host: AuthorizerHost, context: RequestContext, operation: AclOperation) -> None:
    """Raise `RequestError` CLUSTER_AUTHORIZATION_FAILED unless the client may do `operation`."""
    if not is_allowed_on_cluster(host, context, operation):
        raise RequestError(DENIED[AclResourceType.CLUSTER], f"The request needs {operation.name} permission.")


TOPIC_CONFIG: Final = 2
GROUP_CONFIG: Final = 32
OTHER_CONFIGS: Final = frozenset({4, 8, 16})
"""Kafka's ``ConfigResource.Type`` of what belongs to the cluster: brokers, their loggers, client metrics."""


def check_config(
    host: AuthorizerHost, context: RequestContext, operation: AclOperation, kind: int, name: str
) -> None:
    """Raise `RequestError`, with Kafka's message, unless the client may do `operation` to a resource that has
    settings. Not for a kind that has none, which is refused for that."""
    if host.authorizer is None:
        return
    resource = AclResourceType.CLUSTER
    if kind in (TOPIC_CONFIG, GROUP_CONFIG):
        resource = AclResourceType.TOPIC if kind == TOPIC_CONFIG else AclResourceType.GROUP
    elif kind in OTHER_CONFIGS:
        name = CLUSTER_NAME
    else:
        return
    if not is_allowed(host, context, operation, resource, name):
        raise RequestError(DENIED[resource], DENIED_MESSAGES[DENIED[resource]])


async def split(items: Sequence[T], is_allowed_one: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Return the items that are allowed, and the others; asks in slices."""
    piece = Slice()
    allowed: list[T] = []
    denied: list[T] = []
    for one in items:
        if piece.is_over():
            await piece.next_turn()
        (allowed if is_allowed_one(one) else denied).append(one)
    return allowed, denied


def refused_group(
    host: AuthorizerHost, context: RequestContext, operation: AclOperation, group_id: str
) -> ErrorCode | None:
    """Return the error of a group of which the client may not do `operation`, else None."""
    if is_allowed(host, context, operation, AclResourceType.GROUP, group_id):
        return None
    return ErrorCode.group_authorization_failed


def topics_allowed(
    host: AuthorizerHost, context: RequestContext, operation: AclOperation, *, quiet: bool = False
) -> Callable[[str], bool] | None:
    """Return the question whether the client may do `operation` to a topic; None without an authorizer. It
    may be asked after the request, too.
    """
    authorizer, session, api = host.authorizer, context.session, context.api_key
    if authorizer is None:
        return None
    return lambda name: authorizer.allows(
        session, operation, AclResourceType.TOPIC, name, quiet=quiet, api=api
    )


def allows_any(
    host: AuthorizerHost, context: RequestContext, operation: AclOperation, resource: AclResourceType
) -> Steps[bool]:
    """Return whether the client may do `operation` to some resource of the type, in steps."""
    authorizer = host.authorizer
    if authorizer is None:
        return True
    return (yield from authorizer.allows_any(context.session, operation, resource, api=context.api_key))


def operations(host: AuthorizerHost, context: RequestContext, resource: AclResourceType, name: str) -> int:
    """Return the bit field of the operations that the client may do to a resource."""
    authorizer = host.authorizer
    if authorizer is None:
        return SUPPORTED[resource]
    return authorizer.allowed_operations(context.session, resource, name)


def cluster_operations(host: AuthorizerHost, context: RequestContext, *, asked: bool) -> int:
    """Return the operations on the cluster as they are told: 0 to a client that may not describe it."""
    if not asked:
        return NOT_ASKED
    if not is_allowed_on_cluster(host, context, AclOperation.DESCRIBE):
        return 0
    return operations(host, context, AclResourceType.CLUSTER, CLUSTER_NAME)
