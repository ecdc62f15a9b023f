"""Messages of the quorum as plain values, for tests."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.metadata.endpoint import Endpoint
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.voters import VoterNode

PLACE = Endpoint("CONTROLLER", "host", 9093)
KEY = ReplicaKey(2, UUID(int=77))
VOTER = VoterNode(KEY, (PLACE,))


def plain(message: Any) -> Any:
    """Times in ms, ids as numbers, errors by name."""
    if is_dataclass(message):
        return {field.name: plain(getattr(message, field.name)) for field in fields(message)}
    if isinstance(message, tuple | list):
        return [plain(one) for one in message]
    if isinstance(message, timedelta):
        return round(message.total_seconds() * 1000)
    if isinstance(message, UUID):
        return message.int
    return message.name if isinstance(message, ErrorCode) else message
