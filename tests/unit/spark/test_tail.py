"""The pure parts of the tail: tasks, patience, logins, what a fetch says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError, CorruptionError
from service.records.columns import ColumnDecoder
from service.spark.errors import BrokerError
from service.spark.options import ReadOptions
from service.spark.plan.snapshots import ChosenPartition, LogBounds, OffsetRange, PartitionSnapshot
from service.spark.plan.splits import MAX_SPLITS
from service.spark.tail.fetched import PartitionFetch, error_of, fetch_request, read_fetched
from service.spark.tail.options import TailOptions, parse_batch
from service.spark.tail.plan import TailSplit, plan_tail
from service.spark.tail.retry_timer import RetryTimer
from service.spark.tail.topic_lookup import TopicMatch, check_cluster, find_topic, is_transient
from service.wire.api import ApiKey, encode_request, parse_request_header, response_module
from service.wire.errors import MalformedMessage
from service.wire.fetch import parse_fetch
from tests.unit.spark.bucket import START_MS, marker, plain, transactional

TOPIC, OTHER = UUID(int=7), UUID(int=8)


def options(**more: object) -> tuple[ReadOptions, TailOptions]:
    given = {"url": "file:///none", "subscribe": "t", "bootstrap.servers": "a:1"}
    found, tail = parse_batch(given | {name.replace("__", "."): str(value) for name, value in more.items()})
    assert isinstance(tail, TailOptions)
    return found, tail


# Tasks


def tail_of(*ends: int, **more: object) -> list[TailSplit]:
    """The tasks of partitions of which nothing is sealed: an offset is reckoned at 1 KiB."""
    ranges = [
        OffsetRange(
            PartitionSnapshot(ChosenPartition("t", TOPIC, p, "t"), None, LogBounds(0, end, "c")), 0, end
        )
        for p, end in enumerate(ends)
    ]
    return plan_tail(ranges, options(**more)[0], lambda _: pytest.fail("there is no manifest"))


def sizes(splits: list[TailSplit]) -> list[tuple[int, int]]:
    return [(one.partition, one.end_offset - one.begin_offset) for one in splits]


def test_tasks_are_cut_by_bytes_by_records_and_by_number() -> None:
    assert sizes(tail_of(100, 0, 50)) == [(0, 100), (2, 50)]
    assert sizes(tail_of(130, maxPartitionBytes="64k")) == [(0, 43), (0, 43), (0, 44)]
    assert sizes(tail_of(10, maxRecordsPerPartition=4)) == [(0, 3), (0, 3), (0, 4)]
    assert sizes(tail_of(90, 30, minPartitions=4)) == [(0, 30), (0, 30), (0, 30), (1, 30)]
    assert sizes(tail_of(3, minPartitions=50)) == [(0, 1), (0, 1), (0, 1)]
    first = tail_of(100)[0]
    assert (first.topic_id, first.cluster_id, first.size_bytes) == (TOPIC, "c", 100 << 10)


def test_there_is_a_bound_to_the_number_of_tasks_and_nothing_is_made_before_it_is_checked() -> None:
    assert len(tail_of(MAX_SPLITS, maxRecordsPerPartition=1)) == MAX_SPLITS
    with pytest.raises(ConfigError, match=f"would be {1 << 60:,} tasks, more than the {MAX_SPLITS:,}"):
        tail_of(1 << 60, maxRecordsPerPartition=1)


def test_least_tasks_are_shared_with_the_archive_by_offsets() -> None:
    snapshot = PartitionSnapshot(
        ChosenPartition("t", TOPIC, 0, "t"), None, LogBounds(0, 100, "c"), stable_end=75
    )
    # Three quarters lie before the border, so a quarter of the tasks is enough.
    found = plan_tail(
        [OffsetRange(snapshot, 0, 100)],
        options(minPartitions=8)[0],
        lambda _: pytest.fail("no manifest"),
    )
    assert [one.begin_offset for one in found] == [75, 87]


# Patience


def test_patience_counts_from_the_last_progress_and_tells_the_last_cause() -> None:
    now = [0.0]
    tail = options(kafkaConsumer__pollTimeoutMs=10_000, kafka__retry__backoff__ms=100)[1]
    patience = RetryTimer(tail, "nothing", lambda: now[0], lambda: 0.5)
    waits = [patience.failed("x") for _ in range(6)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    now[0] = 9.5
    patience.progress("no more")
    assert patience.left_s == 10
    assert patience.failed("x") == pytest.approx(0.1)
    now[0] = 19.45
    assert patience.failed("refused") == pytest.approx(0.05)
    now[0] = 19.5
    with pytest.raises(BrokerError, match="no more came from the brokers within 10 s; last: refused"):
        patience.failed("no time is left")


# Fetches

WANTED = PartitionFetch(TOPIC, 3, 100, 1 << 20, 5, True, 500)


@pytest.mark.parametrize("version", range(13, 19))
def test_requests_are_the_same_in_every_version_with_ids(version: int) -> None:
    frame = encode_request(ApiKey.FETCH, version, 9, "me", fetch_request(WANTED))[4:]
    view = parse_fetch(version, frame, parse_request_header(frame).body)
    assert (view.replica_id, view.max_wait_ms, view.max_bytes, view.isolation_level) == (-1, 500, 1 << 20, 1)
    [(topic, [asked])] = view.topics
    assert (topic, asked.partition, asked.fetch_offset, asked.current_leader_epoch) == (TOPIC, 3, 100, 5)


def answer(
    records: bytes = b"", *, aborted: tuple[tuple[int, int], ...] = (), topic: UUID = TOPIC, **more: Any
) -> Any:
    module = response_module(ApiKey.FETCH)
    partition = module.PartitionData(
        partition_index=3,
        error_code=more.pop("partition_error", ErrorCode.none),
        high_watermark=1000,
        last_stable_offset=1000,
        log_start_offset=0,
        diverging_epoch=None,
        current_leader=None,
        snapshot_id=None,
        aborted_transactions=tuple(
            module.AbortedTransaction(producer_id=producer, first_offset=first) for producer, first in aborted
        ),
        preferred_read_replica=-1,
        records=records,
    )
    topics = (module.FetchableTopicResponse(topic_id=topic, partitions=(partition,)),)
    return SimpleNamespace(error_code=more.pop("error", ErrorCode.none), responses=topics)


def batch(base_offset: int, count: int) -> bytes:
    return plain(base_offset, START_MS, count)


def test_a_last_batch_that_is_cut_is_left_for_the_next_fetch() -> None:
    first, second = batch(98, 10), batch(108, 5)
    for cut in range(len(second)):
        found = read_fetched(answer(first + second[:cut]), WANTED)
        assert (bytes(found.data), found.next_offset) == (first, 108)
    assert read_fetched(answer(first + second), WANTED).next_offset == 113
    assert read_fetched(answer(), WANTED) == (memoryview(b""), 100, ())


@pytest.mark.parametrize(
    ("records", "kind", "reason"),
    [
        (batch(98, 10)[:-1] + b"\xff", CorruptionError, "behind offset 100 is damaged: its checksum"),
        (
            batch(98, 10) + batch(90, 4),
            CorruptionError,
            "behind offset 108 is damaged: its offsets overlap",
        ),
        (b"\xff" * 200, CorruptionError, "is damaged"),
        (batch(98, 10)[:70], MalformedMessage, "70 bytes from offset 100 on, not one whole batch"),
        (batch(10, 20), MalformedMessage, "the response ends at offset 29, and 100 was requested"),
    ],
)
def test_batches_that_are_not_sound_are_refused(records: bytes, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        read_fetched(answer(records), WANTED)


def test_answers_of_something_else_are_refused() -> None:
    assert error_of(answer(error=ErrorCode.unknown_topic_id), WANTED) == ErrorCode.unknown_topic_id
    refused = answer(partition_error=ErrorCode.not_leader_or_follower)
    assert error_of(refused, WANTED) == ErrorCode.not_leader_or_follower
    assert error_of(answer(), WANTED) == ErrorCode.none
    with pytest.raises(MalformedMessage, match="the response has partition 3 0 times"):
        error_of(answer(topic=OTHER), WANTED)


def test_aborted_transactions_end_at_their_markers_or_go_on() -> None:
    """Producer 1 aborts, commits, and aborts again, which is not decided in these bytes; 2 never does."""
    log = b"".join(
        (
            transactional(100, 1, 3),
            transactional(103, 2, 2),
            marker(105, 1, commit=False),
            transactional(106, 1, 2),
            marker(108, 1, commit=True),
            transactional(109, 1, 4),
            transactional(113, 2),
        )
    )
    found = read_fetched(answer(log, aborted=((1, 90), (1, 109))), WANTED)
    assert sorted(found.aborted) == [(1, 90, 105), (1, 109, 113)]
    decoder = ColumnDecoder(want={"offset"}, aborted=found.aborted)
    rows = [at for chunk in decoder.decode(found.data) for at in chunk.offsets or ()]
    assert rows == [103, 104, 106, 107, 113]
    uncommitted = WANTED._replace(read_committed=False)
    assert read_fetched(answer(log, aborted=((1, 90),)), uncommitted).aborted == ()


# Places


def metadata(topic_id: UUID | None = TOPIC, error: int = ErrorCode.none, leader: int = 1) -> Any:
    module = response_module(ApiKey.METADATA)
    partition = module.MetadataResponsePartition(
        error_code=ErrorCode.none,
        partition_index=0,
        leader_id=leader,
        leader_epoch=4,
        replica_nodes=(),
        isr_nodes=(),
        offline_replicas=(),
    )
    topic = module.MetadataResponseTopic(
        error_code=error, name="t", topic_id=topic_id, is_internal=False, partitions=(partition,)
    )
    broker = module.MetadataResponseBroker(node_id=1, host="h", port=9, rack=None)
    return SimpleNamespace(topics=(topic,), brokers=(broker,), cluster_id="c")


def test_a_topic_is_known_by_its_id() -> None:
    found = find_topic(metadata(), "t", TOPIC)
    assert (found.match, found.leaders) == (TopicMatch.SAME, {0: (("h", 9), 4)})
    assert find_topic(metadata(leader=-1), "t", TOPIC).leaders == {}
    assert find_topic(metadata(OTHER), "t", TOPIC).match is TopicMatch.OTHER
    assert (
        find_topic(metadata(error=ErrorCode.unknown_topic_or_partition), "t", TOPIC).match
        is TopicMatch.ABSENT
    )
    assert find_topic(metadata(error=ErrorCode.leader_not_available), "t", TOPIC).match is TopicMatch.UNCLEAR
    assert find_topic(metadata(), "u", TOPIC).match is TopicMatch.UNCLEAR
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        find_topic(metadata(error=ErrorCode.topic_authorization_failed), "t", TOPIC)
    with pytest.raises(ConfigError, match=r"Kafka 3\.1 or newer"):
        find_topic(metadata(None), "t", TOPIC)


def test_a_cluster_is_known_by_its_id() -> None:
    check_cluster("c", "c")
    for other in ("d", None):
        with pytest.raises(
            ConfigError, match=f"of the cluster {other}, the archive is that of the cluster c"
        ):
            check_cluster(other, "c")


def test_errors_that_pass_are_told_from_those_that_stay() -> None:
    for code in ("not_leader_or_follower", "fenced_leader_epoch", "unknown_topic_id", "kafka_storage_error"):
        assert is_transient(ErrorCode[code])
    for code in (
        "topic_authorization_failed",
        "corrupt_message",
        "unsupported_version",
        "offset_out_of_range",
    ):
        assert not is_transient(ErrorCode[code])
    assert not is_transient(999)
