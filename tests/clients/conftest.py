"""The broker that ordinary clients are pointed at.

One node with an S3 tier for the whole run. `FIRN_TEST_NODES=3` (`make test-clients NODES=3`): a cluster of so
many, all of them brokers and controllers, with one bucket; tests about one node, which they start themselves,
are left out; `FIRN_TEST_REPLICAS=3` (`REPLICAS=3`): topics have so many replicas, of which all but one must
be in sync. `FIRN_TEST_DEV=3` (`DEV=3`): the nodes, settings and store of `firn dev --nodes 3`, which cannot
restart one of them. Or another broker, say Apache Kafka, to judge the tests by:
`FIRN_TEST_BOOTSTRAP=127.0.0.1:9092 make test-clients`, with `FIRN_TEST_TIERED=1` where it has a cold tier and
`FIRN_TEST_DATA=/dir` where its `log.dirs` can be read.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.dev import dev_nodes, tail
from tests.support.processes import Node, wait_until
from tests.support.quorums import FOR_FIRN, Cluster
from tests.support.replicas import wait_in_sync
from tests.support.stores import Store, moto_server, new_bucket, versitygw_binary, versitygw_server
from tests.support.tiers import offset, settle
from tests.support.wire import RawConnection, leader_of, offsets

DEV = int(os.environ.get("FIRN_TEST_DEV") or 0)
NODES = DEV or int(os.environ.get("FIRN_TEST_NODES", "1"))
REPLICAS = int(os.environ.get("FIRN_TEST_REPLICAS", "1"))
REPLICATED = {
    "default.replication.factor": str(REPLICAS),
    "min.insync.replicas": str(max(REPLICAS - 1, 1)),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts a node of its own is as with one node: it says nothing about several."""
    alone = pytest.mark.skip(reason="is about one node, which it starts itself")
    here = (item for item in items if NODES > 1 and item.path.parent == Path(__file__).parent)
    for item in here:
        if {"start_node", "firn"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(alone)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where a test fails, what the nodes said last is told, too."""
    report = yield
    broker = getattr(item, "funcargs", {}).get("broker")
    if report.failed and isinstance(broker, Broker):
        report.sections += [("nodes", tail(log)) for log in broker.logs]
    return report


@dataclass
class Broker:
    """Where clients connect: one or several nodes. `store` is None when it is somebody else's broker."""

    bootstrap: str
    admin: Admin
    tiered: bool
    data: tuple[Path, ...] = ()
    """log directories that can be read, of the first node first"""
    logs: tuple[Path, ...] = ()
    """what nodes of ours say"""
    restart: Callable[[], None] | None = None
    """one node after the other; None where that cannot be done"""
    store: Store | None = None

    @property
    def is_ours(self) -> bool:
        return self.store is not None

    def need_tiers(self) -> None:
        if not self.tiered:
            pytest.skip("this broker has no cold tier (FIRN_TEST_TIERED)")

    def need_data(self) -> tuple[Path, ...]:
        if not self.data:
            pytest.skip("this broker's data directory is not known (FIRN_TEST_DATA)")
        return self.data

    def need_restart(self) -> Callable[[], None]:
        if self.restart is None:
            pytest.skip("firn dev restarts no node" if self.is_ours else "not ours to restart")
        return self.restart

    def folder(self, topic: str, partition: int = 0) -> Path:
        """The directory of a partition; of several replicas, the leader's."""
        name = f"{topic}-{partition}"
        found = [one for data in self.need_data() if (one := data / name).is_dir()]
        if len(found) > 1:
            leader: int = self.admin.client.list_topics(topic, 20).topics[topic].partitions[partition].leader
            return self.data[leader - 1] / name
        (only,) = found
        return only

    def need_store(self) -> Store:
        if self.store is None:
            pytest.skip("this broker's bucket is not known")
        return self.store

    def offset(self, topic: str, partition: int, which: int) -> int:
        return offset(self.bootstrap, topic, partition, which)

    def leads(self, topic: str, partition: int) -> bool:
        """Whether somebody leads a partition, and knows it."""
        with RawConnection(leader_of(self.bootstrap, topic, partition)) as connection:
            return bool(offsets(connection, topic, partition, -1).error_code == 0)

    def settle(self, topic: str, partition: int) -> int:
        """Lets local copies of sealed segments go; returns the first local offset, within the log."""
        self.admin.alter(topic, local_retention_bytes="1")
        return settle(self.bootstrap, topic, partition)


def _object_storage(folder: Path) -> AbstractContextManager[str]:
    """The best S3 there is: LocalStack where `make test-localstack` started it, else versitygw, else moto."""
    if endpoint := os.environ.get("FIRN_LOCALSTACK"):
        return nullcontext(endpoint)
    return versitygw_server(folder) if versitygw_binary() else moto_server(folder)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    bootstrap = os.environ.get("FIRN_TEST_BOOTSTRAP")
    if bootstrap:
        data = os.environ.get("FIRN_TEST_DATA")
        tiered = os.environ.get("FIRN_TEST_TIERED") == "1"
        yield Broker(bootstrap, Admin(bootstrap), tiered, (Path(data),) if data else ())
        return
    folder = tmp_path_factory.mktemp("clients")
    if DEV:
        yield from _dev(folder / "dev", tmp_path_factory.getbasetemp().parent / "dev.turn")
        return
    with _object_storage(folder) as endpoint:
        store = new_bucket(endpoint, f"clients-{os.getpid()}")
        yield from (_several if NODES > 1 else _one)(folder / "node", store)


def _one(folder: Path, store: Store) -> Iterator[Broker]:
    node = Node(folder, {**BRISK, **store.node_settings}, store.env)
    try:
        node.start()
        where = Admin(node.bootstrap)
        yield Broker(node.bootstrap, where, True, (node.data,), (node.stderr_path,), node.restart, store)
        node.stop()
    finally:
        node.close()


def _several(folder: Path, store: Store) -> Iterator[Broker]:
    folder.mkdir()
    settings = {**BRISK, **REPLICATED, **store.node_settings}
    with Cluster(folder, NODES, NODES, settings=settings, environ=store.env) as cluster:
        cluster.start()
        members = cluster.members.values()

        def restart() -> None:
            for one in members:
                one.leave()
                one.start()
                if REPLICAS > 1:
                    for topic in Admin(cluster.bootstrap).topics():
                        wait_in_sync(cluster, topic)

        data = tuple(one.data for one in members)
        logs = tuple(one.log_path for one in members)
        admin = Admin(cluster.bootstrap, REPLICAS)
        yield Broker(cluster.bootstrap, admin, True, data, logs, restart, store)
        cluster.stop()
        assert [one.process.returncode for one in members] == [0] * NODES


def _dev(folder: Path, turn: Path) -> Iterator[Broker]:
    """At the settings that `firn dev` chooses."""
    with dev_nodes(folder, DEV, FOR_FIRN | (REPLICATED if REPLICAS > 1 else {}), turn) as nodes:
        admin = Admin(nodes.bootstrap, REPLICAS)
        yield Broker(nodes.bootstrap, admin, True, nodes.data, (nodes.log,), None, nodes.store)


@pytest.fixture
def bootstrap(broker: Broker) -> str:
    return broker.bootstrap


_numbers = itertools.count(1)

NewTopic = Callable[..., str]


@pytest.fixture
def new_topic(broker: Broker) -> NewTopic:
    """`new_topic(partitions, segment_bytes="1048576")` creates a topic with a name of its own."""

    def create(partitions: int = 1, **config: str) -> str:
        name = f"topic-{os.getpid()}-{next(_numbers)}"
        broker.admin.create(name, partitions, **config)
        # Apache Kafka answers before its broker has heard of it; so does a node before the others have.
        for number in range(partitions):
            wait_until("the topic to be there", lambda number=number: broker.leads(name, number))  # type: ignore[misc]
        return name

    return create
