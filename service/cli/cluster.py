"""What the commands ask a cluster, in plain values. Blocking; one connection to each broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.network.client import Client
from service.wire.api import ApiKey, request_module

CLIENT_ID: Final = "firn-cli"
TIMEOUT: Final = timedelta(seconds=30)
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4

# what ListOffsets answers for these instead of a time (KIP-405, KIP-1005)
LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5


class PartitionInfo(NamedTuple):
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicInfo(NamedTuple):
    name: str
    topic_id: UUID
    partitions: tuple[PartitionInfo, ...]


class Cluster:
    """A cluster by one or more of its addresses. Raises `RequestError` and `OSError`."""

    def __init__(self, bootstrap: str) -> None:
        self._first = _connect_any(bootstrap)
        self._by_id: dict[int, Client] = {}
        self._addresses: dict[int, tuple[str, int]] = {}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in {self._first, *self._by_id.values()}:
            client.close()

    def topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """The topics of these names, or all, sorted by name."""
        module = request_module(ApiKey.METADATA)
        asked = None
        if names is not None:
            asked = tuple(module.MetadataRequestTopic(topic_id=None, name=name) for name in names)
        response = self._first.request(
            ApiKey.METADATA,
            module.MetadataRequest(
                topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=False
            ),
        )
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        found = []
        for topic in response.topics:
            _raise_for(topic.error_code, None, f"topic {topic.name}")
            partitions = tuple(
                PartitionInfo(p.partition_index, p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes))
                for p in sorted(topic.partitions, key=lambda p: p.partition_index)
            )
            found.append(TopicInfo(topic.name, topic.topic_id, partitions))
        return sorted(found)

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> UUID | None:
        """Create a topic; -1 for numbers that the broker is to choose. Returns its id."""
        module = request_module(ApiKey.CREATE_TOPICS)
        topic = module.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=(),
            configs=tuple(module.CreatableTopicConfig(name=k, value=v) for k, v in configs.items()),
        )
        request = module.CreateTopicsRequest(topics=(topic,), timeout=TIMEOUT, validate_only=False)
        (result,) = self._first.request(ApiKey.CREATE_TOPICS, request).topics
        _raise_for(result.error_code, result.error_message, f"topic {name}")
        topic_id: UUID | None = result.topic_id
        return topic_id

    def delete_topic(self, name: str) -> None:
        module = request_module(ApiKey.DELETE_TOPICS)
        state = module.DeleteTopicState(name=name, topic_id=None)
        request = module.DeleteTopicsRequest(topics=(state,), timeout=TIMEOUT)
        (result,) = self._first.request(ApiKey.DELETE_TOPICS, request).responses
        _raise_for(result.error_code, result.error_message, f"topic {name}")

    def topic_overrides(self, name: str) -> dict[str, str]:
        """What is set on the topic itself."""
        topic_source = 1
        configs = self._configs(self._first, TOPIC_RESOURCE, name, None)
        return {c.name: c.value for c in configs if c.config_source == topic_source and c.value is not None}

    def broker_configs(self, broker: int, keys: Sequence[str]) -> dict[str, str | None]:
        """Values of these keys on one broker."""
        client = self._client(broker)
        return {c.name: c.value for c in self._configs(client, BROKER_RESOURCE, str(broker), tuple(keys))}

    def _configs(
        self, client: Client, resource_type: int, name: str, keys: tuple[str, ...] | None
    ) -> Sequence[Any]:
        module = request_module(ApiKey.DESCRIBE_CONFIGS)
        resource = module.DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=keys
        )
        request = module.DescribeConfigsRequest(resources=(resource,))
        (result,) = client.request(ApiKey.DESCRIBE_CONFIGS, request).results
        _raise_for(result.error_code, result.error_message, f"configuration of {name}")
        configs: Sequence[Any] = result.configs
        return configs

    def offsets(self, topic: str, leaders: Mapping[int, int], timestamp: int) -> dict[int, int]:
        """By partition: what its leader answers for `timestamp` (-1 where there is none)."""
        answers: dict[int, int] = {}
        for leader in sorted(set(leaders.values())):
            partitions = [p for p, its_leader in leaders.items() if its_leader == leader]
            answers.update(self._offsets_of(leader, topic, partitions, timestamp))
        return answers

    def _offsets_of(
        self, leader: int, topic: str, partitions: Iterable[int], timestamp: int
    ) -> Iterable[tuple[int, int]]:
        module = request_module(ApiKey.LIST_OFFSETS)
        asked = tuple(
            module.ListOffsetsPartition(partition_index=p, current_leader_epoch=-1, timestamp=timestamp)
            for p in partitions
        )
        request = module.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=(module.ListOffsetsTopic(name=topic, partitions=asked),),
            timeout=TIMEOUT,
        )
        for answered in self._client(leader).request(ApiKey.LIST_OFFSETS, request).topics:
            for p in answered.partitions:
                _raise_for(p.error_code, None, f"{topic}-{p.partition_index}")
                yield p.partition_index, p.offset

    def _client(self, broker: int) -> Client:
        if broker not in self._by_id:
            if broker not in self._addresses:
                raise StorageError(f"node {broker} is not there")
            host, port = self._addresses[broker]
            self._by_id[broker] = _connect(host, port)
        return self._by_id[broker]


def _connect_any(bootstrap: str) -> Client:
    """A connection to the first of `host:port,…` that answers."""
    failure: OSError | None = None
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise StorageError(f"{address.strip()!r} is not HOST:PORT")
        try:
            return _connect(host.strip("[]"), int(port))
        except OSError as e:
            failure = e
    assert failure is not None
    raise failure


def _connect(host: str, port: int) -> Client:
    try:
        return Client(host, port, CLIENT_ID, timeout_s=TIMEOUT.total_seconds())
    except OSError as e:
        raise ConnectionError(f"cannot connect to {host}:{port}: {e.strerror or e}") from e


def _raise_for(code: ErrorCode, message: str | None, what: str) -> None:
    if code != ErrorCode.none:
        name = ErrorCode(code).name.upper()
        raise RequestError(ErrorCode(code), f"{what}: {message} ({name})" if message else f"{what}: {name}")
