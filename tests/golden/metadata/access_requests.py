"""Requests about ACLs, credentials and quotas from plain values, and plain values from their answers.

Both `capture_access.py`, which asks Kafka, and `test_access_answers.py`, which asks ours, use them.
"""

from __future__ import annotations

from typing import Any

from kio.schema.alter_client_quotas.v1 import request as altering_quotas
from kio.schema.alter_user_scram_credentials.v0 import request as altering_scram
from kio.schema.create_acls.v3 import request as creating
from kio.schema.delete_acls.v3 import request as deleting
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_client_quotas.v1 import request as describing_quotas
from kio.schema.describe_user_scram_credentials.v0 import request as describing_scram

ENTRY = (
    "resource_type",
    "resource_name",
    "resource_pattern_type",
    "principal",
    "host",
    "operation",
    "permission_type",
)
FILTER = (
    "resource_type_filter",
    "resource_name_filter",
    "pattern_type_filter",
    "principal_filter",
    "host_filter",
    "operation",
    "permission_type",
)


def request_of(kind: str, asked: Any) -> Any:
    """Return the request.

    create: entries; describe: a filter; delete: filters; all as lists of seven values. quotas: entities as
    [[[type, name], …], [[key, value or null], …]], and whether they are only checked. describe_quotas:
    components as [type, match type, match], and whether they are strict. scram: deletions as [user,
    mechanism], upsertions as [user, mechanism, iterations, salt, salted password]. describe_scram: users.
    """
    match kind:
        case "create":
            return creating.CreateAclsRequest(
                creations=tuple(creating.AclCreation(**dict(zip(ENTRY, one, strict=True))) for one in asked)
            )
        case "describe":
            return DescribeAclsRequest(**dict(zip(FILTER, asked, strict=True)))
        case "delete":
            return deleting.DeleteAclsRequest(
                filters=tuple(
                    deleting.DeleteAclsFilter(**dict(zip(FILTER, one, strict=True))) for one in asked
                )
            )
        case "quotas":
            return _quotas(*asked)
        case "describe_quotas":
            components, strict = asked
            return describing_quotas.DescribeClientQuotasRequest(
                components=tuple(
                    describing_quotas.ComponentData(entity_type=of, match_type=how, match=match)
                    for of, how, match in components
                ),
                strict=strict,
            )
        case "scram":
            return _scram(*asked)
        case _:
            names = None if asked is None else tuple(describing_scram.UserName(name=one) for one in asked)
            return describing_scram.DescribeUserScramCredentialsRequest(users=names)


def _quotas(entries: list[Any], validate_only: bool) -> Any:
    module = altering_quotas
    return module.AlterClientQuotasRequest(
        entries=tuple(
            module.EntryData(
                entity=tuple(module.EntityData(entity_type=of, entity_name=name) for of, name in parts),
                ops=tuple(
                    module.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops
                ),
            )
            for parts, ops in entries
        ),
        validate_only=validate_only,
    )


def _scram(deletions: list[Any], upsertions: list[Any]) -> Any:
    module = altering_scram
    return module.AlterUserScramCredentialsRequest(
        deletions=tuple(
            module.ScramCredentialDeletion(name=user, mechanism=kind) for user, kind in deletions
        ),
        upsertions=tuple(
            module.ScramCredentialUpsertion(
                name=user,
                mechanism=kind,
                iterations=times,
                salt=salt.encode(),
                salted_password=secret.encode(),
            )
            for user, kind, times, salt, secret in upsertions
        ),
    )


def answer_of(kind: str, answer: Any) -> Any:
    """Return what an answer says; what has no order is sorted."""
    match kind:
        case "create":
            return [_error(one) for one in answer.results]
        case "describe":
            found = [
                [one.resource_type, one.resource_name, one.pattern_type, *_entry(each)]
                for one in answer.resources
                for each in one.acls
            ]
            return [_error(answer), sorted(found)]
        case "delete":
            return [[_error(one), sorted(map(_matching, one.matching_acls))] for one in answer.filter_results]
        case "quotas":
            return sorted(([_parts(one), *_error(one)] for one in answer.entries), key=repr)
        case "describe_quotas":
            rows = [
                [_parts(one), sorted([each.key, each.value] for each in one.values)]
                for one in answer.entries or ()
            ]
            return [_error(answer), answer.entries is None, sorted(rows, key=repr)]
        case "scram":
            return sorted([one.user, *_error(one)] for one in answer.results)
        case _:
            rows = [
                [
                    one.user,
                    *_error(one),
                    sorted([each.mechanism, each.iterations] for each in one.credential_infos),
                ]
                for one in answer.results
            ]
            return [_error(answer), sorted(rows)]


def _error(one: Any) -> list[Any]:
    return [one.error_code.name, one.error_message]


def _entry(one: Any) -> list[Any]:
    return [one.principal, one.host, one.operation, one.permission_type]


def _matching(one: Any) -> list[Any]:
    return [one.resource_type, one.resource_name, one.pattern_type, *_entry(one), *_error(one)]


def _parts(one: Any) -> list[Any]:
    return sorted(([part.entity_type, part.entity_name] for part in one.entity), key=repr)
