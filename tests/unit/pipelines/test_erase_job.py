"""Rounds of `firn pipeline erase` against a node's own answers, with tasks that run in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import UUID, uuid4

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.types import TopicIdPartition
from service.base.world import system_world
from service.inspect.fsck import fsck
from service.pipelines.erase_job import MOST_FAILURES, EraseJob, JobSetup, LeftOver
from service.pipelines.erase_task import Looked, Looks, MadePart, Makes, ObjectToJudge, PartToMake, TaskSetup
from service.remote.catalog import RewriteKind
from service.remote.format.cut_codec import ErasureRef
from service.remote.format.erase_codec import encode_erasure
from service.remote.format.manifest import SegmentEntry
from service.remote.order_end import OrderEnd
from service.remote.stores.obstore_store import open_store
from service.spark.options import parse_options
from service.tiering.erasing.stretches import StretchLimits
from service.tiering.rewriting.outside import RangeAnswer
from service.tiering.rewriting.report_check import RewriteReport
from service.tiering.rewriting.rules import ChainRun
from service.tiering.rewriting.silent_intents import SILENT_MS
from tests.unit.tiering.merges import MergingWorld
from tests.unit.tiering.test_bucket_work import GONE, ORDER, TOPIC, append, give, keys_in_the_bucket, order_of
from tests.unit.tiering.world import CLUSTER, GRACE_MS

KEPT = [b"a", b"b", b"c", None, b"d", b"e", b"f", b"g", b"h"]
KEYS = ((b"a", b"b"), (b"c", None), (GONE, b"d"), (b"e", GONE), (b"f", b"g"), (b"h", GONE), (b"i", b"j"))
TIP = TopicIdPartition(TOPIC, "events", 0)


class Counter:
    """Stands for an accumulator of Spark's."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, more: int) -> None:
        self.value += more


@dataclass
class Tasks:
    """Tasks as executors run them, one after the other. The hooks are called before each step."""

    setup: TaskSetup
    before_look: Callable[[], object] = lambda: None
    before_make: Callable[[], object] = lambda: None
    attempts: int = 1
    """so many attempts at each object, of which the last counts"""
    looked: list[str] = field(default_factory=list)
    made: list[SegmentEntry] = field(default_factory=list)

    def look(self, candidates: Sequence[ObjectToJudge]) -> list[Looked]:
        self.before_look()
        self.looked += [one.entry.key for one in candidates]
        return list(Looks(self.setup, True, Counter(), Counter())(candidates))

    def make(self, parts: Sequence[PartToMake]) -> list[MadePart]:
        self.before_make()
        for _ in range(self.attempts):
            found = list(Makes(self.setup, Counter())(parts))
        self.made += [one.entry for one in found if one.entry is not None]
        return found


class Answers:
    """The node's answers to the job's threads, one at a time."""

    def __init__(self, world: MergingWorld) -> None:
        self.world = world
        self.gives_up = True
        self.refuses: RequestError | None = None
        self._lock = Lock()

    def _ask(self, work: Callable[[], Any]) -> Any:
        with self._lock:
            if self.refuses is not None:
                raise self.refuses
            return self.world.during(work())

    @contextmanager
    def begun(self, rewrite_id: UUID, run: ChainRun) -> Iterator[RangeAnswer]:
        outside, place = self.world.manager.rewriting.outside, (run.tip.topic_id, run.tip.partition)
        span = run.base_offset, run.last_offset
        yield_ = self._ask(lambda: outside.begin(*place, rewrite_id, RewriteKind.ERASE, *span, ORDER))
        try:
            yield yield_
        except BaseException:
            if self.gives_up:
                self._ask(lambda: outside.end(*place, rewrite_id))
            raise

    def commit(self, rewrite_id: UUID, run: ChainRun, entries: Sequence[SegmentEntry]) -> None:
        outside, place = self.world.manager.rewriting.outside, (run.tip.topic_id, run.tip.partition)
        report = RewriteReport(rewrite_id, run.keys, tuple(entries))
        self._ask(lambda: outside.commit(*place, report))


@dataclass
class Bench:
    world: MergingWorld
    tasks: Tasks
    answers: Answers
    is_open: bool = True

    def job(self, wait_s: float = 0, limits: StretchLimits = StretchLimits(1 << 20, 1 << 24)) -> EraseJob:  # noqa: B008
        setup = JobSetup(
            self.world.bucket, self.tasks, self.answers, {TIP: OrderEnd(1000)}, limits, wait_s, uuid4,
            lambda: self.is_open, sleep=lambda _: None, pause_s=0.001,
        )  # fmt: skip
        return EraseJob(setup)

    def spans(self) -> list[tuple[int, int, int]]:
        live = self.world.live(self.world.replicas[0])
        return [(one.base_offset, one.last_offset, one.generation) for one in live]

    def sweep(self) -> None:
        self.world.clock.advance(GRACE_MS)
        for _ in range(3):
            self.world.run()
            self.world.sweep()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Six segments of two records; the third, fourth and sixth have a key that goes."""
    (tmp_path / "bucket").mkdir()
    url = (tmp_path / "bucket").as_uri()
    store = open_store(url, world=system_world())
    world = MergingWorld(tmp_path / "disk", store=store, segment_bytes=700)
    for keys in KEYS:
        append(world, world.replicas[0], *keys)
    world.settle()
    order = order_of(GONE)
    give(world, order)
    data = encode_erasure(order)
    ref = ErasureRef(order.id, order.key, len(data), crc32c(data))
    setup = TaskSetup(parse_options({"url": url, "subscribePattern": ".*"}), None, CLUSTER, ref)
    return Bench(world, Tasks(setup), Answers(world))


def test_objects_with_the_keys_are_written_anew_the_newest_first(bench: Bench) -> None:
    job = bench.job()
    assert job.run() == []
    assert keys_in_the_bucket(bench.world) == KEPT
    assert bench.spans() == [(0, 1, 0), (2, 3, 0), (4, 7, 1), (8, 9, 0), (10, 11, 1)]
    assert [one.base_offset for one in bench.tasks.made] == [10, 4]
    tally = job.tally
    assert (tally.clean, tally.objects, tally.hits, tally.rewrites) == (1, 6, 3, 2)
    assert (tally.objects_before, tally.objects_after) == (3, 2)
    assert len(bench.tasks.looked) == 6, "what the job made itself is not read again"
    bench.sweep()
    assert bench.world.stored_keys() - {order_of(GONE).key} == bench.world.live_keys()
    assert fsck(bench.world.bucket).is_clean


def test_a_second_run_finds_nothing_to_do(bench: Bench) -> None:
    bench.job().run()
    before = bench.world.stored_keys()
    again = bench.job()
    assert again.run() == []
    assert (again.tally.hits, again.tally.rewrites) == (0, 0)
    assert bench.world.stored_keys() == before


def test_neighbours_become_several_objects_under_one_intent(bench: Bench) -> None:
    intents = []
    bench.tasks.before_make = lambda: intents.append(dict(bench.world.catalog.intents))
    assert bench.job(limits=StretchLimits(1, 1 << 24)).run() == []
    assert bench.spans() == [(0, 1, 0), (2, 3, 0), (4, 5, 1), (6, 7, 1), (8, 9, 0), (10, 11, 1)]
    [[newest], [oldest]] = [list(one.values()) for one in intents]
    assert (newest.base_offset, newest.last_offset) == (10, 11)
    assert (oldest.base_offset, oldest.last_offset) == (4, 7)
    assert keys_in_the_bucket(bench.world) == KEPT


def test_attempts_that_lost_are_swept(bench: Bench) -> None:
    """As those of Spark's speculation, and of executors that were lost."""
    bench.tasks.attempts = 3
    assert bench.job().run() == []
    assert keys_in_the_bucket(bench.world) == KEPT
    made = {one.key for one in bench.tasks.made}
    left = bench.world.stored_keys() - bench.world.live_keys() - made
    assert sum(key.endswith(".seg") for key in left) >= 4, "two more of each object"
    bench.sweep()
    assert bench.world.stored_keys() - {order_of(GONE).key} == bench.world.live_keys()


def test_a_task_that_fails_is_planned_again_and_its_intent_given_up(bench: Bench) -> None:
    failures = iter([True, False, True, False])

    def fail_now_and_then() -> None:
        if next(failures, False):
            raise StorageError("executor lost")

    bench.tasks.before_make = fail_now_and_then
    assert bench.job(wait_s=60).run() == []
    assert bench.world.catalog.intents == {}
    assert keys_in_the_bucket(bench.world) == KEPT


def test_a_partition_that_never_works_is_named(bench: Bench) -> None:
    tries = []

    def fail() -> None:
        tries.append(1)
        raise StorageError("the store does not answer")

    bench.tasks.before_make = fail
    job = bench.job(wait_s=3600)
    assert job.run() == [LeftOver(TIP, "the store does not answer")]
    assert len(tries) == 2 * MOST_FAILURES
    assert (job.tally.clean, bench.world.catalog.intents) == (0, {})


def test_a_damaged_object_holds_up_no_other(bench: Bench) -> None:
    """The trailer of the fourth segment is damaged once it was looked at; it is in a run with the third."""
    entry = bench.world.live(bench.world.replicas[0])[3]
    path = Path(bench.tasks.setup.options.url.removeprefix("file://")) / entry.key
    data = bytearray(path.read_bytes())
    bench.tasks.before_make = lambda: path.write_bytes(bytes([*data[:-1], data[-1] ^ 1]))
    [left] = bench.job(wait_s=60).run()
    assert (left.first_offset, left.last_offset) == (6, 7)
    assert entry.key in left.why
    assert bench.spans() == [(0, 1, 0), (2, 3, 0), (4, 5, 1), (6, 7, 0), (8, 9, 0), (10, 11, 1)]
    assert bench.world.catalog.intents == {}


def test_an_object_that_cannot_be_judged_is_named(bench: Bench) -> None:
    entry = bench.world.live(bench.world.replicas[0])[1]
    path = Path(bench.tasks.setup.options.url.removeprefix("file://")) / entry.key
    path.write_bytes(path.read_bytes()[:-1])
    [left] = bench.job().run()
    assert (left.first_offset, left.last_offset) == (2, 3)
    assert keys_in_the_bucket(bench.world) == KEPT


def test_others_work_is_waited_for_and_not_done_twice(bench: Bench) -> None:
    """Another job writes the newest object anew between the look and the begin; nothing is made in vain."""
    other = bench.job()
    done: list[list[LeftOver]] = []

    def be_overtaken() -> None:
        if not done:
            done.append([])
            done[0] = other.run()

    asked = bench.answers.begun

    def begun(rewrite_id: UUID, run: ChainRun) -> Any:
        be_overtaken()
        return asked(rewrite_id, run)

    bench.answers.begun = begun  # type: ignore[method-assign]
    job = bench.job(wait_s=60)
    assert job.run() == []
    assert done == [[]]
    assert (other.tally.rewrites, job.tally.rewrites) == (2, 0)
    assert len(bench.tasks.made) == 2
    assert keys_in_the_bucket(bench.world) == KEPT


def test_two_jobs_at_once_end_with_nothing_left(bench: Bench) -> None:
    """The second finds the first one's intent, and does not wait."""
    left: list[list[LeftOver]] = []

    def run_another() -> None:
        if not left:
            left.append([])
            left[0] = bench.job().run()

    bench.tasks.before_make = run_another
    assert bench.job(wait_s=60).run() == []
    [[busy]] = left
    assert "another rewrite" in busy.why
    assert keys_in_the_bucket(bench.world) == KEPT


def test_a_killed_jobs_intent_ends_with_its_silence(bench: Bench) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    bench.answers.gives_up, bench.tasks.before_make = False, die
    with pytest.raises(KeyboardInterrupt):
        bench.job().run()
    bench.answers.gives_up, bench.tasks.before_make = True, lambda: None
    [busy] = bench.job().run()
    assert "another rewrite" in busy.why
    bench.world.merge()  # the leader looks at its intents
    bench.world.clock.advance(SILENT_MS)
    bench.world.merge()
    assert bench.job().run() == []
    assert keys_in_the_bucket(bench.world) == KEPT


def test_an_order_that_ends_meanwhile_ends_the_job(bench: Bench) -> None:
    def cancel() -> None:
        bench.is_open = False
        bench.world.catalog.orders.clear()

    bench.tasks.before_look = cancel
    assert bench.job(wait_s=3600).run() == [LeftOver(TIP, "the order is not open any more")]
    assert bench.world.catalog.intents == {}


def test_a_job_without_rights_ends_at_once(bench: Bench) -> None:
    bench.answers.refuses = RequestError(ErrorCode.cluster_authorization_failed, "no")
    with pytest.raises(RequestError, match="no"):
        bench.job(wait_s=3600).run()


def test_a_job_that_is_stopped_says_what_is_left(bench: Bench) -> None:
    job = bench.job(wait_s=3600)
    bench.tasks.before_make = job.stop
    assert job.run() == [LeftOver(TIP, "the job was ended")]
    assert bench.spans()[-1] == (10, 11, 1), "what was begun is finished"
    assert bench.world.catalog.intents == {}
    assert bench.job().run() == []
