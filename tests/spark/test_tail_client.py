"""The tail's own client against real nodes: whose they are, what they hold, how they fail, how they lie."""

from __future__ import annotations

import logging
import random
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.base.errors import ConfigError, CorruptionError
from service.spark.errors import BrokerError, DataLossError
from service.spark.parts import open_archive
from service.spark.plan.ranges import plan_ranges, resolve_ranges
from service.spark.tail.options import parse_batch
from service.spark.tail.plan import TailSplit, plan_tail
from service.wire.api import ApiKey
from tests.spark.filling import BRISK, CODECS, PARTITIONS, ROWS_PER_CODEC, TIERED, Row, consume, produce_mixed
from tests.spark.growing import Growing, growing
from tests.spark.tails import batches_of, offsets_in, options_of, rows_in, split_of
from tests.spark.tampering import Answer, Relay, honest, relay
from tests.support.clients import Admin
from tests.support.processes import Node, free_port, wait_until
from tests.support.stores import folder_store
from tests.support.tiers import LATEST, offset, settle

TOTAL = len(CODECS) * ROWS_PER_CODEC


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the topic `mixed`: every codec, every kind of key, value and header."""
    folder = tmp_path_factory.mktemp("mixed")
    store = folder_store(folder / "cold")
    node = Node(folder / "node", {**BRISK, **store.node_settings}, store.env).start()
    try:
        Admin(node.bootstrap).create("mixed", PARTITIONS, **TIERED)
        rng = random.Random(11)
        for number, codec in enumerate(CODECS):
            produce_mixed(node.bootstrap, codec, number * ROWS_PER_CODEC, rng)
        yield node
    finally:
        node.close()


@pytest.fixture(scope="module")
def consumed(mixed: Node) -> list[Row]:
    return consume(mixed.bootstrap, "mixed", dict.fromkeys(range(PARTITIONS), TOTAL // PARTITIONS))


@pytest.mark.parametrize("fetch_bytes", ["64k", "8m"])
def test_rows_of_every_codec_are_as_a_consumer_reads_them(
    mixed: Node, consumed: list[Row], fetch_bytes: str
) -> None:
    """Tasks begin and end anywhere in a batch, and answers do, too."""
    options, tail = options_of(mixed.bootstrap, "mixed", fetchBytes=fetch_bytes, readAheadBytes="0")
    rows: list[Row] = []
    for partition in range(PARTITIONS):
        for begin, end in ((0, 701), (701, 702), (702, TOTAL // PARTITIONS)):
            rows += rows_in(batches_of(split_of(tail, "mixed", partition, begin, end), options, tail))
    assert rows == consumed


def test_a_record_larger_than_a_fetch_comes_whole(tmp_path: Path) -> None:
    from confluent_kafka import Producer

    with growing(tmp_path) as grown:
        grown.topic("huge", **{"max.message.bytes": str(16 << 20)})
        producer = Producer({"bootstrap.servers": grown.node.bootstrap, "message.max.bytes": 16 << 20})
        sizes = [10, 9_000_000, 20, 5_000_000, 0]
        for size in sizes:
            producer.produce("huge", bytes(size), partition=0)
            assert producer.flush(30) == 0
        options, tail = options_of(grown.node.bootstrap, "huge", fetchBytes="64k", batchBytes="64k")
        rows = rows_in(batches_of(split_of(tail, "huge", 0, 0, len(sizes)), options, tail))
        assert [len(row.value or b"") for row in rows] == sizes


def test_tasks_share_a_partition_and_every_offset_is_read_once(tmp_path: Path) -> None:
    with growing(tmp_path) as grown:
        grown.topic("whole")
        grown.append("whole", 650)
        grown.append("whole", 200, is_sealed=False)

        def planned(**more: object) -> list[TailSplit]:
            options, tail = parse_batch(grown.options("whole", bootstrap=True, **more))
            with open_archive(options, tail) as archive:
                ranges = resolve_ranges(archive, options)
                assert plan_ranges(archive, ranges, options)
                return plan_tail(ranges, options, archive.loader)

        borders = {p: settle(grown.node.bootstrap, "whole", p) for p in (0, 1)}
        tail_size = sum(850 - border for border in borders.values())
        assert 0 < tail_size < 1700
        for more in ({}, {"minPartitions": 60}, {"maxRecordsPerPartition": 9}, {"maxPartitionBytes": "64k"}):
            splits = planned(**more)
            found = [(one.partition, at) for one in splits for at in range(one.begin_offset, one.end_offset)]
            assert found == [(p, at) for p, border in borders.items() for at in range(border, 850)]
            sizes = [one.end_offset - one.begin_offset for one in splits]
            assert max(sizes) <= more.get("maxRecordsPerPartition", 850)
            if "minPartitions" in more:
                assert len(splits) >= 60 * tail_size / 1700
                assert max(sizes) - min(sizes) <= 1


# Whose brokers, whose topic


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Growing, Growing]]:
    """Two clusters with a topic of the same name, each with an archive of its own."""
    with growing(tmp_path / "ours") as ours, growing(tmp_path / "theirs") as theirs:
        for grown in (ours, theirs):
            grown.topic("flights")
            grown.append("flights", 40, is_sealed=False)
            listed = Path(grown.store.url.removeprefix("file://")) / "topics.json"
            wait_until("the bucket to know the topic", lambda path=listed: b"flights" in path.read_bytes())
        yield ours, theirs


@pytest.mark.parametrize("fails", ["true", "false"])
def test_brokers_of_another_cluster_are_refused_at_planning_and_in_tasks(
    two: tuple[Growing, Growing], fails: str
) -> None:
    """Always: it is a mistake in the options, not a loss of data."""
    ours, theirs = two
    options, tail = options_of(ours.node.bootstrap, "flights", failOnDataLoss=fails)
    split = split_of(tail, "flights", 0, 0, 40)
    _, other_tail = options_of(theirs.node.bootstrap, "flights")
    other = split_of(other_tail, "flights", 0, 0, 40)
    assert split.cluster_id != other.cluster_id
    both = f"of the cluster {other.cluster_id}, the archive is that of the cluster {split.cluster_id}"
    given = ours.options("flights", failOnDataLoss=fails) | {"bootstrap.servers": theirs.node.bootstrap}
    mistaken, mistaken_tail = parse_batch(given)
    with pytest.raises(ConfigError, match=both), open_archive(mistaken, mistaken_tail) as archive:
        resolve_ranges(archive, mistaken)
    with pytest.raises(ConfigError, match=both):
        offsets_in(batches_of(split, options, other_tail))
    assert offsets_in(batches_of(split, options, tail)) == list(range(40))


def test_a_topic_that_was_made_again_is_not_read_as_the_old_one(
    two: tuple[Growing, Growing], caplog: pytest.LogCaptureFixture
) -> None:
    grown, _ = two
    bootstrap = grown.node.bootstrap
    listed = Path(grown.store.url.removeprefix("file://")) / "topics.json"
    options, tail = options_of(bootstrap, "flights")
    split = split_of(tail, "flights", 0, 0, 40)
    before = listed.read_bytes()
    grown.admin.delete("flights")
    wait_until("the topic to be gone", lambda: listed.read_bytes() != before)
    grown.topic("flights")
    grown.append("flights", 40, is_sealed=False)
    listed.write_bytes(before)  # as it may lag
    said = f"flights is another one on the brokers, with id .* instead of {split.topic_id}"
    lenient, _ = options_of(bootstrap, "flights", failOnDataLoss="false")
    with pytest.raises(DataLossError, match=said):
        offsets_in(batches_of(split, options, tail))
    with caplog.at_level(logging.WARNING):
        assert offsets_in(batches_of(split, lenient, tail)) == []
    assert "is another one on the brokers" in caplog.text
    given = grown.options("flights", bootstrap=True)
    strict, _ = parse_batch(given)
    with pytest.raises(DataLossError, match=said), open_archive(strict, tail) as archive:
        resolve_ranges(archive, strict)
    lenient, _ = parse_batch({**given, "failOnDataLoss": "false"})
    caplog.clear()
    with caplog.at_level(logging.WARNING), open_archive(lenient, tail) as archive:
        assert resolve_ranges(archive, lenient) == []
    assert "only its archive is read" in caplog.text


def test_a_topic_that_is_made_again_while_it_is_read_is_refused_by_the_broker_itself(
    two: tuple[Growing, Growing],
) -> None:
    grown, _ = two
    grown.append("flights", 12_000, is_sealed=False)
    options, tail = options_of(
        grown.node.bootstrap, "flights", fetchBytes="64k", readAheadBytes="0", batchRows=10
    )
    split = split_of(tail, "flights", 0, 0, 12_040)
    batches = batches_of(split, options, tail)
    assert offsets_in([next(batches)])
    grown.admin.delete("flights")
    wait_until("the topic to go", lambda: "flights" not in grown.admin.topics())
    grown.topic("flights")
    grown.counts["flights"] = 0
    grown.append("flights", 12_040, is_sealed=False)
    with pytest.raises(DataLossError, match=f"instead of {split.topic_id}"):
        offsets_in(batches)


def test_a_topic_that_is_gone_is_a_loss_to_tasks_and_told_by_planning(
    two: tuple[Growing, Growing], caplog: pytest.LogCaptureFixture
) -> None:
    grown, _ = two
    options, tail = options_of(grown.node.bootstrap, "flights")
    split = split_of(tail, "flights", 0, 0, 40)
    listed = Path(grown.store.url.removeprefix("file://")) / "topics.json"
    before = listed.read_bytes()
    grown.admin.delete("flights")
    wait_until("the topic to be gone", lambda: listed.read_bytes() != before)
    listed.write_bytes(before)  # as it may lag
    with pytest.raises(DataLossError, match="flights-0: offsets 0 to 39 are lost: brokers know no topic"):
        offsets_in(batches_of(split, options, tail))
    given, _ = parse_batch(grown.options("flights", bootstrap=True))
    with caplog.at_level(logging.WARNING), open_archive(given, tail) as archive:
        assert resolve_ranges(archive, given) == []
    assert "brokers know no topic flights" in caplog.text


# Brokers that fail


def test_a_task_goes_on_when_its_broker_is_killed_and_comes_back(mixed: Node, consumed: list[Row]) -> None:
    options, tail = options_of(mixed.bootstrap, "mixed", fetchBytes="64k", readAheadBytes="0", batchRows=50)
    batches = batches_of(split_of(tail, "mixed", 1, 0, TOTAL // PARTITIONS), options, tail)
    rows = rows_in([next(batches) for _ in range(3)])
    mixed.kill()
    starting = threading.Timer(1.0, mixed.start)
    starting.start()
    rows += rows_in(batches)
    starting.join()
    assert rows == [row for row in consumed if row.partition == 1]


def test_brokers_that_do_not_come_back_are_told_with_the_last_cause(tmp_path: Path) -> None:
    with growing(tmp_path) as grown:
        grown.topic("brief")
        grown.append("brief", 20, is_sealed=False)
        options, tail = options_of(grown.node.bootstrap, "brief", kafkaConsumer__pollTimeoutMs=1500)
        split = split_of(tail, "brief", 0, 0, 20)
        beyond = batches_of(split._replace(end_offset=30), options, tail)
        with pytest.raises(
            BrokerError, match=r"brief-0: nothing of offsets 20 to 29 .*the log ends before them"
        ):
            offsets_in(beyond)
        grown.node.kill()
        started = time.monotonic()
        with pytest.raises(BrokerError, match=r"within 1.5 s; last: no broker answers: .*refused"):
            offsets_in(batches_of(split, options, tail))
        assert time.monotonic() - started >= 1.5


def test_any_of_the_bootstrap_servers_will_do(mixed: Node) -> None:
    dead = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
    options, tail = options_of(f"{dead},{mixed.bootstrap}", "mixed")
    assert offsets_in(batches_of(split_of(tail, "mixed", 0, 0, 5), options, tail)) == list(range(5))


def test_a_reader_that_wants_no_more_leaves_no_thread_behind(mixed: Node) -> None:
    before = threading.active_count()
    options, tail = options_of(mixed.bootstrap, "mixed", fetchBytes="64k", readAheadBytes="0", batchRows=10)
    batches = batches_of(split_of(tail, "mixed", 0, 0, TOTAL // PARTITIONS), options, tail)
    next(batches)
    assert threading.active_count() > before
    batches.close()
    wait_until("the thread to end", lambda: threading.active_count() <= before)


# Brokers that lie


@pytest.fixture(scope="module")
def lying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    folder = tmp_path_factory.mktemp("lying")
    with relay() as made:
        node = Node(folder, {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{made.port}"}).start()
        made.target_port = node.port
        try:
            from confluent_kafka import Producer

            Admin(node.bootstrap).create("t", 1)
            producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 5})
            for number in range(1000):
                producer.produce("t", b"%d" % number * 30, partition=0)
            assert producer.flush(30) == 0
            assert offset(node.bootstrap, "t", 0, LATEST) == 1000
            yield made
        finally:
            node.close()


def _flipped(answer: bytes) -> bytes:
    return honest(answer[:-40] + bytes([answer[-40] ^ 1]) + answer[-39:])


def _other_correlation_id(answer: bytes) -> bytes:
    return honest(struct.pack(">i", struct.unpack_from(">i", answer)[0] + 1) + answer[4:])


LIES: dict[str, tuple[Answer, type[Exception], str]] = {
    "a wrong checksum": (
        _flipped,
        CorruptionError,
        r"t-0: the batch at or behind offset \d+ is damaged: its checks",
    ),
    "another request's answer": (
        _other_correlation_id,
        BrokerError,
        r"t-0: 127.0.0.1:\d+ answers with garbage: a response to request \d+",
    ),
    "a frame of two gigabytes": (lambda _: b"\x7f\xff\xff\xff", BrokerError, "is over the limit of"),
    "a negative size": (lambda _: b"\xff\xff\xff\xfe", BrokerError, "negative frame size"),
    "another protocol": (
        lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n",
        BrokerError,
        "does not speak Kafka's protocol",
    ),
    "garbage": (
        lambda answer: honest(answer[:4] + random.Random(3).randbytes(500)),
        BrokerError,
        "with garbage",
    ),
    "half an answer": (lambda answer: honest(answer[: len(answer) // 2]), BrokerError, "with garbage"),
    "nothing": (lambda _: None, BrokerError, "within 1.5 s; last: .*(timed out|in time)"),
}


@pytest.mark.parametrize(
    ("api_key", "lie"),
    [(ApiKey.FETCH, lie) for lie in LIES]
    + [(ApiKey.METADATA, lie) for lie in LIES if lie != "a wrong checksum"],  # there is none
)
def test_responses_of_brokers_are_validated(lying: Relay, lie: str, api_key: ApiKey) -> None:
    tamper, kind, reason = LIES[lie]
    lying.api_key, lying.tamper = -1, honest
    options, tail = options_of(
        f"127.0.0.1:{lying.port}",
        "t",
        kafkaConsumer__pollTimeoutMs=1500,
        kafka__request__timeout__ms=1000,
    )
    split = split_of(tail, "t", 0, 0, 1000)
    assert offsets_in(batches_of(split, options, tail, ("offset",))) == list(range(1000))
    lying.api_key, lying.tamper = api_key, tamper
    with pytest.raises(kind, match=reason.replace("t-0: ", "") if api_key == ApiKey.METADATA else reason):
        offsets_in(batches_of(split, options, tail, ("offset",)))


def test_a_broker_of_before_topic_ids_is_refused(lying: Relay) -> None:
    def older(answer: bytes) -> bytes:
        """Fetch is served up to version 12."""
        found = answer.index(struct.pack(">hhh", ApiKey.FETCH, 4, 18))
        return honest(answer[:found] + struct.pack(">hhh", ApiKey.FETCH, 4, 12) + answer[found + 6 :])

    lying.api_key, lying.tamper = -1, honest
    options, tail = options_of(f"127.0.0.1:{lying.port}", "t")
    split = split_of(tail, "t", 0, 0, 1000)
    lying.api_key, lying.tamper = ApiKey.API_VERSIONS, older
    with pytest.raises(ConfigError, match=r"of Fetch the tail needs version 13 .*Kafka 3.1 or newer"):
        offsets_in(batches_of(split, options, tail, ("offset",)))


def test_topics_are_fetched_by_id(lying: Relay) -> None:
    lying.api_key, lying.tamper = -1, honest
    options, tail = options_of(f"127.0.0.1:{lying.port}", "t")
    split = split_of(tail, "t", 0, 0, 1000)
    lying.requests.clear()
    assert len(offsets_in(batches_of(split, options, tail, ("offset",)))) == 1000
    fetches = [version for key, version in lying.requests if key == ApiKey.FETCH]
    assert fetches
    assert min(fetches) >= 13
