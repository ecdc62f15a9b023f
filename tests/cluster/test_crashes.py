"""kill -9 while producing and while offloading, at many points: what was acknowledged is there, once."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import NodeFactory
from tests.support.batches import ZSTD, batch
from tests.support.clients import Admin, Confluent, digest, make_rows
from tests.support.faults import Fault, FaultProxy, Seen, fault_proxy
from tests.support.fsck import fsck
from tests.support.processes import Node, wait_until
from tests.support.stores import Store
from tests.support.tiers import LATEST, offset, settle
from tests.support.wire import ConnectionLost, RawConnection, produce

SEED = int(os.environ.get("SEED", "1"))
TIERED = {"remote_storage_enable": "true", "segment_bytes": "1048576", "local_retention_bytes": "1"}


KAFKA_STORAGE_ERROR = 56


class Writer:
    """Produces numbered records with acks=1, one batch after the other, until the node goes away."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.acked: dict[int, bytes] = {}
        self._number = 0

    def run(
        self,
        bootstrap: str,
        batch_records: int = 3,
        codec: int = 0,
        value_bytes: int = 50,
        batches: int = 1_000_000,
    ) -> None:
        try:
            with RawConnection(bootstrap) as connection:
                for _ in range(batches):
                    first = self._number
                    self._number += batch_records
                    values = [b"%d:" % n + os.urandom(value_bytes) for n in range(first, self._number)]
                    data = batch(values, codec=codec)
                    answer = produce(connection, self.topic, 0, data)
                    while int(answer.error_code) == KAFKA_STORAGE_ERROR:
                        # a tiered partition takes none before its HEAD was looked at
                        time.sleep(0.05)
                        answer = produce(connection, self.topic, 0, data)
                    assert int(answer.error_code) == 0
                    for delta, value in enumerate(values):
                        self.acked[int(answer.base_offset) + delta] = value
        except (ConnectionLost, OSError):
            return

    def check(self, bootstrap: str) -> None:
        """Every acknowledged record lies where it was said to."""
        end = offset(bootstrap, self.topic, 0, LATEST)
        assert end > max(self.acked, default=-1)
        found = Confluent().read(bootstrap, self.topic, 0, 0, end)
        lost = {where for where, value in self.acked.items() if found[where].value != value}
        assert not lost, f"{len(lost)} of {len(self.acked)} acknowledged are lost: {sorted(lost)[:5]}…"


def test_acknowledged_records_survive_kills_while_producing(start_node: NodeFactory) -> None:
    source = random.Random(SEED)
    node = start_node()
    Admin(node.bootstrap).create("topic")
    writer = Writer("topic")
    for _ in range(8):
        thread = threading.Thread(
            target=writer.run, args=(node.bootstrap, source.choice((1, 3, 40)), source.choice((0, ZSTD)))
        )
        thread.start()
        time.sleep(source.uniform(0.02, 0.4))
        node.kill()
        thread.join()
        node.start()
        writer.check(node.bootstrap)
    assert len(writer.acked) > 50
    node.restart()
    writer.check(node.bootstrap)
    node.stop()


@pytest.mark.thorough
def test_acknowledged_records_survive_kills_at_segment_borders(start_node: NodeFactory) -> None:
    """Large batches, so that segments are rolled all the time."""
    source = random.Random(SEED)
    node = start_node()
    Admin(node.bootstrap).create("topic", segment_bytes="1048576")
    writer = Writer("topic")
    for _ in range(4):
        thread = threading.Thread(target=writer.run, args=(node.bootstrap, 300, 0, 1000))
        thread.start()
        time.sleep(source.uniform(0.1, 0.4))
        node.kill()
        thread.join()
        node.start()
        writer.check(node.bootstrap)
    assert len(list((node.data / "topic-0").glob("*.log"))) > 3
    node.stop()


@pytest.mark.parametrize(
    "tail", [b"\0" * 5000, b"garbage" * 10, b"\0" * 7, b""], ids=["zeros", "garbage", "few", "cut"]
)
def test_a_torn_tail_is_cut_and_the_log_goes_on(tail: bytes, start_node: NodeFactory) -> None:
    node = start_node()
    Admin(node.bootstrap).create("topic")
    rows = make_rows(500, 1)
    Confluent().produce(node.bootstrap, "topic", rows)
    node.kill()
    log = max((node.data / "topic-0").glob("*.log"))
    with log.open("r+b") as file:
        if tail:
            file.seek(0, os.SEEK_END)
            file.write(batch([b"half of it" * 50])[:-200] + tail)
        else:
            # As if the last batch had not reached the disk in whole.
            file.truncate(log.stat().st_size - 10)
    for index in (log.with_suffix(".index"), log.with_suffix(".timeindex")):
        index.write_bytes(b"\xff" * 100)
    node.start()
    end = offset(node.bootstrap, "topic", 0, LATEST)
    assert end == 500 if tail else 0 <= end < 500
    assert digest(Confluent().read(node.bootstrap, "topic", 0, 0, end)) == digest(rows[:end])
    Confluent().produce(node.bootstrap, "topic", rows[:10])
    assert offset(node.bootstrap, "topic", 0, LATEST) == end + 10
    node.restart()
    assert digest(Confluent().read(node.bootstrap, "topic", 0, 0, end + 10)) == digest(rows[:end] + rows[:10])
    node.stop()


@pytest.mark.thorough
def test_topics_and_configs_survive_kills(start_node: NodeFactory) -> None:
    source = random.Random(SEED)
    node = start_node()
    expected: dict[str, str] = {}
    for turn in range(5):
        admin = Admin(node.bootstrap)
        for number in range(source.randint(1, 5)):
            name = f"topic-{turn}-{number}"
            admin.create(name, 2, retention_bytes=str(turn * 100 + 50))
            expected[name] = str(turn * 100 + 50)
        if turn:
            gone = source.choice(sorted(expected))
            admin.delete(gone)
            del expected[gone]
            changed = source.choice(sorted(expected))
            admin.alter(changed, retention_bytes="987")
            expected[changed] = "987"
        node.kill()
        node.start()
        admin = Admin(node.bootstrap)
        assert admin.topics() == dict.fromkeys(expected, 2)
        assert {name: admin.configs(name)["retention.bytes"] for name in expected} == expected
    node.restart()
    assert set(Admin(node.bootstrap).topics()) >= set(expected)
    node.stop()


class Assassin:
    """Kills the node at the n-th change it asks of the store: before it arrives, or after it was done."""

    def __init__(self, proxy: FaultProxy, node: Node, nth: int, after: bool) -> None:
        self.struck: Seen | None = None
        self._lock = threading.Lock()
        self._left = nth
        self._node, self._after, self._proxy = node, after, proxy
        proxy.plan = self._plan

    def _plan(self, seen: Seen) -> Fault:
        with self._lock:
            if seen.method in ("PUT", "POST", "DELETE"):
                self._left -= 1
            if self._left > 0:
                return Fault.PASS
            if self.struck is not None:
                return Fault.REFUSE
            self.struck = seen
        if self._after:
            return self._then_kill()
        self._node.kill()
        return Fault.REFUSE

    def _then_kill(self) -> Fault:
        # The request goes through; by the time its answer is due there is nobody to hear it.
        threading.Timer(0.05, self._node.kill).start()
        return Fault.LIE


@pytest.mark.parametrize("after", [False, True], ids=["before it arrives", "after it is done"])
@pytest.mark.parametrize(
    "nth", [2, 5, *(pytest.param(nth, marks=pytest.mark.thorough) for nth in (1, 3, 4, 6, 7))]
)
def test_a_kill_at_any_step_of_offloading_loses_nothing(
    nth: int, after: bool, start_node: NodeFactory, moto_store: Store
) -> None:
    """The n-th thing written to the bucket is the last one before the kill."""
    with fault_proxy(moto_store.endpoint or "") as proxy:
        node = start_node(moto_store.through(proxy.endpoint))
        Admin(node.bootstrap).create("topic", 1, **TIERED)
        rows = make_rows(4500, 1)
        Confluent().produce(node.bootstrap, "topic", rows[:500])
        assassin = Assassin(proxy, node, nth, after)
        written = 500
        while node.running and written < 4500:
            try:
                with RawConnection(node.bootstrap) as connection:
                    values = [row.value for row in rows[written : written + 100]]
                    answer = produce(connection, "topic", 0, batch(values))
                    assert int(answer.error_code) == 0
                    written = int(answer.base_offset) + 100
            except (ConnectionLost, OSError):
                break
        wait_until("the kill", lambda: not node.running, 30)
        proxy.plan = None
        node.start()
        end = offset(node.bootstrap, "topic", 0, LATEST)
        assert end >= written
        # On with it: what was begun is finished or forgotten, and the log goes on.
        Confluent().produce(node.bootstrap, "topic", make_rows(1500, 1, seed=9))
        settle(node.bootstrap, "topic", 0)
        found = Confluent().read(node.bootstrap, "topic", 0, 0, end + 1500)
        assert [row.value for row in found[:written]] == [row.value for row in rows[:written]]
        node.stop()
    assert assassin.struck is not None
    fsck(moto_store)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind",
    ["disk_store", pytest.param("versitygw_store", marks=pytest.mark.versitygw)],
)
def test_random_kills_while_offloading_lose_nothing(
    kind: str, start_node: NodeFactory, request: pytest.FixtureRequest
) -> None:
    store: Store = request.getfixturevalue(kind)
    source = random.Random(SEED)
    node = start_node(store)
    Admin(node.bootstrap).create("topic", 1, **TIERED)
    writer = Writer("topic")
    for _ in range(5):
        # Some twenty segments a round: however fast the node takes them, the store has to keep up at the end.
        thread = threading.Thread(target=writer.run, args=(node.bootstrap, 100, 0, 1000, 200))
        thread.start()
        time.sleep(source.uniform(0.2, 0.8))
        node.kill()
        thread.join()
        node.start()
    settle(node.bootstrap, "topic", 0)
    writer.check(node.bootstrap)
    node.stop()
    fsck(store)


def test_a_deleted_topic_stays_deleted_after_a_kill(start_node: NodeFactory, disk_store: Store) -> None:
    node = start_node(disk_store)
    admin = Admin(node.bootstrap)
    admin.create("topic", 1, **TIERED)
    Confluent().produce(node.bootstrap, "topic", make_rows(3000, 1))
    settle(node.bootstrap, "topic", 0)
    admin.delete("topic")
    node.kill()
    node.start()
    assert "topic" not in Admin(node.bootstrap).topics()
    node.stop()
    fsck(disk_store)


def test_a_node_on_a_new_disk_is_refused_a_bucket_of_another_cluster(
    start_node: NodeFactory, disk_store: Store
) -> None:
    start_node(disk_store).stop()
    with pytest.raises(AssertionError, match="no `ready:` line") as refused:
        start_node(disk_store)
    assert "cluster" in str(refused.value)


def test_a_second_node_on_the_same_folder_is_refused(start_node: NodeFactory, tmp_path: Path) -> None:
    node = start_node()
    with pytest.raises(AssertionError, match="no `ready:` line"):
        start_node(**{"log.dirs": str(node.data)})
    assert node.running
    node.stop()
