"""What brokers are asked about topics: is one the archive's, who leads its partitions, where do they end. [P]

Names are reused, ids are not. So brokers of another cluster are refused by their cluster id, and a topic that
was deleted and made again by its topic id, however well their names fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError
from service.spark.errors import BrokerError
from service.spark.tail.client_options import Address
from service.wire.api import ApiKey, request_module

TopicPartition = tuple[str, int]
LATEST: Final = -1
EARLIEST: Final = -2
_UNKNOWN: Final = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


class Place(NamedTuple):
    """The leader of one partition; the epoch lets it refuse a client that knows an older one than it is."""

    address: Address
    leader_epoch: int


class Standing(Enum):
    """How the brokers' topic of a name stands to the archive's."""

    SAME = auto()
    OTHER = auto()
    """It was deleted and made again."""
    ABSENT = auto()
    """It was deleted, or this broker has not heard of it yet."""
    UNCLEAR = auto()
    """The broker cannot tell at the moment."""


class Found(NamedTuple):
    """A topic: `places` are those of its partitions that have a leader now; `reason` is for messages."""

    standing: Standing
    places: dict[int, Place]
    reason: str = ""


def metadata_request(names: list[str]) -> Any:
    """Asks for these topics, and makes none of them."""
    module = request_module(ApiKey.METADATA)
    return module.MetadataRequest(
        topics=tuple(module.MetadataRequestTopic(topic_id=None, name=name) for name in names),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def offsets_request(
    asked: Mapping[TopicPartition, int], *, read_committed: bool = False, timeout_ms: int = 0
) -> Any:
    """Asks for the offset of each timestamp; `LATEST` and `EARLIEST` stand for the ends."""
    module = request_module(ApiKey.LIST_OFFSETS)
    topics: dict[str, list[Any]] = {}
    for (topic, partition), timestamp_ms in asked.items():
        row = module.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=-1, timestamp=timestamp_ms
        )
        topics.setdefault(topic, []).append(row)
    return module.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=tuple(
            module.ListOffsetsTopic(name=name, partitions=tuple(rows)) for name, rows in topics.items()
        ),
        timeout=timeout_ms,
    )


def offsets_found(response: Any) -> dict[TopicPartition, Any]:
    """The rows of a ListOffsets response: ``error_code`` and ``offset``."""
    return {(topic.name, row.partition_index): row for topic in response.topics for row in topic.partitions}


def check_cluster(found: str | None, archived: str) -> None:
    """`ConfigError` unless the brokers are of the cluster that writes the archive."""
    if found != archived:
        raise ConfigError(
            f"option bootstrap.servers: its brokers are of the cluster {found}, the archive is that of the "
            f"cluster {archived}. They have nothing to do with each other, whatever their topics are called"
        )


def find_topic(response: Any, name: str, topic_id: UUID) -> Found:
    """The topic `name`, which in the archive has this id.

    Raises `BrokerError` where brokers do not let us see it, `ConfigError` where they know no ids.
    """
    for topic in response.topics:
        if topic.name == name:
            return _found(topic, response, topic_id)
    return Found(Standing.UNCLEAR, {}, f"brokers say nothing of topic {name}")


def _found(topic: Any, response: Any, topic_id: UUID) -> Found:
    error = topic.error_code
    if error in _UNKNOWN:
        return Found(
            Standing.ABSENT, {}, f"brokers know no topic {topic.name}, with id {topic_id} or another"
        )
    if is_transient(error):
        return Found(Standing.UNCLEAR, {}, f"topic {topic.name}: {named(error)}")
    if error != ErrorCode.none:
        raise BrokerError(f"topic {topic.name}: brokers answer {named(error)}")
    if topic.topic_id is None:
        raise ConfigError(
            f"brokers do not tell the id of topic {topic.name}: the tail needs Kafka 3.1 or newer"
        )
    if topic.topic_id != topic_id:
        reason = (
            f"topic {topic.name} is another one on the brokers, with id {topic.topic_id} instead of "
            f"{topic_id}: it was deleted and made again"
        )
        return Found(Standing.OTHER, {}, reason)
    addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
    places = {
        one.partition_index: Place(addresses[one.leader_id], one.leader_epoch)
        for one in topic.partitions
        if one.leader_id in addresses
    }
    return Found(Standing.SAME, places)


def is_transient(error: int) -> bool:
    """Whether to look for the leader again and ask once more, rather than to give up."""
    if error == ErrorCode.corrupt_message:
        return False
    return error == ErrorCode.unknown_server_error or bool(getattr(error, "retriable", False))


def named(error: int) -> str:
    """A code in Kafka's words.

    >>> named(ErrorCode.not_leader_or_follower), named(999)
    ('NOT_LEADER_OR_FOLLOWER', 'error 999')
    """
    return error.name.upper() if isinstance(error, ErrorCode) else f"error {error}"
