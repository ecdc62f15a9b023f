"""The object store refuses, hangs, fails or lies for a while: nothing is lost, and offload catches up."""

from __future__ import annotations

import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.conftest import NodeFactory
from tests.support.batches import batch
from tests.support.clients import Admin, Confluent, digest, make_rows
from tests.support.faults import Fault, fault_proxy
from tests.support.fsck import fsck
from tests.support.processes import wait_until
from tests.support.stores import Store
from tests.support.tiers import EARLIEST_LOCAL, LATEST, LATEST_TIERED, offset, settle
from tests.support.wire import RawConnection, produce

KAFKA_STORAGE_ERROR = 56
TIERED = {"remote_storage_enable": "true", "segment_bytes": "1048576", "local_retention_bytes": "1"}
OUTAGES = [
    Fault.HANG,
    Fault.FAIL,
    *(
        pytest.param(fault, marks=pytest.mark.thorough)
        for fault in (Fault.REFUSE, Fault.SLOW_DOWN, Fault.LIE, Fault.FAIL_AFTER)
    ),
]


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.value)
def test_offload_catches_up_after_an_outage(
    outage: Fault, start_node: NodeFactory, moto_store: Store
) -> None:
    with fault_proxy(moto_store.endpoint or "") as proxy:
        node = start_node(moto_store.through(proxy.endpoint))
        Admin(node.bootstrap).create("topic", 1, **TIERED)
        rows = make_rows(5000, 1)
        Confluent().produce(node.bootstrap, "topic", rows[:1500])
        settle(node.bootstrap, "topic", 0)
        proxy.mode = outage
        before = proxy.failed
        Confluent().produce(node.bootstrap, "topic", rows[1500:])
        tiered = offset(node.bootstrap, "topic", 0, LATEST_TIERED)
        wait_until("the outage to be felt", lambda: proxy.failed > before)
        time.sleep(2)
        # What is not surely in the bucket stays on the broker, and is served.
        border = offset(node.bootstrap, "topic", 0, EARLIEST_LOCAL)
        assert border <= offset(node.bootstrap, "topic", 0, LATEST_TIERED) + 1
        assert offset(node.bootstrap, "topic", 0, LATEST_TIERED) <= tiered + 1100
        assert digest(Confluent().read(node.bootstrap, "topic", 0, border, 5000)) == digest(rows[border:])
        proxy.mode = Fault.PASS
        wait_until("offload to catch up", lambda: offset(node.bootstrap, "topic", 0, EARLIEST_LOCAL) > 3900)
        assert digest(Confluent().read(node.bootstrap, "topic", 0, 0, 5000)) == digest(rows)
        node.stop()
    fsck(moto_store)


@pytest.mark.parametrize("outage", [Fault.REFUSE, Fault.HANG, Fault.FAIL], ids=lambda outage: outage.value)
def test_cold_reads_wait_for_the_store_and_hot_ones_do_not(
    outage: Fault, start_node: NodeFactory, moto_store: Store
) -> None:
    with fault_proxy(moto_store.endpoint or "") as proxy:
        node = start_node(moto_store.through(proxy.endpoint))
        admin = Admin(node.bootstrap)
        admin.create("topic", 1, **TIERED)
        admin.create("hot")
        rows = make_rows(3000, 1)
        Confluent().produce(node.bootstrap, "topic", rows)
        settle(node.bootstrap, "topic", 0)
        # A fresh process has nothing of the cold range in its caches.
        node.restart()
        proxy.mode = outage
        cold = confluent_kafka.Consumer(
            {
                "bootstrap.servers": node.bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        found: list[bytes | None] = []
        try:
            cold.assign([confluent_kafka.TopicPartition("topic", 0, 0)])
            for _ in range(10):
                assert [message for message in cold.consume(100, 0.1) if message.error() is None] == []
            # Meanwhile another topic, and the same topic's local end, are served.
            Confluent().produce(node.bootstrap, "hot", rows[:200])
            assert digest(Confluent().read(node.bootstrap, "hot", 0, 0, 200)) == digest(rows[:200])
            border = offset(node.bootstrap, "topic", 0, EARLIEST_LOCAL)
            assert digest(Confluent().read(node.bootstrap, "topic", 0, border, 3000)) == digest(rows[border:])
            proxy.mode = Fault.PASS
            deadline = time.monotonic() + 60
            while len(found) < 3000 and time.monotonic() < deadline:
                found += [message.value() for message in cold.consume(500, 0.2) if message.error() is None]
        finally:
            cold.close()
        assert found == [row.value for row in rows]
        node.stop()


@pytest.mark.parametrize("outage", [Fault.REFUSE, Fault.HANG], ids=lambda outage: outage.value)
def test_partitions_that_a_topic_grows_by_take_records_during_an_outage(
    outage: Fault, start_node: NodeFactory, moto_store: Store
) -> None:
    with fault_proxy(moto_store.endpoint or "") as proxy:
        node = start_node(moto_store.through(proxy.endpoint))
        Admin(node.bootstrap).create("topic", 1, **TIERED)
        rows = make_rows(6000, 3)
        Confluent().produce(node.bootstrap, "topic", [row for row in rows if row.partition == 0])
        settle(node.bootstrap, "topic", 0)
        proxy.mode = outage
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        for future in admin.create_partitions([NewPartitions("topic", 3)]).values():
            future.result(timeout=20)
        # Both answers are the first, so nobody waits for the store and tries again.
        for partition in (1, 2):
            with RawConnection(node.bootstrap) as connection:
                answer = produce(connection, "topic", partition, batch([b"first"]))
                assert (answer.error_code, answer.base_offset) == (0, 0)
        Confluent().produce(node.bootstrap, "topic", [row for row in rows if row.partition != 0])
        proxy.mode = Fault.PASS
        for partition in (1, 2):
            settle(node.bootstrap, "topic", partition)
        node.stop()
    fsck(moto_store)


def test_a_node_restarted_during_an_outage_serves_what_it_has_and_takes_records_after_it(
    start_node: NodeFactory, moto_store: Store
) -> None:
    with fault_proxy(moto_store.endpoint or "") as proxy:
        node = start_node(moto_store.through(proxy.endpoint))
        Admin(node.bootstrap).create("topic", 1, **TIERED)
        rows = make_rows(4000, 1)
        Confluent().produce(node.bootstrap, "topic", rows[:2500])
        border = settle(node.bootstrap, "topic", 0)
        proxy.mode = Fault.REFUSE
        node.kill()
        node.start()
        # What retention took out just before may be back: its files go a little later.
        assert offset(node.bootstrap, "topic", 0, EARLIEST_LOCAL) <= border
        assert digest(Confluent().read(node.bootstrap, "topic", 0, border, 2500)) == digest(rows[border:2500])
        with RawConnection(node.bootstrap) as connection:
            assert int(produce(connection, "topic", 0, batch([b"x"])).error_code) == KAFKA_STORAGE_ERROR
        assert offset(node.bootstrap, "topic", 0, LATEST) == 2500
        proxy.mode = Fault.PASS
        Confluent().produce(node.bootstrap, "topic", rows[2500:])
        wait_until("offload to go on", lambda: offset(node.bootstrap, "topic", 0, EARLIEST_LOCAL) > 2500)
        assert digest(Confluent().read(node.bootstrap, "topic", 0, 0, 4000)) == digest(rows)
        node.stop()
    fsck(moto_store)
