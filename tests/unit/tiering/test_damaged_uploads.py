"""A bit flipped on the way to the bucket never gets into a committed chain."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.inspect.fsck import fsck
from service.remote.stores.proven_uploads import ProvenUploads
from tests.unit.remote.test_proven_uploads import FlippingStore
from tests.unit.tiering.world import World


class FlippingOnce(FlippingStore):
    """Damages the first object whose key ends so."""

    def __init__(self, ending: str) -> None:
        super().__init__()
        self.ending = ending
        self.damaged: list[str] = []

    def _store(self, key: str, data: bytes) -> None:
        is_chosen = key.endswith(self.ending) and not self.damaged
        self.damage = len(data) // 2 if is_chosen else None
        if is_chosen:
            self.damaged.append(key)
        super()._store(key, data)


@pytest.mark.parametrize("ending", [".seg", ".json.gz", "/HEAD", "topics.json"])
def test_a_damaged_object_is_refused_and_sent_again(tmp_path: Path, ending: str) -> None:
    store = FlippingOnce(ending)
    world = World(tmp_path, ProvenUploads(store, lambda: False))
    world.fill(2)
    world.settle()
    assert store.damaged
    report = fsck(store)
    assert report.errors == []
    assert report.segments == 2
    named = [entry.key for entry in world.live(world.replicas[0])]
    assert not set(named) & set(store.damaged), "the next try has a key of its own"


@pytest.mark.parametrize("ending", [".seg", ".json.gz"])
def test_without_a_comparison_it_would_be_committed(tmp_path: Path, ending: str) -> None:
    """Why there is one."""
    store = FlippingOnce(ending)
    world = World(tmp_path, store)
    world.fill(1)
    world.run()
    assert fsck(store).errors
