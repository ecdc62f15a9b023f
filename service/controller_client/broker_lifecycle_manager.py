"""The shell of `lifecycle`: keeps this process registered with the controller. Owned by the event loop.

The queue to the controller that it is given should be its own: a heartbeat must not wait behind a change that
takes its time.
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
    Tick,
    Timing,
)
from service.controller_client.forwarding import Asker
from service.controller_client.lifecycle_messages import Identity
from service.wire.api import ApiKey
from service.wire.errors import UnsupportedVersion

_LOG = logging.getLogger(__name__)

Tell = Callable[[Recover | Serve | MoveAway | Exit], None]
"""Told on the loop what the node has to do; it must not raise."""


class Membership:
    """This process's place among the brokers."""

    def __init__(
        self,
        identity: Identity,
        controllers: Asker,
        tell: Tell,
        timing: Timing = Timing(),  # noqa: B008
        on_registered: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        """`on_registered` is told the epoch of each registration, before anything is made of it."""
        self._identity = identity
        self._controllers = controllers
        self._tell = tell
        self._timing = timing
        self._on_registered = on_registered
        self._machine = Lifecycle(timing)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._warnings = RateLimitedLog(_LOG, now=self._loop.time)

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def epoch(self) -> int:
        """Of this process's registration; -1 before the first one."""
        return self._machine.epoch

    @property
    def is_fenced(self) -> bool:
        """As the controller said last."""
        return self._machine.is_fenced

    @property
    def moves_leaders(self) -> bool:
        """Return whether the controller that answered last moves leaderships away from full directories."""
        return self._machine.moves_leaders

    # -- what the node tells

    def start(self) -> None:
        """Register, and go on from there."""
        self._step(Start())

    def published(self, offset: int) -> None:
        """The node is what the metadata says up to `offset`."""
        self._step(Published(offset))

    def logs_ready(self) -> None:
        """The logs are recovered: `Recover` is done."""
        self._step(LogsReady())

    def directory_failed(self, directory_id: UUID) -> None:
        """A log directory is offline; the controller moves its leaders."""
        self._step(DirectoryFailed(directory_id))

    def controller_changed(self) -> None:
        """The connection to the controller broke, or there is another one."""
        self._step(ControllerChanged())

    def room_changed(self, directories: FullDirectories) -> None:
        """These log directories are without room; the controller moves their leaders."""
        self._step(RoomChanged(directories))

    def terminate(self) -> None:
        """The process is to end: `Exit` is told once the controller has moved the leaderships, or in time."""
        self._step(Term())

    async def close(self) -> None:
        """Say nothing more. The registration stays as it is."""
        if self._timer is not None:
            self._timer.cancel()
        self._machine.abandon()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})

    # -- the machine

    def _step(self, event: Event) -> None:
        effects = self._machine.step(event, self._now_ms())
        for effect in effects:
            self._do(effect)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._machine.next_deadline_ms
        if due_ms is not None:
            self._timer = self._loop.call_at(due_ms / 1000, self._step, Tick())

    def _now_ms(self) -> int:
        return round(self._loop.time() * 1000)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Register() | Heartbeat():
                self._asking = self._loop.create_task(self._ask(effect), name="membership")
                self._asking.add_done_callback(self._asked)
            case _:
                _LOG.info("broker %d: %s", self._identity.node_id, _words(effect))
                self._tell(effect)

    async def _ask(self, effect: Register | Heartbeat) -> None:
        node_id = self._identity.node_id
        if isinstance(effect, Register):
            what, key = "registration", ApiKey.BROKER_REGISTRATION
            message, read = lifecycle_messages.registration(self._identity), lifecycle_messages.registered
        else:
            what, key = "heartbeat", ApiKey.BROKER_HEARTBEAT
            message = lifecycle_messages.heartbeat(node_id, effect)
            read = lifecycle_messages.heartbeat_answered
        event = await self._answer(what, key, message, read)
        if isinstance(event, Registered):
            _LOG.info("broker %d is registered with epoch %d", node_id, event.epoch)
            self._on_registered(event.epoch)
        self._asking = None
        self._step(event)

    async def _answer(self, what: str, key: ApiKey, message: Any, read: Callable[[Any], Event]) -> Event:
        """Safe to be made again. A try may take longer than the interval: given up sooner by many brokers, it
        costs a controller that is slow a connection more of each, and is none the less done there.
        """
        node_id = self._identity.node_id
        try:
            answer = await self._controllers.ask(key, message, timeout_ms=self._timing.answer_timeout_ms)
        except (RequestError, UnsupportedVersion) as e:
            self._warnings.warning("broker %d: its %s failed: %s", node_id, what, e)
            return Failed(e.code if isinstance(e, RequestError) else None)
        event = read(answer)
        if isinstance(event, Failed):
            error = event.error.name if event.error is not None else "?"
            self._warnings.warning("broker %d: the controller refuses its %s: %s", node_id, what, error)
        return event

    def _asked(self, asking: asyncio.Task[None]) -> None:
        """A bug in here must not leave a broker that is silent for ever: it ends."""
        if asking.cancelled() or (error := asking.exception()) is None:
            return
        _LOG.error("membership of broker %d failed", self._identity.node_id, exc_info=error)
        self._machine.abandon()
        self._tell(Exit(f"membership failed: {error}", is_failure=True))


def _words(effect: Effect) -> str:
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
