"""Planning against buckets: what is read of them, and what is refused."""

from __future__ import annotations

import json
import logging
import pickle
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from service.base.errors import ConfigError, CorruptionError
from service.remote.format.keys import TOPICS_KEY, head_key
from service.remote.format.manifest import ManifestLimits
from service.spark.errors import DataLossError
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.splits import AbortedTransaction, Split
from tests.unit.spark.bucket import (
    START_MS,
    Bucket,
    GatedStore,
    marker,
    options_of,
    plain,
    plan_batch,
    producer_snapshot,
    transactional,
)


def covered(splits: list[Split]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Per partition the offset ranges that are read, in order."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for split in splits:
        for piece in split.pieces:
            found.setdefault((piece.topic, piece.partition), []).append(
                (piece.begin_offset, piece.end_offset)
            )
    return found


@pytest.fixture
def bucket() -> Bucket:
    """`flights` has partitions of 300, 100 and 0 records (100 a segment), `trains` one of 100."""
    bucket = Bucket()
    bucket.topic("flights", 3)
    bucket.topic("trains")
    for _ in range(3):
        bucket.add("flights", 0)
    bucket.add("flights", 1)
    bucket.add("trains")
    bucket.store.reset()
    return bucket


def test_a_plan_of_everything_costs_one_head_and_one_manifest_each(bucket: Bucket) -> None:
    splits = bucket.plan(subscribe="flights")
    assert covered(splits) == {
        ("flights", 0): [(0, 100), (100, 200), (200, 300)],
        ("flights", 1): [(0, 100)],
    }
    assert bucket.store.gets[TOPICS_KEY] == 1
    assert sum(bucket.store.got("HEAD").values()) == 2
    assert sum(bucket.store.got(".json.gz").values()) == 2
    assert not bucket.store.got(".seg")


def test_topics_go_by_name_by_id_by_pattern_and_by_assignment(bucket: Bucket) -> None:
    everything = set(covered(bucket.plan(subscribe="flights,trains")))
    assert set(covered(bucket.plan(subscribePattern="fl.*|tr.*"))) == everything
    assert covered(bucket.plan(subscribePattern="light")) == {}
    flights = bucket.topic_id("flights")
    assert set(covered(bucket.plan(subscribe=f"{flights},flights"))) == {("flights", 0), ("flights", 1)}
    assert set(covered(bucket.plan(assign=json.dumps({str(flights): [1, 2]})))) == {("flights", 1)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "planes"}, "no topic 'planes'"),
        ({"assign": '{"flights":[3]}'}, "has 3 partitions"),
        ({"subscribe": "trains", "startingOffsets": '{"trains":{"0":1,"1":2}}'}, "every partition"),
        ({"subscribe": "flights", "endingOffsets": '{"flights":{"0":1}}'}, "every partition"),
    ],
)
def test_options_that_do_not_fit_the_topics_are_refused(
    bucket: Bucket, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        bucket.plan(**options)


def test_a_prefix_without_an_archive_is_said_to_be_none() -> None:
    with pytest.raises(ConfigError, match=r"no topics\.json"):
        Bucket().plan(subscribe="flights")


def test_offsets_choose_a_part_and_edges_stand_for_the_ends(bucket: Bucket) -> None:
    splits = bucket.plan(
        subscribe="flights",
        startingOffsets='{"flights":{"0":150,"1":-2,"2":0}}',
        endingOffsets='{"flights":{"0":250,"1":-1,"2":-1}}',
    )
    assert covered(splits) == {("flights", 0): [(150, 200), (200, 250)], ("flights", 1): [(0, 100)]}


def test_times_choose_the_first_record_that_is_not_older(bucket: Bucket) -> None:
    splits = bucket.plan(
        subscribe="flights",
        startingTimestamp=START_MS + 94_001,
        endingOffsetsByTimestamp=json.dumps(
            {"flights": {"0": START_MS + 210_000, "1": START_MS + 10**9, "2": 0}}
        ),
        startingOffsetsByTimestampStrategy="latest",
    )
    assert covered(splits) == {
        ("flights", 0): [(95, 100), (100, 200), (200, 210)],
        ("flights", 1): [(95, 100)],
    }


def test_a_starting_time_after_the_last_record_is_an_error_unless_told_otherwise(bucket: Bucket) -> None:
    late: dict[str, Any] = {"subscribe": "trains", "startingTimestamp": START_MS + 10**9}
    with pytest.raises(ConfigError, match="trains-0 has no record at or after"):
        bucket.plan(**late)
    assert bucket.plan(**late, startingOffsetsByTimestampStrategy="latest") == []


def test_offsets_that_are_not_there_are_data_loss(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.drop_before("flights", 120)
    assert covered(bucket.plan(assign='{"flights":[0]}')) == {("flights", 0): [(120, 200), (200, 300)]}
    gone = {"assign": '{"flights":[0]}', "startingOffsets": '{"flights":{"0":50}}'}
    with pytest.raises(DataLossError, match="offsets 50 to 119 are gone, the archive starts at 120"):
        bucket.plan(**gone)
    beyond = {"assign": '{"flights":[0]}', "endingOffsets": '{"flights":{"0":310}}'}
    with pytest.raises(DataLossError, match="offsets 300 to 309 are not in the archive"):
        bucket.plan(**beyond)
    with caplog.at_level(logging.WARNING):
        assert covered(bucket.plan(**gone, failOnDataLoss=False))["flights", 0][0] == (120, 200)
        assert covered(bucket.plan(**beyond, failOnDataLoss=False))["flights", 0][-1] == (200, 300)
    assert "50 to 119 are gone" in caplog.text
    assert "300 to 309" in caplog.text


def test_a_gap_that_compaction_left_is_not_data_loss() -> None:
    bucket = Bucket()
    bucket.topic("compacted")
    bucket.add("compacted", batches=[plain(20, START_MS), plain(70, START_MS)], last_offset=99)
    bucket.add("compacted", batches=[plain(130, START_MS)], last_offset=199)
    splits = bucket.plan(subscribe="compacted", startingOffsets='{"compacted":{"0":5}}')
    assert covered(splits) == {("compacted", 0): [(5, 100), (100, 200)]}


def test_conditions_prune_partitions_and_segments(bucket: Bucket) -> None:
    splits = bucket.plan("partition = 0 and offset < 110", subscribe="flights")
    assert covered(splits) == {("flights", 0): [(0, 100), (100, 110)]}
    assert len(bucket.store.got("HEAD")) == 1


def test_conditions_on_time_prune_segments_and_blocks() -> None:
    bucket = Bucket(block_bytes=20_000)
    bucket.topic("big")
    for _ in range(3):
        base = bucket.end("big")
        batches = [
            plain(base + 10 * i, START_MS + 10_000 * (base // 10 + i), value_bytes=10_000) for i in range(20)
        ]
        bucket.add("big", batches=batches)
    bucket.store.reset()
    after = datetime.fromtimestamp(START_MS / 1000 + 395, UTC)
    until = datetime.fromtimestamp(START_MS / 1000 + 405, UTC)
    (split,) = bucket.plan(f"timestamp >= '{after}' and timestamp < '{until}'", subscribe="big")
    assert [piece.entry.base_offset for piece in split.pieces] == [200, 400]
    last, first = split.pieces
    assert last.end_byte - last.first_byte < 110_000
    assert last.first_byte > 1_800_000
    assert first.first_byte == 0
    assert first.end_byte < 110_000
    assert len(bucket.store.got(".seg")) == 2, "the first segment is too old, and its footer is not read"


def test_pages_of_a_long_manifest_are_read_where_they_are_wanted() -> None:
    bucket = Bucket(limits=ManifestLimits(entries=4, page_refs=4))
    bucket.topic("long")
    for _ in range(60):
        bucket.add("long", batches=1)
    bucket.store.reset()
    splits = bucket.plan(subscribe="long")
    assert [begin for begin, _ in covered(splits)["long", 0]] == list(range(0, 600, 10))
    pages = sum(count for key, count in bucket.store.gets.items() if "/page/" in key)
    bucket.store.reset()
    assert covered(bucket.plan("offset = 305", subscribe="long")) == {("long", 0): [(305, 306)]}
    few = sum(count for key, count in bucket.store.gets.items() if "/page/" in key)
    assert 1 <= few <= 2 < pages


def test_the_plan_is_a_snapshot(bucket: Bucket) -> None:
    splits = bucket.plan(assign='{"flights":[0]}')
    kept = pickle.dumps(splits)
    bucket.add("flights", 0)
    bucket.drop_before("flights", 250)
    assert pickle.dumps(splits) == kept
    assert covered(splits)["flights", 0] == [(0, 100), (100, 200), (200, 300)]
    assert covered(bucket.plan(assign='{"flights":[0]}'))["flights", 0] == [(250, 300), (300, 400)]


def test_min_partitions_splits_inside_a_block(bucket: Bucket) -> None:
    splits = bucket.plan(subscribe="flights", minPartitions=16)
    assert len(splits) >= 16
    ranges = covered(splits)["flights", 0]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 300
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    assert len(bucket.plan(subscribe="flights", maxRecordsPerPartition=50)) == 8


def test_a_manifest_that_is_not_what_head_says_is_corrupt(bucket: Bucket) -> None:
    bucket.add("trains")
    head = head_key(bucket.topic_id("trains"), 0)
    (key,) = json.loads(bucket.store.get(head, max_size=10_000))["manifest"].split()
    data = bytearray(bucket.store.get(key, max_size=1 << 20))
    data[-5] ^= 1
    bucket.store.put(key, data)
    with pytest.raises(CorruptionError, match=key):
        bucket.plan(subscribe="trains")


def test_aborted_transactions_are_looked_up_beyond_the_segments_that_are_read() -> None:
    """The marker of a transaction, and so its index entry, lies in a later segment than its records."""
    bucket = Bucket()
    bucket.topic("pay")
    bucket.add("pay", batches=[transactional(0, 7, 10), transactional(10, 8, 10)], opened={7: 0, 8: 10})
    bucket.add("pay", batches=[transactional(20, 7, 10)], txn_rows=[(9, 25, 26, 0)], opened={7: 0, 8: 10})
    rows = [(7, 0, 35, 10), (8, 10, 39, 40)]
    bucket.add("pay", batches=[transactional(30, 8, 10)], txn_rows=rows, opened={})
    for base in (40, 50):
        bucket.add("pay", batches=[plain(base, START_MS)], opened={})
    bucket.store.reset()
    aborted = [AbortedTransaction(7, 0, 35), AbortedTransaction(8, 10, 39)]
    options = {"subscribe": "pay", "isolationLevel": "read_committed"}
    (split,) = bucket.plan(**options, endingOffsets='{"pay":{"0":28}}')
    assert [piece.aborted for piece in split.pieces] == [
        tuple(aborted),
        (*aborted, AbortedTransaction(9, 25, 26)),
    ]
    (split,) = bucket.plan(subscribe="pay")
    assert all(piece.aborted == () for piece in split.pieces)
    assert not options_of(subscribe="pay").read_committed


@pytest.mark.parametrize(
    ("is_older", "gets"),
    [(False, 1 + 2), (True, 2 + 2 + 1)],
    ids=["one footer, the newest's snapshot", "the newest's snapshot, this one's, its footer"],
)
def test_no_later_segment_is_looked_at_where_no_transaction_is_open(is_older: bool, gets: int) -> None:
    bucket = Bucket()
    bucket.topic("pay")
    first = [transactional(0, 7, 10), marker(10, 7, commit=True)]
    bucket.add("pay", batches=first, opened={}, is_older=is_older)
    later = [bucket.add("pay", opened={8: 60}, txn_rows=[(8, 60, 70, 71)]) for _ in range(3)]
    bucket.add("pay", opened={})
    bucket.store.reset()
    options = {"subscribe": "pay", "isolationLevel": "read_committed"}
    bucket.plan(**options, endingOffsets='{"pay":{"0":11}}')
    assert not {entry.key for entry in later} & bucket.store.gets.keys()
    assert sum(bucket.store.got(".seg").values()) == gets


COMMITTED = {"subscribe": "pay", "isolationLevel": "read_committed"}


@pytest.fixture(params=["open_from", "snapshots", "neither"])
def undecided(request: pytest.FixtureRequest) -> Bucket:
    """Offsets 0 to 59 in segments of 20. A transaction that began at 25 is open at the end, one is over."""
    bucket = Bucket()
    bucket.topic("pay")
    has_snapshot, is_older = request.param != "neither", request.param == "snapshots"

    def add(batches: list[bytes], opened: dict[int, int], *, last_offset: int) -> None:
        known = opened if has_snapshot else None
        bucket.add("pay", batches=batches, opened=known, last_offset=last_offset, is_older=is_older)

    add([transactional(0, 8, 10), plain(10, START_MS + 10_000)], {8: 0}, last_offset=19)
    add(
        [plain(20, START_MS + 20_000, 5), transactional(25, 7, 10), marker(35, 8, commit=True)],
        {7: 25},
        last_offset=39,
    )
    add([plain(40, START_MS + 40_000, 15), transactional(55, 7, 5)], {7: 25}, last_offset=59)
    bucket.store.reset()
    return bucket


def test_read_committed_ends_before_the_first_open_transaction(undecided: Bucket) -> None:
    assert covered(undecided.plan(**COMMITTED)) == {("pay", 0): [(0, 20), (20, 25)]}
    assert covered(undecided.plan(subscribe="pay")) == {("pay", 0): [(0, 20), (20, 40), (40, 60)]}
    undecided.add("pay", batches=[marker(60, 7, commit=True), plain(61, START_MS)], opened={})
    assert covered(undecided.plan(**COMMITTED))["pay", 0][-1] == (60, 71)


def test_offsets_of_an_open_transaction_are_a_loss_or_left_out(undecided: Bucket) -> None:
    """As Spark's connector: it fails, or reads fewer rows."""
    beyond = {**COMMITTED, "endingOffsets": '{"pay":{"0":30}}'}
    with pytest.raises(DataLossError, match="offsets 25 to 29 are undecided: a transaction that began at 25"):
        undecided.plan(**beyond)
    assert covered(undecided.plan(**beyond, failOnDataLoss=False)) == {("pay", 0): [(0, 20), (20, 25)]}
    assert undecided.plan(**COMMITTED, startingOffsets='{"pay":{"0":30}}') == []


def test_times_of_records_behind_the_last_stable_offset_are_not_reached_yet(undecided: Bucket) -> None:
    late: dict[str, Any] = {**COMMITTED, "startingTimestamp": START_MS + 41_000}
    with pytest.raises(ConfigError, match="pay-0 has no record at or after"):
        undecided.plan(**late)
    assert undecided.plan(**late, startingOffsetsByTimestampStrategy="latest") == []
    assert covered(undecided.plan(**COMMITTED, endingTimestamp=START_MS + 41_000)) == {
        ("pay", 0): [(0, 20), (20, 25)]
    }
    assert covered(undecided.plan(**COMMITTED, endingTimestamp=START_MS + 22_000)) == {
        ("pay", 0): [(0, 20), (20, 22)]
    }


def test_nothing_is_left_to_read_where_retention_came_as_far_as_the_open_transaction(
    undecided: Bucket,
) -> None:
    undecided.drop_before("pay", 30)
    assert undecided.plan(**COMMITTED) == []
    undecided.drop_before("pay", 60)
    assert undecided.plan(**COMMITTED) == []


def test_segments_without_a_snapshot_are_gone_through_from_the_last_that_has_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket = Bucket()
    bucket.topic("pay")
    first = bucket.add("pay", batches=[transactional(0, 7, 10)], opened={})
    bucket.add("pay", batches=[transactional(10, 8, 10)], opened={8: 10})
    third = bucket.add("pay", batches=[transactional(20, 9, 10), marker(30, 8, commit=True)])
    fourth = bucket.add("pay", batches=[transactional(31, 9, 10), plain(41, START_MS)])
    bucket.store.reset()
    with caplog.at_level(logging.WARNING):
        splits = bucket.plan(**COMMITTED, startingOffsets='{"pay":{"0":10}}')
    assert covered(splits) == {("pay", 0): [(10, 20)]}
    assert f"{fourth.key} has no producer snapshot" in caplog.text
    assert "from offset 20 on" in caplog.text
    assert first.key not in bucket.store.gets, "what lies before a snapshot is in it"
    assert f", {third.log_length + fourth.log_length} bytes" in caplog.text


def test_segments_without_a_snapshot_and_without_transactions_are_not_gone_through(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket = Bucket()
    bucket.topic("pay")
    bucket.add("pay", batches=[transactional(0, 7, 10)], opened={7: 0})
    plains = [bucket.add("pay") for _ in range(3)]
    bucket.store.reset()
    with caplog.at_level(logging.WARNING):
        assert bucket.plan(**COMMITTED) == []
    assert not caplog.text
    for entry in plains:
        assert bucket.store.bytes[entry.key] < entry.log_length, "no more than its footer, now and again"


def test_a_producer_snapshot_that_is_none_is_corrupt() -> None:
    bucket = Bucket()
    bucket.topic("pay")
    entry = bucket.add("pay", opened={7: 25}, is_older=True)
    data = bytearray(bucket.store.get(entry.key, max_size=1 << 20))
    data[data.index(producer_snapshot({7: 25})) + 20] ^= 1
    bucket.store.put(entry.key, data)
    with pytest.raises(CorruptionError, match=entry.key):
        bucket.plan(**COMMITTED)


def test_heads_of_many_partitions_are_fetched_at_the_same_time() -> None:
    bucket = Bucket(store=GatedStore(together=8))
    bucket.topic("wide", 40)
    for partition in range(40):
        bucket.add("wide", partition, batches=1)
    bucket.store.reset()
    with ArchiveReader(bucket.store) as archive:
        assert len(plan_batch(archive, options_of(subscribe="wide"))) == 1
    assert sum(bucket.store.got("HEAD").values()) == 40
