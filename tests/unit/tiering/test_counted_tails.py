"""Records of an order's keys, counted in tails part by part while cuts come and go."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from service.records.erasure import filter_hash, hash_key
from service.remote.format.erase_codec import ErasedTopic, ErasureOrder
from service.remote.opened_order import OpenOrder, opened
from service.tiering.copier import CallProgress
from service.tiering.erasing import counting
from service.tiering.erasing.counting import count_in_tails
from service.wire.erasure_counts import END, Counted
from tests.unit.tiering.cut_keeper import CutKeeper
from tests.unit.tiering.world import CLUSTER, World

SECRET = b"s" * 16
KEY = b"k"


def order_of(world: World) -> OpenOrder:
    topics = (ErasedTopic(world.replicas[0].tip.topic_id, "events", (1000,)),)
    hashes, filters = hash_key(SECRET, KEY), filter_hash(KEY).to_bytes(8)
    return opened(ErasureOrder(CLUSTER, UUID(int=70), 5, -1, SECRET, hashes, filters, topics))


@pytest.fixture
def tails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[World, list[str]]:
    """Six tails, each with one record of the key; a part is one tail."""
    monkeypatch.setattr(counting, "PART_OBJECTS", 1)
    world = World(tmp_path, remote_storage_enable=False)
    world.run()
    keeper = CutKeeper(world)
    for _ in range(6):
        world.replicas[0].append(1, 5)
        keeper.cut_now()
    keys = sorted(ref.key for ref in keeper.named)
    assert len(keys) == 6
    return world, keys


def test_all_tails_are_counted_once(tails: tuple[World, list[str]]) -> None:
    world, keys = tails
    at, found, parts = 0, Counted(), 0
    while at != END:
        part = count_in_tails(world.bucket, keys, at, order_of(world), CallProgress())
        found, at, parts = found.plus(part.counted), part.next_offset, parts + 1
    assert (found.objects, found.records, parts) == (6, 6, 6)


def test_no_tail_is_passed_over_when_cuts_go_between_two_parts(tails: tuple[World, list[str]]) -> None:
    """A report would say that nothing is left, and not have read it."""
    world, keys = tails
    first = count_in_tails(world.bucket, keys, 0, order_of(world), CallProgress())
    assert first.counted.records == 1
    found, at, left = Counted(), first.next_offset, keys[2:]
    while at != END:
        part = count_in_tails(world.bucket, left, at, order_of(world), CallProgress())
        found, at = found.plus(part.counted), part.next_offset
    assert found.records == 4


def test_a_tail_that_goes_meanwhile_is_no_error(tails: tuple[World, list[str]]) -> None:
    world, keys = tails
    world.bucket.delete(keys[:2])
    part = count_in_tails(world.bucket, keys, 0, order_of(world), CallProgress())
    assert (part.counted.objects, part.counted.records) == (1, 1)
