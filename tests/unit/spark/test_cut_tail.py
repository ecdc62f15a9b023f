"""A read with ``includeTail=cut``: rows behind the chain come from the newest complete cut's tails."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from service.base.clock import ManualClock
from service.base.errors import ConfigError, CorruptionError
from service.records.columns import ColumnDecoder
from service.remote.reading.tail_records import read_pieces
from service.spark.errors import DataLossError
from service.spark.options import ReadOptions
from service.spark.plan.memory import PlanCache
from service.spark.plan.ranges import plan_ranges, resolve_ranges
from service.spark.plan.splits import Split
from service.spark.stream.offsets import StreamPosition
from service.spark.stream.options import parse_stream
from service.spark.stream.plan import StreamPlan
from service.spark.tail.cut_archive import CutArchiveReader
from service.spark.tail.cut_splits import CutSplit, plan_behind
from service.spark.tail.cut_view import CutViews
from service.spark.tail.options import CutOptions, parse_batch
from tests.support.cut_archives import CutWriter, Saved, row
from tests.unit.spark.bucket import START_MS, Bucket, marker, plain, transactional

GIVEN = {"url": "memory://", "includeTail": "cut"}


def saved(bucket: Bucket, topic: str, batches: list[bytes], partition: int = 0, epoch: int = 0) -> Saved:
    """These batches as a leader of this epoch has them in its log."""
    data = b"".join(one[:12] + epoch.to_bytes(4, "big") + one[16:] for one in batches)
    return Saved(bucket.topic_id(topic), partition, data, leader_epoch=epoch)


def ten(*bases: int) -> list[bytes]:
    return [plain(base, START_MS + 1000 * base) for base in bases]


@pytest.fixture
def bucket() -> Bucket:
    """The topic "t" with offsets 0 to 29 in two segments."""
    made = Bucket()
    made.topic("t", 2)
    made.add("t", batches=2, opened={})
    made.add("t", batches=1, opened={})
    return made


@pytest.fixture
def writer(bucket: Bucket) -> CutWriter:
    return CutWriter(bucket.store)


def options_of(bucket: Bucket, **more: str) -> ReadOptions:
    options, tail = parse_batch({**GIVEN, "subscribe": ",".join(bucket.topics), **more})
    assert tail == CutOptions()
    return options


def open_archive(bucket: Bucket, options: ReadOptions, views: CutViews | None = None) -> CutArchiveReader:
    views = CutViews() if views is None else views
    return CutArchiveReader(bucket.store, views, read_committed=options.read_committed, cache=PlanCache())


def planned(bucket: Bucket, **more: str) -> list[Any]:
    options = options_of(bucket, **more)
    with open_archive(bucket, options) as archive:
        ranges = resolve_ranges(archive, options)
        parts = [*plan_ranges(archive, ranges, options), *plan_behind(archive, ranges, options)]
    return [pickle.loads(pickle.dumps(part)) for part in parts]  # as they go to the tasks


def rows(bucket: Bucket, parts: list[Any]) -> list[tuple[str, int, int, bytes]]:
    """The rows of these tasks: topic, partition, offset, value."""
    return sorted(found for part in parts for found in _rows(bucket, part))


def _rows(bucket: Bucket, part: Split | CutSplit) -> Iterator[tuple[str, int, int, bytes]]:
    for piece in (part,) if isinstance(part, CutSplit) else part.pieces:
        decoder = ColumnDecoder(
            min_offset=piece.begin_offset, max_offset=piece.end_offset, aborted=piece.aborted
        )
        if isinstance(piece, CutSplit):
            data = [run.data for run in read_pieces(bucket.store, piece.pieces)]
        else:
            data = [memoryview(bucket.store.get(piece.entry.key, max_size=1 << 20))[: piece.entry.log_length]]
        for chunk in decoder.decode_stream(data):
            assert chunk.offsets is not None
            assert chunk.value_offsets is not None
            assert chunk.value_data is not None
            ends = chunk.value_offsets
            for number, offset in enumerate(chunk.offsets):
                value = bytes(chunk.value_data[ends[number] : ends[number + 1]])
                yield piece.topic, piece.partition, offset, value


def offsets(bucket: Bucket, topic: str = "t", partition: int = 0, **more: str) -> list[int]:
    return [one[2] for one in rows(bucket, planned(bucket, **more)) if one[:2] == (topic, partition)]


def test_rows_behind_the_chain_come_from_tails_of_the_newest_complete_cut(
    bucket: Bucket, writer: CutWriter
) -> None:
    bucket.topic("groups")
    first = writer.tail([saved(bucket, "t", ten(30, 40)), saved(bucket, "groups", ten(0))])
    second = writer.tail([saved(bucket, "t", ten(50)), saved(bucket, "t", ten(0), 1)], cut=2)
    columns = {bucket.topic_id("t"): [row(60), row(10)], bucket.topic_id("groups"): [row(10, start=4)]}
    writer.cut(columns, [first, second], number=2)
    writer.cut({bucket.topic_id("t"): [row(90), row(10)]}, [], number=3, is_complete=False)
    found = rows(bucket, planned(bucket))
    assert [one[:3] for one in found] == [
        *(("groups", 0, offset) for offset in range(4, 10)),
        *(("t", 0, offset) for offset in range(60)),
        *(("t", 1, offset) for offset in range(10)),
    ]
    assert found[-1][3] == b"%0100d" % 9
    assert offsets(bucket, startingOffsets='{"t":{"0":35,"1":10},"groups":{"0":10}}') == list(range(35, 60))
    assert offsets(bucket, endingOffsets='{"t":{"0":42,"1":-1},"groups":{"0":-1}}') == list(range(42))


def test_the_same_offsets_have_the_same_rows_once_a_segment_has_them(
    bucket: Bucket, writer: CutWriter
) -> None:
    tail = writer.tail(
        [saved(bucket, "t", [transactional(30, 7), *ten(31), marker(41, 7, commit=False), *ten(42)])]
    )
    writer.cut({bucket.topic_id("t"): [row(52), row(0)]}, [tail])
    committed = {"isolationLevel": "read_committed"}
    before = [rows(bucket, planned(bucket, **more)) for more in ({}, committed)]
    bucket.add(
        "t",
        batches=[transactional(30, 7), *ten(31), marker(41, 7, commit=False)],
        txn_rows=[(7, 30, 41, 42)],
        opened={},
    )
    after = [rows(bucket, planned(bucket, **more)) for more in ({}, committed)]
    assert before == after
    assert [len(found) for found in after] == [51, 50]
    bucket.add("t", batches=ten(42), opened={})
    assert [rows(bucket, planned(bucket, **more)) for more in ({}, committed)] == after
    assert not any(isinstance(part, CutSplit) for part in planned(bucket))


def test_committed_rows_go_up_to_the_cuts_stable_end_by_the_tails_own_markers(
    bucket: Bucket, writer: CutWriter
) -> None:
    """7 begins in a segment and is aborted in a tail, 8 is committed there, 9 is open at the cut."""
    base = [transactional(30, 7), transactional(31, 8), *ten(32)]
    bucket.add("t", batches=base, opened={7: 30, 8: 31})
    tails = [
        writer.tail([saved(bucket, "t", [transactional(42, 7), marker(43, 8, commit=True)])]),
        writer.tail([saved(bucket, "t", [*ten(44), marker(54, 7, commit=False)])], cut=2),
        writer.tail(
            [saved(bucket, "t", [transactional(55, 9), transactional(56, 7), marker(57, 7, commit=False)])],
            cut=3,
        ),
    ]
    writer.cut({bucket.topic_id("t"): [row(58, stable=55), row(0)]}, tails, number=3)
    committed = {"isolationLevel": "read_committed"}
    assert offsets(bucket, **committed) == [*range(30), 31, *range(32, 42), *range(44, 54)]
    assert offsets(bucket) == [*range(43), *range(44, 54), 55, 56]
    bucket.store.reset()
    planned(bucket)
    assert all(bucket.store.bytes[tail.key] < 800 for tail in tails), "no plan of all rows reads the tails"


def test_a_chain_that_reaches_beyond_the_cut_is_read_up_to_its_end(bucket: Bucket, writer: CutWriter) -> None:
    tail = writer.tail([saved(bucket, "t", ten(20))])
    writer.cut({bucket.topic_id("t"): [row(25, saved=25), row(0)]}, [tail])
    assert offsets(bucket) == list(range(30))
    assert offsets(bucket, isolationLevel="read_committed") == list(range(30))


def test_a_later_leader_that_began_anew_is_the_one_that_is_read(bucket: Bucket, writer: CutWriter) -> None:
    old = writer.tail([saved(bucket, "t", ten(30, 40), epoch=1)])
    new = writer.tail([saved(bucket, "t", [plain(40, START_MS, 3)], epoch=2)], cut=2)
    writer.cut({bucket.topic_id("t"): [row(43), row(0)]}, [old, new], number=2)
    assert offsets(bucket) == list(range(43))


def test_topics_that_are_not_tailed_end_with_their_chain(bucket: Bucket, writer: CutWriter) -> None:
    writer.cut({bucket.topic_id("t"): [row(500, saved=30), row(0)]}, [])
    assert offsets(bucket) == list(range(30))


def test_tasks_are_cut_by_size_and_by_count(bucket: Bucket, writer: CutWriter) -> None:
    tails = [writer.tail([saved(bucket, "t", ten(base))], cut=base) for base in range(30, 90, 10)]
    writer.cut({bucket.topic_id("t"): [row(90), row(0)]}, tails, number=90)
    parts = [part for part in planned(bucket, maxRecordsPerPartition="7") if isinstance(part, CutSplit)]
    assert max(part.end_offset - part.begin_offset for part in parts) <= 7
    assert offsets(bucket, maxRecordsPerPartition="7") == list(range(90))
    few = offsets(bucket, where="offset >= 37 AND offset < 52")
    assert few == list(range(37, 52))


def test_an_offset_is_found_by_time_in_a_tail(bucket: Bucket, writer: CutWriter) -> None:
    tails = [
        writer.tail([saved(bucket, "t", ten(30))]),
        writer.tail([saved(bucket, "t", ten(40, 50))], cut=2),
    ]
    writer.cut({bucket.topic_id("t"): [row(60), row(0)]}, tails, number=2)
    by_time = {"startingOffsetsByTimestampStrategy": "latest"}
    assert offsets(bucket, startingTimestamp=str(START_MS + 47_000), **by_time) == list(range(47, 60))
    assert offsets(bucket, startingTimestamp=str(START_MS + 5_000), **by_time) == list(range(5, 60))
    assert offsets(bucket, startingTimestamp=str(START_MS + 99_000), **by_time) == []


@pytest.mark.parametrize("value", ["cuts", "true", ""])
def test_another_value_of_the_option_is_refused(bucket: Bucket, value: str) -> None:
    with pytest.raises(ConfigError, match="includeTail"):
        parse_batch({**GIVEN, "subscribe": "t", "includeTail": value})


def test_a_cut_and_brokers_are_never_read_together() -> None:
    for parse in (parse_batch, parse_stream):
        with pytest.raises(ConfigError, match=r"includeTail=cut is refused beside bootstrap\.servers"):
            parse({**GIVEN, "subscribe": "t", "kafka.bootstrap.servers": "a:1"})
    with pytest.raises(ConfigError, match=r"kafka\.client\.id has no effect without"):
        parse_batch({**GIVEN, "subscribe": "t", "kafka.client.id": "me"})
    assert parse_stream({**GIVEN, "subscribe": "t"}).tail == CutOptions()


def test_a_damaged_cut_is_passed_over_with_a_warning_and_the_one_before_is_read(
    bucket: Bucket, writer: CutWriter, caplog: pytest.LogCaptureFixture
) -> None:
    one = writer.tail([saved(bucket, "t", ten(30))])
    writer.cut({bucket.topic_id("t"): [row(40), row(0)]}, [one])
    two = writer.tail([saved(bucket, "t", ten(40))], cut=2)
    writer.cut({bucket.topic_id("t"): [row(50), row(0)]}, [one, two], number=2)
    bucket.store.put(two.key, b"?")
    with caplog.at_level(logging.WARNING):
        assert offsets(bucket) == list(range(40))
    assert two.key in caplog.text
    bucket.store.put(one.key, b"?")
    with pytest.raises(CorruptionError, match=r"tail/"):
        offsets(bucket)
    bucket.store.put("CUT", b"{}")
    with pytest.raises(CorruptionError, match="CUT"):
        offsets(bucket)


def test_damage_of_a_tails_records_is_an_error_of_the_task(bucket: Bucket, writer: CutWriter) -> None:
    tail = writer.tail([saved(bucket, "t", ten(30))])
    writer.cut({bucket.topic_id("t"): [row(40), row(0)]}, [tail])
    data = bytearray(bucket.store.get(tail.key, max_size=1 << 20))
    data[100] ^= 1
    bucket.store.put(tail.key, bytes(data))
    with pytest.raises(CorruptionError, match=tail.key):
        offsets(bucket)


def test_records_that_a_complete_cut_lacks_are_named(bucket: Bucket, writer: CutWriter) -> None:
    writer.cut({bucket.topic_id("t"): [row(40), row(0)]}, [])
    with pytest.raises(
        CorruptionError, match=r"cut/.*offsets 30 to 39 of .* are neither in its chain nor in a tail"
    ):
        offsets(bucket)


def test_without_a_complete_cut_the_segments_are_read_with_a_warning(
    bucket: Bucket, writer: CutWriter, caplog: pytest.LogCaptureFixture
) -> None:
    assert offsets(bucket) == list(range(30))
    assert "no cut was ever taken" in caplog.text
    writer.cut({bucket.topic_id("t"): [row(40), row(0)]}, [], is_complete=False)
    assert offsets(bucket) == list(range(30))
    assert "no cut is complete yet" in caplog.text


class Streamed:
    """A stream of the bucket, whose clock stands still."""

    def __init__(self, bucket: Bucket, **more: str) -> None:
        given = {**GIVEN, "subscribe": "t", "startingOffsets": "earliest", "refreshInterval": "5s", **more}
        self.options = parse_stream(given)
        self.bucket = bucket
        self.clock = ManualClock()
        cache, self.views = PlanCache(), CutViews()
        read = self.options.read

        def open_archive() -> CutArchiveReader:
            return CutArchiveReader(bucket.store, self.views, read_committed=read.read_committed, cache=cache)

        self.plan = StreamPlan(self.options, open_archive, self.clock)
        self.at = self.plan.initial()

    def end(self) -> int:
        return self.plan.latest(self.at).offsets["t", 0]

    def step(self) -> list[int]:
        """Read one batch; its offsets."""
        end = self.plan.latest(self.at)
        parts = self.plan.plan(self.at, end)
        self.at = end
        return [one[2] for one in rows(self.bucket, parts)]


def test_a_stream_follows_the_cuts_with_one_get_a_trigger_while_nothing_is_new(
    bucket: Bucket, writer: CutWriter
) -> None:
    one = writer.tail([saved(bucket, "t", ten(30))])
    writer.cut({bucket.topic_id("t"): [row(40), row(0)]}, [one])
    stream = Streamed(bucket)
    assert stream.step() == list(range(40))
    bucket.store.reset()
    assert stream.step() == []
    assert bucket.store.gets == {"CUT": 1}
    two = writer.tail([saved(bucket, "t", ten(40))], cut=2)
    writer.cut({bucket.topic_id("t"): [row(50), row(0)]}, [one, two], number=2)
    bucket.store.reset()
    assert stream.end() == 50
    assert bucket.store.gets == {"CUT": 1, writer.kept[1].key: 1, two.key: 1}
    assert stream.step() == list(range(40, 50))


def test_a_batch_of_a_stream_that_was_in_tails_is_repeated_from_segments(
    bucket: Bucket, writer: CutWriter
) -> None:
    one = writer.tail([saved(bucket, "t", ten(30, 40))])
    writer.cut({bucket.topic_id("t"): [row(50), row(0)]}, [one])
    stream = Streamed(bucket)
    start, end = stream.at, stream.plan.latest(stream.at)
    first = rows(bucket, stream.plan.plan(start, end))
    bucket.add("t", batches=ten(30, 40), opened={})
    writer.cut({bucket.topic_id("t"): [row(50), row(0)]}, [], number=2)
    bucket.store.delete([one.key])
    again = Streamed(bucket)
    parts = again.plan.plan(StreamPosition(start.offsets, start.cluster_id, start.topics), end)
    assert not any(isinstance(part, CutSplit) for part in parts)
    assert rows(bucket, parts) == first
    assert len(first) == 50


def test_a_stream_of_committed_rows_reads_each_section_once_to_decide(
    bucket: Bucket, writer: CutWriter
) -> None:
    names = {"isolationLevel": "read_committed"}
    one = writer.tail([saved(bucket, "t", [transactional(30, 7), *ten(31)])])
    writer.cut({bucket.topic_id("t"): [row(41, stable=30), row(0)]}, [one])
    stream = Streamed(bucket, **names)
    assert stream.step() == list(range(30))
    two = writer.tail([saved(bucket, "t", [*ten(41), marker(51, 7, commit=False), *ten(52)])], cut=2)
    writer.cut({bucket.topic_id("t"): [row(62), row(0)]}, [one, two], number=2)
    assert stream.step() == [*range(31, 51), *range(52, 62)]
    three = writer.tail([saved(bucket, "t", [transactional(62, 7), marker(63, 7, commit=True)])], cut=3)
    writer.cut({bucket.topic_id("t"): [row(64), row(0)]}, [one, two, three], number=3)
    end = stream.plan.latest(stream.at)
    bucket.store.reset()
    parts = stream.plan.plan(stream.at, end)
    assert [one[2] for one in rows(bucket, parts)] == [62]
    assert bucket.store.gets[one.key] == bucket.store.gets[two.key] == 0


def test_a_head_that_lags_behind_the_commit_is_no_loss(bucket: Bucket, writer: CutWriter) -> None:
    """The chain has taken over what tails had, and HEAD will say so in a moment."""
    writer.cut({bucket.topic_id("t"): [row(40, version=3), row(0)]}, [])
    stream = Streamed(bucket)
    assert stream.end() == 30
    bucket.add("t", batches=1, opened={})
    assert stream.end() == 40


def test_a_stream_whose_cut_is_gone_says_that_records_are_lost(bucket: Bucket, writer: CutWriter) -> None:
    tail = writer.tail([saved(bucket, "t", ten(30))])
    writer.cut({bucket.topic_id("t"): [row(40), row(0)]}, [tail])
    stream = Streamed(bucket)
    stream.step()
    writer.kept.clear()
    writer.cut({bucket.topic_id("t"): [row(30), row(0)]}, [], number=2)
    with pytest.raises(DataLossError, match="t-0 ends at 30, the stream has read up to 40"):
        stream.end()
