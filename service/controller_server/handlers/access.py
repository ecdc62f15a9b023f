"""CreateAcls, DeleteAcls, AlterClientQuotas and AlterUserScramCredentials.

A refusal of the whole request is in each element of the response, as Kafka's ``getErrorResponse`` has it.
"""

from __future__ import annotations

from typing import Any

from kio.schema.alter_client_quotas.v1 import request as quota_request
from kio.schema.alter_client_quotas.v1 import response as quotas
from kio.schema.alter_user_scram_credentials.v0 import request as scram_request
from kio.schema.alter_user_scram_credentials.v0 import response as scram
from kio.schema.create_acls.v3 import request as creating
from kio.schema.create_acls.v3 import response as created
from kio.schema.delete_acls.v3 import request as deleting
from kio.schema.delete_acls.v3 import response as deleted
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import each_in_slices
from service.controller_server.request_host import ControllerSide
from service.metadata.controller.acl_control import AclDeletion, AclResult
from service.metadata.controller.acl_filters import AclFilter
from service.metadata.controller.quota_control import AlterQuotaResult, QuotaAlteration
from service.metadata.controller.scram_control import (
    AlterCredentialResult,
    DeleteCredential,
    UpsertCredential,
)
from service.network.request import RequestContext
from service.security.acls import AclEntry
from service.serving.change_audit import audited
from service.serving.change_words import changed_credentials, changed_quotas, created_acls, deleted_acls
from service.serving.request_host import NO_THROTTLE
from service.wire.api import ApiKey
from service.wire.refusals import refusal

_DISABLED = "No Authorizer is configured."


@audited(created_acls)
async def create_acls(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle CreateAcls: create the valid entries; SECURITY_DISABLED without an authorizer."""
    if side.authorizer is None:
        return refusal(ApiKey.CREATE_ACLS, request, ErrorCode.security_disabled, _DISABLED)
    entries = await each_in_slices(_entry, request.creations)
    try:
        results = await side.controller.access.create_acls(entries)
    except RequestError as e:
        return refusal(ApiKey.CREATE_ACLS, request, e.code, e.message)
    return created.CreateAclsResponse(
        throttle_time=NO_THROTTLE, results=tuple(await each_in_slices(_created, results))
    )


def _entry(one: creating.AclCreation) -> AclEntry:
    return AclEntry(
        one.resource_type,
        one.resource_name,
        one.resource_pattern_type,
        one.principal,
        one.host,
        one.operation,
        one.permission_type,
    )


def _created(one: AclResult) -> created.AclCreationResult:
    words = "" if one.error is ErrorCode.none else one.message
    return created.AclCreationResult(error_code=one.error, error_message=words)


@audited(deleted_acls)
async def delete_acls(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle DeleteAcls: delete what any filter matches; SECURITY_DISABLED without an authorizer."""
    if side.authorizer is None:
        return refusal(ApiKey.DELETE_ACLS, request, ErrorCode.security_disabled, _DISABLED)
    filters = await each_in_slices(_filter, request.filters)
    try:
        results = await side.controller.access.delete_acls(filters)
    except RequestError as e:
        return refusal(ApiKey.DELETE_ACLS, request, e.code, e.message)
    return deleted.DeleteAclsResponse(
        throttle_time=NO_THROTTLE, filter_results=tuple([await _deleted(one) for one in results])
    )


def _filter(one: deleting.DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        one.resource_type_filter,
        one.resource_name_filter,
        one.pattern_type_filter,
        one.principal_filter,
        one.host_filter,
        one.operation,
        one.permission_type,
    )


async def _deleted(one: AclDeletion) -> deleted.DeleteAclsFilterResult:
    return deleted.DeleteAclsFilterResult(
        error_code=one.error,
        error_message=one.message,
        matching_acls=tuple(await each_in_slices(_matching, one.deleted)),
    )


def _matching(entry: AclEntry) -> deleted.DeleteAclsMatchingAcl:
    return deleted.DeleteAclsMatchingAcl(
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=entry.resource_type,
        resource_name=entry.name,
        pattern_type=entry.pattern,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


@audited(changed_quotas)
async def alter_client_quotas(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle AlterClientQuotas: change the quotas of each entity, or refuse them."""
    alterations = await each_in_slices(_alteration, request.entries)
    try:
        results = await side.controller.access.alter_client_quotas(
            alterations, validate_only=request.validate_only
        )
    except RequestError as e:
        return refusal(ApiKey.ALTER_CLIENT_QUOTAS, request, e.code, e.message)
    return quotas.AlterClientQuotasResponse(
        throttle_time=NO_THROTTLE, entries=tuple(await each_in_slices(_altered, results))
    )


def _alteration(one: quota_request.EntryData) -> QuotaAlteration:
    parts = tuple((part.entity_type, part.entity_name) for part in one.entity)
    return QuotaAlteration(parts, tuple((op.key, None if op.remove else op.value) for op in one.ops))


def _altered(one: AlterQuotaResult) -> quotas.EntryData:
    return quotas.EntryData(
        error_code=one.error,
        error_message=one.message,
        entity=tuple(quotas.EntityData(entity_type=kind, entity_name=name) for kind, name in one.parts),
    )


@audited(changed_credentials)
async def alter_scram_credentials(side: ControllerSide, context: RequestContext, request: Any) -> Any:
    """Handle AlterUserScramCredentials: change the credentials of each user, or refuse them."""
    deletions = await each_in_slices(_deletion, request.deletions)
    upsertions = await each_in_slices(_upsertion, request.upsertions)
    try:
        results = await side.controller.access.alter_scram_credentials(deletions, upsertions)
    except RequestError as e:
        return refusal(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, e.code, e.message)
    return scram.AlterUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE, results=tuple(await each_in_slices(_altered_user, results))
    )


def _deletion(one: scram_request.ScramCredentialDeletion) -> DeleteCredential:
    return DeleteCredential(one.name, one.mechanism)


def _upsertion(one: scram_request.ScramCredentialUpsertion) -> UpsertCredential:
    return UpsertCredential(one.name, one.mechanism, one.iterations, one.salt, one.salted_password)


def _altered_user(one: AlterCredentialResult) -> scram.AlterUserScramCredentialsResult:
    return scram.AlterUserScramCredentialsResult(
        user=one.user, error_code=one.error, error_message=one.message
    )
