"""Verdicts of the guard of erased logs, and their cost with as many orders as there can be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from uuid import UUID

import pytest

from service.config.settings import LogConfig
from service.hot.erased_orders import ErasedLine
from service.hot.log import LocalLog
from service.metadata.image import MetadataImage
from service.metadata.image_frames import erased_records, erasure_record
from service.metadata.records import MetadataRecord, RemoveErasureRecord
from service.remote.catalog import IN_BUCKET, MAX_ERASURES, Erasure
from service.replicas.erasure_guard import ErasureGuard
from tests.support.world import make_world
from tests.unit.hot.logs import TIP
from tests.unit.metadata.erasing import CLUSTER, ORDER, TOPIC, image_of

ME = 1
IDS = [UUID(int=1000 + number) for number in range(MAX_ERASURES)]


class Guarded:
    """A log of broker 1, and the guard's image."""

    def __init__(self, folder: Path) -> None:
        self.image: MetadataImage = CLUSTER
        self.guard = ErasureGuard(ME, lambda: self.image)
        self.log = LocalLog.open(folder / "t-0", TIP, LogConfig(), world=make_world())

    def tell(self, *records: MetadataRecord) -> None:
        self.image = image_of(*records, before=self.image)

    def is_of_before(self) -> bool:
        return self.guard.has_erased_records(TOPIC, 0, self.log.state)

    def carry_out(self, order_id: UUID, line: ErasedLine) -> None:
        assert self.log.state.erased.add(order_id, line, IDS, self.log.state.erased.cuts)


def order(order_id: UUID, done_ms: int = 70, topics: tuple[UUID, ...] = (TOPIC,)) -> Erasure:
    return ORDER._replace(id=order_id, key=f"erase/{order_id}.json.gz", topics=topics, done_ms=done_ms)


def noted(order_id: UUID) -> Iterator[MetadataRecord]:
    return erased_records(order_id, [((TOPIC, 0), (ME, IN_BUCKET))])


@pytest.fixture
def one(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


def calls(work: Callable[[], object]) -> int:
    """Number of calls that the work makes."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_each_change_that_matters_is_seen(one: Guarded) -> None:
    assert not one.is_of_before()
    one.tell(erasure_record(order(IDS[0], -1)), *noted(IDS[0]))
    assert not one.is_of_before(), "the order is open"
    one.tell(erasure_record(order(IDS[0])))
    assert one.is_of_before()
    one.carry_out(IDS[0], ErasedLine(0))
    assert not one.is_of_before()
    one.tell(erasure_record(order(IDS[1])))
    assert not one.is_of_before(), "nobody has noted the second order"
    one.tell(*noted(IDS[1]))
    assert one.is_of_before()
    one.tell(RemoveErasureRecord(id=IDS[1]))
    assert not one.is_of_before()
    one.tell(RemoveErasureRecord(id=IDS[0]))
    assert not one.is_of_before()
    assert one.guard._by_topic == {}


def test_a_fetch_costs_no_more_with_as_many_orders_as_there_can_be(one: Guarded) -> None:
    for order_id in IDS:
        one.tell(erasure_record(order(order_id)), *noted(order_id))
        one.carry_out(order_id, ErasedLine(0))
    assert not one.is_of_before()
    assert calls(one.is_of_before) < 20


def test_an_order_that_changes_costs_as_much_as_itself(one: Guarded) -> None:
    topics = tuple(UUID(int=5_000 + number) for number in range(1_000))
    for order_id in IDS[1:]:
        one.tell(erasure_record(order(order_id, -1, topics)))
    assert not one.is_of_before()
    one.tell(erasure_record(order(IDS[0], -1, topics)))
    assert calls(one.is_of_before) < 10_000, "not those of all 64"
