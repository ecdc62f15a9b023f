"""One error as the answer to a whole request of an API that brokers forward, in the request's own shape. [P]

Source: ``getErrorResponse`` of Kafka's request classes: what names topics, resources or partitions hears it
for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.wire.api import APIS, ApiKey, response_module

Refuse = Callable[[Any, Any, dict[str, Any]], dict[str, Any]]
"""(response module, request, the error's fields) -> the response's array"""


def refusal(api_key: int, request: Any, code: ErrorCode, message: str | None = None) -> Any:
    """The canonical response to the canonical `request` that says `code` wherever it has a place for it."""
    module = response_module(api_key)
    response = getattr(module, f"{APIS[api_key].name}Response")
    error = {"error_code": code, "error_message": message}
    values: dict[str, Any] = {}
    for one in fields(response):
        if one.name in error:
            values[one.name] = error[one.name]
        elif one.name in _EMPTY:
            values[one.name] = _EMPTY[one.name]
    array = _ARRAYS.get(api_key)
    if array is not None:
        values |= array(module, request, error)
    return response(**values)


_EMPTY: Final[dict[str, Any]] = {
    "throttle_time": 0,
    "topics": (),
    "nodes": (),
    "responses": (),
    "results": (),
    "replica_election_results": (),
    "producer_id_start": -1,
    "producer_id_len": 0,
}


def _created(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    topics = [
        module.CreatableTopicResult(name=one.name, topic_id=None, configs=None, **error)
        for one in request.topics
    ]
    return {"topics": tuple(topics)}


def _deleted(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    topics = [
        module.DeletableTopicResult(name=one.name, topic_id=one.topic_id, **error) for one in request.topics
    ]
    return {"responses": tuple(topics)}


def _grown(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    topics = [module.CreatePartitionsTopicResult(name=one.name, **error) for one in request.topics]
    return {"results": tuple(topics)}


def _altered(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    resources = [
        module.AlterConfigsResourceResponse(
            resource_type=one.resource_type, resource_name=one.resource_name, **error
        )
        for one in request.resources
    ]
    return {"responses": tuple(resources)}


def _elected(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
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


def _reassigned(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
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


def _listed(module: Any, request: Any, error: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, of which nothing is known; the error stands above."""
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


_ARRAYS: Final[dict[int, Refuse]] = {
    ApiKey.CREATE_TOPICS: _created,
    ApiKey.DELETE_TOPICS: _deleted,
    ApiKey.CREATE_PARTITIONS: _grown,
    ApiKey.ALTER_CONFIGS: _altered,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _altered,
    ApiKey.ELECT_LEADERS: _elected,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassigned,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _listed,
}
