"""Ends of orders to erase keys: old versions that are left, and processes that end between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from service.remote.format.erase_codec import ErasedTopic
from service.remote.format.keys import ERASE_PREFIX
from service.remote.stores.errors import StoreRefused, StoreUnavailable
from service.remote.stores.store import ObjectStore
from service.tiering.copier import CallProgress
from service.tiering.erasing.leftovers import VersionsLeft
from service.tiering.erasing.remains import IsDead
from tests.unit.tiering.cut_world import OTHER, CutWorld
from tests.unit.tiering.test_order_keeper import (
    ORDER,
    cancel,
    erased_everywhere,
    finish,
    gone,
    listed,
    order_of,
    standing,
    start,
    sweep_twice,
    with_two_topics,
)
from tests.unit.tiering.world import Crash, Fault


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    return with_two_topics(tmp_path)


class Versions:
    """A bucket that keeps versions; `fails` is what the search for those of objects raises."""

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.fails_at_the_end: Exception | None = None
        self.left = VersionsLeft()
        self.removed: list[str] = []
        self.bucket: ObjectStore | None = None

    def __call__(
        self,
        prefixes: Sequence[str],
        is_dead: IsDead,
        progress: CallProgress,
        /,
        *,
        takes_current: bool = False,
    ) -> VersionsLeft:
        fails = self.fails_at_the_end if takes_current else self.fails
        if fails is not None:
            raise fails
        if takes_current:
            assert self.bucket is not None
            self.removed += [one.key for one in self.bucket.list(prefixes[0]) if is_dead(one.key, 0)]
        return self.left


@pytest.fixture
def versions(world: CutWorld) -> Versions:
    kept = Versions()
    kept.bucket = world.bucket
    world.options = {**world.options, "versions": kept}
    world.manager = world._boot()
    world.begin()
    return kept


def test_a_search_for_versions_that_fails_is_named_and_holds_up_no_other_order(
    world: CutWorld, versions: Versions
) -> None:
    erased_everywhere(world)
    second = UUID(int=501)
    world.round()
    start(world, order_of(second.int, OTHER)._replace(topics=(ErasedTopic(OTHER, "other", (2,)),)))
    versions.fails = StoreRefused("AccessDenied")
    sweep_twice(world)
    gone(world)
    assert standing(world).why == (
        "old versions of objects may be left, the search for them failed: AccessDenied; brokers need "
        "s3:GetBucketVersioning, s3:ListBucketVersions and s3:DeleteObjectVersion"
    )
    assert "replicas have not erased yet" in world.manager.metrics.orders[second].why
    assert ORDER in world.catalog.orders
    versions.fails = None
    finish(world)
    assert ORDER not in world.catalog.orders


def test_old_versions_keep_a_done_order_until_none_is_left(world: CutWorld, versions: Versions) -> None:
    erased_everywhere(world)
    versions.left = VersionsLeft(left=2, why="locked", locked=("a until 2031",), locked_count=1, until_ms=7)
    sweep_twice(world)
    gone(world)
    remains = standing(world).remains
    assert remains is not None
    assert remains.versions == versions.left
    assert standing(world).why == "2 old versions of objects are left: locked"
    versions.left = VersionsLeft()
    finish(world)
    assert ORDER not in world.catalog.orders


def test_versions_of_an_orders_document_go_before_it(world: CutWorld, versions: Versions) -> None:
    """It has the hashes of the keys and their secret. Until they are gone the document is there, so whoever
    comes next finds it."""
    erased_everywhere(world)
    key = world.catalog.orders[ORDER].key
    versions.fails_at_the_end = StoreUnavailable("503")
    finish(world)
    assert ORDER not in world.catalog.orders
    assert world.keys(ERASE_PREFIX) == [key]
    versions.fails_at_the_end = None
    world.round()
    assert versions.removed == [key]
    assert world.keys(ERASE_PREFIX) == []


CRASHES = [
    ("put", "erase/", Fault.CRASH_BEFORE, None),
    ("put", "erase/", Fault.CRASH_AFTER, None),
    ("put", "CUT", Fault.CRASH_BEFORE, None),
    ("put", "CUT", Fault.CRASH_AFTER, None),
    ("catalog", "start", Fault.CRASH_BEFORE, None),
    ("catalog", "start", Fault.CRASH_AFTER, ORDER),
]


@pytest.mark.parametrize(
    ("operation", "key", "fault", "left"),
    CRASHES,
    ids=[f"{two} {three.name}" for _, two, three, _ in CRASHES],
)
def test_a_start_that_is_cut_off_leaves_an_order_that_is_known_or_nothing(
    world: CutWorld, operation: str, key: str, fault: Fault, left: UUID | None
) -> None:
    world.round()
    crash_at(world, operation, key, fault)
    with suppress(Crash, BaseExceptionGroup):
        start(world)
    revive(world)
    for _ in range(10):
        world.round()
        if world.catalog.orders:
            assert listed(world) == [ORDER], "a restore has to know it, too"
    sweep_twice(world)
    sweep_twice(world)
    assert [*world.catalog.orders] == ([] if left is None else [left])
    assert listed(world) == ([] if left is None else [left])
    assert len(world.keys(ERASE_PREFIX)) == (0 if left is None else 1)


@pytest.mark.parametrize(
    ("operation", "key"), [("put", "CUT"), ("catalog", "remove"), ("delete", "erase/")], ids=str
)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER], ids=lambda one: one.name)
@pytest.mark.parametrize("ends", ["gone", "cancelled"])
def test_an_end_that_is_cut_off_is_finished_by_the_next_keeper(
    world: CutWorld, operation: str, key: str, fault: Fault, ends: str
) -> None:
    if ends == "gone":
        erased_everywhere(world)
        sweep_twice(world)
    else:
        world.round()
        start(world)
    crash_at(world, operation, key, fault)
    with suppress(Crash, BaseExceptionGroup):
        if ends == "gone":
            gone(world)
        else:
            cancel(world)
            world.round()
    revive(world)
    is_named = ORDER in listed(world) or ORDER in world.catalog.orders
    assert not is_named or world.keys(ERASE_PREFIX), "nothing names an object that is gone"
    if ORDER in world.catalog.orders and ends == "cancelled":
        cancel(world)
    for _ in range(10):
        world.round()
    finish(world)
    assert (world.catalog.orders, listed(world), world.keys(ERASE_PREFIX)) == ({}, [], [])


def crash_at(world: CutWorld, operation: str, key: str, fault: Fault) -> None:
    """The process ends at the next such call of the store, or decision of the catalog."""
    if operation != "catalog":
        world.store.decide = lambda what, name: (
            fault if what == operation and name.startswith(key) else Fault.PASS
        )
        return
    name = f"decide_{key}"
    before = getattr(world.catalog, name)

    def decide(*arguments: object) -> None:
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        before(*arguments)
        raise Crash

    setattr(world.catalog, name, decide)


def revive(world: CutWorld) -> None:
    """Another process goes on with what the bucket and the metadata have."""
    world.store.decide = lambda what, name: Fault.PASS
    for name in ("decide_start", "decide_remove"):
        world.catalog.__dict__.pop(name, None)
    world.manager = world._boot()
    world.begin()
