"""Admin requests of commands and console, in plain values. Blocking; one connection to each broker."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.client.admin_models import (
    ClusterInfo,
    ConfigEntry,
    FetchResult,
    NodeInfo,
    PartitionInfo,
    PartitionPage,
    Place,
    TopicInfo,
)
from service.client.blocking_client import BlockingClient
from service.client.security import PLAINTEXT, Security
from service.wire.api import ApiKey, request_module
from service.wire.errors import MalformedMessage, WireError

CLIENT_ID: Final = "firn-cli"
TIMEOUT: Final = timedelta(seconds=30)
FIRST_GREETING_S: Final = 1.5
GREETING_S: Final = 5.0
"""Time for the connection to one of several brokers before the next is tried: at first a short one, as one
that hangs should cost little, then a long one, as all may be slow."""
_PORT: Final = re.compile("[0-9]{1,5}")
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
LOGGER_RESOURCE: Final = 8
GROUP_RESOURCE: Final = 32
BROKER_ENDPOINTS: Final = 1
CONTROLLER_ENDPOINTS: Final = 2

# Special timestamps of ListOffsets (KIP-405, KIP-1005)
LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
MAX_TIMESTAMP: Final = -3


class Cluster:
    """A cluster by one or more of its addresses. Has no request that changes anything.

    Raises `RequestError`, `StorageError` and `OSError`.
    """

    def __init__(
        self,
        bootstrap: str,
        client_id: str = CLIENT_ID,
        timeout_s: float = TIMEOUT.total_seconds(),
        security: Security = PLAINTEXT,
    ) -> None:
        self._client_id = client_id
        self._security = security
        self._timeout_s = timeout_s
        self._first = self._connect_any(bootstrap)
        self._by_id: dict[int, BlockingClient] = {}
        self._addresses: dict[int, tuple[str, int]] = {}

    @property
    def first_address(self) -> str:
        """Address of the broker that answered, as addresses are given: `host:port`, IPv6 in brackets."""
        host, _, port = self._first.address.rpartition(":")
        return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for client in {self._first, *self._by_id.values()}:
            client.close()

    @property
    def first(self) -> BlockingClient:
        """The connection to the node that answered first, for requests to any node."""
        return self._first

    @property
    def hangs(self) -> bool:
        """True once the node that answered first has been silent for too long."""
        return self._first.is_silent

    def describe(self, *, controllers: bool = False) -> ClusterInfo:
        """Return the cluster with its brokers, or with its `controllers` (KIP-919), by id."""
        found = describe_through(self._first, controllers=controllers)
        self._remember(found.nodes)
        return found

    def _remember(self, brokers: Iterable[Any]) -> None:
        self._addresses = {one.node_id: (one.host, one.port) for one in brokers}

    def partitions(self, topic: str, first: int, most: int) -> PartitionPage:
        """Return `most` partitions of a topic from number `first` on; the cost does not grow with the topic
        (KIP-966)."""
        response = self._described((topic,), (topic, first) if first else None, most)
        if not response.topics:
            raise_for(ErrorCode.unknown_topic_or_partition, None, f"topic {topic}")
        found = response.topics[0]
        raise_for(found.error_code, None, f"topic {topic}")
        return PartitionPage(_topic_info(found), response.next_cursor is not None)

    def every_topic(self, at_once: int = 2_000) -> Iterator[TopicInfo]:
        """Yield all topics by name, `at_once` partitions to a request.

        A topic may come in several consecutive parts.
        """
        for topics in self.described((), at_once):
            for topic in topics:
                raise_for(topic.error_code, None, f"topic {topic.name}")
                yield _topic_info(topic)

    def described(self, names: Sequence[str], at_once: int) -> Iterator[Sequence[Any]]:
        """Yield topics of these names, or all, as DescribeTopicPartitions returns them: `at_once` partitions
        to a request, sorted by name, a topic perhaps in several consecutive parts."""
        at: tuple[str, int] | None = None
        while True:
            response = self._described(names, at, at_once)
            yield response.topics
            cursor = response.next_cursor
            if cursor is None:
                return
            after = (cursor.topic_name, cursor.partition_index)
            if at is not None and after <= at:
                raise MalformedMessage(f"the topics after {at} go on at {after}")
            at = after

    def _described(self, topics: Sequence[str], at: tuple[str, int] | None, most: int) -> Any:
        """Request partitions of these topics, or of all, from a topic and partition on."""
        module = request_module(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
        request = module.DescribeTopicPartitionsRequest(
            topics=tuple(module.TopicRequest(name=name) for name in topics),
            response_partition_limit=most,
            cursor=module.Cursor(topic_name=at[0], partition_index=at[1]) if at is not None else None,
        )
        return self._first.request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request)

    def topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """Return the topics of these names, or all, sorted by name."""
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
        self._remember(response.brokers)
        found = []
        for topic in response.topics:
            raise_for(topic.error_code, None, f"topic {topic.name}")
            partitions = tuple(
                PartitionInfo(p.partition_index, p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes))
                for p in sorted(topic.partitions, key=lambda p: p.partition_index)
            )
            found.append(TopicInfo(topic.name, topic.topic_id, partitions))
        return sorted(found)

    def topic_overrides(self, name: str) -> dict[str, str]:
        """Return the settings of the topic itself, without defaults."""
        topic_source = 1
        (configs,) = self._configs(self._first, TOPIC_RESOURCE, (name,), None)
        return {c.name: c.value for c in configs if c.config_source == topic_source and c.value is not None}

    def broker_configs(self, broker: int, keys: Sequence[str]) -> dict[str, str | None]:
        """Return the values of these keys on one broker."""
        (configs,) = self._configs(self.client(broker), BROKER_RESOURCE, (str(broker),), tuple(keys))
        return {c.name: c.value for c in configs}

    def topic_configs(self, names: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, str | None]]:
        """Return the values of these keys, by topic."""
        found = self._configs(self._first, TOPIC_RESOURCE, tuple(names), tuple(keys))
        return {name: {c.name: c.value for c in configs} for name, configs in zip(names, found, strict=True)}

    def entries(self, resource_type: int, name: str) -> list[ConfigEntry]:
        """Return every key of a resource, with documentation, sorted by name.

        Brokers and their loggers go by id; the broker "" is all brokers. Raises `RequestError` for an unknown
        topic, `StorageError` for an unknown broker.
        """
        client = self.keeper_of(resource_type, name)
        (configs,) = self._configs(client, resource_type, (name,), None, with_documentation=True)
        return sorted(
            ConfigEntry(
                c.name, c.value, c.config_source, c.config_type, c.read_only, c.is_sensitive,
                c.documentation or "", tuple((s.name, s.value, s.source) for s in c.synonyms),
            )
            for c in configs
        )  # fmt: skip

    def keeper_of(self, resource_type: int, name: str) -> BlockingClient:
        """Return the connection to the node that answers for settings of a resource."""
        is_of_a_broker = resource_type in (BROKER_RESOURCE, LOGGER_RESOURCE) and name
        return self.client(int(name)) if is_of_a_broker else self._first

    def _configs(
        self,
        client: BlockingClient,
        resource_type: int,
        names: tuple[str, ...],
        keys: tuple[str, ...] | None,
        *,
        with_documentation: bool = False,
    ) -> list[Sequence[Any]]:
        """Return the entries of each resource, if `with_documentation` with that and synonyms."""
        module = request_module(ApiKey.DESCRIBE_CONFIGS)
        resources = tuple(
            module.DescribeConfigsResource(
                resource_type=resource_type, resource_name=name, configuration_keys=keys
            )
            for name in names
        )
        request = module.DescribeConfigsRequest(
            resources=resources, include_documentation=with_documentation, include_synonyms=with_documentation
        )
        by_name = {}
        for result in client.request(ApiKey.DESCRIBE_CONFIGS, request).results:
            raise_for(result.error_code, result.error_message, f"configuration of {result.resource_name}")
            by_name[result.resource_name] = result.configs
        return [by_name.get(name, ()) for name in names]

    def offsets(self, topic: str, leaders: Mapping[int, int], timestamp: int) -> dict[int, int]:
        """Return, by partition, the offset that its leader has for `timestamp` (-1 if there is none)."""
        answers: dict[int, int] = {}
        for p, answered in self.look_up(topic, leaders, timestamp).items():
            raise_for(answered.error_code, None, f"{topic}-{p}")
            answers[p] = answered.offset
        return answers

    def look_up(
        self, topic: str, leaders: Mapping[int, int], timestamp: int, *, isolation_level: int = 0
    ) -> dict[int, Any]:
        """Return, by partition, the whole answer of ListOffsets, errors included."""
        answers: dict[int, Any] = {}
        for leader in sorted(set(leaders.values())):
            partitions = [p for p, its_leader in leaders.items() if its_leader == leader]
            answers.update(self._offsets_of(leader, topic, partitions, timestamp, isolation_level))
        return answers

    def _offsets_of(
        self, leader: int, topic: str, partitions: Iterable[int], timestamp: int, isolation_level: int
    ) -> Iterable[tuple[int, Any]]:
        module = request_module(ApiKey.LIST_OFFSETS)
        asked = tuple(
            module.ListOffsetsPartition(partition_index=p, current_leader_epoch=-1, timestamp=timestamp)
            for p in partitions
        )
        request = module.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=(module.ListOffsetsTopic(name=topic, partitions=asked),),
            timeout=TIMEOUT,
        )
        for answered in self.client(leader).request(ApiKey.LIST_OFFSETS, request).topics:
            for p in answered.partitions:
                yield p.partition_index, p

    def ends(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the end of each (topic, partition), leaving out those that do not exist or have no
        leader."""
        asked: dict[int, dict[str, list[int]]] = {}
        for leader, topic, partition in self._leaders_of(places):
            asked.setdefault(leader, {}).setdefault(topic, []).append(partition)
        module = request_module(ApiKey.LIST_OFFSETS)
        found: dict[tuple[str, int], int] = {}
        for leader, topics in asked.items():
            request = module.ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=tuple(
                    module.ListOffsetsTopic(
                        name=name,
                        partitions=tuple(
                            module.ListOffsetsPartition(
                                partition_index=p, current_leader_epoch=-1, timestamp=LATEST
                            )
                            for p in partitions
                        ),
                    )
                    for name, partitions in topics.items()
                ),
                timeout=TIMEOUT,
            )
            for topic in self.client(leader).request(ApiKey.LIST_OFFSETS, request).topics:
                for one in topic.partitions:
                    if one.error_code == ErrorCode.none:
                        found[topic.name, one.partition_index] = one.offset
        return found

    def _leaders_of(self, places: Sequence[tuple[str, int]]) -> Iterator[tuple[int, str, int]]:
        """Yield leader, topic and partition of those that have a leader."""
        names = tuple(dict.fromkeys(topic for topic, _ in places))
        if not names:
            return
        module = request_module(ApiKey.METADATA)
        request = module.MetadataRequest(
            topics=tuple(module.MetadataRequestTopic(topic_id=None, name=name) for name in names),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        response = self._first.request(ApiKey.METADATA, request)
        self._remember(response.brokers)
        leaders = {
            (topic.name, p.partition_index): p.leader_id
            for topic in response.topics
            for p in topic.partitions
        }
        for topic, partition in places:
            if (leader := leaders.get((topic, partition), -1)) >= 0:
                yield leader, topic, partition

    def fetch(
        self, leader: int, topic_id: UUID, partition: int, offset: int, *, max_bytes: int, max_wait_ms: int
    ) -> FetchResult:
        """Fetch batches, from the one that holds `offset` on; it may begin below `offset`."""
        module = request_module(ApiKey.FETCH)
        asked = module.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = module.FetchRequest(
            max_wait=timedelta(milliseconds=max_wait_ms),
            min_bytes=1,
            max_bytes=max_bytes,
            topics=(module.FetchTopic(topic_id=topic_id, partitions=(asked,)),),
            forgotten_topics_data=(),
        )
        response = self.client(leader).request(ApiKey.FETCH, request)
        raise_for(response.error_code, None, "fetch")
        (answered,) = response.responses[0].partitions if response.responses else (None,)
        if answered is None:
            return FetchResult(b"", -1, -1)
        raise_for(answered.error_code, None, f"partition {partition}, offset {offset}")
        return FetchResult(bytes(answered.records or b""), answered.high_watermark, answered.log_start_offset)

    def apart(self, broker: int, timeout_s: float, set_up_timeout_s: float = math.inf) -> BlockingClient:
        """Open a connection to one broker that the caller owns and closes; `timeout_s` bounds each silence,
        `set_up_timeout_s` the time until it may be used."""
        host, port = self._address(broker)
        return self._connect(host, port, timeout_s, set_up_timeout_s)

    def client(self, broker: int) -> BlockingClient:
        """Return the connection to one broker, which this cluster owns."""
        if broker not in self._by_id:
            host, port = self._address(broker)
            if len(self._addresses) == 1:
                return self._first
            self._by_id[broker] = self._connect(host, port, self._timeout_s)
        return self._by_id[broker]

    def _address(self, broker: int) -> tuple[str, int]:
        if not self._addresses:
            self.describe()
        if broker not in self._addresses:
            raise StorageError(f"node {broker} is not there")
        if len(self._addresses) == 1:
            # The advertised address may be for others, as at the end of a tunnel: use the one that answered.
            host, _, port = self._first.address.rpartition(":")
            return host, int(port)
        return self._addresses[broker]

    def _connect_any(self, bootstrap: str) -> BlockingClient:
        """Connect to the first of `host:port,…` that answers in time."""
        failure: OSError | WireError | None = None
        addresses = [address.strip() for address in bootstrap.split(",") if address.strip()]
        if not addresses:
            raise StorageError(f"{bootstrap!r} is not HOST:PORT")
        places = [_place(address) for address in addresses]
        if len(places) == 1:
            return self._connect(*places[0], self._timeout_s)
        for patience_s in (min(FIRST_GREETING_S, GREETING_S), GREETING_S):
            silent = []
            for host, port in places:
                try:
                    return self._connect(host, port, self._timeout_s, patience_s)
                except TimeoutError as e:
                    failure = e
                    silent.append((host, port))
                except (OSError, WireError) as e:
                    failure = e
            places = silent
        assert failure is not None
        raise failure

    def _connect(
        self, host: str, port: int, timeout_s: float, set_up_timeout_s: float = math.inf
    ) -> BlockingClient:
        return connected(host, port, self._client_id, timeout_s, self._security, set_up_timeout_s)


def connected(
    host: str,
    port: int,
    client_id: str,
    timeout_s: float,
    security: Security,
    set_up_timeout_s: float = math.inf,
) -> BlockingClient:
    """Connect to one node. Raises `ConfigError`, `WireError` and `OSError` with words that name it."""
    try:
        return BlockingClient(
            host, port, client_id, timeout_s=timeout_s, set_up_timeout_s=set_up_timeout_s, security=security
        )
    except TimeoutError as e:
        raise TimeoutError(f"{host}:{port} does not answer in time") from e
    except OSError as e:
        raise ConnectionError(f"cannot connect to {host}:{port}: {e.strerror or e}") from e
    except UnicodeError:  # of the encoding of names that are not in ASCII
        raise ConnectionError(f"cannot connect to {host}:{port}: no host has such a name") from None


def describe_through(client: BlockingClient, *, controllers: bool = False) -> ClusterInfo:
    """Return the cluster with its brokers, or with its `controllers`, as the node of `client` knows it."""
    module = request_module(ApiKey.DESCRIBE_CLUSTER)
    response = client.request(
        ApiKey.DESCRIBE_CLUSTER,
        module.DescribeClusterRequest(
            include_cluster_authorized_operations=False,
            endpoint_type=CONTROLLER_ENDPOINTS if controllers else BROKER_ENDPOINTS,
            include_fenced_brokers=not controllers,
        ),
    )
    raise_for(response.error_code, response.error_message, "the cluster")
    nodes = [NodeInfo(b.broker_id, b.host, b.port, b.rack, b.is_fenced) for b in response.brokers]
    return ClusterInfo(response.cluster_id, response.controller_id, tuple(sorted(nodes)))


def _place(address: str) -> tuple[str, int]:
    """Return host and port of an address. Raises `StorageError`."""
    host, _, port = address.rpartition(":")
    if not host or not _PORT.fullmatch(port) or int(port) > 65535:
        raise StorageError(f"{address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


class ChangingCluster(Cluster):
    """A cluster with the requests that change it, for the commands that do."""

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        *,
        dry_run: bool = False,
    ) -> UUID | None:
        """Create a topic; numbers of -1 are the broker's to choose. Return its id.

        With `dry_run` only have the cluster check that it can be created.
        """
        module = request_module(ApiKey.CREATE_TOPICS)
        topic = module.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=(),
            configs=tuple(module.CreatableTopicConfig(name=k, value=v) for k, v in configs.items()),
        )
        request = module.CreateTopicsRequest(topics=(topic,), timeout=TIMEOUT, validate_only=dry_run)
        (result,) = self._first.request(ApiKey.CREATE_TOPICS, request).topics
        raise_for(result.error_code, result.error_message, f"topic {name}")
        topic_id: UUID | None = result.topic_id
        return topic_id

    def reassign(self, wanted: Mapping[Place, Sequence[int] | None]) -> dict[Place, str]:
        """Start reassignments to these replicas, preferred leaders first, and cancel those to None; return
        the refused ones and why."""
        module = request_module(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
        by_topic: dict[str, list[Any]] = {}
        for (topic, partition), replicas in wanted.items():
            one = module.ReassignablePartition(
                partition_index=partition, replicas=None if replicas is None else tuple(replicas)
            )
            by_topic.setdefault(topic, []).append(one)
        request = module.AlterPartitionReassignmentsRequest(
            timeout=TIMEOUT,
            topics=tuple(
                module.ReassignableTopic(name=topic, partitions=tuple(found))
                for topic, found in by_topic.items()
            ),
        )
        answer = self._first.request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
        raise_for(answer.error_code, answer.error_message, "reassignments")
        return {
            (topic.name, one.partition_index): one.error_message or ErrorCode(one.error_code).name.upper()
            for topic in answer.responses
            for one in topic.partitions
            if one.error_code != ErrorCode.none
        }

    def keep_retention(self, name: str) -> None:
        """Confirm a topic's retention: set again what is set, and delete what is not."""
        module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
        overrides = self.topic_overrides(name)
        configs = tuple(
            module.AlterableConfig(
                name=key, config_operation=_SET if key in overrides else _DELETE, value=overrides.get(key)
            )
            for key in ("retention.ms", "retention.bytes")
        )
        resource = module.AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configs=configs
        )
        request = module.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        (result,) = self._first.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
        raise_for(result.error_code, result.error_message, f"topic {name}")

    def delete_topic(self, name: str, topic_id: UUID | None = None) -> None:
        """Delete a topic by its name, or by its id if that is given: another one of the name stays then."""
        module = request_module(ApiKey.DELETE_TOPICS)
        state = module.DeleteTopicState(name=name if topic_id is None else None, topic_id=topic_id)
        request = module.DeleteTopicsRequest(topics=(state,), timeout=TIMEOUT)
        (result,) = self._first.request(ApiKey.DELETE_TOPICS, request).responses
        raise_for(result.error_code, result.error_message, f"topic {name}")


_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""


def _topic_info(topic: Any) -> TopicInfo:
    partitions = tuple(
        PartitionInfo(p.partition_index, p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes))
        for p in topic.partitions
    )
    return TopicInfo(topic.name, topic.topic_id, partitions)


def raise_for(code: ErrorCode, message: str | None, what: str) -> None:
    """Raise `RequestError` if `code` is an error."""
    if code != ErrorCode.none:
        name = ErrorCode(code).name.upper()
        raise RequestError(ErrorCode(code), f"{what}: {message} ({name})" if message else f"{what}: {name}")
