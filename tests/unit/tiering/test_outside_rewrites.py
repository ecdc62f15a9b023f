"""Workers in other processes make objects; the leader checks and publishes them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.remote.catalog import Erasure, RewriteKind
from service.remote.format.rows import decode_entries, encode_entries
from service.serving import range_answers
from service.tiering.rewriting import run_object
from service.tiering.rewriting.report_check import RewriteReport
from service.tiering.rewriting.rules import ChainRun
from service.tiering.rewriting.silent_intents import SILENT_MS
from service.tiering.tasks import Task
from service.wire.rewrites import RewriteRangeRequest
from tests.unit.tiering.merges import MergingWorld, OutsideWorker
from tests.unit.tiering.world import GRACE_MS, Fault, once


@pytest.fixture
def world(tmp_path: Path) -> MergingWorld:
    world = MergingWorld(tmp_path)
    world.fill(10)
    world.settle()
    return world


@pytest.fixture
def worker(world: MergingWorld) -> OutsideWorker:
    return OutsideWorker(world, world.replicas[0])


def refused(code: ErrorCode, work: Any, *arguments: Any) -> None:
    with pytest.raises(RequestError) as error:
        work(*arguments)
    assert error.value.code == code, error.value


def test_a_run_is_published(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica, 2, 6)
    worker.begin(run)
    version = worker.commit(worker.make(run))
    entry = world.entry(worker.replica)
    assert entry is not None
    assert (entry.version, entry.segments) == (version, 5)
    assert world.generations(worker.replica) == [0, 0, 1, 0, 0]
    assert world.catalog.intents == {}
    world.check()


def test_every_step_may_be_repeated(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    worker.begin(run)
    report = worker.make(run)
    assert worker.commit(report) == worker.commit(report)
    assert world.generations(worker.replica) == [1]
    worker.end()
    worker.end()
    world.check()


def test_borders_within_an_object_are_refused(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica, 0, 3)
    first, *others = run.entries
    cut = ChainRun(run.tip, (first._replace(base_offset=first.base_offset + 1), *others))
    refused(ErrorCode.invalid_request, worker.begin, cut)
    beyond = ChainRun(run.tip, (*run.entries[:-1], run.entries[-1]._replace(last_offset=1 << 40)))
    refused(ErrorCode.invalid_request, worker.begin, beyond)
    assert world.catalog.intents == {}


def test_one_rewrite_at_a_time(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    other = OutsideWorker(world, worker.replica, UUID(int=99))
    refused(ErrorCode.operation_not_attempted, other.begin, run)
    world.merge()  # nor does the broker's own worker begin one
    assert world.generations(worker.replica) == [0] * 10
    worker.commit(worker.make(run))
    assert world.generations(worker.replica) == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic_id": UUID(int=8)},
        {"partition": 3},
        {"leader_epoch": 5},
        {"cluster_id": "another"},
    ],
    ids=str,
)
def test_an_object_of_another_place_is_refused(
    world: MergingWorld, worker: OutsideWorker, wrong: dict[str, Any]
) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    before = world.entry(worker.replica), world.head(worker.replica)
    refused(ErrorCode.invalid_request, worker.commit, worker.make(run, **wrong))
    assert (world.entry(worker.replica), world.head(worker.replica)) == before


def test_entries_that_are_not_the_objects_are_refused(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    report = worker.make(run)
    (made,) = report.entries
    keys = world.stored_keys()
    for wrong in (
        made._replace(generation=0),
        made._replace(log_length=made.log_length - 1),
        made._replace(footer_crc=made.footer_crc ^ 1),
        made._replace(size=made.size + 1),
        made._replace(last_offset=made.last_offset - 1),
        made._replace(base_offset=made.base_offset + 1),
        made._replace(leader_epochs=((7, 0),)),
        made._replace(max_timestamp=made.max_timestamp + 1),
        made._replace(min_timestamp=-1),
        made._replace(key=run.keys[0]),
        made._replace(key=made.key.replace("-0000000000-", "-0000000009-")),
    ):
        refused(ErrorCode.invalid_request, worker.commit, report._replace(entries=(wrong,)))
    refused(ErrorCode.invalid_request, worker.commit, report._replace(old_keys=run.keys[:-1]))
    refused(ErrorCode.invalid_request, worker.commit, report._replace(entries=()))
    refused(ErrorCode.invalid_request, worker.commit, report._replace(entries=(made, made)))
    assert world.stored_keys() == keys  # nothing was written
    worker.commit(report)
    world.check()


def test_entries_are_decoded_beside_the_loop(
    world: MergingWorld, worker: OutsideWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    report = worker.make(run)
    threads: list[int] = []

    def noting(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return decode_entries(*arguments)

    monkeypatch.setattr(range_answers, "decode_entries", noting)
    request = RewriteRangeRequest(
        topic_id=worker.place[0], partition=worker.place[1], rewrite_id=worker.rewrite_id, step=1, kind=1,
        base_offset=run.base_offset, last_offset=run.last_offset, old_keys=run.keys,
        entries=encode_entries(report.entries),
    )  # fmt: skip
    answers = range_answers.RangeAnswers(world.manager.rewriting.outside)
    wrong = replace(request, entries=b"[]")
    assert world.during(answers.answer(wrong)).error_code == ErrorCode.invalid_request
    assert world.during(answers.answer(request)).error_code == ErrorCode.none
    assert len(threads) == 2
    assert threading.get_ident() not in threads
    assert world.generations(worker.replica) == [1]


def test_an_object_that_is_not_there_is_refused(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    report = worker.make(run)
    world.bucket.delete([report.entries[0].key])
    refused(ErrorCode.invalid_request, worker.commit, report)
    world.check()


def test_an_object_of_another_rewrite_is_refused(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    report = worker.make(run)
    worker.end()
    second = OutsideWorker(world, worker.replica, UUID(int=99))
    second.begin(run)
    refused(
        ErrorCode.invalid_request,
        second.commit,
        RewriteReport(second.rewrite_id, report.old_keys, report.entries),
    )
    assert world.generations(worker.replica) == [0] * 10


def test_a_commit_after_the_end_has_no_effect(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    report = worker.make(run)
    worker.end()
    refused(ErrorCode.fenced_leader_epoch, worker.commit, report)
    assert world.generations(worker.replica) == [0] * 10
    world.sweep()
    assert report.entries[0].key not in world.stored_keys()
    world.check_at_rest()


def test_a_begin_that_arrives_after_the_commit_begins_nothing(
    world: MergingWorld, worker: OutsideWorker
) -> None:
    """It was sent before, and the worker has long gone on: nobody would end what it begins."""
    run = world.run_of(worker.replica)
    worker.begin(run)
    worker.commit(worker.make(run))
    refused(ErrorCode.invalid_request, worker.begin, run)
    assert world.catalog.intents == {}


def test_a_report_whose_rewrite_was_given_up_is_in_nobodys_way(
    world: MergingWorld, worker: OutsideWorker
) -> None:
    """Its publication backs off; the worker is gone, and another has begun."""
    run = world.run_of(worker.replica)
    worker.begin(run)
    outside, report = world.manager.rewriting.outside, worker.make(run)
    world.store.decide = once("put", Fault.REFUSE, "manifest")

    async def fail_once() -> None:
        committing = asyncio.ensure_future(outside.commit(*worker.place, report))
        while (Task.REWRITE, worker.replica.tip) not in world.manager.metrics.failing:
            await asyncio.sleep(0)
            await world.manager.run_news()
        committing.cancel()
        await asyncio.wait({committing})

    world.do(fail_once())
    world.do(outside.end(*worker.place, worker.rewrite_id))
    second = OutsideWorker(world, worker.replica, UUID(int=99))
    second.begin(run)
    second.commit(second.make(run, UUID(int=98)))
    assert world.generations(worker.replica) == [1]
    world.check()


def test_a_run_that_expiry_takes_is_refused(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    report = worker.make(run)
    worker.replica.log.deletion.advance_log_start(run.entries[2].base_offset)
    world.run()
    refused(ErrorCode.invalid_request, worker.commit, report)
    worker.end()
    world.check()


def test_copies_between_begin_and_commit_do_not_matter(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    report = worker.make(run)
    world.fill(3)
    world.settle()
    worker.commit(report)
    assert world.generations(worker.replica) == [1, 0, 0, 0]
    world.check()


def test_the_next_epoch_ends_a_rewrite(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    report = worker.make(run)
    world.fence(worker.replica)
    world.elect(worker.replica)
    world.settle()
    refused(ErrorCode.fenced_leader_epoch, worker.commit, report)
    assert world.generations(worker.replica) == [0] * 10
    world.sweep()
    world.settle()
    world.check_at_rest()


def test_a_silent_worker_loses_its_rewrite(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica)
    worker.begin(run)
    world.clock.advance(SILENT_MS - 1)
    worker.alive()
    world.clock.advance(SILENT_MS - 1)
    world.merge()
    assert len(world.catalog.intents) == 1
    world.clock.advance(1)
    world.merge()
    assert world.catalog.intents == {}
    refused(ErrorCode.fenced_leader_epoch, worker.alive)
    assert world.catalog.intents == {}, "what is over does not begin again: its objects may be judged dead"
    world.merge()
    assert world.generations(worker.replica) == [1]  # the broker merges by itself now


def test_an_erasure_names_an_open_order_of_the_topic(world: MergingWorld, worker: OutsideWorker) -> None:
    run, erase, order = world.run_of(worker.replica), RewriteKind.ERASE, UUID(int=70)
    refused(ErrorCode.invalid_request, worker.begin, run, erase)
    refused(ErrorCode.invalid_request, worker.begin, run, RewriteKind.MERGE, order)
    refused(ErrorCode.operation_not_attempted, worker.begin, run, erase, order)
    world.catalog.orders[order] = given = Erasure(order, "k", 1, 0, 1, (UUID(int=8),), 5)
    refused(ErrorCode.operation_not_attempted, worker.begin, run, erase, order)
    world.catalog.orders[order] = given._replace(topics=(worker.replica.tip.topic_id,), done_ms=6)
    refused(ErrorCode.operation_not_attempted, worker.begin, run, erase, order)
    world.catalog.orders[order] = given._replace(topics=(worker.replica.tip.topic_id,))
    worker.begin(run, erase, order)
    assert [one.kind for one in world.catalog.intents.values()] == [erase]


def test_one_rewrite_may_make_several_objects(world: MergingWorld, worker: OutsideWorker) -> None:
    """Parts of a run that were rewritten before are of other generations; the new objects are of the next."""
    whole = world.run_of(worker.replica)
    first = ChainRun(whole.tip, whole.entries[:2])
    worker.begin(first)
    worker.commit(worker.make(first))
    assert world.generations(worker.replica) == [1, *[0] * 8]
    whole = world.run_of(worker.replica)
    parts = [ChainRun(whole.tip, some, whole.generation) for some in (whole.entries[:4], whole.entries[4:])]
    worker = OutsideWorker(world, worker.replica, UUID(int=99))
    worker.begin(whole)
    made = [worker.make(part, UUID(int=200 + number)) for number, part in enumerate(parts)]
    entries = tuple(report.entries[0] for report in made)
    worker.commit(RewriteReport(worker.rewrite_id, whole.keys, entries))
    assert world.generations(worker.replica) == [2, 2]
    world.check()


def test_a_small_run_is_read_once_and_a_larger_one_twice(
    world: MergingWorld, worker: OutsideWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is the same; what the first pass wrote need not be read again."""
    run = world.run_of(worker.replica)
    worker.begin(run)
    reads: list[str] = []
    get_range = world.bucket.get_range

    def counted(key: str, start: int, length: int) -> Any:
        reads.append(key)
        return get_range(key, start, length)

    monkeypatch.setattr(world.bucket, "get_range", counted)
    once = worker.make(run, UUID(int=301)).entries[0]
    assert [reads.count(key) for key in run.keys] == [1] * len(run.entries)
    monkeypatch.setattr(run_object, "MOST_KEPT_BYTES", 0)
    twice = worker.make(run, UUID(int=302)).entries[0]
    assert min(reads.count(key) for key in run.keys) > 2
    logs = [bytes(get_range(one.key, 0, one.log_length)) for one in (once, twice)]
    assert logs[0] == logs[1]
    assert once._replace(key="", footer_crc=0, size=0) == twice._replace(key="", footer_crc=0, size=0)


def test_a_run_of_another_leader_is_refused(world: MergingWorld, worker: OutsideWorker) -> None:
    run = world.run_of(worker.replica)
    worker.place = (UUID(int=1234), 0)
    refused(ErrorCode.not_leader_or_follower, worker.begin, run)


def test_the_sweeper_spares_what_a_rewrite_covers(world: MergingWorld, worker: OutsideWorker) -> None:
    """Also of a partition that this node leads, as another process makes its objects."""
    run = world.run_of(worker.replica, 0, 8)
    worker.begin(run)
    report = worker.make(run)
    foreign = replace_uuid(report)
    world.bucket.put(foreign, b"late")
    outside = world.run_of(worker.replica, 8, 2)
    stray = outside.keys[0].replace(outside.keys[0][-40:], f"{UUID(int=5)}.seg")
    world.bucket.put(stray, b"left behind")
    for _ in range(3):
        world.sweep()
    assert {report.entries[0].key, foreign} <= world.stored_keys()
    assert stray not in world.stored_keys()
    worker.commit(report)
    world.clock.advance(GRACE_MS)
    world.sweep()
    world.settle()
    world.check_at_rest()


def replace_uuid(report: RewriteReport) -> str:
    key = report.entries[0].key
    return key.replace(key[-40:], f"{UUID(int=6)}.seg")
