"""A node that dies with transactions under way: what is decided is carried out, what is not is aborted."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest
from kio.schema.errors import ErrorCode

from tests.conftest import NodeFactory
from tests.support.clients import Admin
from tests.support.isolation import COMMITTED, fetch, values
from tests.support.processes import Node, wait_until
from tests.support.transactional_client import TransactionalClient, settled
from tests.support.wire import ConnectionLost, end_offset

TOPIC = "pairs"
WRITERS = 6
PLACES = ((TOPIC, 0), (TOPIC, 1))
NONE = ErrorCode.none


class Writer(threading.Thread):
    """Transactions of one record in each of two partitions, one after the other, until the node is gone."""

    def __init__(self, node: Node, number: int) -> None:
        super().__init__(name=f"writer-{number}")
        self.node = node
        self.number = number
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        with suppress(ConnectionLost, OSError):
            self.write()

    def has_committed(self) -> bool:
        return len(self.acknowledged) > 3

    def write(self) -> None:
        name = f"writer-{self.number}"
        with TransactionalClient(self.node.bootstrap, name, version=1, timeout_ms=2000) as client:
            assert settled(client, client.init, 10) == NONE
            for count in range(100_000):
                value = b"%d-%d" % (self.number, count)
                added = settled(client, lambda: client.add(*PLACES), 2)
                assert added == dict.fromkeys(PLACES, NONE)
                for place in PLACES:
                    assert client.produce(*place, [value]).error_code == NONE
                assert client.end(commit=True) == NONE
                self.acknowledged.append(value)


def is_settled(node: Node) -> bool:
    """Return whether no transaction hides anything from readers of committed records."""
    ends = [end_offset(node.bootstrap, TOPIC, index) for index in range(2)]
    answers = [fetch(node.bootstrap, TOPIC, 0, COMMITTED, partition=index) for index in range(2)]
    return [int(one.last_stable_offset) for one in answers] == ends


@pytest.mark.thorough
def test_transactions_are_whole_behind_a_kill(start_node: NodeFactory) -> None:
    """A commit that was acknowledged is there (invariant X3), a decision is carried out by whoever
    coordinates next (X2), and nothing is half there (X1)."""
    keys = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    node = start_node(**keys)
    Admin(node.bootstrap).create(TOPIC, 2)
    acknowledged: list[bytes] = []
    for round_number in range(2):
        writers = [Writer(node, WRITERS * round_number + number) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            wait_until("commits", writer.has_committed, 60)
        time.sleep(0.1 * round_number)
        node.kill()
        for writer in writers:
            writer.join()
            acknowledged += writer.acknowledged
        node.start()
        wait_until("every transaction to have its end", lambda: is_settled(node), 30)
        seen = [sorted(values(node.bootstrap, TOPIC, partition=n)) for n in range(2)]
        assert seen[0] == seen[1]
        assert len(set(seen[0])) == len(seen[0])
        assert set(acknowledged) <= set(seen[0])
    node.stop()
