"""Arrays of error responses: each topic, resource or partition of the request, with the error. [P]

Responses about delegation tokens have other fields in their place.

Rows of `apis.APIS` name the functions; `refusals.refusal` makes the whole response. Source:
``getErrorResponse`` of Kafka's request classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Refuse = Callable[[Any, Any, dict[str, Any]], dict[str, Any]]
"""(response module, request, the error's fields) -> the response's array"""


def created_topics(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    topics = [
        module.CreatableTopicResult(name=one.name, topic_id=None, configs=None, **error)
        for one in request.topics
    ]
    return {"topics": tuple(topics)}


def deleted_topics(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    topics = [
        module.DeletableTopicResult(name=one.name, topic_id=one.topic_id, **error) for one in request.topics
    ]
    return {"responses": tuple(topics)}


def created_partitions(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    topics = [module.CreatePartitionsTopicResult(name=one.name, **error) for one in request.topics]
    return {"results": tuple(topics)}


def altered_configs(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    resources = [
        module.AlterConfigsResourceResponse(
            resource_type=one.resource_type, resource_name=one.resource_name, **error
        )
        for one in request.resources
    ]
    return {"responses": tuple(resources)}


def elected_leaders(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    topics = [
        module.ReplicaElectionResult(
            topic=one.topic,
            partition_result=tuple(
                module.PartitionResult(partition_id=each, **error) for each in one.partitions
            ),
        )
        for one in request.topic_partitions or ()
    ]
    return {"replica_election_results": tuple(topics)}


def reassigned_partitions(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    topics = [
        module.ReassignableTopicResponse(
            name=one.name,
            partitions=tuple(
                module.ReassignablePartitionResponse(partition_index=each.partition_index, **error)
                for each in one.partitions
            ),
        )
        for one in request.topics
    ]
    return {"responses": tuple(topics)}


def listed_reassignments(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    """Return the requested partitions without reassignments: the error is in the response's own field."""
    topics = [
        module.OngoingTopicReassignment(
            name=one.name,
            partitions=tuple(
                module.OngoingPartitionReassignment(partition_index=each) for each in one.partition_indexes
            ),
        )
        for one in request.topics or ()
    ]
    return {"topics": tuple(topics)}


def created_acls(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    return {"results": (module.AclCreationResult(**error),) * len(request.creations)}


def deleted_acls(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    one = module.DeleteAclsFilterResult(matching_acls=(), **error)
    return {"filter_results": (one,) * len(request.filters)}


def altered_client_quotas(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    entries = [
        module.EntryData(
            entity=tuple(
                module.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                for part in one.entity
            ),
            **error,
        )
        for one in request.entries
    ]
    return {"entries": tuple(entries)}


def altered_scram_credentials(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    """Return a result for each user, sorted."""
    users = sorted({one.name for one in (*request.deletions, *request.upsertions)})
    return {"results": tuple(module.AlterUserScramCredentialsResult(user=user, **error) for user in users)}


def token_not_created(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    """Return what stands in place of a token, its owner and its times."""
    return {
        "principal_type": "User",
        "principal_name": "ANONYMOUS",
        "token_requester_principal_type": "User",
        "token_requester_principal_name": "ANONYMOUS",
        "issue_timestamp": None,
        "expiry_timestamp": None,
        "max_timestamp": None,
        "token_id": "",
        "hmac": b"",
    }


def token_not_changed(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    """Return the time until which an unchanged token is said to last."""
    return {"expiry_timestamp": 0}
