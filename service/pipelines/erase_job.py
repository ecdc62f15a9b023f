"""Rounds of an erasure: look at the objects of all chains, write those with a hit anew, until none is left.

Objects are looked at and made by tasks (`erase_task.py`); leaders are asked here (`erase_leaders.py`): begin,
objects, commit. A partition has one rewrite at a time, of a stretch of neighbours that becomes several
objects at once; partitions go side by side. Chains are taken from the newest object to the oldest, as their
leaders' own work begins at the oldest: both meet in the middle.

What changes meanwhile is planned again. After a round that changed nothing there is a pause, and partitions
that others rewrite are waited for, up to a time. What is done stays done: a job may be ended and begun again
at any time, and two at the same time share the work.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.types import TopicIdPartition
from service.pipelines.erase_chains import PlannedChain, check_unchanged, in_shares, read_chain
from service.pipelines.erase_task import Looked, MadePart, ObjectToJudge, PartToMake
from service.remote.format.manifest import SegmentEntry
from service.remote.order_end import OrderEnd
from service.remote.stores.store import ObjectStore
from service.tiering.erasing.stretches import HitObject, Stretch, StretchLimits, find_stretches
from service.tiering.rewriting.outside_worker import BegunRange
from service.tiering.rewriting.report_check import RunChanged
from service.tiering.rewriting.rules import ChainRun

LOOKED_AT_ONCE: Final = 20_000
"""Objects that are looked at before the first of them are written anew."""
MOST_FAILURES: Final = 5
"""Rounds in a row in which a partition may fail before it is given up."""
_PARTITIONS_AT_ONCE: Final = 64
_CHAINS_AT_ONCE: Final = 16
_LONGEST_PAUSE_S: Final = 30.0
_OF_THE_JOB: Final = (ErrorCode.cluster_authorization_failed, ErrorCode.unsupported_version)
"""Refusals that no other partition is spared."""
_ENDED: Final = "the job was ended"


class Executors(Protocol):
    """Runner of tasks, for any thread. Raises `StorageError` where they fail however often they are tried."""

    def look(self, candidates: Sequence[ObjectToJudge], /) -> list[Looked]: ...
    def make(self, parts: Sequence[PartToMake], /) -> list[MadePart]: ...


class RangeRequests(Protocol):
    """Requests to leaders of partitions (`erase_leaders.RangeLeaders`)."""

    def begun(self, rewrite_id: UUID, run: ChainRun, /) -> AbstractContextManager[BegunRange]: ...
    def commit(self, rewrite_id: UUID, run: ChainRun, entries: Sequence[SegmentEntry], /) -> None: ...


class JobSetup(NamedTuple):
    """Parts of a job. `ends`: where an order ends in each partition. `wait_s`: time
    without any change after which the job ends. `is_open` asks whether the order is open still; `sleep`
    blocks a thread; `pause_s` is the first pause after a round that changed nothing."""

    store: ObjectStore
    executors: Executors
    leaders: RangeRequests
    ends: Mapping[TopicIdPartition, OrderEnd]
    limits: StretchLimits
    wait_s: float
    new_uuid: Callable[[], UUID]
    is_open: Callable[[], bool]
    sleep: Callable[[float], None] = time.sleep
    now_s: Callable[[], float] = time.monotonic
    pause_s: float = 1.0


class LeftOver(NamedTuple):
    """Part of a partition that is not clean, and why; offsets are inclusive, -1 for all of it."""

    tip: TopicIdPartition
    why: str
    first_offset: int = -1
    last_offset: int = -1


class ErasureTally:
    """Counts of a job: objects that were looked at, those of them with records of the keys, and the stretches
    that were published."""

    def __init__(self) -> None:
        self.clean = 0
        self.objects = 0
        self.hits = 0
        self.rewrites = 0
        self.objects_before = 0
        self.objects_after = 0
        self.bytes_before = 0
        self.bytes_after = 0

    def published(self, old: Iterable[SegmentEntry], new: Iterable[SegmentEntry]) -> None:
        before, after = [one.size for one in old], [one.size for one in new]
        self.rewrites += 1
        self.objects_before += len(before)
        self.objects_after += len(after)
        self.bytes_before += sum(before)
        self.bytes_after += sum(after)


class _Again(FirnError):
    """A stretch was not published; its partition is planned again. `is_busy`: another rewrite of it lives."""

    def __init__(self, why: str, *, is_busy: bool = False) -> None:
        super().__init__(why)
        self.is_busy = is_busy


class _PartitionRound:
    """Result of a round in one partition; `why` it is to be planned again, None if for nothing."""

    def __init__(self, why: str | None = None) -> None:
        self.why = why
        self.is_busy = False
        self.hits = 0
        self.published = 0

    @property
    def is_clean(self) -> bool:
        return self.why is None and not self.hits


class EraseJob:
    """One run over the chains of an order. `run` is for one thread, `stop` for any."""

    def __init__(self, setup: JobSetup) -> None:
        self.tally = ErasureTally()
        self._setup = setup
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._hits: dict[str, bool] = {}
        """whether an object has records of the keys, by its own key"""
        self._broken: dict[str, LeftOver] = {}
        """objects that cannot be judged or written anew"""
        self._alone: set[str] = set()
        """objects that are written anew one by one, as one of their run is damaged"""

    def stop(self) -> None:
        """Begin no more rewrites, and wait for nothing."""
        self._stopped.set()

    def run(self) -> list[LeftOver]:
        """Erase until nothing is left or nothing changes any more; return what is left.

        Raises `RequestError` where brokers refuse the job itself, `StorageError` where tasks cannot look at
        objects.
        """
        setup = self._setup
        pending = dict.fromkeys(sorted(setup.ends), "it was not looked at")
        failures: Counter[TopicIdPartition] = Counter()
        given_up: dict[TopicIdPartition, str] = {}
        changed_s, pause_s = setup.now_s(), setup.pause_s
        while pending and not self._stopped.is_set():
            found = self._round(list(pending))
            for tip, one in found.items():
                pending[tip] = one.why or "it has objects that were written meanwhile"
                failures[tip] = 0 if one.published or one.is_busy else failures[tip] + 1
                if one.is_clean:
                    del pending[tip]
                elif failures[tip] >= MOST_FAILURES:
                    given_up[tip] = pending.pop(tip)
            if any(one.published for one in found.values()):
                changed_s, pause_s = setup.now_s(), setup.pause_s
                continue
            if not pending or setup.now_s() - changed_s >= setup.wait_s:
                break
            if not setup.is_open():
                pending = dict.fromkeys(pending, "the order is not open any more")
                break
            self._stopped.wait(min(pause_s, setup.wait_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        left = [LeftOver(tip, why) for tip, why in (*given_up.items(), *pending.items())]
        left += self._broken.values()
        self.tally.clean = len(setup.ends) - len({one.tip for one in left})
        return sorted(left)

    # -- a round

    def _round(self, tips: Sequence[TopicIdPartition]) -> dict[TopicIdPartition, _PartitionRound]:
        """Look at what is not known of these partitions, and write anew what has records of the keys."""
        found = {tip: _PartitionRound() for tip in tips}
        known = {key for key, is_hit in self._hits.items() if not is_hit} | self._broken.keys()
        with ThreadPoolExecutor(_CHAINS_AT_ONCE, "chains") as pool:
            chains = [one for one in pool.map(lambda tip: self._chain(tip, known, found[tip]), tips) if one]
        by_tip = {one.tip: one for one in chains}
        for share in in_shares(chains, LOOKED_AT_ONCE):
            if self._stopped.is_set():
                break
            hits = self._look(share, found)
            with ThreadPoolExecutor(_PARTITIONS_AT_ONCE, "partitions") as pool:
                done = [pool.submit(self._rewrite_all, by_tip[tip], hits[tip], found[tip]) for tip in hits]
            for one in done:
                one.result()
        if self._stopped.is_set():
            for rest in found.values():
                rest.why = rest.why or _ENDED
        return found

    def _chain(
        self, tip: TopicIdPartition, known: Container[str], found: _PartitionRound
    ) -> PlannedChain | None:
        try:
            return read_chain(self._setup.store, tip, self._setup.ends[tip], known)
        except (StorageError, CorruptionError) as e:
            found.why = str(e)
            return None

    def _look(
        self, share: Sequence[ObjectToJudge], found: Mapping[TopicIdPartition, _PartitionRound]
    ) -> dict[TopicIdPartition, list[HitObject]]:
        """Return the objects with records of the keys, in the order of their offsets, by partition."""
        unknown = [one for one in share if one.entry.key not in self._hits]
        for one, is_hit, problem, is_gone in self._setup.executors.look(unknown) if unknown else ():
            self.tally.objects += 1
            if problem is None:
                self._hits[one.entry.key] = is_hit
                self.tally.hits += is_hit
            elif is_gone:
                found[one.tip].why = problem
            else:
                self._note_broken(one.tip, one.entry, problem)
        hits: dict[TopicIdPartition, list[HitObject]] = {}
        for one in share:
            if not self._hits.get(one.entry.key):
                continue
            if one.entry.owner is not None:
                self._note_broken(one.tip, one.entry, f"{one.entry.key} is of another partition")
                continue
            found[one.tip].hits += 1
            hits.setdefault(one.tip, []).append(HitObject(one.unit, one.entry))
        return hits

    def _note_broken(self, tip: TopicIdPartition, entry: SegmentEntry, why: str) -> None:
        self._broken[entry.key] = LeftOver(tip, why, entry.base_offset, entry.last_offset)

    # -- one partition, on a thread of its own

    def _rewrite_all(self, chain: PlannedChain, hits: Sequence[HitObject], found: _PartitionRound) -> None:
        for stretch in reversed(find_stretches(chain.tip, hits, self._setup.limits, self._alone)):
            if self._stopped.is_set():
                return
            try:
                self._rewrite(chain, stretch)
                found.published += 1
            except _Again as e:
                found.why, found.is_busy = str(e), e.is_busy
                if e.is_busy:
                    return

    def _rewrite(self, chain: PlannedChain, stretch: Stretch) -> None:
        """Write a stretch anew and have it published. Raises `_Again` where it is not, and `RequestError`
        where no partition's will be."""
        setup, run = self._setup, stretch.run
        rewrite_id, end = setup.new_uuid(), setup.ends[chain.tip]
        try:
            with setup.leaders.begun(rewrite_id, run) as begun:
                check_unchanged(setup.store, chain, run, begun.version, setup.sleep)
                made = setup.executors.make(
                    [PartToMake(part, rewrite_id, begun.leader_epoch, end) for part in stretch.parts]
                )
                entries = self._entries(made)
                setup.leaders.commit(rewrite_id, run, entries)
        except RequestError as e:
            if e.code in _OF_THE_JOB:
                self.stop()
                raise
            raise _Again(str(e), is_busy=e.code == ErrorCode.operation_not_attempted) from e
        except (RunChanged, StorageError, CorruptionError, OSError) as e:
            raise _Again(str(e)) from e
        with self._lock:
            self._hits.update((entry.key, False) for entry in entries)
            self.tally.published(run.entries, entries)

    def _entries(self, made: Sequence[MadePart]) -> list[SegmentEntry]:
        """Return the new objects in the order of their offsets. Raises `_Again` where one was not made."""
        problems = []
        with self._lock:
            for part in made:
                if part.problem is None:
                    continue
                problems.append(part.problem)
                if part.is_gone:
                    continue
                if len(part.run.entries) > 1:
                    self._alone.update(part.run.keys)
                else:
                    self._note_broken(part.run.tip, part.run.entries[0], part.problem)
        if problems:
            raise _Again(problems[0])
        entries = [part.entry for part in made if part.entry is not None]
        return sorted(entries, key=lambda one: one.base_offset)
