"""Sessions of brokers and periodic tasks of an active controller.

Owned by the event loop; the asyncio shell of `broker_sessions` and `periodic`. It sets no timer: the caller
reads `next_deadline_ms` and calls `tick` then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.controller.broker_sessions import (
    BrokerAtClaim,
    BrokerControl,
    BrokerSessions,
    Effect,
    Event,
    FencingDecided,
    Probe,
    ProbeFinished,
    ProbeOutcome,
    RefusalDisproved,
    SessionExpired,
    SessionsOver,
    SessionTick,
    SessionTimes,
)
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.decision_queue import DecisionQueue
from service.metadata.controller.elections_control import (
    ElectionSettings,
    balance_leaders,
    elect_unclean_leaders,
)
from service.metadata.controller.heartbeat_control import fence_broker
from service.metadata.controller.periodic import NEVER, PeriodicTask, PeriodicTaskIntervals, PeriodicTasks
from service.metadata.controller.requests import BrokerHeartbeat
from service.metadata.frames import newest
from service.metadata.image import BrokerImage, MetadataImage
from service.metadata.records import NoOpRecord

ProbeBroker = Callable[[BrokerImage], Awaitable[tuple[ProbeOutcome, str]]]
"""Connects to the broker's inter-broker endpoint and returns the result and the address.

Never raises `OSError`, and has its own timeout.
"""

_ELECTIONS: Final = {
    PeriodicTask.BALANCE_LEADERS: balance_leaders,
    PeriodicTask.ELECT_UNCLEAN: elect_unclean_leaders,
}

_logger = logging.getLogger(__name__)


class Overseer:
    """Broker sessions and periodic tasks of one controller."""

    def __init__(
        self,
        decisions: DecisionQueue,
        clock: Clock,
        *,
        sessions: SessionTimes,
        tasks: PeriodicTaskIntervals,
        elections: ElectionSettings,
        probe: ProbeBroker | None,
        sweep_tokens: Callable[[], Awaitable[bool]],
        on_disproved: Callable[[int, int], None] = lambda broker_id, broker_epoch: None,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        """`sweep_tokens` removes delegation tokens that have ended, and returns whether there may be more.
        `on_disproved(broker_id, broker_epoch)` is called when a heartbeat comes after the address refused."""
        self._decisions = decisions
        self._clock = clock
        self._times = sessions
        self._elections = elections
        self._probe = probe
        self._sweep_tokens = sweep_tokens
        self._on_disproved = on_disproved
        self._on_news = on_news
        self._sessions = BrokerSessions(sessions)
        self._periodic = PeriodicTasks(tasks)
        self._effect_tasks: dict[asyncio.Task[None], None] = {}

    # -- claim and renounce

    def claimed(self, image: MetadataImage, node_id: int) -> None:
        """Start sessions and intervals again. `node_id` is this process's own broker."""
        now_ms = self._clock.monotonic_ms()
        self._sessions = BrokerSessions(self._times)
        for broker in image.brokers.values():
            is_local = broker.id == node_id
            self._sessions.handle(BrokerAtClaim(broker.id, broker.epoch, broker.fenced, is_local), now_ms)
        self._periodic.claimed(now_ms)

    def opened(self) -> None:
        """Announce a deadline now that requests are decided.

        Brokers that died with the last leader are then detected without waiting for the next heartbeat.
        """
        self._on_news()

    def renounced(self) -> None:
        """End the leadership: stop intervals, and cancel running tasks."""
        self._periodic.renounced()
        for task in list(self._effect_tasks):
            task.cancel()

    def wrote(self) -> None:
        """Restart the idle interval after a write to the log."""
        self._periodic.wrote(self._clock.monotonic_ms())

    # -- brokers

    def is_awaited(self, broker_id: int) -> bool:
        """See `BrokerSessions.is_awaited`."""
        return self._sessions.is_awaited(broker_id, self._clock.monotonic_ms())

    def is_alive(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether this process sent a heartbeat within the session timeout."""
        return self._sessions.is_alive(broker_id, broker_epoch, self._clock.monotonic_ms())

    def is_heard(self, broker_id: int, broker_epoch: int) -> bool:
        """See `BrokerSessions.is_heard`."""
        return self._sessions.is_heard(broker_id, broker_epoch)

    def next_state(
        self, heartbeat: BrokerHeartbeat, *, is_fenced: bool, leads: bool, registered_at: int
    ) -> tuple[BrokerControl, BrokerControl]:
        """See `BrokerSessions.next_state`."""
        return self._sessions.next_state(
            heartbeat, is_fenced=is_fenced, leads=leads, registered_at=registered_at
        )

    def note_controlled_shutdown(self, broker_id: int, broker_epoch: int, offset: int) -> None:
        """See `BrokerSessions.note_controlled_shutdown`."""
        self._sessions.note_controlled_shutdown(broker_id, broker_epoch, offset)

    def record(self, event: Event) -> None:
        """Handle an event that has no effects."""
        self._sessions.handle(event, self._clock.monotonic_ms())
        self._on_news()

    def handle(self, event: Event) -> None:
        """Handle `event`, and run its effects in background tasks."""
        for effect in self._sessions.handle(event, self._clock.monotonic_ms()):
            task = asyncio.get_running_loop().create_task(
                self._run_effect(effect), name="controller-sessions"
            )
            self._effect_tasks[task] = None
            task.add_done_callback(self._effect_done)
        self._on_news()

    async def _run_effect(self, effect: Effect) -> None:
        match effect:
            case Probe():
                await self._probe_broker(effect)
            case SessionExpired():
                await self._expire(effect)
            case SessionsOver():
                await self._elect_unclean()
            case RefusalDisproved(broker_id, broker_epoch):
                self._on_disproved(broker_id, broker_epoch)

    def _effect_done(self, task: asyncio.Task[None]) -> None:
        del self._effect_tasks[task]
        note_failure(task)

    async def _probe_broker(self, effect: Probe) -> None:
        broker = self._decisions.latest.brokers.get(effect.broker_id)
        outcome, address = ProbeOutcome.UNKNOWN, ""
        if self._probe is not None and broker is not None and broker.epoch == effect.broker_epoch:
            outcome, address = await self._probe(broker)
        self.handle(ProbeFinished(effect.broker_id, effect.broker_epoch, outcome, address))

    async def _expire(self, effect: SessionExpired) -> None:
        """Fence a broker whose session expired, unless it sent a heartbeat while this waited for its turn."""
        broker_id, epoch = effect.broker_id, effect.broker_epoch
        fences = False

        def decide(image: MetadataImage) -> ControllerResult[None] | Steps[ControllerResult[None]]:
            nonlocal fences
            broker = image.brokers.get(broker_id)
            is_over = broker is None or broker.epoch != epoch or broker.fenced
            fences = not (is_over or self.is_alive(broker_id, epoch))
            if not fences:
                return ControllerResult((), None)
            return fence_broker(
                image, broker_id, epoch, is_heard=self._sessions.is_heard, settings=self._elections
            )

        def decided(_: None, offset: int) -> None:
            if fences:
                _logger.warning("broker %d of epoch %d is fenced: %s", broker_id, epoch, _why(effect))
                self.record(FencingDecided(broker_id, epoch, False))

        await self._decisions.run(decide, decided=decided)

    async def _elect_unclean(self) -> None:
        """Elect leaders where an election waited for a broker's session."""
        has_more = True
        while has_more:
            has_more, _ = await self._decisions.run(
                lambda image: elect_unclean_leaders(image, self._elections)
            )

    # -- time

    @property
    def next_deadline_ms(self) -> int:
        """Time of the next `tick`; `NEVER` where none is needed."""
        if not self._decisions.is_open:
            return NEVER
        return min(self._sessions.next_deadline_ms, self._periodic.next_deadline_ms)

    async def tick(self) -> None:
        """Run due tasks one after the other, until leadership is lost."""
        if not self._decisions.is_open:
            return
        self.handle(SessionTick())
        for task in self._periodic.due(self._clock.monotonic_ms()):
            try:
                await self._run_task(task)
            except RequestError as e:
                if e.code is ErrorCode.not_controller:
                    return
                raise

    async def _run_task(self, task: PeriodicTask) -> None:
        if task is PeriodicTask.STAY_AWAKE:
            await self._decisions.run(lambda _: ControllerResult((newest(NoOpRecord()),), None))
            return
        if task is PeriodicTask.EXPIRE_TOKENS:
            has_more = bool(self._decisions.latest.tokens) and await self._sweep_tokens()
        else:
            elect = _ELECTIONS[task]
            has_more, _ = await self._decisions.run(lambda image: elect(image, self._elections))
        if has_more:
            self._periodic.make_due(task, self._clock.monotonic_ms())


def _why(expired: SessionExpired) -> str:
    if expired.refusing:
        return (
            f"{expired.refusing} refuses connections, was open before, and no heartbeat has come for "
            f"{expired.silent_ms} ms; no unclean election replaces it before its session ends"
        )
    return f"no heartbeat has come for {expired.silent_ms} ms, its session is over"


def note_failure(task: asyncio.Task[None]) -> None:
    """Log the failure of a task that no caller may await. The publisher itself reports a failed log."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _logger.info("%s: %s", task.get_name(), error)
