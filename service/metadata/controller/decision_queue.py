"""Decisions of the leader, one after the other: decided, proposed and awaited.

Owned by the event loop. A decision reads the newest image, committed or not, and is applied to it before the
next one; a large decision runs in slices while later ones wait. When leadership is lost, uncommitted
decisions are dropped, and their requests get NOT_CONTROLLER.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import RequestError
from service.base.slices import Slice
from service.base.steps import Steps
from service.metadata.controller.decision import ControllerResult, QuorumLevel
from service.metadata.controller.requests import MAX_RECORDS_PER_OPERATION
from service.metadata.image import MetadataImage
from service.metadata.publisher import Overtaken, Publisher
from service.metadata.raft.requests import UpgradeKRaftVersion, VoterChangeResponse

R = TypeVar("R")
AwaitOffset = Callable[[int], Coroutine[Any, Any, None]]
Decide = Callable[[MetadataImage], "ControllerResult[R] | Steps[ControllerResult[R]]"]


class _Leadership:
    """One leadership. `image` is the newest, committed or not; None before the first decision."""

    __slots__ = ("epoch", "image", "is_lost", "waiting")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.image: MetadataImage | None = None
        self.is_lost = False
        self.waiting: dict[asyncio.Task[None], None] = {}


class DecisionQueue:
    """Serializes decisions. `on_wrote()` is called for each batch; `counts(offset)` returns once responses
    that depend on the log up to there may be sent."""

    def __init__(
        self,
        publisher: Publisher,
        clock: Clock,
        on_wrote: Callable[[], None],
        counts: AwaitOffset,
    ) -> None:
        self._publisher = publisher
        self._counts = counts
        self._clock = clock
        self._on_wrote = on_wrote
        self._turn = asyncio.Lock()
        self._lead: _Leadership | None = None

    @property
    def is_open(self) -> bool:
        """True while requests are decided here."""
        return self._lead is not None and self._lead.image is not None

    @property
    def latest(self) -> MetadataImage:
        """Newest image, committed or not."""
        lead = self._lead
        return self._publisher.image if lead is None or lead.image is None else lead.image

    def begin(self, epoch: int) -> None:
        """Begin the leadership of `epoch`; no decision is made before the `activating` one."""
        self.renounce()
        self._lead = _Leadership(epoch)

    def stop(self) -> None:
        """Decide nothing more. Proposed records may still be committed, and their requests still wait."""
        self._lead = None

    def renounce(self) -> None:
        """End the leadership: drop uncommitted decisions, and answer their requests with NOT_CONTROLLER."""
        lead, self._lead = self._lead, None
        if lead is not None:
            lead.is_lost = True
            for task in list(lead.waiting):
                task.cancel()

    async def run(
        self,
        decide: Decide[R],
        *,
        activating: bool = False,
        deadline_ms: int | None = None,
        decided: Callable[[R, int], None] | None = None,
    ) -> tuple[R, int]:
        """Decide and propose exclusively, then wait until the response may be sent.

        Returns the response, and the offset that it depends on. A response without records waits, too: it may
        depend on an uncommitted change. After `deadline_ms`, on the monotonic clock, nothing is decided.
        `decided` is called with both before the next decision.

        Raises `RequestError` NOT_CONTROLLER, REQUEST_TIMED_OUT, or as `decide` does.
        """
        async with self._turn:
            lead, piece = self._lead, Slice()
            if lead is None or (lead.image is None and not activating):
                raise not_controller()
            image, given_up = None, None
            while image is None:
                if deadline_ms is not None and self._clock.monotonic_ms() >= deadline_ms:
                    raise RequestError(
                        ErrorCode.request_timed_out, "The controller did not decide the request in time."
                    )
                before = self._publisher.image if lead.image is None else lead.image
                offset = self._publisher.next_offset
                made = decide(before)
                decision = made if isinstance(made, ControllerResult) else await piece.go_on(made)
                if decision.quorum_level is not None:
                    await self._level(decision.quorum_level)
                elif decision.frames and self._publisher.next_offset != offset:
                    continue  # the decision may contain the offset of its records
                image, given_up = await self._proposed(lead, decision, before, piece)
            last_offset = image.offset
            if decision.quorum_level is not None:  # written by the quorum, in a batch that no image covers
                last_offset = max(last_offset, self._publisher.next_offset - 1)
            if lead.image is None:
                lead.image = image
            if decided is not None and not lead.is_lost:
                decided(decision.response, last_offset)
            if given_up is not None:
                raise given_up
        await self._reached(lead, last_offset)
        return decision.response, last_offset

    async def decide(self, decide: Decide[R], deadline_ms: int | None = None) -> R:
        """Decide as `run` does; returns the response alone."""
        return (await self.run(decide, deadline_ms=deadline_ms))[0]

    async def _proposed(
        self, lead: _Leadership, decision: ControllerResult[R], image: MetadataImage, piece: Slice
    ) -> tuple[MetadataImage | None, asyncio.CancelledError | None]:
        """Propose all records, and return the resulting image; None where the log advanced before the first
        batch.

        The first batch may contain its own offset, so the decision is repeated then. Later batches do not,
        and are written even where the request is cancelled: the first may hold what is not decided again,
        such as that a broker is unfenced, and the others its consequences.
        """
        frames, at, given_up = decision.frames, 0, None
        step = len(frames) if decision.is_atomic else MAX_RECORDS_PER_OPERATION
        steps: Steps[MetadataImage] | None = None
        while at < len(frames):
            if lead.is_lost or self._publisher.epoch != lead.epoch:
                raise not_controller()
            if steps is None:
                steps = self._publisher.propose(frames[at : at + step], image)
            try:
                image, steps = await piece.go_on(steps), None
            except asyncio.CancelledError as e:
                if not at:
                    raise
                given_up = e
                continue
            except Overtaken:
                if not at:
                    return None, None
                steps = None
                continue
            at += step
            self._on_wrote()
            if self._lead is lead:  # the controller has not stopped
                lead.image = image
        return image, given_up

    async def _level(self, wanted: QuorumLevel) -> None:
        """Set the quorum's level, which is committed before the next proposal."""
        answer = await self._publisher.quorum.ask(UpgradeKRaftVersion(wanted.level, wanted.validate_only))
        if not isinstance(answer, VoterChangeResponse) or answer.error is ErrorCode.not_leader_or_follower:
            raise not_controller()
        if answer.error is not ErrorCode.none:
            raise RequestError(answer.error, answer.message)

    async def _reached(self, lead: _Leadership, offset: int) -> None:
        if lead.is_lost:
            raise not_controller()
        task = asyncio.get_running_loop().create_task(self._counts(offset))
        lead.waiting[task] = None
        try:
            await task
        except asyncio.CancelledError:
            if lead.is_lost:
                raise not_controller() from None
            raise
        finally:
            del lead.waiting[task]


def not_controller() -> RequestError:
    """Build the error for a request that needs the controller."""
    return RequestError(ErrorCode.not_controller, "This node does not lead the metadata quorum.")
