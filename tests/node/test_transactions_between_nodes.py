"""Transactions of three brokers in one process: markers and questions between them, and moves meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.world import system_world
from service.cli.dev_nodes import agree_on_ports, format_nodes, plan_nodes
from service.partition.partition import Partition
from service.records.batch import complete_headers
from service.records.decode import iter_records
from service.serving.handlers import write_txn_markers
from service.serving.received_markers import write_markers
from service.serving.transaction_coordinators import TransactionCoordinators
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import commit
from tests.support.isolation import values as committed_values
from tests.support.processes import wait_until
from tests.support.transactional_client import TransactionalClient, settled

NONE = ErrorCode.none
SETTINGS = {
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "1",
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "3000",
}
PLACES = [("t", 0), ("t", 1), ("t", 2)]
"""led by brokers 1, 2 and 3"""


class Gate:
    """Holds the markers that are sent to brokers, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: set[int] = set()
        self.arrived: list[int] = []
        monkeypatch.setattr(write_txn_markers, "write_markers", self._write)

    async def _write(self, broker: Any, request: Any, *rest: Any) -> Any:
        node_id = broker.config.node_id
        self.arrived.append(node_id)
        while node_id in self.held:
            await asyncio.sleep(0.01)
        return await write_markers(broker, request, *rest)


class Three:
    """Three brokers, of which the first is the controller."""

    def __init__(self, folder: Path, **more: str) -> None:
        ports = agree_on_ports(0, 3, 1)
        (folder / "bucket").mkdir()
        settings = {**SETTINGS, "firn.remote.url": f"file://{folder}/bucket", **more}
        plan = plan_nodes(3, 1, ports, folder, system_world(), settings)
        format_nodes(plan, system_world())
        self.nodes = {
            node.node_id: NodeThread(folder / str(node.node_id), None, None, **node.settings)
            for node in plan.nodes
        }
        for node in self.nodes.values():
            node._thread.start()  # the brokers need the controller, and it them to be of use
        for node in self.nodes.values():
            node._ready.wait()
            assert node.failure is None, node.failure
        self.bootstrap = f"{self.nodes[1].host}:{self.nodes[1].port}"
        self.client = self.nodes[1].client()
        self.talk = Talk(self.client)
        self.create("t", [(1, 2, 3), (2, 3, 1), (3, 1, 2)])
        self.numbers = count()

    def close(self) -> None:
        self.client.close()
        for node_id in (2, 3, 1):
            self.nodes[node_id].stop()

    def create(self, name: str, replicas: list[tuple[int, ...]], **configs: str) -> None:
        """Create a topic, once its brokers are there."""
        module = request_module(ApiKey.CREATE_TOPICS)
        topic = module.CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=tuple(
                module.CreatableReplicaAssignment(partition_index=n, broker_ids=ids)
                for n, ids in enumerate(replicas)
            ),
            configs=tuple(
                module.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ),
        )

        def created() -> bool:
            [answer] = self.talk(ApiKey.CREATE_TOPICS, "CreateTopicsRequest", topics=(topic,)).topics
            assert answer.error_code != ErrorCode.invalid_config, answer.error_message
            return bool(answer.error_code in (NONE, ErrorCode.topic_already_exists))

        wait_until("a topic on three brokers", created)

    def replica(self, node_id: int, topic: str) -> Partition:
        broker = self.nodes[node_id].node.parts.broker
        assert broker is not None
        return broker.replicas.find(topic, 0)

    def leave(self, node_id: int, gate: Gate) -> None:
        """Shut a broker down; open the gate once it leads nothing."""
        leaving = threading.Thread(target=self.nodes[node_id].stop)
        leaving.start()
        broker = self.nodes[1].node.parts.broker
        assert broker is not None

        def leads_nothing() -> bool:
            topics = broker.image.topics_by_name
            return all(
                partition.leader not in (node_id, -1)
                for name in topics
                for partition in topics[name].partitions.values()
            )

        wait_until("its leaderships to go to others", leads_nothing)
        gate.held.clear()
        leaving.join()

    def coordinators(self, node_id: int) -> TransactionCoordinators:
        broker = self.nodes[node_id].node.parts.broker
        assert broker is not None
        assert broker.transactions is not None
        return broker.transactions

    def producer(self, *, coordinator: int | None = None, version: int = 2) -> TransactionalClient:
        """Return a producer whose id the broker coordinates, if that matters."""
        while True:
            client = TransactionalClient(self.bootstrap, f"id-{next(self.numbers)}", version=version)
            address = client.coordinator(client.transactional_id)
            if coordinator is None or address.endswith(f":{self.nodes[coordinator].port}"):
                assert settled(client, client.init) == NONE
                return client
            client.forget()

    def committed(self, node_id: int, index: int) -> list[bytes]:
        """Values that a reader of committed transactions sees at the leader of a partition of `t`."""
        with self.nodes[node_id].client() as client:
            talk = Talk(client)
            found = talk.fetch(talk.topic_id("t"), 0, index, isolation_level=1)
        return list(seen(found))


def seen(found: Any) -> Iterator[bytes]:
    """Values of a fetched partition, without those of aborted transactions."""
    aborted = {(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()}
    data, skipped = memoryview(found.records or b""), set()
    for header in complete_headers(data):
        batch = data[header.position : header.end]
        if header.is_control:
            skipped.discard(header.producer_id)
            continue
        if (header.producer_id, header.base_offset) in aborted:
            skipped.add(header.producer_id)
        if header.producer_id not in skipped:
            yield from (bytes(record.value or b"") for record in iter_records(batch))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    cluster = Three(tmp_path_factory.mktemp("three"))
    yield cluster
    cluster.close()


def write(client: TransactionalClient, value: bytes, places: list[tuple[str, int]] = PLACES) -> None:
    if not client.is_second:
        added = settled(client, lambda: client.add(*places))
        assert set(added.values()) == {NONE}
    for place in places:
        answer = settled(client, partial(client.produce, *place, [value]))
        assert answer.error_code == NONE, answer


def everywhere(three: Three, value: bytes, leaders: tuple[int, ...] = (1, 2, 3)) -> Callable[[], bool]:
    return lambda: all(value in three.committed(leader, n) for n, leader in enumerate(leaders))


def test_lag_of_a_group_includes_partitions_that_are_on_other_brokers_only(three: Three) -> None:
    module = request_module(ApiKey.CREATE_TOPICS)
    assignments = tuple(
        module.CreatableReplicaAssignment(partition_index=n, broker_ids=(n + 1,)) for n in range(3)
    )
    topic = module.CreatableTopic(
        name="apart", num_partitions=-1, replication_factor=-1, assignments=assignments, configs=()
    )
    [answer] = three.talk(ApiKey.CREATE_TOPICS, "CreateTopicsRequest", topics=(topic,)).topics
    assert answer.error_code == NONE
    topic_id = three.talk.topic_id("apart")
    for n in range(3):
        wait_until("the topic at its leader", lambda n=n: has_taken(three, topic_id, n))  # type: ignore[misc]
    wait_until("the offsets of a group", lambda: committed_anywhere(three, {topic_id: range(3)}))

    def lags() -> dict[int, int]:
        """Of the group, at whichever broker coordinates it."""
        for node in three.nodes.values():
            broker = node.node.parts.broker
            assert broker is not None
            report = asyncio.run_coroutine_threadsafe(broker.groups.lag(), node._loop).result(20)
            for one in report.groups:
                assert (one.group, report.unknown, report.left_out) == ("behind", 0, 0)
                return one.topics.get("apart", {})
        return {}

    assert lags() == {0: 3, 1: 4, 2: 5}, "at once, each end from the broker that has it"
    gone = request_module(ApiKey.DELETE_TOPICS).DeleteTopicState(name="apart", topic_id=None)
    three.talk(ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", topics=(gone,), timeout=20_000)
    wait_until("the coordinator to know that the topic is gone", lambda: lags() == {})


def has_taken(three: Three, topic_id: Any, n: int) -> bool:
    with three.nodes[n + 1].client() as client:
        return bool(Talk(client).produce(topic_id, [b"a"] * (10 + n), 1, n).error_code == NONE)


def committed_anywhere(three: Three, topics: dict[Any, range]) -> bool:
    for node in three.nodes.values():
        with node.client() as client:
            talk = Talk(client)
            talk(ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=0, coordinator_keys=("behind",))
            answers = commit(talk, topics, "behind")
            if all(code == NONE for one in answers.values() for code in one.values()):
                return True
    return False


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_of_three_brokers_is_seen_as_a_whole(three: Three, version: int) -> None:
    value = f"whole {version}".encode()
    with three.producer(coordinator=2, version=version) as client:
        before = three.coordinators(2).figures(0)
        write(client, value)
        assert not any(value in three.committed(n + 1, n) for n in range(3))
        assert settled(client, lambda: client.end(commit=True)) == NONE
        wait_until("the markers of all partitions", everywhere(three, value))
        wait_until("the completion", lambda: three.coordinators(2).figures(0).open == 0)
        after = three.coordinators(2).figures(0)
        assert after.marker_requests == before.marker_requests + 3
        assert (after.markers_waiting, after.ends.observed - before.ends.observed) == (0, 1)


def test_an_aborted_transaction_is_seen_nowhere(three: Three) -> None:
    with three.producer(coordinator=3) as client:
        write(client, b"aborted")
        assert settled(client, lambda: client.end(commit=False)) == NONE
        write(client, b"after it")
        assert settled(client, lambda: client.end(commit=True)) == NONE
        wait_until("the markers of the second", everywhere(three, b"after it"))
    assert not any(b"aborted" in three.committed(n + 1, n) for n in range(3))


def test_committed_readers_of_a_follower_see_what_those_of_the_leader_see_from_disk_and_bucket(
    three: Three,
) -> None:
    """KIP-392: the follower's own spans and rows, and those of the archive once its segments have gone."""
    three.create(
        "near",
        [(1, 2)],
        remote_storage_enable="true",
        local_retention_bytes="1",
        internal_segment_bytes="14000",
        file_delete_delay_ms="0",
    )
    near = ("near", 0)
    addresses = [f"{three.nodes[one].host}:{three.nodes[one].port}" for one in (1, 2)]
    expected: list[bytes] = []
    with three.producer() as kept, three.producer() as dropped, three.producer() as opened:
        for number in range(30):
            values = [b"%d %d" % (number, n) + b"." * 300 for n in range(4)]
            for client, value in zip((dropped, kept, dropped, kept), values, strict=True):
                write(client, value, [near])
            assert settled(dropped, lambda: dropped.end(commit=False)) == NONE
            assert settled(kept, lambda: kept.end(commit=True)) == NONE
            expected += values[1::2]
        write(opened, b"open" * 1000, [near])

        def is_seen(at: str) -> bool:
            return committed_values(three.bootstrap, "near", at=at) == expected

        for address in addresses:
            wait_until("what is committed", partial(is_seen, address))
        replica, follower = three.replica(2, "near"), addresses[1]
        wait_until("the follower's segments to go", lambda: replica.unified.local_start_offset > 100)
        assert replica.unified.start_offset == 0
        assert is_seen(follower)
        assert settled(opened, lambda: opened.end(commit=False)) == NONE
        wait_until("the last marker", lambda: replica.last_stable_offset == replica.end_offset)
        assert is_seen(follower)


def test_a_batch_that_no_transaction_has_is_refused_by_the_coordinator_of_another_broker(
    three: Three,
) -> None:
    with three.producer(coordinator=2, version=1) as client:
        answer = client.produce("t", 0, [b"never added"])
        assert answer.error_code == ErrorCode.transaction_abortable
        assert set(client.add(("t", 0)).values()) == {NONE}
        assert client.produce("t", 0, [b"added"]).error_code == NONE
        assert settled(client, lambda: client.end(commit=True)) == NONE


def test_a_zombie_is_fenced_on_every_broker(three: Three) -> None:
    with three.producer(coordinator=1) as zombie, three.producer(coordinator=1) as heir:
        zombie.transactional_id = heir.transactional_id
        zombie.producer_id, zombie.epoch = heir.producer_id, heir.epoch
        assert settled(heir, heir.init) == NONE
        for place in PLACES:
            assert zombie.produce(*place, [b"zombie"]).error_code == ErrorCode.invalid_producer_epoch


def test_a_leader_that_leaves_before_its_marker_leaves_it_to_the_next(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with three.producer(coordinator=1) as client:
        write(client, b"moves")
        gate.held.add(3)
        assert settled(client, lambda: client.end(commit=True)) == NONE
        wait_until("the marker to arrive", lambda: 3 in gate.arrived)
        three.leave(3, gate)
        wait_until("the marker at the next leader", everywhere(three, b"moves", (1, 2, 1)))


def test_the_next_coordinator_sends_what_the_last_has_decided(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with three.producer(coordinator=2) as client:
        write(client, b"decided")
        gate.held.add(1)
        assert settled(client, lambda: client.end(commit=True)) == NONE
        wait_until("a marker to arrive", lambda: 1 in gate.arrived)
        three.leave(2, gate)
        wait_until("all markers", everywhere(three, b"decided", (1, 1, 1)))
