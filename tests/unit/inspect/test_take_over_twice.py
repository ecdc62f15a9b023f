"""Take-overs beside another run of the same, and of an archive that cannot be read any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import ConfigError
from service.base.threads import SystemThreads
from service.inspect.restore_source import CutChoice, read_source
from service.remote.format.cut_codec import NO_LEADER, CutRef, decode_cuts, encode_cut, encode_cuts
from service.remote.format.keys import CLUSTER_KEY, CUT_NAME, TOPICS_KEY, CutKey, HeadKey, cut_key, head_key
from service.remote.format.manifest_codec import (
    encode_cluster,
    encode_head,
    encode_manifest,
    encode_topics,
    head_of,
)
from service.remote.format.stamp import Stamp
from service.remote.reading.object_reader import open_cluster_file, open_published, open_topics
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.store import ObjectStore
from tests.unit.inspect.cuts import EVENTS, OFFSETS, TIERED, Cutting, internal_log
from tests.unit.inspect.test_take_over import GAP, order, run
from tests.unit.tiering.world import WRITER, Fault, FaultyStore, World

NODE = Stamp(7, WRITER)
WRITTEN_BY_IT = (CLUSTER_KEY, CUT_NAME, TOPICS_KEY, head_key(EVENTS, 0))


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A cut at which records below an offset of the archive were deleted: its chain is not as HEAD has it."""
    world = World(tmp_path, partitions=1)
    world.topic_configs = {"events": TIERED}
    world.fill(3)
    world.run()
    world.run()
    first = world.replicas[0]
    start = world.live(first)[1].base_offset
    Cutting(world, internal=internal_log()).cut({first: first.log.log_end_offset}, starts={first: start})
    world.fill(1)
    world.run()
    return world


def start_heir(store: ObjectStore) -> dict[str, bytes]:
    """Have a node of the heir take the prefix over, archive a segment less, and take a cut. Returns what it
    has written."""
    store.put(CLUSTER_KEY, encode_cluster(open_cluster_file(store)._replace(stamp=NODE)))
    chain = open_published(store, HeadKey(EVENTS, 0))
    assert chain is not None
    manifest = replace(chain.manifest, version=chain.manifest.version + 1, stamp=NODE, stored_key=None)
    key, data = manifest.key(UUID(int=99)), encode_manifest(manifest)
    store.put(key, data)
    store.put(head_key(EVENTS, 0), encode_head(head_of(manifest, key, data)))
    cuts = decode_cuts(store.get(CUT_NAME, max_size=1 << 16))
    store.put(CUT_NAME, encode_cuts(cuts._replace(stamp=NODE)))
    topics = open_topics(store)
    store.put(TOPICS_KEY, encode_topics(topics.cluster_id, 8, topics.topics, NODE, life=topics.life))
    return contents(store)


def contents(store: ObjectStore) -> dict[str, bytes]:
    return {key: bytes(store.get(key, max_size=1 << 16)) for key in WRITTEN_BY_IT}


class Meanwhile(FaultyStore):
    """A bucket in which a node of the heir starts at the call of this number for what that then writes."""

    def __init__(self, bucket: MemoryStore, number: int) -> None:
        super().__init__(bucket)
        self.written: dict[str, bytes] = {}
        self._left = number
        self.decide = self._count

    def _count(self, operation: str, key: str) -> Fault:
        if key in WRITTEN_BY_IT:
            self._left -= 1
            if self._left == 0:
                self.written = start_heir(self.inner)
        return Fault.PASS


def test_nothing_of_a_heir_that_has_started_is_undone_by_another_run(world: World, pool: Executor) -> None:
    run(world, pool)
    objects = {one.key: world.bucket.get(one.key, max_size=1 << 20) for one in world.bucket.list("")}
    why: Counter[str] = Counter()
    for number in count(1):
        bucket = MemoryStore(SystemThreads())
        for key, data in objects.items():
            bucket.put(key, data)
        store = Meanwhile(bucket, number)
        try:
            run(world, pool, order(is_forced=True), store=store)
        except ConfigError as e:
            why[str(e).split()[0]] += 1
        if not store.written:
            break
        assert contents(bucket) == store.written, number
    # Once the claim was read, `cluster.json` or HEAD tells; before, that the id of the heir is no new one.
    assert why["--cluster-id"] == 1
    assert why[CLUSTER_KEY] >= 5
    assert why[head_key(EVENTS, 0)] >= 1


def test_one_of_two_forced_take_overs_gives_way(world: World, pool: Executor) -> None:
    """The other run ends after this one saw whose the prefix is, and before it reads what comes back."""
    store, seen = FaultyStore(world.bucket), Counter[str]()

    def decide(operation: str, key: str) -> Fault:
        seen[key] += operation == "get"
        if key == CLUSTER_KEY and seen[key] == 2:
            seen[key] += 1
            with ThreadPoolExecutor(1) as another:
                run(world, another, replace(order(is_forced=True), new_id="the-other-heir-of-tests"))
        return Fault.PASS

    store.decide = decide
    with pytest.raises(ConfigError, match=r"cluster\.json was written meanwhile"):
        run(world, pool, order(is_forced=True), store=store)
    assert open_cluster_file(world.bucket).cluster_id == "the-other-heir-of-tests"


def test_an_archive_that_cannot_be_read_any_more_ends_the_restore(world: World, pool: Executor) -> None:
    """Its HEAD would stay the source's, of which a late write would have an effect."""
    store, said = FaultyStore(world.bucket), [0]

    def decide(operation: str, key: str) -> Fault:
        said[0] += operation == "put" and key == CLUSTER_KEY
        return Fault.REFUSE if said[0] and operation == "get" and "/manifest/" in key else Fault.PASS

    store.decide = decide
    with pytest.raises(ConfigError, match="events-0: its archive cannot be read"):
        run(world, pool, store=store)
    restored = run(world, pool)
    chain = open_published(world.bucket, HeadKey(EVENTS, 0))
    assert chain is not None
    assert restored.entries[EVENTS, 0].manifest_key == chain.key
    assert chain.manifest.cluster_id == restored.cluster_id
    assert (OFFSETS, 0) not in restored.entries


def test_a_row_that_a_heirs_loose_cut_has_of_its_source_is_followed_by_the_heirs_own_records(
    world: World, pool: Executor
) -> None:
    """The heir took records of a partition, and lost its only replica before its first cut."""
    first = run(world, pool)
    world.bucket.put(CLUSTER_KEY, encode_cluster(open_cluster_file(world.bucket)._replace(stamp=NODE)))
    source = first.source.cut
    rows = {
        topic: tuple(row._replace(leader_epoch=NO_LEADER) for row in rows)
        for topic, rows in source.topics.items()
    }
    cut = source._replace(cluster_id=first.cluster_id, cut=2, is_exact=False, topics=rows, stamp=NODE)
    key, data = cut_key(CutKey(2, UUID(int=5))), encode_cut(cut)
    world.bucket.put(key, data)
    cuts = decode_cuts(world.bucket.get(CUT_NAME, max_size=1 << 16))
    ref = CutRef(2, key, len(data), crc32c(data), cut.at_ms, is_exact=False, is_complete=True)
    world.bucket.put(CUT_NAME, encode_cuts(cuts._replace(kept=(*cuts.kept, ref), stamp=NODE)))
    again, plan = read_source(world.bucket, CutChoice(number=2, allows_loose=True), pool, gap=GAP)
    assert (again.ref.cut, again.restores_since) == (2, 0)
    for place, before in first.plan.partitions.items():
        after = plan.partitions[place]
        assert after.loaded_end == before.loaded_end
        assert after.go_on >= before.go_on + GAP
