"""Names, and classes of any version, for both directions of the quorum's messages. [P]"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from datetime import timedelta
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError
from service.metadata.endpoint import Endpoint
from service.metadata.raft.keys import NO_DIRECTORY
from service.metadata.raft.requests import (
    Refusal,
)
from service.metadata.raft.voters import VoterEndpoints
from service.wire.apis import ApiKey

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = UUID(int=1)
KRAFT_VERSION: Final = "kraft.version"
LISTENER: Final = "CONTROLLER"
MAX_HOST: Final = 255

BAD: Final = Refusal(ErrorCode.invalid_request)
UNKNOWN: Final = Refusal(ErrorCode.unknown_topic_or_partition)
"""Refusal for another partition, in the APIs in which Kafka puts the error at the partition."""


@cache
def module_of(api_key: int, version: int, side: str) -> ModuleType:
    return import_module(f"kio.schema.{ApiKey(api_key).name.lower()}.v{version}.{side}")


def make(module: ModuleType, of: str, /, **values: Any) -> Any:
    """Build an instance of the module's class from the `values` that exist in its version."""
    cls = getattr(module, of)
    known = {field.name for field in fields(cls)}
    return cls(**{key: value for key, value in values.items() if key in known})


def uuid_or_zero(value: UUID | None) -> UUID:
    return value or NO_DIRECTORY


def or_none(value: UUID) -> UUID | None:
    return None if value == NO_DIRECTORY else value


def endpoints_of(listeners: Iterable[Any]) -> VoterEndpoints:
    """Decode listeners, with names in capitals, as Kafka compares them; of two equal names the last counts.

    Raises `CorruptionError` for an address that no node can have; no name is resolved.
    """
    named = [endpoint_of(str(one.name).upper(), str(one.host), int(one.port)) for one in listeners]
    return tuple({one.name: one for one in named}.values())


def endpoint_of(name: str, host: str, port: int) -> Endpoint:
    """Build an endpoint. Raises `CorruptionError` for an invalid address."""
    try:
        is_sound = port > 0 and 0 < len(host) <= MAX_HOST and "\0" not in host and bool(host.encode("idna"))
    except UnicodeError:
        is_sound = False
    if not is_sound:
        raise CorruptionError(f"{host[:MAX_HOST]!r}:{port} is no address")
    return Endpoint(name, host, port)


def listeners_of(module: ModuleType, name: str, endpoints: VoterEndpoints) -> tuple[Any, ...]:
    return tuple(make(module, name, name=one.name, host=one.host, port=one.port) for one in endpoints)


def ms(value: timedelta) -> int:
    return round(value.total_seconds() * 1000)


def only_partition(topics: Any) -> Any | None:
    """The one partition, where it is ours."""
    if topics is None or len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, partition = topics[0], topics[0].partitions[0]
    name = getattr(topic, "topic_name", getattr(topic, "name", getattr(topic, "topic", None)))
    is_ours = topic.topic_id == TOPIC_ID if hasattr(topic, "topic_id") else name == TOPIC
    index = getattr(
        partition, "partition_index", getattr(partition, "partition", getattr(partition, "index", 0))
    )
    return partition if is_ours and index == 0 else None
