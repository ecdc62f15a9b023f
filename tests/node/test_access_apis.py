"""ACLs, SCRAM credentials and client quotas on a whole node: requests over the wire, and another start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk

Start = Callable[..., NodeThread]
CLOSED = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
}
ANY = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def create(talk: Talk, *names: str) -> list[Any]:
    module = request_module(ApiKey.CREATE_ACLS)
    creations = tuple(
        module.AclCreation(
            resource_type=2,
            resource_name=name,
            principal="User:alice",
            host="*",
            operation=3,
            permission_type=3,
        )
        for name in names
    )
    answer = talk(ApiKey.CREATE_ACLS, "CreateAclsRequest", creations=creations)
    return [(one.error_code.name, one.error_message) for one in answer.results]


def delete(talk: Talk, **changes: Any) -> Any:
    module = request_module(ApiKey.DELETE_ACLS)
    answer = talk(
        ApiKey.DELETE_ACLS, "DeleteAclsRequest", filters=(module.DeleteAclsFilter(**ANY | changes),)
    )
    return answer.filter_results[0]


def names(talk: Talk, **changes: Any) -> list[str]:
    answer = talk(ApiKey.DESCRIBE_ACLS, "DescribeAclsRequest", **ANY | changes)
    assert answer.error_code is ErrorCode.none
    return sorted(one.resource_name for one in answer.resources)


def upsert(talk: Talk, user: str, iterations: int = 4096) -> Any:
    module = request_module(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    new = module.ScramCredentialUpsertion(
        name=user, mechanism=1, iterations=iterations, salt=b"salt", salted_password=b"salted"
    )
    answer = talk(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        "AlterUserScramCredentialsRequest",
        deletions=(),
        upsertions=(new,),
    )
    return answer.results[0].error_code


def users(talk: Talk) -> dict[str, list[tuple[int, int]]]:
    answer = talk(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentialsRequest", users=())
    return {
        one.user: [(each.mechanism, each.iterations) for each in one.credential_infos]
        for one in answer.results
    }


def set_rate(talk: Talk, user: str, rate: float) -> Any:
    module = request_module(ApiKey.ALTER_CLIENT_QUOTAS)
    entry = module.EntryData(
        entity=(module.EntityData(entity_type="user", entity_name=user),),
        ops=(module.OpData(key="producer_byte_rate", value=rate, remove=False),),
    )
    answer = talk(
        ApiKey.ALTER_CLIENT_QUOTAS, "AlterClientQuotasRequest", entries=(entry,), validate_only=False
    )
    return answer.entries[0].error_code


def rates(talk: Talk) -> dict[str, float]:
    answer = talk(ApiKey.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotasRequest", components=(), strict=False)
    return {one.entity[0].entity_name: one.values[0].value for one in answer.entries}


def test_a_node_without_an_authorizer_has_no_acls(start: Start) -> None:
    with start().client() as client:
        talk = Talk(client)
        assert create(talk, "a", "b") == [("security_disabled", "No Authorizer is configured.")] * 2
        refused = delete(talk)
        assert (refused.error_code, refused.error_message) == (
            ErrorCode.security_disabled,
            "No Authorizer is configured.",
        )
        answer = talk(ApiKey.DESCRIBE_ACLS, "DescribeAclsRequest", **ANY)
        assert answer.error_code is ErrorCode.security_disabled
        assert answer.error_message == "No Authorizer is configured on the broker"
        assert answer.resources == ()


def test_a_node_keeps_acls_credentials_and_quotas_over_a_start(start: Start) -> None:
    node = start(**CLOSED)
    with node.client() as client:
        talk = Talk(client)
        assert create(talk, "a", "b", "c") == [("none", "")] * 3
        deleted = delete(talk, resource_name_filter="b")
        assert [one.resource_name for one in deleted.matching_acls] == ["b"]
        assert upsert(talk, "alice") is ErrorCode.none
        assert upsert(talk, "alice", 8192) is ErrorCode.none
        assert upsert(talk, "bob", 4095) is ErrorCode.unacceptable_credential
        assert set_rate(talk, "alice", 1024.0) is ErrorCode.none
        assert set_rate(talk, "bob", 0.5) is ErrorCode.invalid_request
        before = (names(talk), users(talk), rates(talk))
    assert before == (["a", "c"], {"alice": [(1, 8192)]}, {"alice": 1024.0})
    node.stop()
    with start(**CLOSED).client() as client:
        talk = Talk(client)
        assert (names(talk), users(talk), rates(talk)) == before
        assert names(talk, resource_name_filter="c", pattern_type_filter=2) == ["c"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_lists_acls(start: Start, version: int) -> None:
    with start(**CLOSED).client() as client:
        create(Talk(client), "a")
        request = request_module(ApiKey.DESCRIBE_ACLS).DescribeAclsRequest(**ANY)
        (found,) = client.request(ApiKey.DESCRIBE_ACLS, request, newest=version).resources
        assert (found.resource_type, found.resource_name, found.pattern_type) == (2, "a", 3)
        (entry,) = found.acls
        assert (entry.principal, entry.host, entry.operation, entry.permission_type) == (
            "User:alice",
            "*",
            3,
            3,
        )
