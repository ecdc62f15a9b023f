"""Reads whose objects were merged or erased after they were planned, and are gone by now."""

from __future__ import annotations

import random
from typing import Any

import pytest

from service.remote.format.keys import HeadKey
from service.remote.format.manifest import ManifestLimits
from service.spark.errors import DataLossError, PlanOutdated
from service.spark.plan.splits import Split
from tests.support.rewritten import Rewriter, Rewritten, without_offsets
from tests.unit.spark.bucket import START_MS, Bucket, CountingStore, marker, plain, transactional
from tests.unit.spark.test_downloads import offsets


def filled(segments: int = 12, batches: int = 4, value_bytes: int = 100, **more: Any) -> Bucket:
    bucket = Bucket(**more)
    bucket.topic("events")
    for _ in range(segments):
        base = bucket.end("events")
        bucket.add(
            "events",
            0,
            [
                plain(base + 10 * n, START_MS + 1000 * (base + 10 * n), value_bytes=value_bytes)
                for n in range(batches)
            ],
        )
    return bucket


def rewriter_of(bucket: Bucket, seed: int = 5) -> Rewriter:
    return Rewriter(bucket.store, HeadKey(bucket.topic_id("events"), 0), seed, block_bytes=3000)


def forget(bucket: Bucket, *done: Rewritten) -> None:
    """The grace is over."""
    bucket.store.delete([one.key for rewritten in done for one in rewritten.old])


@pytest.mark.parametrize("limits", [ManifestLimits(), ManifestLimits(entries=4, page_refs=2)])
def test_a_merge_after_the_plan_changes_no_row(limits: ManifestLimits) -> None:
    bucket = filled(limits=limits)
    splits = bucket.plan(subscribe="events")
    rewriter = rewriter_of(bucket)
    first = rewriter.merge(0, 159)
    second = rewriter.merge(160, 319)
    forget(bucket, first, second)
    bucket.store.reset()
    assert offsets(bucket.store, splits) == list(range(480))
    assert bucket.store.gets[first.entry.key] < 20, "its footer is read once"


def test_a_part_of_a_merged_object_is_all_that_is_read() -> None:
    bucket = filled()
    splits = bucket.plan(
        subscribe="events",
        startingOffsets='{"events":{"0":55}}',
        endingOffsets='{"events":{"0":131}}',
    )
    forget(bucket, rewriter_of(bucket).merge(0, 319))
    assert offsets(bucket.store, splits) == list(range(55, 131))


def test_merges_of_merges_are_followed() -> None:
    bucket = filled()
    splits = bucket.plan(subscribe="events")
    rewriter = rewriter_of(bucket)
    done = [rewriter.merge(0, 159), rewriter.merge(160, 319), rewriter.merge(0, 319)]
    forget(bucket, *done)
    assert offsets(bucket.store, splits) == list(range(480))


def test_an_erasure_takes_its_records_and_no_others() -> None:
    bucket = filled()
    splits = bucket.plan(subscribe="events")
    gone = {3, 45, 46, *range(80, 120)}
    forget(bucket, rewriter_of(bucket).erase(0, 319, without_offsets(*gone)))
    assert offsets(bucket.store, splits) == [n for n in range(480) if n not in gone]


class LateStore(CountingStore):
    """Loses objects right after their footers were read."""

    def __init__(self) -> None:
        super().__init__()
        self.doomed: set[str] = set()

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        data = super().get_range(key, start, length)
        if key in self.doomed:
            self.doomed.discard(key)
            self.delete([key])
        return memoryview(data)


@pytest.mark.parametrize("is_cut", [False, True])
def test_objects_that_go_while_a_task_reads_them(is_cut: bool) -> None:
    """Its footer tells the offsets of the blocks that are wanted: a piece of an object, too."""
    store = LateStore()
    bucket = filled(4, 30, 4000, store=store, block_bytes=30_000)  # too large to come with one GET
    splits = bucket.plan(subscribe="events", maxPartitionBytes=700_000 if is_cut else 100_000_000)
    assert any(piece.is_cut for split in splits for piece in split.pieces) is is_cut
    (split, *_) = splits
    before = offsets(store, [split])
    rewriter_of(bucket).merge(0, 899)
    store.doomed = {split.pieces[0].entry.key}
    assert offsets(store, [split]) == before
    assert not store.doomed
    assert before == list(range(len(before)))


def test_a_cut_object_is_named_as_rewritten_and_not_as_lost() -> None:
    bucket = filled(3, 30, 4000, block_bytes=30_000)
    splits = bucket.plan(subscribe="events", maxPartitionBytes=700_000)
    assert any(piece.is_cut for split in splits for piece in split.pieces)
    forget(bucket, rewriter_of(bucket).merge(0, 599))
    lost: list[str] = []
    with pytest.raises(PlanOutdated, match=r"events-0: .*rewritten.*load\(\) makes a new plan"):
        offsets(bucket.store, splits, lost=lost)
    assert lost == []
    assert offsets(bucket.store, bucket.plan(subscribe="events")) == list(range(900))


def test_rows_that_retention_takes_are_lost_merged_or_not() -> None:
    bucket = filled()
    splits = bucket.plan(subscribe="events")
    rewriter = rewriter_of(bucket)
    forget(bucket, rewriter.merge(0, 79), rewriter.merge(80, 159))
    bucket.manifests["events", 0] = rewriter.manifest()
    bucket.drop_before("events", 100)  # within the second merged object, which has all rows of the plan
    with pytest.raises(DataLossError, match="events-0: offsets 0 to 39 are lost"):
        offsets(bucket.store, splits)
    lost: list[str] = []
    assert offsets(bucket.store, splits, lost=lost) == list(range(80, 480))
    assert [message.split(" are lost")[0] for message in lost] == [
        "events-0: offsets 0 to 39",
        "events-0: offsets 40 to 79",
    ]


def test_an_object_that_the_chain_still_names_is_lost() -> None:
    bucket = filled()
    splits = bucket.plan(subscribe="events")
    bucket.store.delete([splits[0].pieces[2].entry.key])
    with pytest.raises(DataLossError, match="events-0: offsets 80 to 119 are lost"):
        offsets(bucket.store, splits)


def test_aborted_records_stay_hidden_in_a_merged_object() -> None:
    bucket = Bucket()
    bucket.topic("events")
    bucket.add("events", 0, [transactional(0, 7, 5), transactional(5, 8, 5)])
    bucket.add("events", 0, [marker(10, 7, commit=False), marker(11, 8, commit=True), plain(12, START_MS)],
               txn_rows=[(7, 0, 10, 11)])  # fmt: skip
    bucket.add("events", 0, [plain(22, START_MS)])
    splits = bucket.plan(subscribe="events", isolationLevel="read_committed")
    forget(bucket, rewriter_of(bucket).merge(0, 21))
    assert offsets(bucket.store, splits) == [*range(5, 10), *range(12, 32)]


@pytest.mark.parametrize("seed", range(8))
def test_any_rewrites_after_a_plan(seed: int) -> None:
    rng = random.Random(seed)
    bucket = filled(14, 3, limits=ManifestLimits(entries=4, page_refs=2))
    end = bucket.end("events")
    begin = rng.randrange(end // 2)
    splits = planned(bucket, begin, rng)
    rewriter = rewriter_of(bucket, seed)
    gone: set[int] = set()
    for _ in range(rng.randint(1, 8)):
        group = rng.choice(rewriter.groups())
        first = rng.randrange(len(group))
        run = group[first : first + rng.randint(1, 4)]
        base, last = run[0].base_offset, run[-1].last_offset
        if rng.random() < 0.6:
            done = rewriter.merge(base, last)
        else:
            lost = {n for n in range(base, last + 1) if rng.random() < 0.3}
            done = rewriter.erase(base, last, without_offsets(*lost))
            gone |= lost
        forget(bucket, done)
        found = offsets(bucket.store, splits)
        assert [n for n in found if n not in gone] == [n for n in range(begin, end) if n not in gone]


def planned(bucket: Bucket, begin: int, rng: random.Random) -> list[Split]:
    more = {} if rng.random() < 0.5 else {"maxRecordsPerPartition": rng.randint(15, 200)}
    return bucket.plan(subscribe="events", startingOffsets=f'{{"events":{{"0":{begin}}}}}', **more)
