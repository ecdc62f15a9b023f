"""Kafka's error codes in plain words, with what to do. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from service.base.errors import RequestError

ADVICE: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "UNKNOWN_TOPIC_OR_PARTITION": (
            "there is no such topic or partition",
            "'firn topic list' has the names, 'firn topic describe TOPIC' the partitions",
        ),
        "TOPIC_ALREADY_EXISTS": ("it is there already", "'firn topic describe TOPIC' shows it"),
        "INVALID_TOPIC_EXCEPTION": (
            "a topic cannot have this name",
            "letters, digits, '.', '_' and '-' can be in it, at most 249",
        ),
        "INVALID_PARTITIONS": (
            "the number of partitions is not possible",
            "a topic can only grow: name a number above the present one",
        ),
        "INVALID_REPLICATION_FACTOR": (
            "there are too few live brokers for so many replicas",
            "'firn cluster describe' shows who is alive",
        ),
        "INVALID_REPLICA_ASSIGNMENT": (
            "the replicas are not possible",
            "name brokers that 'firn cluster describe' lists, each once",
        ),
        "REASSIGNMENT_IN_PROGRESS": (
            "it is being reassigned",
            "wait for 'firn cluster reassign verify', or cancel it",
        ),
        "NO_REASSIGNMENT_IN_PROGRESS": ("it is not being reassigned", "there is nothing to cancel"),
        "LEADER_NOT_AVAILABLE": (
            "it has no leader",
            "'firn cluster describe' names the brokers that it waits for",
        ),
        "NOT_LEADER_OR_FOLLOWER": ("its leader has just changed", "try again"),
        "PREFERRED_LEADER_NOT_AVAILABLE": (
            "the preferred leader is not alive and in sync",
            "start that broker, and elect again once it has caught up",
        ),
        "ELIGIBLE_LEADERS_NOT_AVAILABLE": (
            "no replica that may lead is alive",
            "start the brokers that 'firn cluster describe' names",
        ),
        "OFFSET_OUT_OF_RANGE": (
            "the offset is not in the log",
            "'firn offsets TOPIC' shows where it begins and ends",
        ),
        "POLICY_VIOLATION": (
            "a bound or a policy of the cluster forbids it",
            "where that is for the size, ask for less at a time",
        ),
        "INVALID_CONFIG": (
            "a setting is unknown, or its value is not possible",
            "docs/configuration.md has names and values",
        ),
        "NON_EMPTY_GROUP": (
            "the group has members",
            "stop its consumers; 'firn group describe GROUP' names them",
        ),
        "GROUP_SUBSCRIBED_TO_TOPIC": (
            "the group is subscribed to the topic",
            "stop its consumers, or have them subscribe to other topics",
        ),
        "GROUP_ID_NOT_FOUND": ("there is no such group", "'firn group list' has the names"),
        "UNKNOWN_MEMBER_ID": (
            "the group has members, which alone may commit",
            "stop its consumers; 'firn group describe GROUP' names them",
        ),
        "COORDINATOR_NOT_AVAILABLE": (
            "the group's coordinator is not there",
            "try again; if it stays so: 'firn cluster describe'",
        ),
        "COORDINATOR_LOAD_IN_PROGRESS": ("the coordinator reads its groups", "try again in a moment"),
        "NOT_COORDINATOR": ("the coordinator has just changed", "try again"),
        "NOT_CONTROLLER": (
            "this node is not the active controller",
            "'firn cluster quorum describe' names it",
        ),
        "NOT_ENOUGH_REPLICAS": (
            "too few replicas are in sync",
            "'firn cluster describe' names the brokers that are away",
        ),
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND": (
            "it is in the log, and too few replicas have it",
            "look before you send it again: it stays if the leader does",
        ),
        "BROKER_ID_NOT_REGISTERED": (
            "no broker of this id is registered",
            "'firn cluster describe' has the ids",
        ),
        "VOTER_NOT_FOUND": (
            "no voter has this id and directory",
            "'firn cluster quorum describe' has both",
        ),
        "DUPLICATE_VOTER": (
            "a voter of this id is there",
            "remove that one first: 'firn cluster quorum remove-voter'",
        ),
        "INVALID_UPDATE_VERSION": (
            "the level is not possible",
            "'firn cluster features describe' has the levels that all nodes support",
        ),
        "FEATURE_UPDATE_FAILED": (
            "the level could not be changed",
            "'firn cluster features describe' shows what is so now",
        ),
        "UNSUPPORTED_VERSION": (
            "the node is too old for this request, or does not serve it",
            "docs/operations.md says which nodes do",
        ),
        "REQUEST_TIMED_OUT": (
            "it was not finished in time, and may be done all the same",
            "look whether a majority of the controllers is alive: 'firn cluster describe'",
        ),
        "TOPIC_AUTHORIZATION_FAILED": (
            "this user may not do that with the topic",
            "an administrator may allow it: 'firn acl add'",
        ),
        "GROUP_AUTHORIZATION_FAILED": (
            "this user may not do that with the group",
            "an administrator may allow it: 'firn acl add'",
        ),
        "CLUSTER_AUTHORIZATION_FAILED": (
            "this user may not do that with the cluster",
            "an administrator may allow it: 'firn acl add … --cluster'",
        ),
    }
)  # fmt: skip
"""Meaning of each code, and what to do."""


def meant(error: RequestError) -> str:
    """Return the error as one sentence, its code in brackets.

    >>> from kio.schema.errors import ErrorCode
    >>> print(meant(RequestError(ErrorCode.group_id_not_found, "group g: GROUP_ID_NOT_FOUND")))
    group g: there is no such group (GROUP_ID_NOT_FOUND)
    """
    text, code = str(error), error.code.name.upper()
    if code not in ADVICE:
        return text
    meaning, _ = ADVICE[code]
    if text.upper() == code:
        return f"{meaning} ({code})"
    return f"{text[: -len(code)]}{meaning} ({code})" if text.endswith(f": {code}") else text


def advised(error: RequestError) -> str:
    """Return the error as one sentence with what to do.

    >>> from kio.schema.errors import ErrorCode
    >>> print(advised(RequestError(ErrorCode.group_id_not_found, "group g: GROUP_ID_NOT_FOUND")))
    group g: there is no such group (GROUP_ID_NOT_FOUND); 'firn group list' has the names
    """
    text, (_, act) = meant(error), ADVICE.get(error.code.name.upper(), ("", ""))
    return text if not act or act in text else f"{text}; {act}"
