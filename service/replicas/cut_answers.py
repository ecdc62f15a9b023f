"""Part of one broker in a cut, as the keeper asks for it by TakeCut (`wire/cuts.py`), step by step.

*begin* closes the gate of all partitions (`partition/gate.py`): no high watermark moves, and no newer
metadata is published, until *take* notes the ends or the time is over. *save* uploads what the archive lacks.
Steps are tasks of their own: a connection that breaks ends none, and a request that is sent again gets the
same answer. Late attempts, and those of brokers that are not the keeper, change nothing. Owned by the event
loop.

A node that is its whole cluster holds nothing back: *begin* notes the ends at once, and *take* answers them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.slices import Slice
from service.base.steps import Steps
from service.metadata.image import MetadataImage
from service.partition.gate import Gated, PartitionEnd
from service.partition.partition import Partition
from service.remote.format.cut_codec import Place
from service.replicas.partition_registry import Replicas
from service.tiering.cuts.cut_metrics import CutMetrics
from service.tiering.cuts.round import CutStep
from service.tiering.cuts.saving import LostTails, SavedTails, Standing, TakenEnd
from service.tiering.cuts.saving_plan import Saved
from service.wire.cuts import (
    MAX_HOLD_MS,
    CutEnd,
    CutEnds,
    CutLosses,
    CutTail,
    OfflinePartition,
    OfflinePartitions,
    TakeCutRequest,
    TakeCutResponse,
)

log = logging.getLogger(__name__)

_KNOWN: Final = 2
"""Attempts whose ends are kept: several keepers may ask at the same time, for a moment."""
_MOST_OFFLINE: Final = 1000
"""Failed logs that are looked at: one makes a cut loose."""
_OVER: Final = 256
"""Attempts before these that are known to be over."""


class HeldMetadata(Protocol):
    """Metadata of this node (`metadata.publisher.Publisher`)."""

    @property
    def image(self) -> MetadataImage: ...
    def hold(self) -> None:
        """Publish nothing until `release`."""

    def release(self) -> None:
        """Publish what was committed meanwhile."""


class Saver(Protocol):
    """Tails of this broker (`tiering.cuts.saving.TailSaver`)."""

    def standing(self, place: Place, leader_epoch: int, /) -> Standing | None: ...
    async def save(
        self,
        attempt_id: UUID,
        newest_id: UUID | None,
        cut: int,
        taken: Mapping[Place, TakenEnd],
        lost: Iterable[LostTails],
        /,
    ) -> SavedTails: ...


class PrefixFence(Protocol):
    """Knowledge of this broker of its prefix (`tiering.manager.TieringManager`)."""

    @property
    def keeper(self) -> UUID | None:
        """Incarnation of the keeper that `cluster.json` named when it was last read."""

    @property
    def may_write(self) -> bool:
        """True while this process may write to the prefix."""


class _Attempt:
    """One attempt at a cut."""

    def __init__(self, request: TakeCutRequest, attempt_id: UUID) -> None:
        self.id = attempt_id
        self.cut = request.cut
        self.newest_id = request.newest_id
        self.hold_ms = request.hold_ms
        self.is_over = False
        self.closed_ms: int | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.steps: dict[CutStep, asyncio.Task[TakeCutResponse]] = {}
        self.taken: dict[Place, TakenEnd] = {}
        self.lost: tuple[CutLosses, ...] = ()
        self.rows: dict[Place, CutEnd] | None = None
        """None until the ends are noted"""
        self.image: MetadataImage | None = None
        """that of the moment at which the gate was closed, or the ends were noted"""


class CutAnswers:
    """Answers of one broker to TakeCut."""

    def __init__(
        self,
        node_id: int,
        replicas: Replicas,
        metadata: HeldMetadata,
        clock: Clock,
        saver: Saver,
        fence: PrefixFence,
        metrics: CutMetrics,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._gate = replicas.gate
        self._metadata = metadata
        self._clock = clock
        self._saver = saver
        self._fence = fence
        self._metrics = metrics
        self._attempts: dict[UUID, _Attempt] = {}
        self._over: deque[UUID] = deque(maxlen=_OVER)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def answer(self, request: TakeCutRequest) -> TakeCutResponse:
        """Carry out one step; the keeper's own node calls this, too. Raises nothing that the environment or
        the request has caused."""
        try:
            attempt = self._attempt(request)
            attempt.lost = request.lost
            return await self._step(attempt, CutStep(request.step))
        except RequestError as e:
            return TakeCutResponse(error_code=e.code, error_message=e.message)
        except (StorageError, CorruptionError) as e:
            return TakeCutResponse(error_code=ErrorCode.kafka_storage_error, error_message=str(e))

    async def close(self) -> None:
        """End all steps, and open the gate."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for attempt in self._attempts.values():
            self._stop_timer(attempt)
        await self._open_for(None)

    # -- who asks for what

    def _attempt(self, request: TakeCutRequest) -> _Attempt:
        """Return the attempt of a request that may be carried out."""
        attempt_id = request.attempt_id
        if attempt_id is None or request.cut < 1 or not 0 <= request.hold_ms <= MAX_HOLD_MS:
            raise _invalid(f"cut {request.cut} of attempt {attempt_id}, held for {request.hold_ms} ms")
        if request.step not in tuple(CutStep):
            raise _invalid(f"a cut has no step {request.step}")
        self._check_keeper(request)
        attempt = self._attempts.get(attempt_id)
        if attempt is not None:
            if (request.cut, request.newest_id, request.hold_ms) != (
                attempt.cut, attempt.newest_id, attempt.hold_ms,
            ):  # fmt: skip
                raise _invalid(f"attempt {attempt_id} is at cut {attempt.cut}, not {request.cut}")
            return attempt
        begins = CutStep.BEGIN if request.hold_ms else CutStep.TAKE
        if request.step == CutStep.VOID:
            return _Attempt(request, attempt_id)  # of which nothing is known: there is nothing to end
        if request.step != begins or attempt_id in self._over:
            raise _late(attempt_id)
        attempt = self._attempts[attempt_id] = _Attempt(request, attempt_id)
        return attempt

    def _check_keeper(self, request: TakeCutRequest) -> None:
        """Raise `RequestError` unless the sender is the keeper of the prefix: by the order of ids, or by
        `cluster.json`, which names another broker where the first does not reach the store."""
        brokers = self._metadata.image.brokers
        sender = brokers.get(request.broker_id)
        if sender is None or sender.epoch != request.broker_epoch or sender.fenced:
            raise _invalid(f"broker {request.broker_id} of epoch {request.broker_epoch} is not active")
        first = min(one.id for one in brokers.values() if not one.fenced)
        if sender.id != first and sender.incarnation_id != self._fence.keeper:
            raise _invalid(f"broker {sender.id} is not the keeper of the prefix, broker {first} should be")

    async def _step(self, attempt: _Attempt, step: CutStep) -> TakeCutResponse:
        """Return the answer to one step; of the same step a second time, the same."""
        task = attempt.steps.get(step)
        if task is None:
            work = {
                CutStep.BEGIN: self._begin,
                CutStep.TAKE: self._take,
                CutStep.SAVE: self._save,
                CutStep.VOID: self._void,
            }[step]
            task = attempt.steps[step] = self._started(work(attempt), f"cut-{step.name.lower()}")
        try:
            answer = await asyncio.shield(task)
        except (RequestError, StorageError, CorruptionError):
            if step is CutStep.SAVE and attempt.steps.get(step) is task:
                del attempt.steps[step]  # the keeper may ask again
            elif len(attempt.steps) == 1:  # what did not begin takes no other's place
                self._forget(attempt.id)
            raise
        while len(self._attempts) > _KNOWN:
            self._forget(next(iter(self._attempts)))
        return answer

    def _forget(self, attempt_id: UUID) -> None:
        if self._attempts.pop(attempt_id, None) is not None:
            self._over.append(attempt_id)

    def _started(
        self, work: Coroutine[Any, Any, TakeCutResponse], name: str
    ) -> asyncio.Task[TakeCutResponse]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[TakeCutResponse]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked has it; nobody may be left to ask

    # -- begin

    async def _begin(self, attempt: _Attempt) -> TakeCutResponse:
        self._check_may_save()
        if self._metadata.image.restored_tails:
            raise _refused("tails of a restore are loading")
        doubtful = await Slice().go_on(self._gate.still_doubtful())
        if doubtful is not None:
            assert isinstance(doubtful, Partition)
            raise _refused(f"the high watermark of {doubtful.tip} is not known yet")
        if attempt.is_over:
            raise _late(attempt.id)
        if self._is_alone():
            await self._note_at_once(attempt)
        else:
            self._close_gate(attempt)
        assert attempt.image is not None
        return TakeCutResponse(
            error_code=ErrorCode.none,
            image_offset=attempt.image.offset + 1,
            offline=self._offline(attempt.image),
        )

    def _check_may_save(self) -> None:
        if not self._fence.may_write:
            raise _refused("it may not write to the bucket")

    def _is_alone(self) -> bool:
        return not self._metadata.image.brokers.keys() - {self._node_id}

    def _close_gate(self, attempt: _Attempt) -> None:
        now_ms = self._clock.monotonic_ms()
        if not self._gate.close(attempt.id, now_ms, attempt.hold_ms):
            raise _refused("another attempt at a cut is under way")
        self._metadata.hold()
        attempt.image, attempt.closed_ms = self._metadata.image, now_ms
        attempt.timer = asyncio.get_running_loop().call_later(
            attempt.hold_ms / 1000, self._hold_is_over, attempt
        )

    def _hold_is_over(self, attempt: _Attempt) -> None:
        attempt.timer = None
        self._started(self._void(attempt), "cut-hold")

    # -- take

    async def _take(self, attempt: _Attempt) -> TakeCutResponse:
        if attempt.is_over:
            raise _late(attempt.id)
        if not attempt.hold_ms:
            self._check_may_save()
            await self._note_at_once(attempt)
        elif attempt.rows is None:
            steps = self._gate.take(attempt.id, self._clock.monotonic_ms(), tuple(self._replicas))
            if steps is None:
                raise _late(attempt.id)
            self._stop_timer(attempt)
            # From here on what was hidden may be seen; what follows from it is in no other broker's ends.
            attempt.image = self._metadata.image
            self._metadata.release()
            await self._note(attempt, steps)
        assert attempt.image is not None
        assert attempt.rows is not None
        return TakeCutResponse(
            error_code=ErrorCode.none,
            image_offset=attempt.image.offset + 1,
            ends=await Slice().go_on(_by_topic(attempt.rows)),
            offline=self._offline(attempt.image),
        )

    def _offline(self, image: MetadataImage) -> tuple[OfflinePartitions, ...]:
        """Return the partitions that this broker leads and cannot read."""
        topics: dict[UUID, list[OfflinePartition]] = {}
        for topic_id, number in islice(self._replicas.offline_places, _MOST_OFFLINE):
            partition = image.partition(topic_id, number)
            if partition is not None and partition.leader == self._node_id:
                row = OfflinePartition(partition=number, leader_epoch=partition.leader_epoch)
                topics.setdefault(topic_id, []).append(row)
        return tuple(OfflinePartitions(topic_id=one, partitions=tuple(rows)) for one, rows in topics.items())

    async def _note_at_once(self, attempt: _Attempt) -> None:
        """Note the ends of this moment, with nothing held back before."""
        steps = self._gate.take_at_once(tuple(self._replicas))
        if steps is None:
            raise _refused("another attempt at a cut is under way")
        attempt.image = self._metadata.image
        await self._note(attempt, steps)

    async def _note(self, attempt: _Attempt, steps: Steps[None]) -> None:
        """Note all ends, open, and make the rows of the answer."""
        piece = Slice()
        try:
            await piece.go_on(steps)
        finally:
            ends = self._gate.ends()
            self._is_open(attempt)
        assert attempt.image is not None
        attempt.rows = await piece.go_on(self._rows(attempt, ends, attempt.image))

    def _stop_timer(self, attempt: _Attempt) -> None:
        timer, attempt.timer = attempt.timer, None
        if timer is not None:
            timer.cancel()

    def _is_open(self, attempt: _Attempt) -> None:
        self._stop_timer(attempt)
        if attempt.closed_ms is not None:
            self._metrics.hold.observe((self._clock.monotonic_ms() - attempt.closed_ms) / 1000)
            attempt.closed_ms = None

    def _rows(
        self, attempt: _Attempt, ends: Mapping[Gated, PartitionEnd | None], image: MetadataImage
    ) -> Steps[dict[Place, CutEnd]]:
        rows: dict[Place, CutEnd] = {}
        for partition, end in ends.items():
            yield
            assert isinstance(partition, Partition)
            if end is None or partition.is_offline:
                continue
            place = partition.tip.topic_id, partition.tip.partition
            if place in image.restored_tails:
                continue  # what it has is in the cut that it is loaded from
            taken = attempt.taken[place] = TakenEnd(partition, end.leader_epoch, max(end.end, end.start))
            entry = image.remote.get(place)
            chain_end, version = (0, 0) if entry is None else (entry.end_offset, entry.version)
            standing = self._saver.standing(place, end.leader_epoch)
            saved = Saved(0, 0, -1) if standing is None else standing.saved
            rows[place] = CutEnd(
                partition=place[1],
                leader_epoch=end.leader_epoch,
                start=end.start,
                end=taken.end,
                stable=min(max(end.stable, end.start), taken.end),
                **_columns(Standing(saved.behind(chain_end), waits=False, is_tailed=True)),
                version=version,
            )
        return rows

    # -- save and void

    async def _save(self, attempt: _Attempt) -> TakeCutResponse:
        if attempt.rows is None:
            raise _late(attempt.id)
        saved = await self._saver.save(
            attempt.id, attempt.newest_id, attempt.cut, attempt.taken, _lost(attempt.lost)
        )
        piece = Slice()
        changed = await piece.go_on(_changed(attempt.rows, saved.standings))
        return TakeCutResponse(
            error_code=ErrorCode.none,
            ends=await piece.go_on(_by_topic(changed)),
            tails=tuple(
                CutTail(
                    key=ref.key,
                    size=ref.size,
                    footer_position=ref.footer_position,
                    footer_crc=ref.footer_crc,
                )
                for ref in saved.tails
            ),
        )

    async def _void(self, attempt: _Attempt) -> TakeCutResponse:
        attempt.is_over = True
        if attempt.closed_ms is not None and attempt.rows is None:
            await self._open_for(attempt)
        return TakeCutResponse(error_code=ErrorCode.none)

    async def _open_for(self, attempt: _Attempt | None) -> None:
        """Open the gate if it is closed for `attempt`; for None, for whomever it is closed."""
        gate = self._gate
        steps = gate.open_late(1 << 62) if attempt is None else gate.open_late(0, attempt=attempt.id)
        if steps is None:
            return
        self._metadata.release()
        try:
            await Slice().go_on(steps)
        finally:
            if not gate.is_open:
                gate.ends()
            if attempt is not None:
                self._is_open(attempt)


def _lost(topics: Iterable[CutLosses]) -> Iterator[LostTails]:
    for topic in topics:
        if topic.topic_id is not None:
            for one in topic.partitions:
                yield LostTails((topic.topic_id, one.partition), one.leader_epoch, one.reaches)


def _columns(standing: Standing) -> dict[str, Any]:
    saved = standing.saved
    return {
        "saved": saved.low,
        "saved_high": min(saved.high, saved.low),
        "last_epoch": saved.last_epoch,
        "waits": standing.waits,
        "is_tailed": standing.is_tailed,
    }


def _changed(rows: Mapping[Place, CutEnd], standings: Mapping[Place, Standing]) -> Steps[dict[Place, CutEnd]]:
    """Return the rows that say something else once tails are saved."""
    found: dict[Place, CutEnd] = {}
    for place, row in rows.items():
        yield
        standing = standings.get(place)
        if standing is None:
            continue
        columns = _columns(standing)
        if any(getattr(row, name) != value for name, value in columns.items()):
            found[place] = CutEnd(
                partition=row.partition,
                leader_epoch=row.leader_epoch,
                start=row.start,
                end=row.end,
                stable=row.stable,
                version=row.version,
                **columns,
            )
    return found


def _by_topic(rows: Mapping[Place, CutEnd]) -> Steps[tuple[CutEnds, ...]]:
    topics: dict[UUID, list[CutEnd]] = {}
    for (topic_id, _), row in rows.items():
        yield
        topics.setdefault(topic_id, []).append(row)
    ends: list[CutEnds] = []
    for topic_id, found in topics.items():
        yield
        ends.append(CutEnds(topic_id=topic_id, partitions=tuple(found)))
    return tuple(ends)


def _invalid(why: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, f"TakeCut: {why}")


def _late(attempt_id: UUID) -> RequestError:
    return RequestError(ErrorCode.request_timed_out, f"attempt {attempt_id} is over, or was never begun here")


def _refused(why: str) -> RequestError:
    return RequestError(ErrorCode.operation_not_attempted, f"no cut of this broker: {why}")
