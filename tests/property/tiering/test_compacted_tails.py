"""Tails of a compacted log bring back no key that was deleted, whenever they and the compaction come."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.records.decode import iter_records
from service.tiering.cuts import saving
from tests.support.compaction import Pair
from tests.unit.hot.cleanings import clean, put
from tests.unit.tiering.cut_keeper import CutKeeper, bytes_of
from tests.unit.tiering.world import World


def state_of(data: bytes) -> dict[bytes | None, bytes | None]:
    """What a consumer makes of the records."""
    newest = {one.key: one.value for one in iter_records(data)}
    return {key: value for key, value in newest.items() if value is not None}


SEEDS = [2, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_tails_of_a_compacted_log_have_its_state(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "HIGH_EVERY", 4)
    source = random.Random(seed)
    world = World(
        tmp_path, remote_storage_enable=False, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=source.choice((1000, 300_000)),
    )  # fmt: skip
    world.run()
    keeper, replica = CutKeeper(world), world.replicas[0]
    looked = 0
    for _ in range(60):
        for _ in range(source.randrange(0, 6)):
            value = b"v" * source.randrange(1, 300) if source.random() < 0.6 else None
            put(replica.log, [Pair(b"%d" % source.randrange(6), value)])
        if source.random() < 0.5:
            clean(replica.log)
        if source.random() < 0.1:
            replica.leader_epoch += 1
        world.clock.advance(source.choice((10_000, 10_000, 200_000)))
        saved = keeper.save()
        if source.random() < 0.2:
            continue
        keeper.name(saved)
        end = replica.high_watermark
        if keeper.standing(saved, replica).saved.low == end > 0:
            assert state_of(keeper.read(replica, 0, end)) == state_of(bytes_of(replica))
            looked += 1
    assert looked > 30
