"""Carry out an attempt at a cut: send its requests to the brokers, and give it their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import RequestError, StorageError
from service.base.slices import Slice
from service.base.steps import Steps
from service.remote.format.cut_codec import PartitionCut, Place, TailRef
from service.tiering.cuts.ports import CutCluster
from service.tiering.cuts.round import SAVE_MS, TAKE_MS, Ask, AttemptPhase, CutAttempt, CutStep
from service.wire.cuts import TakeCutRequest, TakeCutResponse

_NO_TOPIC: Final = UUID(int=0)
_WAIT_MS: Final = {
    CutStep.BEGIN: TAKE_MS,
    CutStep.TAKE: TAKE_MS,
    CutStep.SAVE: SAVE_MS,
    CutStep.VOID: TAKE_MS,
}
"""Time after which a broker's answer is not awaited any more, and its connection ends."""


class CutAsker:
    """Requests and answers of one attempt. `request` makes that of a step; `before` are the newest cut's
    rows."""

    def __init__(
        self,
        attempt: CutAttempt,
        cluster: CutCluster,
        request: Callable[[CutStep], TakeCutRequest],
        clock: Clock,
        before: Mapping[UUID, tuple[PartitionCut, ...]],
    ) -> None:
        self._attempt = attempt
        self._cluster = cluster
        self._request = request
        self._clock = clock
        self._before = before
        self._asked: dict[asyncio.Task[TakeCutResponse | str], Ask] = {}

    async def take(self) -> None:
        """Go on until the ends are known and checked, or the attempt is void: nothing is saved yet."""
        attempt = self._attempt
        self._send(attempt.start(self._clock.monotonic_ms()))
        await self._answers(lambda: attempt.phase in (AttemptPhase.BEGIN, AttemptPhase.TAKE))
        if attempt.phase is AttemptPhase.CHECK:
            await self._check()

    async def save(self) -> None:
        """Have the brokers save their records; until they have, or the attempt is void."""
        self._send(self._attempt.checked(self._clock.monotonic_ms()))
        await self._answers(lambda: self._attempt.phase is AttemptPhase.SAVE)

    def give_up(self, why: str) -> None:
        """End the attempt, and tell the brokers."""
        self._send(self._attempt.fail(why))

    async def close(self) -> None:
        """Leave answers that nobody awaits to themselves, but wait for those to *void*."""
        voids = {task for task, ask in self._asked.items() if ask.step is CutStep.VOID}
        if voids:
            await asyncio.wait(voids, timeout=TAKE_MS / 1000)
        for task in self._asked:
            task.cancel()
        self._asked.clear()

    # -- requests and answers

    def _send(self, asks: Iterable[Ask]) -> None:
        for ask in asks:
            task = asyncio.create_task(self._ask(ask), name=f"cut-{ask.step.name.lower()}")
            self._asked[task] = ask

    async def _ask(self, ask: Ask) -> TakeCutResponse | str:
        """Return the answer, or why there is none."""
        try:
            answer = await self._cluster.ask(ask.broker_id, self._request(ask.step), _WAIT_MS[ask.step])
        except (OSError, StorageError, RequestError) as e:
            return str(e) or type(e).__name__
        if answer.error_code is not ErrorCode.none:
            return answer.error_message or answer.error_code.name
        return answer

    async def _answers(self, goes_on: Callable[[], bool]) -> None:
        attempt, clock = self._attempt, self._clock
        while goes_on():
            left_s = max(attempt.due_ms - clock.monotonic_ms(), 0) / 1000
            done, _ = await asyncio.wait(self._asked, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                ask = self._asked.pop(task)
                self._send(await self._answered(ask, task.result()))
            self._send(attempt.overdue(clock.monotonic_ms()))

    async def _answered(self, ask: Ask, answer: TakeCutResponse | str) -> list[Ask]:
        attempt, now_ms = self._attempt, self._clock.monotonic_ms()
        if isinstance(answer, str):
            return [] if ask.step is CutStep.VOID else attempt.failed(ask.broker_id, answer, now_ms)
        if ask.step is CutStep.BEGIN:
            return attempt.begun(ask.broker_id, answer.image_offset, now_ms, _offline(answer))
        if ask.step is CutStep.TAKE:
            ends = await Slice().go_on(_ends(answer))
            now_ms = self._clock.monotonic_ms()
            return attempt.taken(ask.broker_id, answer.image_offset, ends, now_ms, _offline(answer))
        if ask.step is CutStep.SAVE:
            tails = [TailRef(one.key, one.size, one.footer_position, one.footer_crc) for one in answer.tails]
            await Slice().go_on(_noted(attempt, await Slice().go_on(_ends(answer))))
            return attempt.saved(ask.broker_id, tails)
        return []

    async def _check(self) -> None:
        """Compare the answers with metadata that have all that anybody acted on."""
        attempt, cluster = self._attempt, self._cluster
        try:
            left_s = max(attempt.due_ms - self._clock.monotonic_ms(), 0) / 1000
            async with asyncio.timeout(left_s):
                await cluster.reach(attempt.metadata_end)
        except (TimeoutError, StorageError) as e:
            why = f"the keeper's metadata does not reach offset {attempt.metadata_end}"
            self.give_up(f"{why}: {e}" if str(e) else why)
            return
        await Slice().go_on(_steps(attempt, cluster, self._before))
        if attempt.why:
            self.give_up(attempt.why)


def _steps(
    attempt: CutAttempt, cluster: CutCluster, before: Mapping[UUID, tuple[PartitionCut, ...]]
) -> Steps[None]:
    yield from attempt.check(cluster.partitions(), before)


def _noted(attempt: CutAttempt, ends: Mapping[Place, PartitionCut]) -> Steps[None]:
    yield from attempt.note_saved(ends)


def _offline(answer: TakeCutResponse) -> list[Place]:
    return [
        (topic.topic_id or _NO_TOPIC, one.partition) for topic in answer.offline for one in topic.partitions
    ]


def _ends(answer: TakeCutResponse) -> Steps[dict[Place, PartitionCut]]:
    """Return the rows of an answer, in steps. Numbers that no partition can have make a cut's document
    invalid, which its encoder refuses. A tailed partition that is not saved up to its end waits: for its
    segment, or for room in a tail."""
    ends: dict[Place, PartitionCut] = {}
    for topic in answer.ends:
        for one in topic.partitions:
            yield
            ends[topic.topic_id or _NO_TOPIC, one.partition] = PartitionCut(
                one.leader_epoch,
                one.start,
                one.end,
                one.stable,
                one.saved,
                one.saved_high,
                one.last_epoch,
                one.version,
                one.is_tailed and one.saved < one.end,
            )
    return ends
