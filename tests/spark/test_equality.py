"""Three readers of one log: this source, a Kafka consumer, and Spark's own Kafka connector.

Segments with transactions and compaction are Apache Kafka's own, put through our offloader.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from service.remote.stores.obstore_store import open_store
from tests.spark.conftest import read
from tests.spark.filling import BRISK, START_MS, TIERED, Filled, Row
from tests.spark.frames import rows_of
from tests.spark.kafka_history import PARTITIONS, SETTINGS, consume_all, write_history
from tests.support.clients import Admin, Confluent, make_rows
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_segments import offload
from tests.support.processes import Node
from tests.support.requirements import need_kafka_tools
from tests.support.spark import connector_jars, need_connector, read_kafka
from tests.support.stores import Store, folder_store
from tests.support.tiers import EARLIEST, offset, settle
from tests.support.world import WORLD

SEED = 11
ISOLATION = ("read_committed", "read_uncommitted")


@dataclass
class KafkaMade:
    """A store with Apache Kafka's segments, and what others read while the broker was up."""

    store: Store
    consumed: dict[tuple[str, str], list[Row]] = field(default_factory=dict)
    connector: dict[tuple[str, str], list[Row]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def kafka_made(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> KafkaMade:
    need_kafka_tools()
    folder = tmp_path_factory.mktemp("kafka-made")
    made = KafkaMade(folder_store(folder / "cold"))
    node = KafkaNode(folder / "kafka", SETTINGS, heap="512m")
    try:
        write_history(node.bootstrap, node.data, SEED)
        for topic, partitions in PARTITIONS.items():
            for isolation in ISOLATION:
                made.consumed[topic, isolation] = consume_all(node.bootstrap, topic, partitions, isolation)
                if connector_jars():
                    made.connector[topic, isolation] = rows_of(
                        _connector(spark, node.bootstrap, topic, kafka__isolation__level=isolation)
                    )
    finally:
        node.stop()
    offload(node.data, open_store(made.store.url, world=WORLD), PARTITIONS)
    return made


def _connector(spark: Any, bootstrap: str, topic: str, **options: object) -> Any:
    return read_kafka(
        spark,
        bootstrap,
        subscribe=topic,
        includeHeaders="true",
        kafka__max__partition__fetch__bytes=16 << 20,
        **options,
    )


@pytest.mark.java
@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize("topic", PARTITIONS)
def test_segments_of_apache_kafka_are_as_its_consumer_and_sparks_connector_read_them(
    spark: Any, kafka_made: KafkaMade, topic: str, isolation: str
) -> None:
    frame = read(spark, kafka_made.store, subscribe=topic, includeHeaders="true", isolationLevel=isolation)
    found = rows_of(frame)
    assert found == kafka_made.consumed[topic, isolation], f"seed {SEED}"
    need_connector()
    assert found == kafka_made.connector[topic, isolation], f"seed {SEED}"


@pytest.mark.java
def test_the_compared_logs_have_gaps_and_aborted_transactions(kafka_made: KafkaMade) -> None:
    committed = {topic: kafka_made.consumed[topic, "read_committed"] for topic in PARTITIONS}
    everything = {topic: kafka_made.consumed[topic, "read_uncommitted"] for topic in PARTITIONS}
    for topic in ("ledger", "huge"):
        assert 0 < len(committed[topic]) < len(everything[topic])
    offsets = [row.offset for row in everything["compacted"]]
    assert offsets[-1] > 2 * len(offsets) > 100
    assert committed["cut"][0].offset == 777
    assert max(len(row.value or b"") for row in committed["huge"]) == 10_000_000
    keys = kafka_made.store.objects()
    assert sum(key.endswith(".seg") for key in keys) >= 10


@pytest.mark.java
@pytest.mark.parametrize("isolation", ISOLATION)
def test_small_splits_of_a_log_with_open_transactions_give_the_same_rows(
    spark: Any, kafka_made: KafkaMade, isolation: str
) -> None:
    """A split begins where a transaction that is aborted far behind it may be under way."""
    frame = read(
        spark,
        kafka_made.store,
        subscribe="ledger",
        includeHeaders="true",
        isolationLevel=isolation,
        maxPartitionBytes="256k",
        fetchBytes="64k",
        batchRows=50,
    )
    assert frame.rdd.getNumPartitions() > 12
    assert rows_of(frame) == kafka_made.consumed["ledger", isolation], f"seed {SEED}"


@pytest.fixture(scope="module")
def live(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Store]]:
    """The node that filled the folder, up again on a copy of everything."""
    folder = tmp_path_factory.mktemp("live")
    shutil.copytree(Path(filled.store.url.removeprefix("file://")).parent, folder, dirs_exist_ok=True)
    store = folder_store(folder / "cold")
    node = Node(folder / "node", {**BRISK, **store.node_settings}).start()
    yield node, store
    node.close()


@pytest.mark.parametrize("topic", ["mixed", "stamped", "huge"])
def test_a_node_is_read_by_sparks_connector_as_its_archive_is_by_this_source(
    spark: Any, filled: Filled, live: tuple[Node, Store], topic: str
) -> None:
    need_connector()
    node, store = live
    ending = json.dumps({topic: {str(p): end for p, end in filled.borders[topic].items()}})
    frame = read(spark, store, subscribe=topic, includeHeaders="true")
    assert rows_of(frame) == rows_of(_connector(spark, node.bootstrap, topic, endingOffsets=ending))


def test_a_log_whose_start_moved_on_begins_where_consumers_begin(
    spark: Any, live: tuple[Node, Store]
) -> None:
    node, store = live
    Admin(node.bootstrap).create("aged", 1, **TIERED | {"segment.ms": "100", "retention.bytes": "500000"})
    Confluent().produce(node.bootstrap, "aged", make_rows(3000, 1))
    border = settle(node.bootstrap, "aged", 0)
    start = offset(node.bootstrap, "aged", 0, EARLIEST)
    assert 0 < start < border
    expected = [
        row for row in consume_all(node.bootstrap, "aged", 1, "read_committed") if row.offset < border
    ]
    assert expected[0].offset == start
    assert expected[0].timestamp_ms >= START_MS
    assert rows_of(read(spark, store, subscribe="aged", includeHeaders="true")) == expected
