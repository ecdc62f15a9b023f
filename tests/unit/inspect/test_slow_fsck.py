"""`firn fsck` of a bucket that is written meanwhile, by a store slower than the grace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.base.threads import SystemThreads
from service.base.types import Buffer
from service.inspect.fsck import fsck
from service.remote.format.keys import HeadKey, head_key
from service.remote.format.manifest import ManifestLimits
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.store import ObjectInfo, Tagged
from tests.unit.inspect.archives import copy_metadata
from tests.unit.tiering.world import GRACE_MS, World


class SlowStore(MemoryStore):
    """Store at whose every `pace`-th read its node seals and expires a segment, and a grace passes."""

    def __init__(self, pace: int, kept: int) -> None:
        super().__init__(SystemThreads())
        self._pace = pace
        self._kept = kept
        self._calls = 0
        self.node: World | None = None
        """None: nobody writes"""

    def _before_answer(self) -> None:
        node = self.node
        if node is None:
            return
        self._calls += 1
        if self._calls % self._pace:
            return
        self.node = None  # what the node asks is answered at once
        [replica] = node.replicas
        node.fill(1)
        entry = node.entry(replica)
        if entry is not None and entry.segments > self._kept:
            live = node.live(replica)
            replica.log.deletion.advance_log_start(live[len(live) - self._kept].base_offset)
        node.run()
        node.clock.advance(GRACE_MS)
        node.run()
        if self._calls % 10 == 0:
            node.metadata_offset += 1
            copy_metadata(node)
        self.node = node

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        self._before_answer()
        return super().get_tagged(key, max_size=max_size)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        self._before_answer()
        return super().get_range(key, start, length)

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        self._before_answer()
        return super().get_suffix(key, length)

    def head(self, key: str) -> ObjectInfo:
        self._before_answer()
        return super().head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for info in super().list(prefix):
            yield info
            self._before_answer()


def written(tmp_path: Path, pace: int, kept: int, segments: int = 0) -> tuple[SlowStore, World]:
    store = SlowStore(pace, kept)
    node = World(tmp_path / "disk", store, limits=ManifestLimits(entries=3, page_refs=2))
    node.fill(segments or kept)
    node.run()
    node.clock.advance(node.settings.topics_debounce_ms)
    node.run()
    copy_metadata(node)
    return store, node


@pytest.mark.parametrize("pace", [1, 2, 3, 5, 11])
@pytest.mark.parametrize("kept", [2, 9])
def test_a_bucket_that_is_written_all_the_time_has_no_errors(tmp_path: Path, pace: int, kept: int) -> None:
    store, node = written(tmp_path, pace, kept)
    store.node = node
    report = fsck(store)
    store.node = None
    assert report.errors == [], report.errors
    orphans = {one.key for one in report.orphans}
    assert not orphans & node.live_keys(), "what was committed since is no orphan"
    if pace >= 5:
        assert report.segments >= 2
    assert fsck(store).errors == []


@pytest.mark.parametrize("pace", [3, 5, 11])
@pytest.mark.parametrize("what", ["segment", "page"])
def test_lasting_damage_is_reported_though_head_moves(tmp_path: Path, pace: int, what: str) -> None:
    store, node = written(tmp_path, pace, kept=10_000, segments=14)
    [replica] = node.replicas
    manifest = node.manifest(replica)
    assert manifest is not None
    key = node.live(replica)[8].key if what == "segment" else manifest.pages[-1].key
    data = store.get(key, max_size=1 << 20)
    store.put(key, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    store.node = node
    report = fsck(store)
    store.node = None
    assert [one.where for one in report.errors] == [key]
    assert report.exit_code == 1


def test_head_that_is_damaged_for_good_is_said(tmp_path: Path) -> None:
    store, node = written(tmp_path, 3, 5)
    [replica] = node.replicas
    store.put(head_key(*HeadKey(replica.tip.topic_id, 0)), b"{")
    [error] = fsck(store).errors
    assert "cannot be read" in error.what
