"""Nodes that are mistreated."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from tests.conftest import BRISK
from tests.support.batches import batch
from tests.support.clients import Admin
from tests.support.processes import Node, wait_until
from tests.support.wire import ConnectionLost, RawConnection, end_offset, produce


class Bystander:
    """A well-behaved producer on a connection of its own; `check()` says that it noticed nothing."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._acked = 0
        self._before = end_offset(bootstrap, topic, 0)
        self._trouble: list[str] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with RawConnection(self._bootstrap) as connection:
                while not self._done.is_set():
                    answer = produce(connection, self._topic, 0, batch([b"%d" % self._acked]))
                    assert int(answer.error_code) == 0
                    assert int(answer.base_offset) == self._before + self._acked
                    self._acked += 1
                    self._done.wait(0.01)
        except (ConnectionLost, AssertionError, OSError) as error:
            self._trouble.append(repr(error))

    def check(self) -> None:
        """Ends it; to be called once, or more."""
        if self._done.is_set():
            return
        before = self._acked
        while not self._trouble and self._acked < before + 2 and self._thread.is_alive():
            self._done.wait(0.01)
        self._done.set()
        self._thread.join(30)
        assert not self._trouble
        assert not self._thread.is_alive()
        assert end_offset(self._bootstrap, self._topic, 0) == self._before + self._acked


@pytest.fixture(scope="module")
def sturdy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for a module's worth of bad input; `FIRN_TEST_BOOTSTRAP` is another, to judge them by."""
    node = Node(tmp_path_factory.mktemp("sturdy"), {**BRISK, "auto.create.topics.enable": "false"})
    other = os.environ.get("FIRN_TEST_BOOTSTRAP")
    if other:
        node.port = int(other.rpartition(":")[2])
    else:
        node.start()
    try:
        yield node
        if not other:
            node.stop()
    finally:
        node.close()


_topics = iter(range(1_000_000))


@pytest.fixture
def topic(sturdy: Node) -> str:
    name = f"bad-{os.getpid()}-{next(_topics)}"
    Admin(sturdy.bootstrap).create(name)
    wait_until("the topic's leader", lambda: end_offset(sturdy.bootstrap, name, 0) == 0)
    return name


@pytest.fixture
def bystander(sturdy: Node) -> Iterator[Bystander]:
    """Produces throughout the test; at its end it must have noticed nothing."""
    name = f"bystander-{os.getpid()}-{next(_topics)}"
    Admin(sturdy.bootstrap).create(name)
    witness = Bystander(sturdy.bootstrap, name)
    yield witness
    witness.check()
