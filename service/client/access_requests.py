"""Requests about ACLs, SCRAM credentials and client quotas, in plain values. Blocking, on a `Cluster`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.admin import ChangingCluster, Cluster, raise_for
from service.security.acl_index import AclEntry
from service.security.operations import AclOperation, AclPermissionType, AclResourceType, PatternType
from service.wire.api import ApiKey, request_module

_EXACT, _DEFAULT, _SPECIFIED = range(3)
"""Kinds of match of DescribeClientQuotas."""
ANY_NAME: Final = object()
"""Part of a filter of quotas: any name, of an entity that has a part of the type."""


class AclQuery(NamedTuple):
    """Filter of entries; what is not given matches everything (Kafka's ``AclBindingFilter``)."""

    resource_type: int = AclResourceType.ANY
    name: str | None = None
    pattern: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission: int = AclPermissionType.ANY


class RefusedAcl(NamedTuple):
    """An entry that the cluster did not take."""

    entry: AclEntry
    error: RequestError


class UserCredential(NamedTuple):
    """A credential of a user; `mechanism` is Kafka's number."""

    user: str
    mechanism: int
    iterations: int


class QuotaRow(NamedTuple):
    """Quotas of one entity. `parts`: type and name of each part, None for the default of a type."""

    parts: tuple[tuple[str, str | None], ...]
    values: dict[str, float]


# -- ACLs


def describe_acls(cluster: Cluster, query: AclQuery) -> list[AclEntry]:
    """Return the entries that match, sorted."""
    request = request_module(ApiKey.DESCRIBE_ACLS).DescribeAclsRequest(**_filter_fields(query))
    answer = cluster.first.request(ApiKey.DESCRIBE_ACLS, request)
    raise_for(answer.error_code, answer.error_message, "the ACLs")
    found = [
        AclEntry(
            resource.resource_type, resource.resource_name, resource.pattern_type,
            one.principal, one.host, one.operation, one.permission_type,
        )
        for resource in answer.resources
        for one in resource.acls
    ]  # fmt: skip
    return sorted(found)


def create_acls(cluster: ChangingCluster, entries: Sequence[AclEntry]) -> list[RefusedAcl]:
    """Create the entries; those that are there already are no error. Return the refused ones."""
    module = request_module(ApiKey.CREATE_ACLS)
    creations = tuple(
        module.AclCreation(
            resource_type=one.resource_type,
            resource_name=one.name,
            resource_pattern_type=one.pattern,
            principal=one.principal,
            host=one.host,
            operation=one.operation,
            permission_type=one.permission,
        )
        for one in entries
    )
    answer = cluster.first.request(ApiKey.CREATE_ACLS, module.CreateAclsRequest(creations=creations))
    return [
        RefusedAcl(entry, _error(one.error_code, one.error_message))
        for entry, one in zip(entries, answer.results, strict=True)
        if one.error_code != ErrorCode.none
    ]


def delete_acls(cluster: ChangingCluster, queries: Iterable[AclQuery]) -> list[AclEntry]:
    """Delete whatever one of the filters matches, and return it, sorted. Raises `RequestError`."""
    module = request_module(ApiKey.DELETE_ACLS)
    filters = tuple(module.DeleteAclsFilter(**_filter_fields(one)) for one in queries)
    answer = cluster.first.request(ApiKey.DELETE_ACLS, module.DeleteAclsRequest(filters=filters))
    found: set[AclEntry] = set()
    for result in answer.filter_results:
        raise_for(result.error_code, result.error_message, "the ACLs")
        for one in result.matching_acls:
            raise_for(one.error_code, one.error_message, "an ACL")
            found.add(
                AclEntry(
                    one.resource_type, one.resource_name, one.pattern_type,
                    one.principal, one.host, one.operation, one.permission_type,
                )
            )  # fmt: skip
    return sorted(found)


def _filter_fields(query: AclQuery) -> dict[str, Any]:
    return {
        "resource_type_filter": query.resource_type,
        "resource_name_filter": query.name,
        "pattern_type_filter": query.pattern,
        "principal_filter": query.principal,
        "host_filter": query.host,
        "operation": query.operation,
        "permission_type": query.permission,
    }


def _error(code: ErrorCode, message: str | None) -> RequestError:
    return RequestError(ErrorCode(code), f"{message or 'refused'} ({ErrorCode(code).name.upper()})")


# -- users


def describe_users(cluster: Cluster, names: Sequence[str] | None = None) -> list[UserCredential]:
    """Return the SCRAM credentials of the named users, or of all, sorted. An unknown user has none."""
    module = request_module(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
    users = None if names is None else tuple(module.UserName(name=name) for name in dict.fromkeys(names))
    request = module.DescribeUserScramCredentialsRequest(users=users)
    answer = cluster.first.request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request)
    raise_for(answer.error_code, answer.error_message, "the users")
    found = []
    for one in answer.results:
        if one.error_code != ErrorCode.resource_not_found:
            raise_for(one.error_code, one.error_message, f"user {one.user}")
        found += [UserCredential(one.user, each.mechanism, each.iterations) for each in one.credential_infos]
    return sorted(found)


def set_credential(
    cluster: ChangingCluster, credential: UserCredential, salt: bytes, salted_password: bytes
) -> None:
    """Give a user a credential, in place of the one of that mechanism. Raises `RequestError`."""
    module = request_module(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    new = module.ScramCredentialUpsertion(
        name=credential.user,
        mechanism=credential.mechanism,
        iterations=credential.iterations,
        salt=salt,
        salted_password=salted_password,
    )
    _alter_users(cluster, (), (new,))


def delete_credential(cluster: ChangingCluster, user: str, mechanism: int) -> None:
    """Delete a credential. Raises `RequestError`, also where it is not there. One request may name a user
    once only, as in Kafka."""
    module = request_module(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    _alter_users(cluster, (module.ScramCredentialDeletion(name=user, mechanism=mechanism),), ())


def _alter_users(cluster: ChangingCluster, deletions: tuple[Any, ...], upsertions: tuple[Any, ...]) -> None:
    module = request_module(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    request = module.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    for one in cluster.first.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request).results:
        raise_for(one.error_code, one.error_message, f"user {one.user}")


# -- quotas


def describe_quotas(cluster: Cluster, parts: Mapping[str, object], *, strict: bool = False) -> list[QuotaRow]:
    """Return the quotas of the entities that match, in the order of their names.

    `parts`: by type a name, None for the type's default, or `ANY_NAME`. `strict`: of these types alone.
    """
    module = request_module(ApiKey.DESCRIBE_CLIENT_QUOTAS)
    components = tuple(
        module.ComponentData(
            entity_type=kind,
            match_type=_SPECIFIED if name is ANY_NAME else _DEFAULT if name is None else _EXACT,
            match=name if isinstance(name, str) else None,
        )
        for kind, name in parts.items()
    )
    request = module.DescribeClientQuotasRequest(components=components, strict=strict)
    answer = cluster.first.request(ApiKey.DESCRIBE_CLIENT_QUOTAS, request)
    raise_for(answer.error_code, answer.error_message, "the quotas")
    rows = [
        QuotaRow(
            tuple((part.entity_type, part.entity_name) for part in entry.entity),
            {one.key: one.value for one in sorted(entry.values, key=lambda each: each.key)},
        )
        for entry in answer.entries or ()
    ]
    return sorted(rows, key=lambda row: [(kind, name or "", name is None) for kind, name in row.parts])


def alter_quotas(
    cluster: ChangingCluster, parts: Mapping[str, str | None], changes: Mapping[str, float | None]
) -> None:
    """Set quotas of one entity; a value of None takes the quota away. Raises `RequestError`."""
    module = request_module(ApiKey.ALTER_CLIENT_QUOTAS)
    entry = module.EntryData(
        entity=tuple(module.EntityData(entity_type=kind, entity_name=name) for kind, name in parts.items()),
        ops=tuple(
            module.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in changes.items()
        ),
    )
    request = module.AlterClientQuotasRequest(entries=(entry,), validate_only=False)
    for one in cluster.first.request(ApiKey.ALTER_CLIENT_QUOTAS, request).entries:
        raise_for(one.error_code, one.error_message, "the quota")
