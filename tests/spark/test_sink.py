"""DataFrames written to topics through a real node's brokers, in batches and in streams."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from service.spark.write.options import producer_settings
from service.spark.write.sender import SendError, sender_of
from tests.spark.conftest import read
from tests.spark.filling import TIERED, Row
from tests.spark.frames import rows_of
from tests.spark.growing import Growing
from tests.support.clients import Admin
from tests.support.processes import Node, free_port, wait_until
from tests.support.tiers import LATEST, offset, settle

RECORDS = 700
NUMBERS = 400_000


@pytest.fixture(scope="module")
def source(grown: Growing) -> dict[int, int]:
    """The topic `source`; where its sealed part ends."""
    grown.topic("source")
    return grown.append("source", RECORDS)


def write(frame: Any, bootstrap: str, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("firn").option("kafka.bootstrap.servers", bootstrap).mode(mode)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save()


def as_of(topic: str, rows: list[Row]) -> list[Row]:
    return [row._replace(topic=topic) for row in rows]


def values(node: Node, topic: str) -> list[bytes | None]:
    """Of partition 0, in order."""
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    end = offset(node.bootstrap, topic, 0, LATEST)
    found: list[Any] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while len(found) < end:
            for message in consumer.consume(10_000, 0.5):
                assert message.error() is None, message.error()
                found.append(message.value())
    finally:
        consumer.close()
    return found


def test_the_archive_goes_into_a_topic_and_comes_back_the_same(
    spark: Any, grown: Growing, source: dict[int, int]
) -> None:
    grown.admin.create("copy", 2, **TIERED)
    frame = read(spark, grown.store, **grown.options("source", includeHeaders="true"))
    # Key, value, partition, timestamp and headers are sent, offset and timestampType are not; one task keeps
    # the order, and small batches let the copy be sealed as often as the source.
    copied = {"topic": "copy", "includeHeaders": "true", "kafka__batch__num__messages": "50"}
    write(frame.coalesce(1), grown.node.bootstrap, **copied)
    wanted = grown.rows("source", source)
    assert any(row.headers for row in wanted)
    assert {row.key for row in wanted} >= {None, b""} <= {row.value for row in wanted}
    assert grown.rows("copy", grown.ends("copy")) == as_of("copy", wanted)
    borders = {partition: settle(grown.node.bootstrap, "copy", partition) for partition in source}
    again = rows_of(read(spark, grown.store, **grown.options("copy", includeHeaders="true")))
    assert again == [row for row in as_of("copy", wanted) if row.offset < borders[row.partition]]
    assert len(again) > RECORDS // 2


def test_strings_are_utf8_and_rows_name_their_topics(spark: Any, grown: Growing) -> None:
    for topic in ("left", "right"):
        grown.admin.create(topic, 2)
    rows = [("left", "ü", "ä"), ("right", None, None), ("left", "", "")]
    # One task: rows of two are in no order.
    frame = spark.createDataFrame(rows, "topic string, key string, value string").coalesce(1)
    write(frame.selectExpr("*", "1 as partition", "1700000000.5D as timestamp"), grown.node.bootstrap)
    found = [row for topic in ("left", "right") for row in grown.rows(topic, grown.ends(topic))]
    assert [(row.topic, row.key, row.value) for row in found] == [
        ("left", "ü".encode(), "ä".encode()),
        ("left", b"", b""),
        ("right", None, None),
    ]
    assert {(row.partition, row.timestamp_ms, row.headers) for row in found} == {(1, 1_700_000_000_500, None)}
    # The option is stronger than the column. Without a partition the key decides.
    write(frame.where("key = 'ü'").selectExpr("*"), grown.node.bootstrap, topic="right")
    assert [row.value for row in grown.rows("right", grown.ends("right"))].count("ä".encode()) == 1


@pytest.mark.parametrize(
    ("expressions", "options", "said"),
    [
        (("'x' as val",), {}, "there is no column value, only val"),
        (("1 as value",), {}, "column value is int; it has to be string or binary"),
        (("'x' as value",), {"topic": ""}, "option topic names none"),
        (("'x' as value",), {"url": "s3://bucket/x"}, "option url is for reads"),
        (("'x' as value",), {"mode": "overwrite"}, "records of a topic are not replaced"),
        (("'x' as value",), {"mode": "ignore"}, "Ignore"),
        (("'x' as value",), {"kafka__acks": "1"}, "kafka.acks is '1'; it has to be all"),
        (("'x' as value",), {"kafka__frequency": "1"}, 'No such configuration property: "frequency"'),
        (("'x' as value",), {"kafka__linger__ms": "soon"}, "Invalid value for configuration property"),
        # These a task finds.
        (("'x' as value", "-1 as partition"), {}, "a row is for partition -1"),
        (("'x' as value", "2 as partition"), {}, "refused-2: the topic has 2 partitions"),
        (
            ("repeat('x', 2000000) as value",),
            {},
            "refused-[01]: a record of 2,000,000 bytes was not accepted",
        ),
        (
            ("repeat('x', 2000000) as value",),
            {"kafka__queue__buffering__max__kbytes": "1000"},
            "does not fit",
        ),
        (("'x' as value",), {"topic": "no/topic"}, "no/topic: brokers did not describe its partitions"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_with_a_reason(
    spark: Any, grown: Growing, expressions: tuple[str, ...], options: dict[str, str], said: str
) -> None:
    if "refused" not in grown.admin.topics():
        grown.admin.create("refused", 2, max_message_bytes="1000000")
    with pytest.raises(Exception, match=said):
        write(
            spark.range(1).selectExpr(*expressions), grown.node.bootstrap, **{"topic": "refused", **options}
        )
    assert grown.ends("refused") == {0: 0, 1: 0}


def test_a_row_without_a_topic_ends_the_write(spark: Any, grown: Growing) -> None:
    frame = spark.createDataFrame([(None, "x")], "topic string, value string")
    with pytest.raises(Exception, match="a row has no topic"):
        write(frame, grown.node.bootstrap)


def test_brokers_that_never_answer_are_waited_for_so_long(spark: Any) -> None:
    with pytest.raises(Exception, match="brokers did not describe its partitions") as failure:
        write(
            spark.range(1).selectExpr("'x' as value"),
            f"127.0.0.1:{free_port()}",
            topic="t",
            kafka__delivery__timeout__ms="1500",
        )
    assert "Connection refused" in str(failure.value)


class Meanwhile(threading.Thread):
    """Does something with a node as soon as records arrive in its topic `numbers`; the test writes them.

    On a thread of its own, where no session is active, Spark would not find a Python source.
    """

    def __init__(self, node: Node, do: Callable[[], object]) -> None:
        super().__init__()
        Admin(node.bootstrap).create("numbers", 1)
        self._node, self._do = node, do
        self.arrived = -1
        self.start()

    def run(self) -> None:
        wait_until("records arrive", self._look, 100, every=0.01)
        self._do()

    def _look(self) -> bool:
        self.arrived = offset(self._node.bootstrap, "numbers", 0, LATEST)
        return self.arrived > 0


def write_numbers(spark: Any, node: Node, **options: str) -> None:
    frame = spark.range(0, NUMBERS, 1, 1).selectExpr("lpad(cast(id as string), 100, '0') as value")
    write(frame, node.bootstrap, topic="numbers", **options)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """One that a test may kill."""
    node = Node(tmp_path / "node").start()
    yield node
    node.close()


def test_a_broker_killed_in_mid_write_and_started_again_has_every_record_once_and_in_order(
    spark: Any, node: Node
) -> None:
    def kill_and_start() -> None:
        node.kill()
        node.start()

    meanwhile = Meanwhile(node, kill_and_start)
    write_numbers(spark, node)
    meanwhile.join()
    assert 0 < meanwhile.arrived < NUMBERS, "it was not killed in mid-write"
    assert values(node, "numbers") == [b"%0100d" % number for number in range(NUMBERS)]


def test_a_broker_that_stays_away_ends_the_write_with_where_and_why(spark: Any, node: Node) -> None:
    meanwhile = Meanwhile(node, node.kill)
    said = (
        r"numbers-0: a record of 100 bytes was not accepted: .* within 2 s \(delivery\.timeout\.ms, last: .*"
    )
    with pytest.raises(Exception, match=said):
        write_numbers(spark, node, kafka__delivery__timeout__ms="2000")
    meanwhile.join()


def test_a_stream_goes_on_where_it_was_and_repeats_no_more_than_an_interrupted_batch(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("flow")
    grown.admin.create("sunk", 2)
    checkpoint = tmp_path / "checkpoint"

    def run() -> Counter[tuple[int, bytes]]:
        stream = spark.readStream.format("firn").options(**grown.options("flow", startingOffsets="earliest"))
        named = stream.load().selectExpr("partition", "cast(offset as string) as value")
        writer = named.writeStream.format("firn").option("kafka.bootstrap.servers", grown.node.bootstrap)
        writer = writer.option("topic", "sunk").option("checkpointLocation", str(checkpoint))
        query = writer.queryName("sink").trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(100)
        finally:
            query.stop()
        sunk = grown.rows("sunk", grown.ends("sunk"))
        return Counter((row.partition, row.value or b"") for row in sunk)

    first = grown.append("flow", 400)
    once = Counter((p, b"%d" % number) for p, end in first.items() for number in range(end))
    assert run() == once
    second = grown.append("flow", 400)
    more = Counter((p, b"%d" % n) for p, end in second.items() for n in range(first[p], end))
    assert run() == once + more
    newest = max(int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdigit())
    (checkpoint / "commits" / f"{newest}").unlink()
    (checkpoint / "commits" / f".{newest}.crc").unlink()
    assert run() == once + more + more


def test_a_worker_uses_its_producer_again_unless_a_task_failed(
    grown: Growing, no_sender: Callable[[], None]
) -> None:
    grown.admin.create("reused", 1)
    settings = producer_settings(grown.node.bootstrap, {})

    def send(partition: int) -> object:
        with sender_of(settings) as sender:
            sender.send(("reused", partition, None, b"x", 0, None))
        return sender

    first = send(0)
    assert send(0) is first
    with pytest.raises(SendError, match="reused-7: the topic has 1 partitions"):
        send(7)
    assert send(0) is not first
    assert offset(grown.node.bootstrap, "reused", 0, LATEST) == 3


@pytest.fixture
def no_sender() -> Iterator[Callable[[], None]]:
    """Ends the producer that this process keeps."""
    from service.spark.write import sender

    yield lambda: None
    while sender._kept:
        sender._kept.popitem()[1].close()
