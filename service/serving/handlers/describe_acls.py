"""DescribeAcls: the access control entries that a filter matches, from the node's image."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_acls.v3.response import AclDescription, DescribeAclsResource, DescribeAclsResponse
from kio.schema.errors import ErrorCode

from service.base.slices import in_slices
from service.base.steps import Steps
from service.metadata.controller.acl_control import describe_acls
from service.metadata.controller.acl_filters import AclFilter
from service.metadata.image import MetadataImage
from service.network.request import RequestContext
from service.security.authorizer import Authorizer
from service.serving.request_host import NO_THROTTLE


class AclHost(Protocol):
    """Interface of a node, broker or controller, to this handler."""

    @property
    def image(self) -> MetadataImage: ...
    @property
    def authorizer(self) -> Authorizer | None: ...


def handle(
    host: AclHost, context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse | Awaitable[DescribeAclsResponse]:
    """Return the matching entries by resource pattern; SECURITY_DISABLED without an authorizer."""
    if host.authorizer is None:
        return DescribeAclsResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.security_disabled,
            error_message="No Authorizer is configured on the broker",
            resources=(),
        )
    return in_slices(_steps(host.image, request))


def _steps(image: MetadataImage, request: DescribeAclsRequest) -> Steps[DescribeAclsResponse]:
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    found: dict[tuple[int, str, int], list[AclDescription]] = {}
    for entry in (yield from describe_acls(image, wanted)):
        yield
        found.setdefault(entry[:3], []).append(
            AclDescription(
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
        )
    resources = []
    for (resource_type, name, pattern), entries in found.items():
        yield
        resources.append(
            DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern,
                acls=tuple(entries),
            )
        )
    return DescribeAclsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message="",
        resources=tuple(resources),
    )
