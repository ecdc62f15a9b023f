"""Look-up of the archive's topics on the brokers: identity, partition leaders, offsets. [P]

Names are reused, ids are not. So brokers of another cluster are refused by their cluster id, and a topic that
was deleted and created again by its topic id, even where the names match.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError
from service.config.client import Address
from service.spark.errors import BrokerError
from service.wire.api import ApiKey, request_module

TopicPartition = tuple[str, int]
LATEST: Final = -1
EARLIEST: Final = -2
_UNKNOWN: Final = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


class PartitionLeader(NamedTuple):
    """The leader of one partition; with the epoch a broker refuses a client that knows a newer leader."""

    address: Address
    leader_epoch: int


class TopicMatch(Enum):
    """Relation of the brokers' topic of a name to the archive's topic."""

    SAME = auto()
    OTHER = auto()
    """It was deleted and created again."""
    ABSENT = auto()
    """It was deleted, or this broker does not know it yet."""
    UNCLEAR = auto()
    """The broker's answer is not conclusive."""


class TopicLookup(NamedTuple):
    """A topic on the brokers: its partitions that have a leader now; `reason` is for messages."""

    match: TopicMatch
    leaders: dict[int, PartitionLeader]
    reason: str = ""


def metadata_request(names: list[str]) -> Any:
    """Return a request for these topics that creates none of them."""
    module = request_module(ApiKey.METADATA)
    return module.MetadataRequest(
        topics=tuple(module.MetadataRequestTopic(topic_id=None, name=name) for name in names),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def offsets_request(
    times_ms: Mapping[TopicPartition, int], *, read_committed: bool = False, timeout_ms: int = 0
) -> Any:
    """Return a ListOffsets request; the timestamps `LATEST` and `EARLIEST` stand for the ends."""
    module = request_module(ApiKey.LIST_OFFSETS)
    topics: dict[str, list[Any]] = {}
    for (topic, partition), timestamp_ms in times_ms.items():
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
    """Return the rows of a ListOffsets response, with their ``error_code`` and ``offset``."""
    return {(topic.name, row.partition_index): row for topic in response.topics for row in topic.partitions}


def check_cluster(found: str | None, archived: str) -> None:
    """Raise `ConfigError` unless the brokers are of the cluster that writes the archive."""
    if found != archived:
        raise ConfigError(
            f"option bootstrap.servers: its brokers are of the cluster {found}, the archive is that of the "
            f"cluster {archived}. Their topics are different ones, even where the names match"
        )


def find_topic(response: Any, name: str, topic_id: UUID) -> TopicLookup:
    """Look up the topic `name`, which has this id in the archive.

    Raises `BrokerError` where brokers refuse access to it, `ConfigError` where they have no topic ids.
    """
    for topic in response.topics:
        if topic.name == name:
            return _found(topic, response, topic_id)
    return TopicLookup(TopicMatch.UNCLEAR, {}, f"the brokers' response lacks topic {name}")


def _found(topic: Any, response: Any, topic_id: UUID) -> TopicLookup:
    error = topic.error_code
    if error in _UNKNOWN:
        return TopicLookup(
            TopicMatch.ABSENT, {}, f"brokers know no topic {topic.name}, with id {topic_id} or another"
        )
    if is_transient(error):
        return TopicLookup(TopicMatch.UNCLEAR, {}, f"topic {topic.name}: {named(error)}")
    if error != ErrorCode.none:
        raise BrokerError(f"topic {topic.name}: brokers answer {named(error)}")
    if topic.topic_id is None:
        raise ConfigError(f"brokers report no id of topic {topic.name}: the tail needs Kafka 3.1 or newer")
    if topic.topic_id != topic_id:
        reason = (
            f"topic {topic.name} is another one on the brokers, with id {topic.topic_id} instead of "
            f"{topic_id}: it was deleted and created again"
        )
        return TopicLookup(TopicMatch.OTHER, {}, reason)
    addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
    leaders = {
        one.partition_index: PartitionLeader(addresses[one.leader_id], one.leader_epoch)
        for one in topic.partitions
        if one.leader_id in addresses
    }
    return TopicLookup(TopicMatch.SAME, leaders)


def is_transient(error: int) -> bool:
    """Return whether to look up the leader and try again, rather than to give up."""
    if error == ErrorCode.corrupt_message:
        return False
    return error == ErrorCode.unknown_server_error or bool(getattr(error, "retriable", False))


def named(error: int) -> str:
    """Return Kafka's name of an error code.

    >>> named(ErrorCode.not_leader_or_follower), named(999)
    ('NOT_LEADER_OR_FOLLOWER', 'error 999')
    """
    return error.name.upper() if isinstance(error, ErrorCode) else f"error {error}"
