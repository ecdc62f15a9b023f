"""Shell of `broker_lifecycle`: keeps this process registered with the controller. Owned by the event loop.

It needs a queue to the controller of its own: a heartbeat must not wait behind a slow change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from service.base.errors import RequestError
from service.base.rate_limited_log import RateLimitedLog
from service.controller_client import lifecycle_messages
from service.controller_client.broker_lifecycle import (
    ControllerChanged,
    DirectoryFailed,
    Effect,
    Event,
    Exit,
    Failed,
    FullDirectories,
    Heartbeat,
    Lifecycle,
    LogsReady,
    MoveAway,
    Published,
    Recover,
    Register,
    Registered,
    RoomChanged,
    Serve,
    Start,
    State,
    Term,
    TimePassed,
    Timing,
)
from service.controller_client.forwarding import Asker
from service.controller_client.lifecycle_messages import Identity
from service.wire.api import ApiKey
from service.wire.errors import UnsupportedVersion

_LOG = logging.getLogger(__name__)

OnEffect = Callable[[Recover | Serve | MoveAway | Exit], None]
"""Receives the effects that the node carries out, on the loop. Must not raise."""


class Membership:
    """Registration of this process as a broker."""

    def __init__(
        self,
        identity: Identity,
        controllers: Asker,
        on_effect: OnEffect,
        timing: Timing = Timing(),  # noqa: B008
        on_registered: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        """`on_registered` gets the epoch of each registration before the machine does."""
        self._identity = identity
        self._controllers = controllers
        self._on_effect = on_effect
        self._timing = timing
        self._on_registered = on_registered
        self._machine = Lifecycle(timing)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._request: asyncio.Task[None] | None = None
        self._warnings = RateLimitedLog(_LOG, burst=4, interval_s=60.0, now=self._loop.time)

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def epoch(self) -> int:
        """Broker epoch of this process's registration; -1 before the first one."""
        return self._machine.epoch

    @property
    def is_fenced(self) -> bool:
        """Return whether the last heartbeat response said that this broker is fenced; True before one."""
        return self._machine.is_fenced

    @property
    def moves_leaders(self) -> bool:
        """Return whether the controller of the last response moves leaderships away from full directories."""
        return self._machine.moves_leaders

    # -- events of the node

    def start(self) -> None:
        """Begin with the registration."""
        self._step(Start())

    def published(self, offset: int) -> None:
        """Report that this node has applied the metadata up to `offset`."""
        self._step(Published(offset))

    def logs_ready(self) -> None:
        """Report that the logs are recovered: `Recover` is done."""
        self._step(LogsReady())

    def directory_failed(self, directory_id: UUID) -> None:
        """Report an offline log directory; the controller moves its leaders."""
        self._step(DirectoryFailed(directory_id))

    def controller_changed(self) -> None:
        """Report that the connection to the controller broke, or that the controller changed."""
        self._step(ControllerChanged())

    def room_changed(self, directories: FullDirectories) -> None:
        """Report all log directories without room; the controller moves their leaders."""
        self._step(RoomChanged(directories))

    def terminate(self) -> None:
        """Begin a controlled shutdown; `Exit` follows when the leaderships have moved or its time is over."""
        self._step(Term())

    async def close(self) -> None:
        """Send no more requests. The registration stays."""
        if self._timer is not None:
            self._timer.cancel()
        self._machine.abandon()
        if self._request is not None:
            self._request.cancel()
            await asyncio.wait({self._request})

    # -- the machine

    def _step(self, event: Event) -> None:
        effects = self._machine.step(event, self._now_ms())
        for effect in effects:
            self._run(effect)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._machine.next_deadline_ms
        if due_ms is not None:
            self._timer = self._loop.call_at(due_ms / 1000, self._step, TimePassed())

    def _now_ms(self) -> int:
        return round(self._loop.time() * 1000)

    def _run(self, effect: Effect) -> None:
        match effect:
            case Register() | Heartbeat():
                self._request = self._loop.create_task(self._send(effect), name="membership")
                self._request.add_done_callback(self._request_done)
            case _:
                _LOG.info("broker %d: %s", self._identity.node_id, _describe(effect))
                self._on_effect(effect)

    async def _send(self, effect: Register | Heartbeat) -> None:
        node_id = self._identity.node_id
        if isinstance(effect, Register):
            what, key = "registration", ApiKey.BROKER_REGISTRATION
            message, read = lifecycle_messages.registration(self._identity), lifecycle_messages.registered
        else:
            what, key = "heartbeat", ApiKey.BROKER_HEARTBEAT
            message = lifecycle_messages.heartbeat(node_id, effect)
            read = lifecycle_messages.heartbeat_answered
        event = await self._response_event(what, key, message, read)
        if isinstance(event, Registered):
            _LOG.info("broker %d is registered with epoch %d", node_id, event.epoch)
            self._on_registered(event.epoch)
        self._request = None
        self._step(event)

    async def _response_event(
        self, what: str, key: ApiKey, message: Any, read: Callable[[Any], Event]
    ) -> Event:
        """Send one request and return its result as an event. The request may be repeated safely.

        A try may take longer than the heartbeat interval. Abandoning it sooner would cost a slow controller
        one more connection from each broker, and it would process the request all the same.
        """
        node_id = self._identity.node_id
        try:
            answer = await self._controllers.ask(key, message, timeout_ms=self._timing.answer_timeout_ms)
        except (RequestError, UnsupportedVersion) as e:
            self._warnings.warning("broker %d: %s failed: %s", node_id, what, e)
            return Failed(e.code if isinstance(e, RequestError) else None)
        event = read(answer)
        if isinstance(event, Failed):
            error = event.error.name if event.error is not None else "?"
            self._warnings.warning("broker %d: the controller refuses the %s: %s", node_id, what, error)
        return event

    def _request_done(self, request: asyncio.Task[None]) -> None:
        """End the broker if the request's task failed by a bug: without it no heartbeat would ever follow."""
        if request.cancelled() or (error := request.exception()) is None:
            return
        node_id = self._identity.node_id
        _LOG.error("broker %d ends: a request to the controller failed", node_id, exc_info=error)
        self._machine.abandon()
        self._on_effect(Exit(f"a request to the controller failed: {error}", is_failure=True))


def _describe(effect: Effect) -> str:
    match effect:
        case Recover():
            return "has caught up with the metadata"
        case Serve():
            return "is unfenced"
        case MoveAway():
            return "begins its controlled shutdown"
        case Exit(reason):
            return f"ends: {reason}"
    return type(effect).__name__
