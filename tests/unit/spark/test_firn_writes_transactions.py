"""Firn writes transactions and archives them; a batch read and a stream show what a consumer shows then."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.records.batch import iter_headers
from service.records.decode import iter_records
from service.remote.stores.store import ObjectStore
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.memory import MAX_CHILDREN, PlanCache
from service.spark.stream.options import parse_stream
from service.spark.stream.plan import StreamPlan
from tests.unit.spark.bucket import options_of, plan_batch
from tests.unit.spark.test_downloads import offsets
from tests.unit.spark.test_stream_plan import Driven
from tests.unit.tiering.test_open_transactions import Ledger
from tests.unit.tiering.world import World

COMMITTED = {"subscribe": "events", "isolationLevel": "read_committed"}


def consumed(ledger: Ledger) -> list[int]:
    """Return the offsets that a consumer of committed transactions shows now: Kafka's way, from the log."""
    stable = ledger.replica.last_stable_offset
    data = bytes(ledger.replica.produced)
    aborted = ledger.log.aborted_transactions(0, stable)
    waiting = sorted(aborted, key=lambda row: row.first_offset)
    aborting: set[int] = set()
    shown = []
    for header in iter_headers(data):
        if header.last_offset >= stable:
            break
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborting.add(waiting.pop(0).producer_id)
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            records = iter_records(data[header.position : header.position + header.size])
            shown += [record.offset for record in records]
    return shown


class Streaming:
    """A stream from the log's beginning on, and the offsets that it gave."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        options = {"url": "file:///none", "startingOffsets": "earliest", "refreshInterval": "0", **COMMITTED}
        parsed = parse_stream(options)
        cache = PlanCache(max_children=MAX_CHILDREN)
        self._plan = Driven(
            StreamPlan(parsed, lambda: ArchiveReader(store, read_committed=True, cache=cache, threads=1))
        )
        self._at = self._plan.initial()
        self.seen: list[int] = []

    def trigger(self) -> int:
        """Give what there is; return the end of it."""
        end = self._plan.latest(self._at)
        splits = self._plan.plan(self._at, end)
        self.seen += offsets(self._store, splits) if splits else []
        self._at = end
        return end["events", 0]


def batch(store: ObjectStore) -> tuple[list[int], int]:
    """Return the offsets of a batch read, and where it ends."""
    with ArchiveReader(store, read_committed=True, threads=1) as archive:
        options = options_of(**COMMITTED)
        (snapshot,) = archive.snapshots(archive.choose(options.choice))
        splits = plan_batch(archive, options)
    return offsets(store, splits) if splits else [], snapshot.end_offset


def act(ledger: Ledger, rng: random.Random) -> None:
    producer_id = rng.randrange(1, 5)
    if rng.random() < 0.25:
        ledger.plain(rng.randint(1, 3))
    elif rng.random() < (0.2 if producer_id == 1 else 0.4):
        ledger.end(producer_id, is_commit=rng.random() < 0.5)
    else:
        ledger.write(producer_id, rng.randint(1, 3))


@pytest.mark.parametrize("seed", range(4))
def test_spark_reads_what_a_consumer_shows_at_each_moment(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = World(tmp_path, segment_bytes=1500)
    ledger = Ledger(world)
    world.run()
    stream: Streaming | None = None
    archived = 0
    for step in range(30):
        for _ in range(rng.randint(1, 12)):
            act(ledger, rng)
        world.run()
        if not ledger.archived:
            continue
        stream = stream or Streaming(world.bucket)
        shown = consumed(ledger)
        found, end = batch(world.bucket)
        assert archived <= end <= ledger.archived <= ledger.replica.last_stable_offset, step
        archived = end
        assert found == [offset for offset in shown if offset < end]
        assert stream.trigger() == end
        assert stream.seen == found
    for producer_id in range(1, 5):
        ledger.end(producer_id, is_commit=bool(producer_id % 2))
    ledger.fill(2)
    world.run()
    found, end = batch(world.bucket)
    assert end == ledger.archived > archived
    assert found == [offset for offset in consumed(ledger) if offset < end]
    assert stream is not None
    stream.trigger()
    assert stream.seen == found
