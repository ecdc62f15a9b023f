"""The broker that ordinary clients are pointed at.

One node with an S3 tier for the whole run; or another broker, say Apache Kafka, to judge the tests by:
`FIRN_TEST_BOOTSTRAP=127.0.0.1:9092 make test-clients`, with `FIRN_TEST_TIERED=1` where it has a cold tier and
`FIRN_TEST_DATA=/dir` where its `log.dirs` can be read.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.processes import Node, wait_until
from tests.support.stores import Store, moto_server, new_bucket, versitygw_binary, versitygw_server
from tests.support.tiers import offset, settle
from tests.support.wire import RawConnection, offsets


@dataclass
class Broker:
    """Where clients connect. `node` and `store` are None when it is somebody else's broker."""

    bootstrap: str
    admin: Admin
    tiered: bool
    data: Path | None
    node: Node | None = None
    store: Store | None = None

    def need_tiers(self) -> None:
        if not self.tiered:
            pytest.skip("this broker has no cold tier (FIRN_TEST_TIERED)")

    def need_data(self) -> Path:
        if self.data is None:
            pytest.skip("this broker's data directory is not known (FIRN_TEST_DATA)")
        return self.data

    def need_store(self) -> Store:
        if self.store is None:
            pytest.skip("this broker's bucket is not known")
        return self.store

    def offset(self, topic: str, partition: int, which: int) -> int:
        return offset(self.bootstrap, topic, partition, which)

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
        yield Broker(bootstrap, Admin(bootstrap), tiered, Path(data) if data else None)
        return
    folder = tmp_path_factory.mktemp("clients")
    with _object_storage(folder) as endpoint:
        store = new_bucket(endpoint, f"clients-{os.getpid()}")
        node = Node(folder / "node", {**BRISK, **store.node_settings}, store.env)
        try:
            node.start()
            yield Broker(node.bootstrap, Admin(node.bootstrap), True, node.data, node, store)
            node.stop()
        finally:
            node.close()


@pytest.fixture
def bootstrap(broker: Broker) -> str:
    return broker.bootstrap


def _is_there(bootstrap: str, topic: str, partition: int) -> bool:
    with RawConnection(bootstrap) as connection:
        return bool(offsets(connection, topic, partition, -1).error_code == 0)


_numbers = itertools.count(1)

NewTopic = Callable[..., str]


@pytest.fixture
def new_topic(broker: Broker) -> NewTopic:
    """`new_topic(partitions, segment_bytes="1048576")` creates a topic with a name of its own."""

    def create(partitions: int = 1, **config: str) -> str:
        name = f"topic-{os.getpid()}-{next(_numbers)}"
        broker.admin.create(name, partitions, **config)
        # Apache Kafka answers before its broker has heard of it.
        wait_until("the topic to be there", lambda: _is_there(broker.bootstrap, name, partitions - 1))
        return name

    return create
