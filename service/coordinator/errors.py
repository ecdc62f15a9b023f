"""Errors of the log as a coordinator's clients get them (Kafka `GroupCoordinatorService`). [P]"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError

CLIENT_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = MappingProxyType(
    {
        ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
        ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
        ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
        ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
        ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
        ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
        ErrorCode.message_too_large: ErrorCode.unknown_server_error,
        ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
        ErrorCode.invalid_fetch_size: ErrorCode.unknown_server_error,
    }
)
"""Replacements for errors of the log that clients of a coordinator would not understand."""


def client_error(error: Exception) -> RequestError:
    """Return the error to send to a client; a bug becomes UNKNOWN_SERVER_ERROR."""
    if isinstance(error, StorageError):
        return RequestError(ErrorCode.not_coordinator, str(error))
    if not isinstance(error, RequestError):
        return RequestError(ErrorCode.unknown_server_error)
    code = CLIENT_ERRORS.get(error.code)
    return error if code is None else RequestError(code, error.message or error.code.name)
