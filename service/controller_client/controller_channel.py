"""The controller, wherever it is: on this node or another one, found again when it moves.

One `Controllers` is one queue, in the order in which things were asked, with one request under way (Kafka's
``NodeToControllerRequestThread``); what must not wait behind slow ones, as heartbeats, has a queue and
channels of its own. Who leads is what this node's quorum says; a request waits until somebody does, and ends
with REQUEST_TIMED_OUT at its own deadline.

What is sent again: whatever the controller has certainly not taken (it was never sent, or was answered
NOT_CONTROLLER); and after a lost connection, where it may have been done, only what `Api.is_safe_again` says
may be done twice. Kafka sends everything again. Nor is that waited for where who was asked has a successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.async_channel import Reachable, was_sent
from service.client.async_connection import retrieve_exception
from service.wire.apis import APIS

_LOOKED_AT: Final = 1_000
"""Elements of an answer that are looked at for NOT_CONTROLLER: it concerns all of them or none."""


class Active(NamedTuple):
    """The quorum's leader, and where its controller listens."""

    node_id: int
    epoch: int
    endpoint: Reachable


class Leaders(Protocol):
    """Who leads the metadata quorum, as this node knows."""

    def active(self) -> Active | None:
        """None while nobody leads, or who leads is not known."""


class Calls(Protocol):
    """Requests to other nodes; `client.async_channel.Channels` is one, and says what is raised."""

    async def call(
        self,
        endpoint: Reachable,
        api_key: int,
        version: int | None,
        message: Any,
        *,
        timeout_ms: int | None = None,
    ) -> Any: ...


Here = Callable[[int, Any], Awaitable[Any]]
"""Answers (api key, canonical request) by this node's own controller; `RequestError` NOT_CONTROLLER where it
does not decide."""


class Superseded(ConnectionAbortedError):
    """There is another controller by now; this one may have done it."""


class OutcomeUnknown(RequestError):
    """It was sent, and may or may not have been done."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.request_timed_out, message)


class Controllers:
    """A queue to whoever is controller. Owned by the event loop."""

    def __init__(
        self,
        node_id: int,
        leaders: Leaders,
        calls: Calls,
        here: Here | None = None,
        *,
        retry_ms: int = 50,
        try_timeout_ms: int = 30_000,
    ) -> None:
        """`retry_ms`: after so long the same controller is asked again, and who leads is looked up.
        `try_timeout_ms` (``controller.socket.timeout.ms``): so long one try may take."""
        self._node_id = node_id
        self._leaders = leaders
        self._calls = calls
        self._here = here
        self._retry_ms = retry_ms
        self._try_timeout_ms = try_timeout_ms
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()

    def look_again(self) -> None:
        """The quorum has another leader, or one at last: whoever waits for that goes on."""
        self._news.set()

    async def ask(self, api_key: int, message: Any, *, timeout_ms: int, inner_key: int | None = None) -> Any:
        """The controller's canonical answer to the canonical `message`, in the newest version of both sides.
        `inner_key`: the API of what an Envelope holds.

        Raises `RequestError` REQUEST_TIMED_OUT without a controller in time, `OutcomeUnknown` (the same code)
        where it may have been done, and `UnsupportedVersion`.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        api = APIS[api_key if inner_key is None else inner_key]
        one = _Request(api_key, message, deadline, api.is_safe_again)
        try:
            async with asyncio.timeout_at(deadline):
                async with self._turn:
                    return await self._answered(one)
        except TimeoutError:
            if one.may_be_done and not one.is_safe_again:
                raise OutcomeUnknown(f"no controller has answered within {timeout_ms} ms") from None
            why = f"no controller has answered within {timeout_ms} ms"
            raise RequestError(ErrorCode.request_timed_out, why) from None

    async def _answered(self, one: _Request) -> Any:
        tried: Active | None = None
        while True:
            self._news.clear()
            active = self._leaders.active()
            if active is None or active == tried:
                await self._pause()
                tried = None
                continue
            tried = active
            try:
                answer = await self._try(active, one)
            except OSError as e:
                if one.may_be_done and not one.is_safe_again:
                    raise OutcomeUnknown(f"the controller's answer was lost: {e}") from e
                if was_sent(e):
                    tried = None  # The connection broke: the channel says when the next one may be made.
                continue
            if not is_not_controller(answer):
                return answer
            one.may_be_done = False

    async def _try(self, active: Active, one: _Request) -> Any:
        if active.node_id == self._node_id:
            if self._here is None:
                return _NotController()
            try:
                return await self._here(one.api_key, one.message)
            except RequestError as e:
                if e.code is not ErrorCode.not_controller:
                    raise
                return _NotController()
        left_ms = round((one.deadline - asyncio.get_running_loop().time()) * 1000)
        might, one.may_be_done = one.may_be_done, True
        call = self._calls.call(
            active.endpoint,
            one.api_key,
            None,
            one.message,
            timeout_ms=max(1, min(left_ms, self._try_timeout_ms)),
        )
        try:
            return await (self._while_it_leads(active, call) if one.is_safe_again else call)
        except OSError as e:
            one.may_be_done = might or was_sent(e)
            raise

    async def _while_it_leads(self, active: Active, call: Coroutine[Any, Any, Any]) -> Any:
        """The answer of one who may sleep or be cut off, and then would be waited for though it has a
        successor: `Superseded` as soon as that is known."""
        calling = asyncio.ensure_future(call)
        calling.add_done_callback(retrieve_exception)  # its time may be up together with that of who asked
        try:
            while not (await asyncio.wait({calling}, timeout=self._retry_ms / 1000))[0]:
                if self._leaders.active() not in (None, active):
                    raise Superseded(f"node {active.node_id} does not lead any more")
            return calling.result()
        finally:
            if not calling.done():
                calling.cancel()
                await asyncio.wait({calling})

    async def _pause(self) -> None:
        """Until there is news of who leads, and not for long."""
        try:
            async with asyncio.timeout(self._retry_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            return


class _Request:
    """What is asked, and what may have become of it."""

    __slots__ = ("api_key", "deadline", "is_safe_again", "may_be_done", "message")

    def __init__(self, api_key: int, message: Any, deadline: float, is_safe_again: bool) -> None:
        self.api_key = api_key
        self.message = message
        self.deadline = deadline
        self.is_safe_again = is_safe_again
        self.may_be_done = False


class _NotController(NamedTuple):
    """What this node answers while it leads and does not decide (yet, or any more)."""

    error_code: ErrorCode = ErrorCode.not_controller


def is_not_controller(answer: Any) -> bool:
    """Return whether `answer` says NOT_CONTROLLER, of itself or of what it is about."""
    if getattr(answer, "error_code", ErrorCode.none) == ErrorCode.not_controller:
        return True
    return any(
        getattr(one, "error_code", ErrorCode.none) == ErrorCode.not_controller
        for name in ("topics", "responses", "results")
        for one in (getattr(answer, name, None) or ())[:_LOOKED_AT]
    )
