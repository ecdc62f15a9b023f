"""Tasks of an erasure: look whether an object has records of the keys, and make an object without them.

They read and write the bucket alone, with the code of the brokers' own worker; nobody is asked. Each attempt
at a task writes an object of a name of its own, so one that runs beside its successor does no harm: the
driver reports one of them, and the others are swept. Keys' hashes are in no task: the order is read from the
bucket, once in a process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.types import TopicIdPartition
from service.remote.format.cut_codec import ErasureRef
from service.remote.format.manifest import SegmentEntry
from service.remote.format.stamp import Stamp, Writer
from service.remote.opened_order import OpenOrder, opened
from service.remote.order_end import OrderEnd
from service.remote.reading.erasure_orders import open_order
from service.remote.stores.errors import UNREADABLE, ObjectNotFound, raise_of_the_store
from service.remote.stores.s3_encryption import S3Encryption
from service.remote.stores.store import ObjectStore
from service.spark.options import ReadOptions
from service.spark.store import open_to_write, process_world
from service.tiering.copier import CallProgress
from service.tiering.erasing.erasure_rule import ErasureRule
from service.tiering.erasing.hits import look_at_object
from service.tiering.rewriting.outside_worker import OutsideWorker
from service.tiering.rewriting.rules import ChainRun

_NO_BROKER: Final = 0
"""Id in the stamp of an object that no broker has written, as of `firn rewrite`."""


class ObjectToJudge(NamedTuple):
    """An object that may have records of the keys; those that `end` covers go. `unit` as of `HitObject`."""

    tip: TopicIdPartition
    unit: int
    entry: SegmentEntry
    end: OrderEnd


class Looked(NamedTuple):
    """Result of a look at an object. `problem`: why it could not be judged; `is_gone`: because it is not
    there any more."""

    candidate: ObjectToJudge
    is_hit: bool
    problem: str | None = None
    is_gone: bool = False


class PartToMake(NamedTuple):
    """A run that becomes one object, under an intent of this id and leader epoch."""

    run: ChainRun
    rewrite_id: UUID
    leader_epoch: int
    end: OrderEnd


class MadePart(NamedTuple):
    """The object of a run, uploaded and checked; None with a `problem` of one of the run's objects, which
    repeating does not cure. `is_gone` as of `Looked`."""

    run: ChainRun
    entry: SegmentEntry | None
    problem: str | None = None
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class TaskSetup:
    """Setup of all tasks of a job: the store, the cluster that writes to it, and the order."""

    options: ReadOptions
    encryption: S3Encryption | None
    cluster_id: str
    order: ErasureRef

    def open(self) -> tuple[ObjectStore, OpenOrder]:
        """Return the store and the order, which this process may have already."""
        return open_to_write(self.options, self.encryption), _opened(self, os.getpid())


@lru_cache(maxsize=1)
def _opened(setup: TaskSetup, _pid: int) -> OpenOrder:
    return opened(open_order(open_to_write(setup.options, setup.encryption), setup.order))


@dataclass(frozen=True, slots=True)
class Looks:
    """The function of tasks that look. `objects` and `bytes_read` are Spark accumulators for progress."""

    setup: TaskSetup
    reads_objects: bool
    objects: Any
    bytes_read: Any

    def __call__(self, candidates: Iterable[ObjectToJudge]) -> Iterator[Looked]:
        store, order = self.setup.open()
        for one in candidates:
            yield self._look(store, order, one)
            self.objects.add(1)

    def _look(self, store: ObjectStore, order: OpenOrder, one: ObjectToJudge) -> Looked:
        try:
            found = look_at_object(
                store, one.entry, order, one.end, CallProgress(), reads_objects=self.reads_objects
            )
        except UNREADABLE as e:
            raise_of_the_store(e)
            return Looked(one, is_hit=False, problem=str(e), is_gone=isinstance(e, ObjectNotFound))
        self.bytes_read.add(found.bytes_read)
        return Looked(one, found.hits > 0)


@dataclass(frozen=True, slots=True)
class Makes:
    """The function of tasks that make objects; `bytes_read` as of `Looks`."""

    setup: TaskSetup
    bytes_read: Any

    def __call__(self, parts: Iterable[PartToMake]) -> Iterator[MadePart]:
        store, order = self.setup.open()
        worker = OutsideWorker(store, self.setup.cluster_id, process_world(os.getpid()), _stamps(os.getpid()))
        for part in parts:
            rule = ErasureRule(order.keys, part.end)
            try:
                made = worker.make(part.run, rule, part.rewrite_id, part.leader_epoch, CallProgress())
            except UNREADABLE as e:
                raise_of_the_store(e)
                yield MadePart(part.run, None, problem=str(e), is_gone=isinstance(e, ObjectNotFound))
                continue
            self.bytes_read.add(made.bytes_read)
            yield MadePart(part.run, made.entry)


@lru_cache(maxsize=1)
def _stamps(pid: int) -> Callable[[], Stamp]:
    """Return the stamps of this process."""
    world = process_world(pid)
    writer = Writer(_NO_BROKER, world.new_uuid())
    return lambda: Stamp(world.clock.now_ms(), writer)
